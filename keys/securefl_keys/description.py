"""What lies in a key folder, as seen without the passphrase, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from securefl.crypto.match_artefact import MATCH_PARAMETERS_FORMAT, MATCH_PUBLIC_KEY_FORMAT
from securefl.crypto.match_public import MatchPublicKey, ScoringContext
from securefl.crypto.public import (
    PARAMETERS_FORMAT,
    PUBLIC_KEY_FORMAT,
    AddingContext,
    PublicKey,
)
from securefl.errors import KeyFileError
from securefl_keys import layout, releases
from securefl_keys.certificate_text import read_pem
from securefl_keys.key_files import WAY_OUT, open_to_others, others_may_read, parsed, read
from securefl_keys.policy import POLICY_FORMAT, PolicyFile
from securefl_keys.releases import RELEASES_FORMAT, ReleasesFile, lock_of
from securefl_keys.roster import ROSTER_FORMAT, RosterFile
from securefl_keys.sealed_file import (
    SEALED_KEY_FORMAT,
    SEALED_MATCH_KEY_FORMAT,
    SealedKey,
    SealedMatchKey,
)
from securefl_keys.sealed_identity import (
    SEALED_CA_KEY_FORMAT,
    SEALED_IDENTITY_FORMAT,
    SealedCaKey,
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a file says of itself."""

    key_id: str | None = None
    security_bits: int | None = None
    releases_left: int | None = None
    """Of the file that counts them."""


@dataclass(frozen=True, slots=True)
class Description:
    """One file of a key folder."""

    path: Path
    """Relative to the key folder."""
    what: str
    holder: str
    """The role that may hold such a file."""
    pair: str
    """The key pair that it is of: `sums`, `match`, `consortium`, or none where nobody can tell."""
    facts: Facts
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Kind:
    format: str
    what: str
    holder: str
    pair: str
    facts: Callable[[str], Facts]
    secret: bool = False


class _Secure(Protocol):
    @property
    def security_bits(self) -> int: ...


class _Keyed(Protocol):
    @property
    def key_id(self) -> str: ...

    @property
    def parameters(self) -> _Secure: ...


def _key(parse: Callable[[str], _Keyed]) -> Callable[[str], Facts]:
    def facts(text: str) -> Facts:
        key = parse(text)
        return Facts(key.key_id, key.parameters.security_bits)

    return facts


def _parses(parse: Callable[[str], object]) -> Callable[[str], Facts]:
    def facts(text: str) -> Facts:
        parse(text)
        return Facts()

    return facts


def _releases(text: str) -> Facts:
    file = ReleasesFile.parse(text)
    return Facts(file.key_id, releases_left=file.left)


_SECRET = _Kind(
    SEALED_KEY_FORMAT, "secret key", "authority", "sums", _key(SealedKey.parse), secret=True
)
_PARAMETERS = _Kind(
    PARAMETERS_FORMAT, "parameters", "any role", "sums", _key(AddingContext.from_json)
)
_PUBLIC = _Kind(PUBLIC_KEY_FORMAT, "public key", "clients", "sums", _key(PublicKey.from_json))
_MATCH_SECRET = _Kind(
    SEALED_MATCH_KEY_FORMAT,
    "match secret",
    "authority",
    "match",
    _key(SealedMatchKey.parse),
    secret=True,
)
_MATCH_RELEASES = _Kind(RELEASES_FORMAT, "match releases", "authority", "match", _releases)
_MATCH_PARAMETERS = _Kind(
    MATCH_PARAMETERS_FORMAT, "match scoring", "server", "match", _key(ScoringContext.from_json)
)
_MATCH_PUBLIC = _Kind(
    MATCH_PUBLIC_KEY_FORMAT, "match public", "clients", "match", _key(MatchPublicKey.from_json)
)
_CA_SECRET = _Kind(
    SEALED_CA_KEY_FORMAT,
    "CA secret",
    "authority",
    "consortium",
    _parses(SealedCaKey.parse),
    secret=True,
)
_IDENTITY = _Kind(
    SEALED_IDENTITY_FORMAT, "identity key", "its client", "", _parses(str), secret=True
)
_CA = _Kind(
    "-----BEGIN CERTIFICATE-----", "CA certificate", "any role", "consortium", _parses(read_pem)
)
_ROSTER = _Kind(
    ROSTER_FORMAT, "roster", "any role", "consortium", _parses(RosterFile.model_validate_json)
)
_POLICY = _Kind(
    POLICY_FORMAT, "policy", "any role", "consortium", _parses(PolicyFile.model_validate_json)
)
_LAYOUT = {
    layout.AUTHORITY_KEY: _SECRET,
    layout.AUTHORITY_PARAMETERS: _PARAMETERS,
    layout.SERVER_PARAMETERS: _PARAMETERS,
    layout.CLIENT_KEY: _PUBLIC,
    layout.MATCH_KEY: _MATCH_SECRET,
    layout.MATCH_RELEASES: _MATCH_RELEASES,
    layout.MATCH_PARAMETERS: _MATCH_PARAMETERS,
    layout.MATCH_PUBLIC_KEY: _MATCH_PUBLIC,
    layout.CA_KEY: _CA_SECRET,
    layout.CA_CERTIFICATE: _CA,
    layout.ROSTER: _ROSTER,
    layout.POLICY: _POLICY,
}
_KINDS = (*dict.fromkeys(_LAYOUT.values()), _IDENTITY)
_OPTIONAL = (layout.MATCH_FILES, layout.CONSORTIUM_FILES)


