"""Evidence in a run's folder of anything that left its sender as it should not have.

What should be there follows from the settings: which messages a round has, which of them are
sealed, and how long each is. What is missing, too much, of another form or of another length is a
leak until somebody explains it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

from pydantic import TypeAdapter

from securefl.audit.exposure.leaks import Leak
from securefl.audit.exposure.openings import OpeningsLog, wrongly_carded, wrongly_opened
from securefl.audit.exposure.planned import Absences, Lengths, unplanned
from securefl.audit.exposure.two_logs import Difference, differences
from securefl.audit.findings import is_of_report
from securefl.build.exchange import is_blind, quorum_of, sealed_kinds
from securefl.errors import ConfigError, RunFolderError
from securefl.federation.incidents import SPOILED, Incident
from securefl.federation.ledger import AUTHORITY, SERVER, Entry, Ledger
from securefl.federation.opening import Opening
from securefl.io.files import read_lines
from securefl.io.json import parsed
from securefl.report.finish import PICTURES
from securefl.runs.folder_files import (
    ENVIRONMENT,
    FILES,
    INCIDENTS,
    LEDGER,
    METRICS,
    OFFICERS_OPENINGS,
    OPENINGS,
    SELECTIONS,
    read_soundly,
)
from securefl.runs.folder_reader import RunRecord, read_rows, untold
from securefl.runs.round_metrics import RoundMetrics
from securefl.runs.session import PROCESSES, read_environment
from securefl.selection.round_participants import RoundParticipants
from securefl.settings.tables import Config
from securefl.types import Floats

__all__ = ["FolderEvidence", "Leak", "leaks_in"]

_ROWS = {
    METRICS: RoundMetrics,
    LEDGER: Entry,
    OPENINGS: Opening,
    **dict.fromkeys(OFFICERS_OPENINGS, Opening),
    INCIDENTS: Incident,
    SELECTIONS: RoundParticipants,
}
_ROW = TypeAdapter(dict[str, Any])
_PARTIAL = re.compile(r"\..+\.[0-9a-f]{16}\.partial")
"""Name of a file that a killed process leaves half written."""
_RULE = re.compile(
    r"(within ±?|outside |from |to |above |least |most |\.\.)[-+]?[\d.]+(e[-+]?\d+)?"
)
_MEASURED = re.compile(
    r"(?<![\w.])[-+]?(\d*\.\d{3,}(e[-+]?\d+)?|\d+(\.\d+)?e[-+]?\d+)(?!\w)|= ?-?\d"
)
"""Number in a sentence that is no rule's, and longer than a round's or a size's."""


