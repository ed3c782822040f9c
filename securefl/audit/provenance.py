"""Provenance of an audit: when, by whom, of which parties, keys, settings, data and files."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from securefl.audit.findings import AUDITS, MAX_BYTES
from securefl.data.samples import ClientData, samples
from securefl.errors import ConfigError, RunFolderError
from securefl.federation.ledger import AUTHORITY, SERVER, utc_now
from securefl.federation.opening import Opening
from securefl.io.files import read_bounded
from securefl.io.html import PageTable
from securefl.io.json import parsed
from securefl.report.key_tallies import KeyTally, key_tallies
from securefl.runs.folder_reader import (
    ENVIRONMENT,
    RunRecord,
    read_soundly,
)
from securefl.runs.session import PACKAGES, read_environment
from securefl.runs.task_record import DataRecord, TaskRecord, task_record
from securefl.settings.load import flat
from securefl.task import Task, client_names

NOBODY = "nobody has signed this report"
UNKNOWN = "not in --keys"
"""Words in the place of a certificate's digest."""


@dataclass(frozen=True, slots=True)
class Party:
    """Party of a run, by the certificate that the consortium gave it."""

    name: str
    role: str
    fingerprint: str = ""
    """SHA-256 of its certificate; empty where none is known."""
    until: str = ""
    """Last time at which the certificate is valid, UTC."""
    key: str = ""
    """SHA-256 of its public identity key, as SubjectPublicKeyInfo; empty where none is known."""


@dataclass(frozen=True, slots=True)
class Auditor:
    """Whoever audits, and what they bring beside the run's folder."""

    name: str = NOBODY
    """Whoever signs the report, in words."""
    members: Sequence[Party] = ()
    """Members of the run's consortium, whose certificates stand beside the run's parties."""
    key_id: str = ""
    """Key id of that consortium's cards; empty where it is not known."""
    epoch: int = 0
    """Epoch of that key."""
    openings: Path | None = None
    """The authority's own log of openings, with which the folder's is compared."""
    report: frozenset[str] = AUDITS
    """Names of the report's own files in the run's folder; none where it lies elsewhere."""


@dataclass(frozen=True, slots=True)
class Count:
    """Number of one party's samples."""

    train: int
    test: int | None
    """None where all share one test set."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """When, by whom, and of what an audit was made."""

    began: str
    """Beginning of the run's first session, UTC; empty in a folder of an older release."""
    ended: str
    """End of its last round, UTC."""
    sessions: Sequence[Mapping[str, Any]]
    """Machine, versions, key and engine of each session."""
    parties: Sequence[Party]
    keys: Sequence[KeyTally]
    settings: Mapping[str, Any]
    data: Mapping[str, Count]
    """Sizes of data by client."""
    task: TaskRecord | None
    """Model and data of the user's own, as classes, shapes and counts; None where the settings name
    them. Digests of data stay in the run's folder: they tell whoever can guess the data."""
    files: Mapping[str, str]
    """SHA-256 of each file of the run's folder, by name."""
    openings: str = ""
    """SHA-256 of the authority's own log; empty where the folder's was not held against one."""
    made: str = field(default_factory=utc_now)
    """Time of the audit, UTC."""
    made_by: str = NOBODY

    @classmethod
    def of(
        cls,
        run: RunRecord,
        task: Task,
        openings: Sequence[Opening],
        by: Auditor,
        *,
        shipped: bool,
    ) -> "Provenance":
        """Gather it from a run's folder.

        Args:
            run: the run.
            task: its model and data.
            openings: rows of the authority's log.
            by: the auditor.
            shipped: True where the settings name model and data.

        Raises:
            RunFolderError: a file cannot be read.
        """
        sessions = read_environment(run.path / ENVIRONMENT).sessions
        names = client_names(run.config, task)
        tests: Sequence[ClientData | None] = list(task.client_tests) or [None] * len(names)
        return cls(
            began=str(next((s["began"] for s in sessions if "began" in s), "")),
            ended=run.metrics[-1].at,
            sessions=sessions,
            parties=tuple(_parties(run, by, openings)),
            keys=tuple(key_tallies(openings)),
            settings=run.config.tables(own_task=not shipped),
            data={
                name: Count(_size(of), None if test is None else _size(test))
                for name, of, test in zip(names, task.clients, tests, strict=True)
            }
            | {name: Count(0, _size(of)) for name, of in task.external.items()},
            task=None if shipped else _without_digests(task_record(task, names)),
            files=dict(digests(run.path, by.report)),
            openings="" if by.openings is None else digest_of(by.openings),
            made_by=by.name,
        )

    def as_json(self) -> dict[str, Any]:
        """Return everything, for the audit's JSON file."""
        return asdict(self)

    def facts(self) -> dict[str, str]:
        """Return what the report's head says of it."""
        versions = [
            ", ".join(f"{name} {session[name]}" for name in PACKAGES if name in session)
            for session in self.sessions
        ]
        return {
            "Run": f"{self.began or 'unknown'} to {self.ended}, sessions: {len(self.sessions)}",
            "Versions": "; ".join(dict.fromkeys(versions)) or "unknown",
            "Audited": f"{self.made}, by SecureFL {version('securefl')}",
            "Made by": self.made_by,
            "Authority's own log": f"held against the run's, SHA-256 {self.openings}"
            if self.openings
            else "not given",
        }

    def tables(self) -> list[PageTable]:
        """Return parties, keys, data, the user's own task, settings and files, for the report."""
        found = [
            PageTable(
                "Parties",
                (
                    "Name",
                    "Role",
                    "SHA-256 of the certificate",
                    "SHA-256 of the public key",
                    "Valid until",
                ),
                [
                    (p.name, p.role, p.fingerprint or UNKNOWN, p.key or UNKNOWN, p.until or "-")
                    for p in self.parties
                ],
            ),
            PageTable(
                "Keys, and what was asked for under them",
                ("Key", "Epoch", "Opened", "Refused"),
                [(k.key_id, str(k.epoch), str(k.opened), str(k.refused)) for k in self.keys],
            ),
            PageTable(
                "Sizes of data",
                ("Client", "Samples that train", "Samples of its own that test"),
                [
                    (name, f"{n.train:,}", "shared" if n.test is None else f"{n.test:,}")
                    for name, n in self.data.items()
                ],
            ),
            PageTable("Model and data of the user's own", ("What", "Form"), self._own()),
            PageTable("Settings", ("Key", "Value"), list(flat(self.settings))),
            PageTable("Files of the run", ("File", "SHA-256"), sorted(self.files.items())),
        ]
        return [table for table in found if table.rows]

    def _own(self) -> list[tuple[str, str]]:
        if (task := self.task) is None:
            return []
        model = task.model
        rows = [
            ("model", f"{model.name}, {model.n_parameters:,} parameters, sha256 {model.sha256}"),
            ("loss", task.loss),
            ("metric", task.metric or "by the loss"),
            ("algorithm", task.algorithm or "of the settings"),
        ]
        data = {**task.clients, "test": task.test, **task.external}
        return rows + [
            (name, f"{of.n_samples:,} samples, x {of.x}, y {of.y}") for name, of in data.items()
        ]


