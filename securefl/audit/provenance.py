"""Provenance of an audit: when, by whom, of which parties, keys, settings, data and files."""

import getpass
import hashlib
import platform
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from securefl.audit.findings import MAX_BYTES, PAGE, is_of_report, page_differs
from securefl.data.samples import ClientData, samples
from securefl.errors import ConfigError, OpeningRefused, RunFolderError
from securefl.exchange.policy import Policy, require_clients
from securefl.federation.ledger import AUTHORITY, SERVER, utc_now
from securefl.federation.opening import Opening
from securefl.io.files import read_bounded
from securefl.io.html import PageTable
from securefl.io.json import parsed
from securefl.report.key_tallies import KeyTally, key_tallies
from securefl.runs.folder_files import ENVIRONMENT, read_soundly
from securefl.runs.folder_reader import RunRecord
from securefl.runs.session import PACKAGES, PROCESSES, read_environment
from securefl.runs.task_record import DataRecord, TaskRecord, read_task_record, task_record
from securefl.settings.load import flat
from securefl.task import Task, client_names

OFFICER, CERTIFIER = "officer", "certificate authority"
"""Roles of those who open totals beside the authority, and of who certifies all others."""
UNKNOWN, NO_KEYS = "not in --keys", "no --keys given"
"""Words in the place of a certificate's digest."""
SIGNATURES = (
    "not in this file: signatures lie beside it, and securefl audit RUN --keys BUNDLE --verify "
    "names all who have signed"
)
"""Words on who signed: a report is whole before anybody signs it."""
UNPROVEN = "of the files given to this audit; no record shows that they are the run's"
"""Words on samples of a run whose folder has no record of its data, as of one over processes."""
NO_DATA = "no data were given to this audit"
"""Reason why an audit of logs alone knows and measures nothing of records."""
BY_NAME = "by name only: nothing in the folder shows that this key took part"
OF_LATER_KEYS = (
    "by name only: the run is of an earlier epoch than --keys; a bundle of that epoch shows "
    "whether its keys are this consortium's"
)
"""Words in the place of a certificate's state, of a run that names no key of the consortium."""


def account() -> str:
    """Return in words who makes a report, as far as the system knows."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        name = "without a name"
    return f"account {name} on {platform.node() or 'a machine without a name'}; nobody vouches"


@dataclass(frozen=True, slots=True)
class Party:
    """Party of a run, by the certificate that the consortium gave it."""

    name: str
    role: str
    fingerprint: str = ""
    """SHA-256 of its certificate; empty where none is known."""
    since: str = ""
    """First time at which the certificate is valid, UTC."""
    until: str = ""
    """Last time at which the certificate is valid, UTC."""
    key: str = ""
    """SHA-256 of its public identity key, as SubjectPublicKeyInfo; empty where none is known."""
    revoked: str = ""
    """Time at which the consortium took it out, UTC; empty where it did not."""
    by_name: str = ""
    """Reason why the run's folder does not show that the consortium that gave the certificate is
    the run's; empty where its key is the run's."""

    def state(self, began: str, ended: str) -> str:
        """Return in words whether the certificate was good during a run of these times."""
        if self.by_name:
            return self.by_name
        if self.revoked:
            when = "before the run ended" if self.revoked <= ended else "after the run"
            return f"revoked on {self.revoked}, {when}"
        if not (self.until and began):
            return "-"
        return "valid" if self.since <= began and ended <= self.until else "not valid all the time"


@dataclass(frozen=True, slots=True)
class ConsortiumFiles:
    """Versions of the consortium's files by which parties are named."""

    name: str
    roster_version: int
    policy_version: int
    policy_sha256: str

    def __str__(self) -> str:
        """Return them in words."""
        return (
            f"{self.name}, by --keys as of the audit: roster version {self.roster_version}, policy "
            f"version {self.policy_version} (SHA-256 {self.policy_sha256}); which policy the run "
            "had is not recorded"
        )