@final
@dataclass(frozen=True, slots=True)
class FolderEvidence:
    """Evidence of a run's messages in its folder."""

    run: RunRecord
    openings: Sequence[Opening] = ()
    incidents: Sequence[Incident] = ()
    files: Collection[str] = frozenset()
    sessions: int = 1
    """Number of times that the run was begun, or gone on with."""
    officers: Sequence[Opening] = ()
    """Logs of officers that are processes of their own, one after the other."""
    in_one_process: bool = False
    """True where the authority was there too, and left its log in this folder."""
    odd_rows: Sequence[tuple[str, str]] = ()
    """Files and what stands in a row of theirs that no run writes."""
    own: Sequence[Opening] | None = None
    """Rows of the authority's own log, or of an officer's; None where none was given."""
    differences: Sequence[Difference] = ()
    """Openings of which the folder and that log do not say the same."""

    @property
    def all_openings(self) -> Sequence[Opening]:
        """Rows of the authority's own log, and those that the folder has beside them.

        Of an opening of which both logs have a row, its own counts. Without it, and with officers,
        they are the folder's: an officer's answers are to requests of which the authority has rows.
        """
        if self.officers or self.own is None:
            return self.openings
        return [*self.own, *(of.row for of in self.differences if not of.in_own)]

    @classmethod
    def of(cls, run: RunRecord, log: Path | None = None) -> "FolderEvidence":
        """Read the evidence of a run.

        Args:
            run: the run.
            log: the authority's own log, or one officer's, of which the rows of the run's sessions
                and those at its models count; None where it is not at hand. It is believed where
                the folder has none. Of officers the folder has copies: it is held against the
                nearest, since not each officer answers all.

        Raises:
            RunFolderError: a file is damaged, or there is no log where `log` says.
            ConfigError: `log` is the folder's own.
        """
        path = run.path
        sessions = read_environment(path / ENVIRONMENT).sessions
        openings = read_rows(path / OPENINGS, Opening)
        own = None if log is None else _own_log(log, path, sessions, openings)
        if not (path / OPENINGS).exists():
            openings = own or []
        officers = [read_rows(path / name, Opening) for name in OFFICERS_OPENINGS]
        # The folder's log is a copy of the authority's own; with officers it may be another's.
        alone = run.config.exchange.officers == 1
        copies = [rows for rows in officers if rows] or [openings]
        return cls(
            run,
            openings,
            read_rows(path / INCIDENTS, Incident),
            frozenset(file.name for file in path.iterdir()),
            max(1, len(sessions)),
            officers=[row for rows in officers for row in rows],
            in_one_process=any(session.get("engine") != PROCESSES for session in sessions),
            odd_rows=tuple(_odd_rows(path)),
            own=own,
            differences=()
            if own is None
            else min((differences(rows, own, timed=alone) for rows in copies), key=len),
        )


def leaks_in(
    evidence: FolderEvidence,
    expected: Sequence[Entry],
    dtype: Floats,
    scores: Mapping[str, int] = MappingProxyType({}),
) -> list[Leak]:
    """Return all that is not as it should be, by round.

    Args:
        evidence: of the run.
        expected: the ledger of the same settings in the clear, with the same clients in each round
            (`replayed`); its messages are those that there should be.
        dtype: of the model.
        scores: messages in which processes send their clients' scores, once a round, and the number
            of values in each; where the run was played again, nobody sent any.
    """
    run, config = evidence.run, evidence.run.config
    if not evidence.in_one_process:
        expected = [*expected, *_scores(run.ledger, scores)]
    logged = OPENINGS in evidence.files or evidence.in_one_process or bool(evidence.openings)
    finished = {metrics.round for metrics in run.metrics}
    # Clients that are processes come and go.
    latecomers = config.exchange.seals_sums and not evidence.in_one_process
    absences = Absences(finished, evidence.incidents, latecomers)
    log = OpeningsLog(evidence.openings, evidence.sessions, logged, evidence.officers)
    opened = finished - absences.spoiled
    openings = evidence.openings
    lengths = Lengths.of(dtype, openings, quorum_of(config))
    return sorted(
        (
            *_wrong_forms(evidence),
            *_wrong_lengths(run.ledger, lengths),
            *unplanned(run.ledger, expected, absences),
            *wrongly_opened(log, run.ledger, expected, opened, config.exchange.min_clients),
            *wrongly_carded(run.ledger, openings, evidence.incidents, evidence.sessions),
            *_uncounted_bytes(evidence),
            *_told(evidence),
            *(Leak(of.row.round, of.row.name, OPENINGS, of.why) for of in evidence.differences),
        )
    )


def _scores(ledger: Sequence[Entry], scores: Mapping[str, int]) -> list[Entry]:
    """Return one message of each name and its size, of each client and round that sent any."""
    sent = (
        e for e in ledger if e.name in scores and e.receiver == SERVER and e.sender != AUTHORITY
    )
    found = {(e.round, e.name, e.sender): e for e in sent}
    return [replace(entry, n_values=scores[entry.name]) for entry in found.values()]


