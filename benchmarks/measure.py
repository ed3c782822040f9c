"""Common parts of the benchmarks: one sum over clients, timed role by role; the machine; tables."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from securefl.exchange.sums import RunningSum

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")
Matrix = NDArray[np.float64]
Values = Matrix


class Server(Protocol):
    """Server's side of one sum."""

    def add(self, message: Sequence[bytes], weight: float) -> None:
        """Deserialise one client's message and add it."""

    def total(self) -> Any:
        """Return the sum, serialised."""


class Way(Protocol):
    """One way of summing over clients."""

    def seal(self, client: int, values: Values, weight: float) -> list[bytes]:
        """Return what a client sends."""

    def start(self) -> Server:
        """Return an empty sum."""

    def open(self, total: Any) -> Values:
        """Return Σ p_i x_i, as the authority releases it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one sum to each role."""

    client_bytes: int
    """Median over the clients."""
    server_bytes: int
    """Bytes of all clients' messages."""
    client_s: float
    """Encrypt and serialise; median over the clients."""
    server_s: float
    """Deserialise, weigh where the server does so, add, and serialise the sum."""
    authority_s: float
    max_error: float
    """Largest error against numpy's weighted mean in double precision."""


@dataclass(slots=True)
class SumServer:
    """Sum whose payload has the weight inside already."""

    running: RunningSum

    def add(self, message: Sequence[bytes], weight: float) -> None:
        """Add the one payload."""
        del weight
        self.running = self.running.plus(message[0])

    def total(self) -> bytes:
        """Return the running sum's bytes."""
        return self.running.total()


def one_sum(way: Way, values_KV: Matrix, weight_K: Values) -> Cost:
    """Measure all clients once, each sealing afresh and then added; no message is kept."""
    server = way.start()
    sizes, sealing, adding = [], [], []
    for client, (values, weight) in enumerate(zip(values_KV, weight_K.tolist(), strict=True)):
        message, seconds = timed(way.seal, client, values, weight)
        sizes.append(sum(map(len, message)))
        sealing.append(seconds)
        adding.append(timed(server.add, message, weight)[1])
    total, closing = timed(server.total)
    opened, opening = timed(way.open, total)
    exact = weight_K @ values_KV / weight_K.sum()
    return Cost(
        client_bytes=int(median(sizes)),
        server_bytes=sum(sizes),
        client_s=median(sealing),
        server_s=sum(adding) + closing,
        authority_s=opening,
        max_error=float(np.abs(opened - exact).max()),
    )


def cpu_sum(way: Way, values_KV: Matrix, weight_K: Values) -> Cost:
    """Measure by the processor's time, one role after the other, as each has its own machine."""
    messages, sealing = [], []
    for client, (values, weight) in enumerate(zip(values_KV, weight_K.tolist(), strict=True)):
        message, seconds = clocked(time.process_time, way.seal, client, values, weight)
        messages.append(message)
        sealing.append(seconds)
    total, adding = clocked(time.process_time, _added, way, messages, weight_K)
    opened, opening = clocked(time.process_time, way.open, total)
    sizes = [sum(map(len, message)) for message in messages]
    exact = weight_K @ values_KV / weight_K.sum()
    return Cost(
        client_bytes=int(median(sizes)),
        server_bytes=sum(sizes),
        client_s=median(sealing),
        server_s=adding,
        authority_s=opening,
        max_error=float(np.abs(opened - exact).max()),
    )


def _added(way: Way, messages: Sequence[Sequence[bytes]], weight_K: Values) -> Any:
    server = way.start()
    for message, weight in zip(messages, weight_K.tolist(), strict=True):
        server.add(message, weight)
    return server.total()


def typical(costs: Sequence[Cost]) -> Cost:
    """Return the median of each cost, and the largest of the errors."""
    return Cost(
        client_bytes=int(median(c.client_bytes for c in costs)),
        server_bytes=int(median(c.server_bytes for c in costs)),
        client_s=median(c.client_s for c in costs),
        server_s=median(c.server_s for c in costs),
        authority_s=median(c.authority_s for c in costs),
        max_error=max(c.max_error for c in costs),
    )


def timed(
    work: Callable[Arguments, Answer], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> tuple[Answer, float]:
    """Return the answer, and the seconds that it took."""
    return clocked(time.perf_counter, work, *args, **kwargs)


def clocked(
    clock: Callable[[], float],
    work: Callable[Arguments, Answer],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> tuple[Answer, float]:
    """Return the answer, and the seconds that it took by another clock."""
    started = clock()
    answer = work(*args, **kwargs)
    return answer, clock() - started


def sample_weights(n_clients: int, rng: np.random.Generator) -> Values:
    """Draw weights as a run makes them: sizes of 100 to 999 samples over a power of two."""
    sizes = rng.integers(100, 1000, n_clients)
    return np.asarray(sizes / (1 << int(sizes.sum() - 1).bit_length()))


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine that the figures come from."""

    processor: str
    cores: int
    system: str
    versions: str

    @classmethod
    def here(cls) -> Machine:
        """Describe this machine, and the packages that the figures depend on."""
        packages = [f"{name} {version(name)}" for name in ("torch", "tenseal", "numpy")]
        return cls(
            processor=_processor(),
            cores=os.cpu_count() or 1,
            system=f"{platform.system()} {platform.machine()}",
            versions=", ".join([f"Python {platform.python_version()}", *packages]),
        )

    def __str__(self) -> str:
        return f"{self.processor}, {self.cores} cores, {self.system}; {self.versions}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is text, the others are figures."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def write_json(path: Path, results: Sequence[Any]) -> None:
    """Write the results, dataclasses all, with the machine that they were measured on."""
    content = {"machine": asdict(Machine.here()), "results": [asdict(r) for r in results]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def bytes_text(n_bytes: float) -> str:
    """Return bytes in the decimal unit that suits."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n_bytes >= limit:
            return f"{n_bytes / limit:.3g} {unit}"
    return f"{n_bytes:.0f} B"


def ms_text(seconds: float) -> str:
    """Return milliseconds, three digits."""
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def medians(*readings_s: Sequence[float]) -> list[str]:
    """Return the medians of each way, for a row of a table."""
    return [ms_text(median(one)) for one in readings_s]


def ratio_text(one: float, other: float) -> str:
    """Return how many times smaller `other` is, or larger."""
    ratio = one / other
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"
