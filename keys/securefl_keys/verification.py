"""Complete check of a key folder, and of what its holder can and cannot do."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from securefl.errors import CertificateRefused, KeyFileError
from securefl_keys import layout
from securefl_keys.authority_keys import load_authority_keys
from securefl_keys.bundle import Bundle
from securefl_keys.certificate_form import Role
from securefl_keys.certificates import CertificateFile, ConsortiumAuthority
from securefl_keys.formats import KINDS, LAYOUT, OF_MATCHES, Facts, FileFormat, kind_at
from securefl_keys.identity import listed, load_identity, no_tls
from securefl_keys.key_files import (
    WAY_OUT,
    found_in,
    open_to_others,
    others_may_read,
    parsed,
    read,
    require_no_secret,
    text_of,
)
from securefl_keys.policy import load_policy
from securefl_keys.roster import VerifiedRoster, card_keys_in, load_officers, load_roster
from securefl_keys.signed_file import now
from securefl_keys.signer import (
    CUT_OFF,
    left_by_rotation,
    open_signer,
    require_one_epoch,
    require_settled,
)

MAX_ENTRIES = 10_000
"""Most entries in a folder: in those of older releases each rotation left two files."""
MAX_BYTES = 64 * 1024 * 1024
UNUSED = (
    "of no use any more: profiles are sealed under one-time keys, as sums are; delete it (the next "
    "securefl keys rotate does)"
)


@dataclass(frozen=True, slots=True)
class Description:
    """One file of a key folder."""

    path: Path
    """Path relative to the key folder."""
    what: str
    holder: str
    """Role that may hold such a file."""
    pair: str
    """Key pair of the file: `cards`, `consortium`, or none where nobody can tell."""
    facts: Facts
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Remarks on a file that is in order, and of no use."""


def describe(directory: Path) -> list[Description]:
    """Describe every file in a key folder and what is wrong; needs no passphrase, changes nothing.

    A role's own machine has its own folder alone, so a missing role is no problem. In a bundle no
    secret is missing, and each that is there is a problem.

    Raises:
        KeyFileError: no key folder, or it cannot be listed.
    """
    try:
        roles = [path for path in {path.parent for path in LAYOUT} if (directory / path).is_dir()]
        if not roles:
            raise KeyFileError(
                f"{directory}: no key folder: it has neither authority/, server/ nor clients/; "
                f"make one with: securefl keys init {directory}"
            )
        found = _found(directory)
    except OSError as error:
        raise KeyFileError(f"{directory}: cannot be listed: {error.strerror or error}") from error
    optional, is_bundle = layout.CONSORTIUM_FILES, layout.MANIFEST in found
    absent = {*optional, layout.OFFICERS} if found.isdisjoint(optional) else {layout.OFFICERS}
    if is_bundle:
        absent.update(layout.KEPT_BY_AUTHORITY)
    absent -= found
    expected = [path for path in LAYOUT if path.parent in roles and path not in absent]
    others = sorted(found - set(expected))
    home = None if is_bundle else layout.AUTHORITY
    files = [_described(directory, path, home) for path in expected + others]
    return _compared(files + [_cut_off(directory, left) for left in left_by_rotation(directory)])


def _cut_off(directory: Path, left: Path) -> Description:
    path = left.relative_to(directory)
    return Description(path, "new keys", "authority", "", Facts(), (CUT_OFF,))


def _found(directory: Path) -> set[Path]:
    left = {path.relative_to(directory).parts[0] for path in left_by_rotation(directory)}
    files: set[Path] = set()
    n_bytes = 0
    # rglob does not enter links to folders, so these are listed themselves.
    for n_entries, entry in enumerate(directory.rglob("*")):
        path = entry.relative_to(directory)
        is_own = path.parts[0] not in left and path.parent != layout.LOG
        if is_own and (entry.is_symlink() or not entry.is_dir()) and not _is_lock(directory, path):
            files.add(path)
            n_bytes += entry.lstat().st_size
        if n_entries > MAX_ENTRIES or n_bytes > MAX_BYTES:
            raise KeyFileError(f"{directory}: more files, or larger ones, than a key folder has")
    return files


def _is_lock(directory: Path, path: Path) -> bool:
    return path.match(".*.lock") and (directory / path).lstat().st_size == 0


def _described(directory: Path, path: Path, home: Path | None) -> Description:
    """Describe a file; secrets may lie in the folder `home`, where there is one."""
    kind, facts = kind_at(path), Facts()
    problems: list[str] = []
    try:
        text = read(directory / path)
        kind = _labelled(text)
        problems += _misplaced(path, kind, home)
        if kind.secret and others_may_read(directory / path):
            problems.append(open_to_others(directory / path))
        facts = parsed(text, kind.facts)
    except KeyFileError as error:
        problems.append(str(error))
    what, holder, pair = (kind.what, kind.holder, kind.pair) if kind else ("unknown", "nobody", "")
    notes = (UNUSED,) if kind in OF_MATCHES and not problems else ()
    return Description(path, what, holder, pair, facts, tuple(problems), notes)