def _wrong_forms(evidence: FolderEvidence) -> Iterator[Leak]:
    sealed = sealed_kinds(evidence.run.config)
    for entry in evidence.run.ledger:
        if entry.sender in {SERVER, AUTHORITY}:
            if entry.form == "plaintext" and _for_clients_alone(evidence.run.config, entry):
                yield Leak.of(entry, "in plaintext, and the settings seal it for its clients")
            continue
        if entry.kind not in sealed:
            continue
        if entry.form == "plaintext":
            yield Leak.of(entry, "in plaintext, and the settings seal it")


def _for_clients_alone(config: Config, entry: Entry) -> bool:
    """Return whether the server only passes this on; the model it makes itself."""
    model = entry.name == f"model/{entry.kind}"
    return entry.receiver != AUTHORITY and not model and is_blind(config, entry.kind, entry.name)


def _wrong_lengths(ledger: Sequence[Entry], lengths: Lengths) -> Iterator[Leak]:
    """Yield messages of another length than anybody can work out."""
    for entry in ledger:
        due = lengths.due(entry)
        if due and entry.bytes not in due:
            yield Leak.of(entry, f"{entry.bytes:,} bytes, where {entry.form} has {min(due):,}")


def _uncounted_bytes(evidence: FolderEvidence) -> Iterator[Leak]:
    """Yield rounds that say clients sent other than the ledger's messages add up to."""
    by_round: dict[int, list[Entry]] = defaultdict(list)
    for entry in evidence.run.ledger:
        by_round[entry.round].append(entry)
    for metrics in evidence.run.metrics:
        found = sum(Ledger(by_round[metrics.round]).upload_bytes().values())
        if found != metrics.upload_bytes:
            why = f"{metrics.upload_bytes:,} bytes were sent, and {found:,} are accounted for"
            yield Leak(metrics.round, "uploads", f"clients -> {SERVER}", why)


def _told(evidence: FolderEvidence) -> Iterator[Leak]:
    """Yield what files tell beside messages."""
    for incident in evidence.incidents:
        if tells_a_value(incident):
            yield Leak(incident.round, incident.name, INCIDENTS, "a client's value stands in it")
    if reason := untold(evidence.incidents, evidence.run.metrics):
        yield Leak(0, INCIDENTS, "the run's folder", f"incidents are {reason}")
    for name in sorted({*evidence.files} - FILES - PICTURES):
        if not (_PARTIAL.fullmatch(name) or is_of_report(name)):
            yield Leak(0, name, "the run's folder", "a file that no run writes")
    for (file, key), times in Counter(evidence.odd_rows).items():
        yield Leak(0, key, file, f"in {times} lines, and no run writes it there")


def tells_a_value(incident: Incident) -> bool:
    """Return whether a client's own value stands in an incident's reason."""
    of_one = incident.name != SPOILED  # a total's weight and count are everybody's
    return of_one and bool(_MEASURED.search(_RULE.sub("", incident.reason)))


def _own_log(
    log: Path, run: Path, sessions: Sequence[Mapping[str, Any]], folder: Sequence[Opening]
) -> list[Opening]:
    """Return the authority's own rows of these sessions, or at models of the folder's rows.

    The folder is the server's: a session that it does not name may be one that it left out.
    """
    if not log.is_file():
        raise RunFolderError(f"{log}: no log of openings: name the authority's openings.jsonl")
    if (own := run / OPENINGS).exists() and log.samefile(own):
        raise ConfigError(
            f"{log}: the run's own log, which is to be held against the authority's: name that "
            "one, or leave --openings out"
        )
    ids = {session.get("run") for session in sessions}
    models = {row.model for row in folder} - {""}
    return [row for row in read_rows(log, Opening) if row.run in ids or row.model in models]


def _odd_rows(path: Path) -> Iterator[tuple[str, str]]:
    """Yield whatever else stands in the rows of a run's files."""
    for name, row in _ROWS.items():
        known = {field.name for field in fields(row)}
        if (path / name).is_file():
            with read_soundly(path / name):
                keys = (
                    parsed(_ROW, line, RunFolderError).keys() for line in read_lines(path / name)
                )
                yield from ((name, key) for found in keys for key in found - known)