@dataclass(frozen=True, slots=True)
class Auditor:
    """Things that whoever audits brings beside the run's folder."""

    members: Sequence[Party] = ()
    """Members of the run's consortium, whose certificates stand beside the run's parties."""
    key_id: str = ""
    """Key id of that consortium's cards; empty where it is not known."""
    epoch: int = 0
    """Epoch of that key."""
    openings: Path | None = None
    """The authority's own log of openings, with which the folder's is compared."""
    page: str | None = PAGE
    """Name of the report's page in the run's folder; None where it lies elsewhere."""
    consortium: ConsortiumFiles | None = None
    """None where no consortium's folder was given."""
    policy: Policy | None = None
    """The consortium's policy at the audit, which the run's openings are held against."""
    officers: Sequence[str] = ()
    """Names of the officers at the audit, the authority first; empty where it is alone."""
    recorded: Collection[str] = ()
    """Sites whose data agree with the record that each keeps of what it began the run with."""


@dataclass(frozen=True, slots=True)
class Count:
    """Number of one party's samples."""

    train: int | None
    """None where no data were given."""
    test: int | None
    """None where all share one test set, or no data were given."""


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
    shared_test: int
    """Samples of the test set that all share; 0 where each client has one of its own."""
    task: TaskRecord | None
    """Model and data of the user's own, as classes, shapes and counts; None where the settings name
    them. Digests of data stay in the run's folder: they tell whoever can guess the data."""
    files: Mapping[str, str]
    """SHA-256 of each file of the run's folder, by name."""
    openings: str = ""
    """SHA-256 of the authority's own log; empty where the folder's was not held against one."""
    made: str = field(default_factory=utc_now)
    """Time of the audit, UTC."""
    audited_by: str = field(default_factory=account)
    consortium: ConsortiumFiles | None = None
    unproven: str = ""
    """Words on data that may be others than the run's, or were not given; empty where the settings
    or the folder's record name them."""
    by_policy: str = ""
    """Answer of the consortium's policy at the audit to the run's openings; empty without one."""

    @classmethod
    def of(
        cls,
        run: RunRecord,
        task: Task | None,
        openings: Sequence[Opening],
        by: Auditor,
        *,
        shipped: bool,
    ) -> "Provenance":
        """Gather it from a run's folder.

        Args:
            run: the run.
            task: its model and data; None where none were given.
            openings: rows of the authority's log.
            by: the auditor.
            shipped: True where the settings name model and data.

        Raises:
            RunFolderError: a file cannot be read.
        """
        sessions = read_environment(run.path / ENVIRONMENT).sessions
        names = client_names(run.config, task) if task else run.config.data.names
        recorded = shipped or read_task_record(run.path) is not None
        return cls(
            began=str(next((s["began"] for s in sessions if "began" in s), "")),
            ended=run.metrics[-1].at,
            sessions=sessions,
            parties=tuple(_parties(run, by, openings, sessions)),
            keys=tuple(key_tallies(openings)),
            settings=run.config.read_tables(own_task=not shipped),
            data=_sizes(task, names) if task else dict.fromkeys(names, Count(None, None)),
            shared_test=_size(task.test) if task and not task.client_tests else 0,
            task=_without_digests(task_record(task, names)) if task and not shipped else None,
            files=dict(digests(run.path, by.page)),
            openings="" if by.openings is None else digest_of(by.openings),
            consortium=by.consortium,
            unproven=_unproven(names, by, given=task is not None, recorded=recorded),
            by_policy="" if by.policy is None else _by_policy(by.policy, openings),
        )

    @property
    def simulated(self) -> bool:
        """True where one process played all parties, in one session at least."""
        return any(session.get("engine") != PROCESSES for session in self.sessions)

    @property
    def has_authority(self) -> bool:
        """True where the ledger names an authority; a run in the clear has none."""
        return any(party.role == AUTHORITY for party in self.parties)

    def with_origin(self, data: str) -> str:
        """Return words on data, with those on their origin where it is not known."""
        return f"{data}, {self.unproven}" if self.unproven else data

    @property
    def logs_alone(self) -> bool:
        """True where whoever audited had no data."""
        return any(count.train is None for count in self.data.values())

    def as_json(self) -> dict[str, Any]:
        """Return everything, for the audit's JSON file."""
        return asdict(self)

    def facts(self) -> dict[str, str]:
        """Return what the report's head says of it."""
        return {
            "Parties": self._played(),
            "Run": (
                f"{self.began or 'unknown'} to {self.ended or 'unknown'}, by the clock of "
                f"{'its machine' if self.simulated else 'the server'}; sessions: "
                f"{len(self.sessions)}"
            ),
            "Run's id, of each session": self._of_sessions(lambda of: str(of.get("run", ""))),
            "Versions": self._of_sessions(
                lambda of: ", ".join(f"{x} {of[x]}" for x in ("python", *PACKAGES) if x in of)
            ),
            "Machine" if self.simulated else "Machine of the server": self._of_sessions(
                lambda of: ", ".join(f"{of[x]}{y}" for x, y in _MACHINE.items() if x in of)
            ),
            "Audited": f"{self.made}, by SecureFL {version('securefl')}",
            "Audited by": self.audited_by,
            "Signed by": SIGNATURES,
            "Consortium": f"{self.consortium or 'not given (--keys)'}{self.by_policy}",
            "Authority's own log": self._own_log(),
        }

    def _of_sessions(self, said: Callable[[Mapping[str, Any]], str]) -> str:
        """Return what is said of each session, once where several say the same."""
        return "; ".join(filter(None, dict.fromkeys(map(said, self.sessions)))) or "unknown"

    def _own_log(self) -> str:
        """Return in words whether the authority's own log was seen."""
        if self.openings:
            officers = self.settings["exchange"]["officers"] > 1
            times = "; times were not compared, as each officer has its own" if officers else ""
            return f"held against the run's, SHA-256 {self.openings}{times}"
        if not self.has_authority:
            return "none: nothing was sealed"
        return "none: one process wrote the folder's" if self.simulated else "not given"

    def _played(self) -> str:
        """Return in words who the parties were."""
        names = f"{', '.join(self.data):.300}"
        if not self.sessions:
            return f"{names}; whether as one process, the folder does not say"
        parties = ", ".join([SERVER, *[AUTHORITY] * self.has_authority, names])
        if self.simulated:
            dataset = self.settings.get("data", {}).get("dataset")
            data = f" (data set {dataset})" if dataset else ""
            held = "all keys and all data" if self.has_authority else "all data"
            return (
                f"Simulation: one process, one operator, who held {held}{data}. "
                f"Names, not institutions: {parties}"
            )
        return f"processes of their own: {parties}; who operates each: below"

    def tables(self) -> list[PageTable]:
        """Return parties, keys, data, the user's own task, settings and files, for the report."""
        untested = NONE_OWN if self.shared_test else "not known"
        found = [
            PageTable(
                "Parties",
                (
                    "Name",
                    "Role",
                    "SHA-256 of the certificate",
                    "SHA-256 of the public key",
                    "Valid from",
                    "Valid until",
                    "At the run",
                ),
                [self._party(party) for party in self.parties],
            ),
            PageTable(
                "Keys, and what was asked for under them",
                ("Key", "Epoch", "Opened", "Refused"),
                [(k.key_id, str(k.epoch), str(k.opened), str(k.refused)) for k in self.keys],
            ),
            PageTable(
                self.with_origin("Sizes of data"),
                ("Client", "Samples that train", "Samples of its own that test"),
                [
                    (name, _number(n.train, "not known"), _number(n.test, untested))
                    for name, n in self.data.items()
                ]
                + [("all: one test set", "0", f"{n:,}") for n in [self.shared_test] if n],
            ),
            PageTable(self.with_origin(f"{self._whose()} own"), ("What", "Form"), self._own()),
            PageTable(
                'Settings (where privacy.level = "none", the others of privacy change nothing)',
                ("Key", "Value"),
                list(flat(self.settings)),
            ),
            PageTable("Files of the run", ("File", "SHA-256"), sorted(self.files.items())),
        ]
        return [table for table in found if table.rows]

    def _party(self, party: Party) -> tuple[str, ...]:
        """Return the row of a party: without --keys a simulated one has no certificate."""
        unknown = UNKNOWN if self.consortium else NO_KEYS
        if self.simulated and (not self.consortium or party.role in {SERVER, AUTHORITY, OFFICER}):
            unknown = "none: no process of its own"
        state = party.state(self.began, self.ended)
        if self.simulated and party.fingerprint and party.role != CERTIFIER:
            state = f"{state}; its part was played by the one process"
        dates = party.since or "-", party.until or "-", state
        known = party.fingerprint or unknown, party.key or unknown
        return party.name, party.role, *known, *dates

    def _whose(self) -> str:
        """Return the beginning of the title of what the settings do not name."""
        return "Data of the sites'" if self._chosen() else "Model and data of the user's"

    def _chosen(self) -> str:
        """Return the model by its settings; empty where it is the user's own."""
        model = self.settings.get("model")
        return f"{model['name']}, norm {model['norm']}: " if model else ""

    def _own(self) -> list[tuple[str, str]]:
        if (task := self.task) is None:
            return []
        model = task.model
        of = f"{model.name}, {model.n_parameters:,} parameters, sha256 {model.sha256}"
        rows = [
            ("model", f"{self._chosen()}{of}"),
            ("loss", task.loss),
            ("metric", task.metric or "by the loss"),
            ("algorithm", task.algorithm or "of the settings"),
        ]
        tests = {"test": task.test}
        if task.client_tests:  # then the test set that all share is a placeholder
            own = zip(task.clients, task.client_tests, strict=True)
            tests = {f"{name}, its own test": of for name, of in own}
        data = {**task.clients, **tests, **task.external}
        return rows + [
            (name, f"{of.n_samples:,} samples, x {of.x}, y {of.y}") for name, of in data.items()
        ]