def _labelled(text: str) -> FileFormat:
    # A damaged file must still show what it was, so its label is searched for, not parsed.
    for kind in KINDS:
        if any(label in text for label in kind.labels):
            return kind
    raise KeyFileError("no SecureFL key file: move it elsewhere")


def _misplaced(path: Path, kind: FileFormat, home: Path | None) -> list[str]:
    belongs = kind_at(path)
    if kind.secret and (home is None or path.parts[0] != home.name):
        where = f"outside {home}/" if home else "in a bundle"
        gone = f"a secret key {where}: delete it here"
        return [f"{gone}, and if others were given this folder, make new keys"]
    if kind is belongs:
        return []
    if belongs is not None:
        return [f"a {kind.what} file where {belongs.what} belongs; {WAY_OUT}"]
    return [f"a {kind.what} file that nothing reads here: move it elsewhere"]


def _compared(descriptions: list[Description]) -> list[Description]:
    """Return the same, with a problem where a key id is not that of the pair's first file."""
    firsts: dict[str, Description] = {}
    for entry in descriptions:
        if entry.pair and entry.facts.key_id is not None:
            firsts.setdefault(entry.pair, entry)
    return [_mixed(entry, firsts.get(entry.pair, entry)) for entry in descriptions]


def _mixed(entry: Description, first: Description) -> Description:
    if entry.facts.key_id in {None, first.facts.key_id}:
        return entry
    mixed = f"of another key than {first.path}: files of two key pairs are mixed"
    return replace(entry, problems=(*entry.problems, f"{mixed}; {WAY_OUT}"))


@dataclass(frozen=True, slots=True)
class FolderVerdict:
    """Findings of `verify` about a bundle or a key folder."""

    what: str
    ca: ConsortiumAuthority | None
    """Authority that signed it; None where nobody did."""
    role: Role | None
    """Role that a bundle is for."""
    roster: VerifiedRoster | None
    can: tuple[str, ...]
    cannot: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Remarks on what is in order, and not enough for everything."""
    officers: str = ""
    """Names of several officers and their quorum, in words; empty where the authority is alone."""


CAN = {
    "client": (
        "encrypt what it sends, and make cards that the authority alone opens",
        "tell the consortium's files from forged ones",
    ),
    "server": ("add ciphertexts", "check who signed a contribution"),
    "authority": (
        "check who signed a contribution",
        "open cards, totals and scores, with a secret key that is in no bundle",
    ),
    "owner": (
        "open cards, totals and scores, with the passphrase",
        "approve and revoke clients, servers and officers, with the passphrase",
    ),
    "officer": (
        "check who signed a contribution",
        "make a card key with its identity, by which the authority sets officers in force",
    ),
}
CANNOT = {
    "client": (
        "decrypt anything: no secret key is in this folder",
        "sign contributions, without its own identity key",
    ),
    "server": ("decrypt anything: no secret key is in this folder", "sign for a client"),
    "authority": ("decrypt with this folder alone: no secret key is in it", "sign for a client"),
    "owner": ("sign for a client: clients keep their identity keys",),
    "officer": (
        "decrypt anything: no secret key is in this folder",
        "add up keys of sums: no officers are set, and the authority opens sums alone",
    ),
}
WITH_OFFICERS = {
    CAN["client"][0]: "encrypt what it sends, and make cards that the officers alone open",
    CAN["authority"][1]: "add up keys of sums, with a secret key that is in no bundle",
    CAN["owner"][0]: "add up keys of sums as the first officer, with the passphrase",
    CAN["officer"][1]: "add up keys of sums, with a card secret that is in no bundle",
    CANNOT["officer"][1]: "open a sum without other officers",
}
"""Words in the place of these where sums need several officers."""
WITH_IDENTITY: dict[Role, str] = {
    "client": "sign contributions as",
    "server": "show that it is the server",
    "authority": "show that it is the",
    "officer": "show that it is the officer",
}


def verify(
    directory: Path,
    identity: Path | None = None,
    authority: str | None = None,
    at: datetime | None = None,
    passphrase: str | None = None,
) -> FolderVerdict:
    """Find all that can be found wrong with a bundle or a key folder.

    Args:
        directory: the folder.
        identity: a member's own folder, to be checked against it.
        authority: the fingerprint that the consortium must have.
        at: when; now where None.
        passphrase: opens what is sealed; without it, that is not looked into.

    Raises:
        KeyFileError: neither a bundle nor a key folder.
    """
    at = at or now()
    if (directory / layout.MANIFEST).is_file():
        verdict = _bundle(directory, authority, at)
    elif (directory / layout.IDENTITY_KEY).is_file():
        raise KeyFileError(
            f"{directory}: an identity is checked against its consortium's bundle: "
            f"securefl keys verify BUNDLE --identity {directory}"
        )
    else:
        verdict = _key_folder(directory, authority, at)
        if passphrase is not None:
            verdict = _opened(verdict, lambda: _open_all(directory, passphrase, at))
    if identity is not None:
        verdict = _with_identity(verdict, identity)
        if passphrase is not None:
            verdict = _opened(verdict, lambda: load_identity(identity, passphrase))
    return verdict


def _opened(verdict: FolderVerdict, open_sealed: Callable[[], object]) -> FolderVerdict:
    try:
        open_sealed()
    except KeyFileError as error:
        return replace(verdict, problems=(*verdict.problems, str(error)))
    return verdict


def _open_all(directory: Path, passphrase: str, at: datetime) -> None:
    require_settled(directory)  # a look changes nothing
    load_authority_keys(directory, passphrase)
    if (directory / layout.CA_KEY).exists():
        open_signer(directory, passphrase, at)
        load_identity(directory / layout.AUTHORITY, passphrase)


def _bundle(directory: Path, authority: str | None, at: datetime) -> FolderVerdict:
    try:
        bundle = Bundle.read(directory, authority, at)
    except KeyFileError as error:
        return FolderVerdict(
            "A bundle that cannot be trusted", None, None, None, (), (), (str(error),)
        )
    problems, roster = [str(problem) for problem in bundle.problems()], None
    try:
        roster = bundle.roster()
    except (KeyError, KeyFileError):
        problems = problems or ["the roster cannot be read"]
    role = bundle.manifest.role
    officers = ""
    if not problems:
        file = bundle.officers()
        officers = file.told() if file else ""
    what = f"A bundle for the role {role}, epoch {bundle.manifest.epoch}"
    can, cannot = _by(officers, CAN[role]), _by(officers, CANNOT[role])
    found = _all(problems, roster)
    return FolderVerdict(what, bundle.ca, role, roster, can, cannot, found, officers=officers)


def _by(officers: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts, those with several officers where there are some."""
    return tuple(WITH_OFFICERS.get(text, text) if officers else text for text in texts)


