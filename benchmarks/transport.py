"""One exchange of a server with its clients over loopback: each is sent so many bytes, and answers.

All parties are tasks of one event loop, so that the figure is of one core. For what carries frames
alone: nothing is sealed, signed or parsed.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from securefl.network.connect import Address, connected, listening
from securefl.network.frames import Frame, Link
from securefl_keys.rehearsal import make_consortium
from securefl_keys.sound_bundle import SoundBundle, process_identity

SIZES = (1_000, 100_000, 1_000_000, 100_000_000)
"""Bytes each way."""
SERVER = "hub"


async def exchanges(
    folder: Path, names: Sequence[str], sizes: Sequence[int], passphrase: str
) -> dict[int, float]:
    """Return the milliseconds of an exchange, the median, by its size."""
    bundles = {
        role: SoundBundle.load(folder / "bundles" / role, role) for role in ("client", "server")
    }
    ca, links = bundles["server"].ca, list[Link]()

    async def hold(link: Link) -> None:
        links.append(link)
        await link.ended()

    hub = process_identity(folder / SERVER, passphrase, ca, "server")
    door = await listening(
        hub, lambda _: "a client", Address("127.0.0.1", 0), hold, print, len(names)
    )
    at, own = Address.parse(door.at), []
    for name in names:
        identity = process_identity(folder / name, passphrase, ca, "client")
        own.append(await connected(identity, bundles["client"], "server", at, 10))
    while len(links) < len(own):
        await asyncio.sleep(0.01)
    found = {size: await _median_ms(links, own, size) for size in sizes}
    for link in own:
        link.close()
    await door.stop()
    return found


async def _median_ms(links: Sequence[Link], own: Sequence[Link], size: int) -> float:
    body, repeats = bytes(size), 3 if size > 10**7 else 50

    async def answer(link: Link) -> None:
        for _ in range(repeats):
            await link.receive({Frame.ROUND: size})
            await link.send(Frame.MESSAGE, body)

    async def ask(link: Link) -> None:
        await link.send(Frame.ROUND, body)
        await link.receive({Frame.MESSAGE: size})

    answering = asyncio.gather(*map(answer, own))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        await asyncio.gather(*map(ask, links))
        times.append(1000 * (time.perf_counter() - start))
    await answering
    return median(times)


def main(arguments: Sequence[str] | None = None) -> dict[int, float]:
    """Measure, and print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args(arguments)
    names = [f"client-{i}" for i in range(1, options.clients + 1)]
    passphrase = secrets.token_urlsafe(16)
    with tempfile.TemporaryDirectory() as folder:
        make_consortium(Path(folder), names, SERVER, passphrase, name="Loopback")
        found = asyncio.run(exchanges(Path(folder), names, options.sizes, passphrase))
    for size, ms in found.items():
        print(f"{size:>11,} bytes: {ms:,.1f} ms")
    return found


if __name__ == "__main__":
    main()