_MACHINE = {"machine": "", "cores": " cores"}
"""Keys of a session that tell of its machine, with their units."""
NONE_OWN = "none of its own"
"""Words in the place of a number of test samples: all share one test set."""
NO_FILES = "empty folder"
"""Words in the place of an empty folder's digest."""


def digests(folder: Path, page: str | None = PAGE) -> Iterator[tuple[str, str]]:
    """Yield name and SHA-256 of each file of a run's folder, but for those of reports.

    These are the report whose page is `page`, and the one of the default name: of two reports on a
    run neither says anything of the other.
    An empty folder in it comes with a slash, and `NO_FILES`.

    Raises:
        RunFolderError: one cannot be read, or is no regular file.
    """
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if any(is_of_report(name, of) for of in {PAGE, page or PAGE}):
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


def differences(
    folder: Path, findings: bytes, page: str | None = PAGE, html: bytes | None = None
) -> list[str]:
    """Return in words each file of a run that is not as it was when these findings were made.

    `page` names the report's page in the folder; None where it lies elsewhere. `html` is that
    page, which must be of these findings (`page_differs`); None where it is not asked about.

    Raises:
        RunFolderError: the findings name no files, or a file cannot be read.
    """
    found = parsed(TypeAdapter(dict[str, Any]), findings, RunFolderError)
    files = found.get("provenance", {}).get("files") if isinstance(found, dict) else None
    if not isinstance(files, dict) or not files:
        raise RunFolderError("the findings name no files of the run: audit it anew")
    now = dict(digests(folder, page))
    page_and_json = "" if html is None else page_differs(html, findings)
    return [
        *([page_and_json] if page_and_json else []),
        *(f"{name}: missing" for name in files.keys() - now.keys()),
        *(f"{name}: changed" for name in files.keys() & now.keys() if files[name] != now[name]),
        *(f"{name}: was not there" for name in now.keys() - files.keys()),
    ]


