"""One exchange of a server with its clients over loopback: each is sent so many bytes, and answers.

All parties are tasks of one event loop, so that the figure is of one core. For what carries frames
alone: nothing is sealed, signed or parsed; beside it, one exchange in which all of that happens.
`--sites` and `--model-bytes` measure whole federations of processes of the command line instead:
seconds per round, and memory.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import random
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure
from roles import AUTHORITY, OF_TABLES, SERVER, Job, ceremony
from sealed_exchange import SealedExchange, authority_of

from securefl.network.connect import Address, connected, listening
from securefl.network.frames import Frame, Link
from securefl.network.identity import ProcessIdentity
from securefl.network.trust import Role
from securefl.report.plots import COLOURS, bare, png
from securefl.runs.round_metrics import read_metrics
from securefl_cli.demo_sites import make_consortium
from securefl_keys.bundle import VerifiedBundle, process_identity

SIZES = (1_000, 100_000, 1_000_000, 100_000_000)
"""Bytes each way."""
SEALED_VALUES = 12_500
"""Number of each client's values in a sealed exchange: 100 kB of doubles."""
WIDEST = 4096
"""Hidden units that an MLP may have."""
JOB = (
    OF_TABLES
    + """
[algorithm]
name = "fedavg"
local_steps = 1
[exchange]
encrypt = "none"
"""
)
WARM = 3
"""Rounds after which all parties have imported what they need."""


@dataclass(frozen=True, slots=True)
class Federation:
    """Costs of a federation of processes."""

    n_sites: int
    model_bytes: int
    round_s: float
    """Median of the rounds after the first `WARM`."""
    server_mib: float
    """Most memory that it has had at once (VmHWM)."""
    site_mib: float
    """Most memory of one site, the median."""
    sum_mib: float
    """Proportional set sizes of server and sites at the end, where each shared page counts once."""


def federation(n_sites: int, width: int, n_columns: int, rounds: int) -> Federation:
    """Run a federation of so many sites, each with a table of its own."""
    names = [f"site-{i}" for i in range(1, n_sites + 1)]
    columns = [f"x{i}" for i in range(n_columns)]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        ceremony(folder, names)
        for name in names:
            _write_table(folder / name, columns)
        settings = JOB.format(
            rounds=100_000,  # memory is read while all are there
            names=json.dumps(names),
            columns=json.dumps(columns),
            model=f"width = {width}",
        )
        waits = {"server": ("--joining", "600", "--timeout", "600"), "client": ("--wait", "600")}
        job = Job(folder, "job", settings, names, sealed=False, own_data=True, options=waits)
        try:
            for party in job.parties.values():
                party.start()
            while len(done := job.rounds_done()) < rounds:
                if not job.parties[SERVER].is_alive():
                    raise RuntimeError(job.parties[SERVER].said())
                time.sleep(0.02)
            ids = [p.process.pid for p in job.parties.values() if p.process]
            sum_mib = sum(_mib(pid, "smaps_rollup", "Pss") for pid in ids)
            most = {
                name: _mib(p.process.pid, "status", "VmHWM")
                for name, p in job.parties.items()
                if p.process
            }
            metrics = read_metrics(job.run_folder)[WARM : len(done)]
        finally:
            job.stop()
    n_weights = width * (n_columns + 1 + 4) + 2 * (width + 1) + 2 * n_columns  # of BN four, and two
    sites = [value for name, value in most.items() if name != SERVER]
    round_s = median(m.seconds for m in metrics)
    return Federation(n_sites, 4 * n_weights, round_s, most[SERVER], median(sites), sum_mib)


