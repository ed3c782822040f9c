"""The kinds of files in a key folder: how each is told, who holds it, what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from securefl.crypto.match_public import (
    MATCH_PARAMETERS_FILE,
    MATCH_PUBLIC_KEY_FILE,
    MatchPublicKey,
    ScoringContext,
)

from securefl.crypto.cards import CARD_KEY_FORMAT, REPLACED, CardKey
from securefl_keys import layout
from securefl_keys.bundle import BUNDLE_FORMAT, Manifest
from securefl_keys.certificate_file import CertificateFile
from securefl_keys.policy import POLICY_FORMAT, PolicyFile
from securefl_keys.releases import RELEASES_FORMAT, ReleasesFile
from securefl_keys.roster import ROSTER_FORMAT, RosterFile
from securefl_keys.sealed_identity import (
    SEALED_CA_KEY_FORMAT,
    SEALED_IDENTITY_FORMAT,
    SealedCaKey,
    SealedIdentityKey,
)
from securefl_keys.sealed_keys import (
    SEALED_KEY_FORMAT,
    SEALED_MATCH_KEY_FORMAT,
    SealedKey,
    SealedMatchKey,
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a file says of itself."""

    key_id: str | None = None
    epoch: int | None = None
    security_bits: int | None = None
    n_released: int | None = None
    """Scores, by the file that counts them."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of file."""

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


class _Secure(Protocol):
    @property
    def security_bits(self) -> int: ...


class _Keyed(Protocol):
    @property
    def key_id(self) -> str: ...

    @property
    def epoch(self) -> int: ...


class _Ckks(_Keyed, Protocol):
    @property
    def parameters(self) -> _Secure: ...


def _key(parse: Callable[[str], _Keyed]) -> Callable[[str], Facts]:
    def facts(text: str) -> Facts:
        key = parse(text)
        return Facts(key.key_id, key.epoch)

    return facts


def _ckks_key(parse: Callable[[str], _Ckks]) -> Callable[[str], Facts]:
    def facts(text: str) -> Facts:
        key = parse(text)
        return Facts(key.key_id, key.epoch, key.parameters.security_bits)

    return facts


def _parses(parse: Callable[[str], object]) -> Callable[[str], Facts]:
    def facts(text: str) -> Facts:
        parse(text)
        return Facts()

    return facts


def _releases(text: str) -> Facts:
    file = ReleasesFile.parse(text)
    return Facts(file.key_id, n_released=file.n_released)


_SECRET = Kind(
    SEALED_KEY_FORMAT,
    "card secret",
    "authority",
    "cards",
    _key(SealedKey.parse),
    secret=True,
    replaced=SealedKey.replaced,
)
_PUBLIC = Kind(
    CARD_KEY_FORMAT, "card key", "any role", "cards", _key(CardKey.from_json), replaced=REPLACED
)
_MATCH_SECRET = Kind(
    SEALED_MATCH_KEY_FORMAT,
    "match secret",
    "authority",
    "match",
    _ckks_key(SealedMatchKey.parse),
    secret=True,
)
_RELEASES = Kind(RELEASES_FORMAT, "releases", "authority", "", _releases)
_MATCH_PARAMETERS = Kind(
    MATCH_PARAMETERS_FILE.format,
    "match scoring",
    "server",
    "match",
    _ckks_key(ScoringContext.from_json),
)
_MATCH_PUBLIC = Kind(
    MATCH_PUBLIC_KEY_FILE.format,
    "match public",
    "clients",
    "match",
    _ckks_key(MatchPublicKey.from_json),
)
_CA_SECRET = Kind(
    SEALED_CA_KEY_FORMAT,
    "CA secret",
    "authority",
    "consortium",
    _parses(SealedCaKey.parse),
    secret=True,
)
_IDENTITY = Kind(
    SEALED_IDENTITY_FORMAT,
    "identity key",
    "its owner",
    "consortium",
    _parses(SealedIdentityKey.parse),
    secret=True,
)


def _of_consortium(label: str, what: str, parse: Callable[[str], object]) -> Kind:
    return Kind(label, what, "any role", "consortium", _parses(parse))


_CERTIFICATE = _of_consortium("-----BEGIN CERTIFICATE-----", "certificate", CertificateFile.parse)
_ROSTER = _of_consortium(ROSTER_FORMAT, "roster", RosterFile.parse)
_POLICY = _of_consortium(POLICY_FORMAT, "policy", PolicyFile.parse)
_MANIFEST = _of_consortium(BUNDLE_FORMAT, "signed list", Manifest.parse)
LAYOUT = {
    layout.AUTHORITY_KEY: _SECRET,
    layout.AUTHORITY_PUBLIC_KEY: _PUBLIC,
    layout.SERVER_KEY: _PUBLIC,
    layout.CLIENT_KEY: _PUBLIC,
    layout.MATCH_KEY: _MATCH_SECRET,
    layout.MATCH_PARAMETERS: _MATCH_PARAMETERS,
    layout.MATCH_PUBLIC_KEY: _MATCH_PUBLIC,
    layout.CA_KEY: _CA_SECRET,
    layout.AUTHORITY_IDENTITY: _IDENTITY,
    layout.AUTHORITY_CERTIFICATE: _CERTIFICATE,
    layout.CA_CERTIFICATE: _CERTIFICATE,
    layout.ROSTER: _ROSTER,
    layout.POLICY: _POLICY,
}
"""But for the counts of releases, each of which is named after its key."""
KINDS = (*dict.fromkeys(LAYOUT.values()), _RELEASES, _MANIFEST)


def kind_at(path: Path) -> Kind | None:
    """What belongs there in a key folder or a bundle."""
    if path == layout.MANIFEST:
        return _MANIFEST
    return _RELEASES if path.parent == layout.RELEASES else LAYOUT.get(path)
