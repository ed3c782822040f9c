"""Figures of a complete run's folder, from which quantities are made."""

import statistics
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from securefl.errors import RunFolderError
from securefl.evaluation.evaluate import evaluate, load_trained
from securefl.federation.ledger import AUTHORITY, MEBIBYTE, SERVER, Entry, Ledger
from securefl.report.census import hours, selected_share, times_selected, watt_hours
from securefl.runs.folder_files import METRICS, QUALITIES
from securefl.runs.folder_reader import RunRecord, read_run
from securefl.runs.round_metrics import RoundMetrics, read_metrics

MODEL = ("model/", "update/")
"""Beginnings of names of messages that carry the model: its broadcast, and clients' updates."""


@dataclass(frozen=True)
class RunFigures:
    """Figures of one run, each read when it is first asked for."""

    folder: Path

    @cached_property
    def metrics(self) -> list[RoundMetrics]:
        """Metrics of each round."""
        return list(read_metrics(self.folder))

    @cached_property
    def record(self) -> RunRecord:
        """Everything in the folder."""
        return read_run(self.folder)

    @property
    def _ledger(self) -> tuple[Entry, ...]:
        if reason := self.record.unlisted:
            raise RunFolderError(f"{self.folder}: what was sent is {reason}; make the run anew")
        return self.record.ledger

    @property
    def scores(self) -> list[float]:
        """Test accuracy of each round in %; of a regression R², times 100."""
        return [100 * m.score for m in self.metrics]

    def client_accuracy(self, client: str) -> float:
        """Return the last round's accuracy on a client's own test data, 0..1.

        Raises:
            RunFolderError: no such client, or none has test data of its own.
        """
        clients = self.metrics[-1].clients
        if client not in clients:
            known = ", ".join(clients) or "none, as all share one test set"
            raise RunFolderError(
                f'{self.folder}: measure.client = "{client}" is not scored by itself; those that '
                f"are: {known}"
            )
        return clients[client].score

    @property
    def hours(self) -> list[float]:
        """Hours on simulated devices at the end of each round."""
        return self._known(hours(self.metrics))

    @property
    def watt_hours(self) -> list[float]:
        """Energy that all devices had spent at the end of each round, in Wh."""
        return self._known(watt_hours(self.metrics))

    def _known(self, sums: list[float] | None) -> list[float]:
        """Return the sums; without any the folder is at fault: the recipe simulates devices."""
        if sums is None:
            raise RunFolderError(
                f"{self.folder / METRICS}: damaged (a round has no simulated time or energy)"
            )
        return sums

    def selected_share(self, qualities: Collection[str | None]) -> float:
        """Return the share of all selections that clients of these qualities had.

        Raises:
            RunFolderError: nobody was selected, or a client of unknown quality was.
        """
        record = self.record
        unknown = sorted(times_selected(record).keys() - record.qualities.keys())
        if unknown or not record.participants:
            nothing = f"{QUALITIES} says nothing of {', '.join(unknown)}"
            raise RunFolderError(
                f"{self.folder}: {nothing if unknown else 'no selections'}: a measure of their "
                "share needs settings that select, and clients of known quality"
            )
        return selected_share(record, qualities)

    def external_accuracy(self, *, adapt_bn: float | None, batch_size: int) -> float:
        """Return the final global model's mean accuracy on clients that never trained."""
        trained = load_trained(self.folder)
        scores = [
            evaluate(
                trained.model,
                data,
                adapt_bn=adapt_bn,
                batch_size=batch_size,
                loss=trained.task.loss,
            )
            for data in trained.task.external.values()
        ]
        return statistics.mean(score.value for score in scores)

    @cached_property
    def rounds(self) -> list[list[Entry]]:
        """Messages of each round."""
        rounds: dict[int, list[Entry]] = {}
        for entry in self._ledger:
            rounds.setdefault(entry.round, []).append(entry)
        return list(rounds.values())

    @property
    def exchanges(self) -> int:
        """Communication rounds of the whole run: 3L + 1 for each round of FedTAN."""
        return sum(Ledger(r).communication_rounds(r[0].round) for r in self.rounds)

    @property
    def megabytes(self) -> float:
        """Traffic of the whole run as FedTAN's Table 3 counts it, in MiB."""
        return _megabytes(self.rounds)

    @property
    def model_megabytes(self) -> float:
        """Part of the traffic that carries the model, in MiB."""
        return _megabytes([e for e in r if e.name.startswith(MODEL)] for r in self.rounds)

    @property
    def sealed_megabytes(self) -> list[float]:
        """Ciphertext that clients had sent at the end of each round, in MiB.

        Whole messages count, with headers and signatures. Sums on their way to the authority do
        not: they are the server's messages.
        """
        sent: Counter[int] = Counter()
        for entry in self._ledger:
            by_client = entry.receiver == SERVER and entry.sender != AUTHORITY
            if by_client and entry.form == "ciphertext":
                sent[entry.round] += entry.bytes
        return list(accumulate(sent[m.round] / MEBIBYTE for m in self.metrics))


def _megabytes(rounds: Iterable[list[Entry]]) -> float:
    return sum(Ledger(entries).paper_megabytes(entries[0].round) for entries in rounds)