def _write_table(folder: Path, columns: Sequence[str]) -> None:
    with (folder / "patients.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*columns, "ill"])
        for i in range(50):
            rows.writerow([*(f"{random.gauss(0, 1):.4f}" for _ in columns), ("no", "yes")[i % 2]])
    (folder / "site.toml").write_text('train = "patients.csv"\ntest = 0.2\n')


def _mib(process: int, file: str, what: str) -> float:
    """Return a figure of the kernel's about a process's memory."""
    lines = Path(f"/proc/{process}/{file}").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{what}:"))
    return int(line.split()[1]) / 1024


@dataclass(frozen=True, slots=True)
class Loopback:
    """Connections of a consortium's parties with its server, in one event loop."""

    bundles: Mapping[Role, VerifiedBundle]
    clients: Sequence[tuple[ProcessIdentity, Link]]
    """Clients, each with its end."""
    links: Sequence[Link]
    """Ends of the server of those."""
    authority: Link
    to_authority: Link
    """End of the server of that."""


@asynccontextmanager
async def loopback(folder: Path, names: Sequence[str], passphrase: str) -> AsyncIterator[Loopback]:
    """Connect all parties of a folder with the server."""
    roles: tuple[Role, ...] = ("client", "server")
    bundles = {role: VerifiedBundle.load(folder / "bundles" / role, role) for role in roles}
    ca, links, ends = bundles["server"].ca, list[Link](), list[Link]()

    async def hold(link: Link) -> None:
        links.append(link)
        await link.ended()

    hub = process_identity(folder / SERVER, passphrase, ca, "server")
    anywhere = Address("127.0.0.1", 0)
    door = await listening(hub, lambda _: "a peer", anywhere, hold, print, len(names) + 1)
    at = Address.parse(door.at)
    own = [process_identity(folder / name, passphrase, ca, "client") for name in names]
    authority = process_identity(folder / "keys" / AUTHORITY, passphrase, ca, "authority")
    for identity in (*own, authority):
        ends.append(await connected(identity, bundles["client"], "server", at, 10))
        while len(links) < len(ends):
            await asyncio.sleep(0.01)
    *of_clients, last = ends
    yield Loopback(bundles, list(zip(own, of_clients, strict=True)), links[:-1], last, links[-1])
    for link in ends:
        link.close()
    await door.stop()


async def exchanges(
    folder: Path, names: Sequence[str], sizes: Sequence[int], passphrase: str
) -> dict[int, float]:
    """Return the milliseconds of an exchange, the median, by its size."""
    async with loopback(folder, names, passphrase) as here:
        own = [link for _, link in here.clients]
        return {size: await _median_ms(here.links, own, size) for size in sizes}


async def sealed_parts(folder: Path, names: Sequence[str], passphrase: str) -> dict[str, float]:
    """Return the milliseconds of a sealed exchange and of its parts, medians."""
    authority, digest = authority_of(folder, passphrase, names)
    async with loopback(folder, names, passphrase) as here:
        answering = asyncio.ensure_future(authority.answer(here.authority))
        about = here.bundles, here.clients, here.links, here.to_authority, digest
        parts = await SealedExchange(*about, SEALED_VALUES).median_ms()
        answering.cancel()
        return parts


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


def _federations(
    sites: Sequence[int], sizes: Sequence[int], clients: int, plot: Path | None
) -> None:
    """Print a line for each number of sites, which are plotted, and for each size of a model."""
    found = list[Federation]()
    for n_sites in sites:
        found.append(federation(n_sites, 30, 100, rounds=30))
        print(_line(found[-1]), flush=True)
    if plot:
        plot.write_bytes(_curves(found))
    for size in sizes:
        print(_line(federation(clients, WIDEST, size // (4 * WIDEST), rounds=6)), flush=True)


def _curves(found: Sequence[Federation]) -> bytes:
    """Draw seconds a round and memory over the number of sites, as a PNG."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    seconds, memory = figure.subplots(1, 2)
    n_sites = [of.n_sites for of in found]
    seconds.plot(n_sites, [of.round_s for of in found], "o-", color=COLOURS[0])
    seconds.set(xlabel="sites", ylabel="seconds per round")
    for i, (name, values) in enumerate(
        {
            "all": [of.sum_mib for of in found],
            "server": [of.server_mib for of in found],
            "a site": [of.site_mib for of in found],
        }.items()
    ):
        memory.plot(n_sites, values, "o-", color=COLOURS[i], label=name)
    memory.set(xlabel="sites", ylabel="MiB")
    memory.legend(frameon=False)
    for axes in (seconds, memory):
        bare(axes)
    return png(figure)


def _line(of: Federation) -> str:
    return (
        f"| {of.n_sites} | {of.model_bytes:,} | {of.round_s:.3f} | {of.server_mib:.0f} "
        f"| {of.site_mib:.0f} | {of.sum_mib:.0f} |"
    )


def main(arguments: Sequence[str] | None = None) -> dict[int, float]:
    """Measure, and print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--sites", type=int, nargs="+", help="Federations of so many processes.")
    parser.add_argument("--plot", type=Path, help="PNG of what --sites finds.")
    parser.add_argument("--model-bytes", type=int, nargs="+", help="Federations of such models.")
    options = parser.parse_args(arguments)
    if options.sites or options.model_bytes:
        of = options.sites or [], options.model_bytes or [], options.clients, options.plot
        _federations(*of)
        return {}
    names = [f"client-{i}" for i in range(1, options.clients + 1)]
    passphrase = secrets.token_urlsafe(16)
    with tempfile.TemporaryDirectory() as folder:
        make_consortium(Path(folder), names, SERVER, passphrase, name="Loopback")
        found = asyncio.run(exchanges(Path(folder), names, options.sizes, passphrase))
        for size, ms in found.items():
            print(f"{size:>11,} bytes: {ms:,.1f} ms")
        parts = asyncio.run(sealed_parts(Path(folder), names, passphrase))
    for part, ms in parts.items():
        print(f"{8 * SEALED_VALUES:>11,} bytes sealed, {part}: {ms:,.1f} ms")
    return found


if __name__ == "__main__":
    main()