NO_FILES = "empty folder"
"""Words in the place of an empty folder's digest."""


def digests(folder: Path, report: frozenset[str] = AUDITS) -> Iterator[tuple[str, str]]:
    """Yield name and SHA-256 of each file of a run's folder, but the report's own.

    An empty folder in it comes with a slash, and `NO_FILES`.

    Raises:
        RunFolderError: one cannot be read, or is no regular file.
    """
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name in report:
            continue
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                yield f"{name}/", NO_FILES
            continue
        if path.is_symlink() or not path.is_file():
            raise RunFolderError(f"{path}: a link or a device, which no run writes: delete it")
        yield name, digest_of(path)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex; RunFolderError where it cannot be read."""
    with read_soundly(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def differences(folder: Path, findings: bytes, report: frozenset[str] = AUDITS) -> list[str]:
    """Return in words each file of a run that is not as it was when these findings were made.

    `report` names the report's own files in the folder; none where it lies elsewhere.

    Raises:
        RunFolderError: the findings name no files, or a file cannot be read.
    """
    found = parsed(TypeAdapter(dict[str, Any]), findings, RunFolderError)
    files = found.get("provenance", {}).get("files") if isinstance(found, dict) else None
    if not isinstance(files, dict) or not files:
        raise RunFolderError("the findings name no files of the run: audit it anew")
    now = dict(digests(folder, report))
    return [
        *(f"{name}: missing" for name in files.keys() - now.keys()),
        *(f"{name}: changed" for name in files.keys() & now.keys() if files[name] != now[name]),
        *(f"{name}: was not there" for name in now.keys() - files.keys()),
    ]


def read_file(path: Path) -> bytes:
    """Return the bytes of a file that an audit left; RunFolderError where it cannot be read."""
    try:
        return read_bounded(path, MAX_BYTES)
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be read ({error.strerror or error}); audit the run anew with --sign"
        ) from error


def _parties(run: RunRecord, by: Auditor, openings: Sequence[Opening]) -> Iterator[Party]:
    """Yield the parties that the ledger names, with the certificates of members of these names.

    Raises:
        ConfigError: the members are another consortium's than the run's.
    """
    used = {row.key_id: row.epoch for row in openings}
    if by.key_id and used and by.key_id not in used and by.epoch <= max(used.values()):
        raise ConfigError(
            f"{run.path}: its totals were opened under other keys than those of --keys: give the "
            "folder or the bundle of the run's own consortium"
        )
    members = {(member.name, member.role): member for member in by.members}
    for name in sorted({n for entry in run.ledger for n in (entry.sender, entry.receiver)}):
        if name == SERVER:
            servers = [member for member in by.members if member.role == SERVER]
            yield from servers or [Party(name, SERVER)]
        else:
            role = AUTHORITY if name == AUTHORITY else "client"
            yield members.get((name, role), Party(name, role))
    yield from (m for m in by.members if m.role == "certificate authority")


def _without_digests(record: TaskRecord) -> TaskRecord:
    def plain(data: DataRecord) -> DataRecord:
        return replace(data, sha256=None)

    return replace(
        record,
        clients={name: plain(of) for name, of in record.clients.items()},
        test=plain(record.test),
        client_tests=tuple(map(plain, record.client_tests)),
        external={name: plain(of) for name, of in record.external.items()},
        public=record.public and plain(record.public),
    )


def _size(data: ClientData) -> int:
    return len(samples(data, "a client"))
