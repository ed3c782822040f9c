"""Rounds of a run, as metrics.jsonl has them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from securefl.errors import RunFolderError
from securefl.federation.ledger import as_written, utc_now
from securefl.io.files import read_lines
from securefl.io.records import record_in
from securefl.metrics.by_name import ACCURACY, is_better
from securefl.metrics.metric import PooledBy, PooledScore
from securefl.runs.folder_files import METRICS, length_of, read_soundly


@dataclass(frozen=True, slots=True)
class ClientScore:
    """One client's score in a round."""

    score: float
    """Value of the round's metric."""
    loss: float


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """One line of metrics.jsonl."""

    round: int
    accuracy: float | None
    """The score, 0..1, where the metric is an accuracy; None where it is another."""
    loss: float
    lr: float
    upload_bytes: int
    """Bytes that all clients sent in this round."""
    dropped: tuple[str, ...]
    """Clients of which a message was refused in this round; one that did not score the model is
    none of them."""
    seconds: float
    simulated_s: float | None = None
    """Duration of the round on simulated devices; None without."""
    energy_wh: float | None = None
    """Energy that the selected clients' devices spent in the round."""
    epsilon: float | None = None
    """Upper bound of the privacy loss so far, by PLD; None where nothing bounds it."""
    metric: str = ACCURACY
    """Name of the score's metric."""
    score: float = math.nan
    """Score on the test data; the accuracy where a folder has no other, as older ones."""
    clients: Mapping[str, ClientScore] = field(default_factory=dict)
    """Scores by client, where each has a model or test data of its own; `score` is their mean."""
    pooled: PooledScore | None = None
    """Score over all clients' samples, where each has a model or test data of its own."""
    at: str = field(default_factory=utc_now, compare=False, repr=False)
    """Time of the round's end, UTC; empty in older folders."""
    run: str = field(default="", compare=False, repr=False)
    """Id of the session in which it was written; empty before that."""
    phases: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)
    """Seconds by phase; what is left to `seconds` is writing."""
    n_clients: int | None = None
    """Number of clients whose contributions counted; None in older folders."""

    @property
    def values(self) -> dict[str, float]:
        """Score of each client, where each is scored by itself; NaN for one that has none."""
        return {name: of.score for name, of in self.clients.items()}

    @property
    def compared(self) -> float:
        """Value by which rounds are compared: over all clients' samples where there is one."""
        return self.pooled.value if self.pooled and self.pooling else self.score

    @property
    def pooling(self) -> PooledBy | None:
        """Way in which `compared` is over all clients' samples; None where it is not."""
        known = self.pooled and not math.isnan(self.pooled.value)
        return self.pooled.pooling if self.pooled and known else None

    def __post_init__(self) -> None:
        if math.isnan(self.score) and self.accuracy is not None:
            object.__setattr__(self, "score", self.accuracy)


def best_of(metrics: Sequence[RoundMetrics]) -> RoundMetrics | None:
    """Return the first round of the best score; None where no round has one.

    It is chosen by the samples that score it, so on others it is likely to be worse.
    """
    best: RoundMetrics | None = None
    for of in metrics:
        than = -math.inf if best is None else best.compared
        first = best is None and not math.isnan(of.compared)
        if first or is_better(of.metric, of.compared, than):
            best = of
    return best


def read_metrics(path: Path) -> tuple[RoundMetrics, ...]:
    """Return a run's rounds, without its long ledger; RunFolderError where they are damaged."""
    if not length_of(path / METRICS):
        return ()
    with read_soundly(path / METRICS):
        return tuple(round_in(line) for line in read_lines(path / METRICS))


def round_in(line: bytes) -> RoundMetrics:
    """Return the round that a line of the file holds; RunFolderError where it holds none."""
    return as_written(record_in(line, RoundMetrics, RunFolderError), line)