def describe(directory: Path) -> list[Description]:
    """Every file in a key folder and what is wrong with it; needs no passphrase.

    A role's own machine has its own folder alone, so a missing role is no problem; nor is a folder
    without any file of a match key.

    Raises:
        KeyFileError: no key folder, or it cannot be listed.
    """
    try:
        roles = [path for path in {path.parent for path in _LAYOUT} if (directory / path).is_dir()]
        if not roles:
            raise KeyFileError(
                f"{directory}: no key folder: it has neither authority/, server/ nor clients/; "
                f"make one with: securefl keys init {directory}"
            )
        found = _found(directory)
    except OSError as error:
        raise KeyFileError(f"{directory}: cannot be listed: {error.strerror or error}") from error
    absent = {path for group in _OPTIONAL if found.isdisjoint(group) for path in group}
    expected = [path for path in _LAYOUT if path.parent in roles and path not in absent]
    others = sorted(found - set(expected))
    return _compared([_described(directory, path) for path in expected + others])


def _found(directory: Path) -> set[Path]:
    # rglob does not enter links to folders, so these are listed themselves.
    files = {
        path.relative_to(directory)
        for path in directory.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }
    for lock in map(lock_of, (layout.MATCH_RELEASES, layout.ROSTER)):
        if lock in files and (directory / lock).lstat().st_size == 0:
            files.remove(lock)
    return files


def _described(directory: Path, path: Path) -> Description:
    kind, facts = _LAYOUT.get(path), Facts()
    problems: list[str] = []
    try:
        text = read(directory / path)
        kind = _labelled(text)
        problems += _misplaced(path, kind)
        if kind.secret and others_may_read(directory / path):
            problems.append(open_to_others(directory / path))
        facts = parsed(text, kind.facts)
    except KeyFileError as error:
        problems.append(str(error))
    what, holder, pair = (kind.what, kind.holder, kind.pair) if kind else ("unknown", "nobody", "")
    return Description(path, what, holder, pair, facts, tuple(problems))


def _labelled(text: str) -> _Kind:
    # A damaged file must still show what it was, so its label is searched for, not parsed.
    for kind in _KINDS:
        if kind.format in text:
            return kind
    raise KeyFileError("no SecureFL key file: move it elsewhere")


def _misplaced(path: Path, kind: _Kind) -> list[str]:
    belongs = _LAYOUT.get(path)
    if kind is belongs:
        return []
    if kind.secret and path.parts[0] != "authority":
        gone = "a secret key outside authority/: delete it here"
        return [f"{gone}, and if others were given this folder, make new keys"]
    if belongs is not None:
        return [f"a {kind.what} file where {belongs.what} belongs; {_way_out(path)}"]
    return [f"a {kind.what} file that nothing reads here: move it elsewhere"]


def _compared(descriptions: list[Description]) -> list[Description]:
    """The same, with a problem added where a key id is not that of the pair's first file."""
    firsts: dict[str, Description] = {}
    for entry in descriptions:
        if entry.facts.key_id is not None:
            firsts.setdefault(entry.pair, entry)
    return [_mixed(entry, firsts.get(entry.pair, entry)) for entry in descriptions]


def _mixed(entry: Description, first: Description) -> Description:
    if entry.facts.key_id in {None, first.facts.key_id}:
        return entry
    mixed = f"of another key than {first.path}: files of two key pairs are mixed"
    return replace(entry, problems=(*entry.problems, f"{mixed}; {_way_out(entry.path)}"))


def _way_out(path: Path) -> str:
    # A copy of a count is of a day before, and would let the key release more than it may.
    return releases.WAY_OUT if path == layout.MATCH_RELEASES else WAY_OUT