def _key_folder(directory: Path, authority: str | None, at: datetime) -> FolderVerdict:
    files = describe(directory)
    problems = [f"{entry.path}: {problem}" for entry in files for problem in entry.problems]
    for entry in files:
        if entry.path.parts[0] != "authority":
            problems += _secrets(directory / entry.path)
    notes = [f"{entry.path}: {note}" for entry in files for note in entry.notes]
    roster, officers = None, ""
    owner = "owner" if (directory / layout.AUTHORITY_KEY).exists() else None
    if (directory / layout.CA_CERTIFICATE).exists():
        try:
            roster = load_roster(directory, authority, at)
            load_policy(directory, at)
            if owner:
                require_one_epoch(directory, at)
                card_keys_in(directory, layout.AUTHORITY_PUBLIC_KEY, roster)
                file = load_officers(directory, at)
                officers = file.told() if file else ""
                mine = listed(directory / layout.AUTHORITY, roster)
                mine.require_role("authority")
                path = directory / layout.AUTHORITY_CERTIFICATE
                if CertificateFile.parse(text_of(path)).transport is None:
                    notes.append(f"{path}: {no_tls(mine)}")
        except KeyFileError as error:
            problems.append(str(error))
        if not owner:
            gone = "the signed list of its files is missing: take the whole bundle again"
            problems.append(f"{layout.MANIFEST}: {gone}")
    elif authority is not None:
        problems.append("nothing in it is signed: it has no consortium")
    can, cannot = (_by(officers, CAN[owner]), CANNOT[owner]) if owner else ((), ())
    ca = roster.ca if roster else None
    found = _all(problems, roster)
    return FolderVerdict(
        "A key folder", ca, None, roster, can, cannot, found, tuple(notes), officers
    )


def _secrets(path: Path) -> list[str]:
    try:
        with found_in(path):
            require_no_secret(text_of(path).encode())
    except KeyFileError as error:
        return [str(error)]
    return []


def _all(problems: list[str], roster: VerifiedRoster | None) -> tuple[str, ...]:
    expired = list(roster.expirations()) if roster else []
    return tuple(dict.fromkeys(problems + expired))


def _with_identity(verdict: FolderVerdict, identity: Path) -> FolderVerdict:
    if verdict.roster is None:
        unchecked = f"{identity}: not checked, for there is no roster that can be trusted"
        return replace(verdict, problems=(*verdict.problems, unchecked))
    try:
        mine = listed(identity, verdict.roster)
        if verdict.role not in {None, mine.role}:
            raise CertificateRefused(
                f"{mine.name} is {mine.role} by its certificate, and this is the bundle of role "
                f"{verdict.role}: verify the bundle of role {mine.role}"
            )
    except KeyFileError as error:
        return replace(verdict, problems=(*verdict.problems, str(error)))
    path = identity / layout.IDENTITY_CERTIFICATE
    if CertificateFile.parse(text_of(path)).transport is None:
        verdict = replace(verdict, notes=(*verdict.notes, f"{path}: {no_tls(mine)}"))
    can = (*verdict.can, f"{WITH_IDENTITY[mine.role]} {mine.name}")
    cannot = tuple(text for text in verdict.cannot if not text.startswith("sign contributions"))
    return replace(verdict, can=can, cannot=cannot)