def certifiers_in(findings: bytes) -> set[str]:
    """Return the SHA-256 of the certificate authority in a report's JSON; none without --keys.

    Raises:
        RunFolderError: it is no report's.
    """
    found = parsed(TypeAdapter(dict[str, Any]), findings, RunFolderError)
    try:
        parties = found["provenance"]["parties"]
        return {str(p["fingerprint"]) for p in parties if p["role"] == CERTIFIER}
    except (LookupError, TypeError) as error:
        raise RunFolderError(f"the findings name no parties ({error}): audit it anew") from error


def read_file(path: Path) -> bytes:
    """Return the bytes of a file that an audit left; RunFolderError where it cannot be read."""
    try:
        return read_bounded(path, MAX_BYTES)
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be read ({error.strerror or error}); audit the run first"
        ) from error


def _by_policy(policy: Policy, openings: Sequence[Opening]) -> str:
    """Return the end of a sentence: how many of the opened totals a policy would refuse, and why.

    Scores of profiles are of one client each, and no totals: of these it has the rule of names.
    """
    by, refused = "; by names and numbers of clients this policy ", list[str]()
    opened = [row for row in openings if not row.refused]
    for row in opened:
        try:
            policy.rule_for(row.name)
            if row.model:
                require_clients(row.n_clients, policy.min_contributions)
        except OpeningRefused as error:
            refused.append(f"round {row.round}, {row.name!r:.100}: {error}")
    if not opened:
        return ""
    if not refused:
        return f"{by}allows all {len(opened):,} openings of the run"
    return f"{by}would refuse {len(refused):,} of {len(opened):,} openings, first {refused[0]}"


