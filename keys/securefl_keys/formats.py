"""Formats of the files in a key folder: marks, holder, and the facts that each states."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from securefl.crypto.cards import CARD_KEY_FORMAT, REPLACED, CardKey
from securefl_keys import layout
from securefl_keys.bundle import BUNDLE_FORMAT, Manifest
from securefl_keys.certificates import CertificateFile
from securefl_keys.identity import (
    SEALED_CA_KEY_FORMAT,
    SEALED_IDENTITY_FORMAT,
    SealedCaKey,
    SealedIdentityKey,
)
from securefl_keys.policy import POLICY_FORMAT, PolicyFile
from securefl_keys.roster import OFFICERS_FORMAT, ROSTER_FORMAT, OfficersFile, RosterFile
from securefl_keys.sealed_keys import SEALED_KEY_FORMAT, SealedKey


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that a file states of itself."""

    key_id: str | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class FileFormat:
    """Description of one kind of file."""

    format: str
    what: str
    holder: str
    pair: str
    facts: Callable[[str], Facts]
    secret: bool = False
    replaced: tuple[str, ...] = ()
    """Names of older formats whose place it has taken."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Marks, one of which its text has in any version, also where it is damaged."""
        return self.format.rstrip("0123456789"), *(f"{name}/" for name in self.replaced)


class _Keyed(Protocol):
    @property
    def key_id(self) -> str: ...

    @property
    def epoch(self) -> int: ...


def _key(parse: Callable[[str], _Keyed]) -> Callable[[str], Facts]:
    def facts(text: str) -> Facts:
        key = parse(text)
        return Facts(key.key_id, key.epoch)

    return facts


def _parses(parse: Callable[[str], object]) -> Callable[[str], Facts]:
    def facts(text: str) -> Facts:
        parse(text)
        return Facts()

    return facts


_SECRET = FileFormat(
    SEALED_KEY_FORMAT,
    "card secret",
    "authority",
    "cards",
    _key(SealedKey.parse),
    secret=True,
    replaced=SealedKey.replaced,
)
_PUBLIC = FileFormat(
    CARD_KEY_FORMAT, "card key", "any role", "cards", _key(CardKey.from_json), replaced=REPLACED
)
_CA_SECRET = FileFormat(
    SEALED_CA_KEY_FORMAT,
    "CA secret",
    "authority",
    "consortium",
    _parses(SealedCaKey.parse),
    secret=True,
)
_IDENTITY = FileFormat(
    SEALED_IDENTITY_FORMAT,
    "identity key",
    "its owner",
    "consortium",
    _parses(SealedIdentityKey.parse),
    secret=True,
)


def _of_consortium(label: str, what: str, parse: Callable[[str], object]) -> FileFormat:
    return FileFormat(label, what, "any role", "consortium", _parses(parse))


_CERTIFICATE = _of_consortium("-----BEGIN CERTIFICATE-----", "certificate", CertificateFile.parse)
_ROSTER = _of_consortium(ROSTER_FORMAT, "roster", RosterFile.parse)
_POLICY = _of_consortium(POLICY_FORMAT, "policy", PolicyFile.parse)
_OFFICERS = _of_consortium(OFFICERS_FORMAT, "officers", OfficersFile.parse)
_MANIFEST = _of_consortium(BUNDLE_FORMAT, "signed list", Manifest.parse)
LAYOUT = {
    layout.AUTHORITY_KEY: _SECRET,
    layout.AUTHORITY_PUBLIC_KEY: _PUBLIC,
    layout.SERVER_KEY: _PUBLIC,
    layout.CLIENT_KEY: _PUBLIC,
    layout.CA_KEY: _CA_SECRET,
    layout.AUTHORITY_IDENTITY: _IDENTITY,
    layout.AUTHORITY_CERTIFICATE: _CERTIFICATE,
    layout.CA_CERTIFICATE: _CERTIFICATE,
    layout.ROSTER: _ROSTER,
    layout.POLICY: _POLICY,
    layout.OFFICERS: _OFFICERS,
}


def _of_match(label: str, what: str, holder: str, *, secret: bool = False) -> FileFormat:
    return FileFormat(label, what, holder, "", lambda _: Facts(), secret)


_MATCHES = {
    layout.MATCH_KEY: _of_match(
        "securefl-match-secret-key/2", "match secret", "authority", secret=True
    ),
    layout.MATCH_PARAMETERS: _of_match("securefl-match-parameters/2", "match scoring", "server"),
    layout.MATCH_PUBLIC_KEY: _of_match("securefl-match-public-key/2", "match public", "clients"),
}
_RELEASES = _of_match("securefl-releases/2", "releases", "authority")
OF_MATCHES = (*_MATCHES.values(), _RELEASES)
"""Files of older releases, which nothing reads: profiles had a key of their own."""
BUNDLED = {layout.MANIFEST: _MANIFEST, layout.BUNDLED_CERTIFICATE: _CERTIFICATE}
"""Files that bundles alone have."""
# A list of officers has card keys inside, so it is told first.
KINDS = (*dict.fromkeys((_OFFICERS, *LAYOUT.values())), *OF_MATCHES, _MANIFEST)


def kind_at(path: Path) -> FileFormat | None:
    """Return the format that belongs at a path of a key folder or bundle; None where none does."""
    if path in BUNDLED:
        return BUNDLED[path]
    return _RELEASES if path.parent == layout.RELEASES else (LAYOUT | _MATCHES).get(path)