def _parties(
    run: RunRecord,
    by: Auditor,
    openings: Sequence[Opening],
    sessions: Sequence[Mapping[str, Any]],
) -> Iterator[Party]:
    """Yield the parties that the ledger names, with the certificates of members of these names.

    Where neither openings nor sessions name the members' key, they are so by name alone.

    Raises:
        ConfigError: the members are another consortium's than the run's.
    """
    used = {row.key_id: row.epoch for row in openings}
    if by.key_id and used and by.key_id not in used and by.epoch <= max(used.values()):
        raise ConfigError(
            f"{run.path}: its totals were opened under other keys than those of --keys: give the "
            "folder or the bundle of the run's own consortium; or, of a run under keys of its own, "
            "audit without --keys, and give them to --sign and --verify"
        )
    # Members in force come last, and count: a name that was revoked may have joined again.
    shown = {*used, *(session.get("key_id") for session in sessions)}
    by_name = BY_NAME if not used or by.epoch <= max(used.values()) else OF_LATER_KEYS
    if by.key_id and by.key_id in shown:
        by_name = ""
    known = [replace(member, by_name=by_name) for member in by.members]
    by_age = sorted(known, key=lambda member: not member.revoked)
    members = {(member.name, member.role): member for member in by_age}
    for name in sorted({n for entry in run.ledger for n in (entry.sender, entry.receiver)}):
        if name == SERVER:
            servers = [member for member in by_age if member.role == SERVER]
            yield from servers or [Party(name, SERVER)]
        else:
            role = AUTHORITY if name == AUTHORITY else "client"
            yield members.get((name, role), Party(name, role))
        if name == AUTHORITY:
            for officer in _officers(run.config.exchange.officers, by.officers):
                yield members.get((officer, OFFICER), Party(officer, OFFICER))
    yield from (member for member in known if member.role == CERTIFIER)


def _officers(n: int, listed: Sequence[str]) -> Sequence[str]:
    """Return the names of the officers beside the authority: numbers, where as many are unknown."""
    return listed[1:] if len(listed) == n else [f"officer {i}" for i in range(2, n + 1)]


def _number(n: int | None, otherwise: str) -> str:
    return otherwise if n is None else f"{n:,}"


def _sizes(task: Task, names: Sequence[str]) -> dict[str, Count]:
    """Return the number of each client's samples, and of those that never train."""
    tests: Sequence[ClientData | None] = list(task.client_tests) or [None] * len(names)
    return {
        name: Count(_size(of), None if test is None else _size(test))
        for name, of, test in zip(names, task.clients, tests, strict=True)
    } | {name: Count(0, _size(of)) for name, of in task.external.items()}


def _unproven(names: Sequence[str], by: Auditor, *, given: bool, recorded: bool) -> str:
    """Return in words which clients' data may be others than the run's; empty for none.

    `given` says whether there are data, `recorded` whether settings or folder name them all.
    """
    if not given:
        return f"not known: {NO_DATA}"
    found = [] if recorded else [name for name in names if name not in by.recorded]
    which = f" ({', '.join(found):.200})" if len(found) < len(names) else ""
    return f"{UNPROVEN}{which}" if found else ""


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
