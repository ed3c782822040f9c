"""Bundles: the files that one role may hold, under one signed list; read, and kept up to date.

It is laid out as a key folder, so that `card_keys_in` reads it.

Nothing here reads a secret key but that of an identity: a server loads it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from cryptography import x509
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from securefl.crypto.artefact import Sha256, digest
from securefl.crypto.cards import CardKey
from securefl.errors import FileSignatureRefused, KeyFileError
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.policy import Policy
from securefl.federation.message import Roster
from securefl.network.identity import ProcessIdentity
from securefl_keys import layout
from securefl_keys.certificate_form import Role, read_pem
from securefl_keys.certificates import (
    ConsortiumAuthority,
    authority_certificate,
    holder_certificate,
    read_authority,
    transport_holder,
    transport_key,
)
from securefl_keys.identity import load_identity
from securefl_keys.key_files import MAX_FILE_BYTES, found_in, parsed, require_no_secret, text_of
from securefl_keys.policy import PolicyFile
from securefl_keys.roster import ALONE, OfficersFile, VerifiedRoster
from securefl_keys.signed_file import Counting, SignedFile, now

BUNDLE_FORMAT: Literal["securefl-bundle/3"] = "securefl-bundle/3"


MAX_FILES = 100
"""Number of files in a folder, strangers included: each is named as a problem."""
MAX_BYTES = 8 * 1024 * 1024
"""Number of bytes in all files, which are held at once. A roster of 2000 members has 1.5 MB."""


CARDS: dict[Role, Path] = {
    "client": layout.CLIENT_KEY,
    "server": layout.SERVER_KEY,
    "authority": layout.AUTHORITY_PUBLIC_KEY,
    "officer": layout.AUTHORITY_PUBLIC_KEY,
}
"""Place of the authority's card key, by role; its text is the same in all."""
COMMON = (layout.CA_CERTIFICATE, layout.ROSTER, layout.POLICY)
"""Files of every bundle."""
OPTIONAL = (layout.OFFICERS, layout.BUNDLED_CERTIFICATE)
"""Files of bundles where there are officers; and of all but those that an older release wrote."""


class BundledFile(BaseModel):
    """One file of a bundle."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    path: str
    n_bytes: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]
    sha256: Sha256


class Manifest(SignedFile):
    """The list of a bundle's files."""

    anew: ClassVar[str] = "export it anew, with: securefl keys export"

    format: Literal["securefl-bundle/3"]
    role: Role
    key_id: Sha256
    """Key id of all officers' card keys together: see `CardKeys.key_id`."""
    roster_version: Counting
    policy_version: Counting
    files: Annotated[tuple[BundledFile, ...], Field(max_length=10)]


@dataclass(frozen=True, slots=True)
class Bundle:
    """Texts of a bundle, each read once. Nothing is believed before `problems` was exhausted."""

    ca: ConsortiumAuthority
    manifest: Manifest
    texts: dict[Path, str] = field(repr=False)
    at: datetime

    @classmethod
    def read(cls, directory: Path, authority: str | None, at: datetime) -> "Bundle":
        """Read the folder's files; raises KeyFileError where there is no signed list of them."""
        found = _regular_files(directory)
        if sum((directory / path).stat().st_size for path in found) > MAX_BYTES:
            raise KeyFileError(_TOO_LARGE)
        return cls.of({path: text_of(directory / path) for path in found}, authority, at)

    @classmethod
    def of(cls, texts: dict[Path, str], authority: str | None, at: datetime) -> "Bundle":
        """Return the bundle of these files; raises KeyFileError where no signed list names them."""
        if len(texts) > MAX_FILES or sum(map(len, texts.values())) > MAX_BYTES:
            raise KeyFileError(_TOO_LARGE)
        for path in (layout.CA_CERTIFICATE, layout.MANIFEST):
            if path not in texts:
                raise KeyFileError(f"{path}: missing: {_WAY_OUT}")
        with found_in(layout.CA_CERTIFICATE):
            ca = read_authority(texts[layout.CA_CERTIFICATE], at)
            ca.require_fingerprint(authority)
        with found_in(layout.MANIFEST):
            manifest = Manifest.verified(texts[layout.MANIFEST], ca)
        return cls(ca, manifest, texts, at)

    def problems(self) -> Iterator[KeyFileError]:
        """Yield everything that is wrong with the bundle."""
        listed = {Path(entry.path): entry for entry in self.manifest.files}
        expected = {CARDS[self.manifest.role], *COMMON}
        if set(listed) - {*OPTIONAL} != expected or len(listed) != len(self.manifest.files):
            yield KeyFileError("the signed list has other files than this role's")
        sound = []
        for path in sorted(set(self.texts) | set(listed)):
            try:
                with found_in(path):
                    self._check(path, listed.get(path))
                sound.append(path)
            except KeyFileError as error:
                yield error
        for path in sound:  # only now: keys are large to parse
            try:
                with found_in(path):
                    self._check_signed(path)
            except KeyFileError as error:
                yield error

    def roster(self) -> VerifiedRoster:
        """Return the verified roster; raises as `VerifiedRoster.parse`."""
        return VerifiedRoster.parse(self.texts[layout.ROSTER], self.ca, self.at)

    def policy(self) -> PolicyFile:
        """Return the signed policy; raises as `SignedFile.verified`."""
        return PolicyFile.verified(self.texts[layout.POLICY], self.ca)

    def officers(self) -> OfficersFile | None:
        """Return the officers, or None for the authority alone; raises as `SignedFile.verified`."""
        text = self.texts.get(layout.OFFICERS)
        return None if text is None else OfficersFile.verified(text, self.ca)

    def card_keys(self) -> CardKeys:
        """Return the card keys of the officers in force; raises as `OfficersFile.card_keys`."""
        own = parsed(self.texts[CARDS[self.manifest.role]], CardKey.from_json)
        officers = self.officers()
        return officers.card_keys(own, self.roster()) if officers else CardKeys((own,))

    def _check(self, path: Path, entry: BundledFile | None) -> None:
        if path not in self.texts:
            raise KeyFileError(f"missing: {_WAY_OUT}")
        content = self.texts[path].encode()
        require_no_secret(content)
        if path == layout.MANIFEST:
            return
        if entry is None:
            raise KeyFileError("not in the signed list: delete it")
        if (len(content), digest(content)) != (entry.n_bytes, entry.sha256):
            raise FileSignatureRefused(f"not the file that was signed: {_WAY_OUT}")

    def _check_signed(self, path: Path) -> None:
        if path == CARDS[self.manifest.role]:
            own = parsed(self.texts[path], CardKey.from_json)
            self._require_epoch(own.epoch)
            if layout.OFFICERS not in self.texts:
                self._require_key(own.key_id)
        if path == layout.OFFICERS:
            keys = self.card_keys()
            self._require_epoch(keys.epoch)
            self._require_key(keys.key_id)
        if path == layout.BUNDLED_CERTIFICATE:
            authority_certificate(self.texts[path], self.ca)
        if path == layout.ROSTER:
            roster = self.roster().file
            self._require_epoch(roster.epoch)
            self._require_version(roster.version, self.manifest.roster_version)
        if path == layout.POLICY:
            policy = self.policy()
            self._require_epoch(policy.epoch)
            self._require_version(policy.version, self.manifest.policy_version)

    def _require_key(self, found: str) -> None:
        if found != self.manifest.key_id:
            raise KeyFileError(f"of another key than the signed list names: {_WAY_OUT}")

    def _require_epoch(self, found: int) -> None:
        if found != self.manifest.epoch:
            raise KeyFileError(
                f"of epoch {found}, the signed list names {self.manifest.epoch}: {_WAY_OUT}"
            )

    @staticmethod
    def _require_version(found: int, listed: int) -> None:
        if found != listed:
            raise KeyFileError(f"version {found}, the signed list names {listed}: {_WAY_OUT}")


_WAY_OUT = "take the whole bundle again from who exported it"
_TOO_LARGE = f"more files, or larger ones, than a bundle has: {_WAY_OUT}"


def load_bundle(
    directory: Path, role: Role, authority: str | None = None, at: datetime | None = None
) -> Bundle:
    """Load a folder's bundle, in which nothing is wrong; raises as `require_sound`."""
    bundle = Bundle.read(directory, authority, at or now())
    require_sound(bundle, role)
    return bundle


def require_sound(bundle: Bundle, role: Role) -> None:
    """Raises KeyFileError, or what its subclass says, where anything is wrong with a bundle."""
    if bundle.manifest.role != role:
        raise KeyFileError(f"a bundle for the role {bundle.manifest.role}, not {role}")
    for problem in bundle.problems():
        raise problem


def _regular_files(directory: Path) -> list[Path]:
    found = []
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise KeyFileError(f"{path}: a link or a device: a bundle has none; delete it")
        if path.is_file():
            found.append(path.relative_to(directory))
        if len(found) > MAX_FILES:
            raise KeyFileError(f"{directory}: more files than a bundle has: {_WAY_OUT}")
    return found


_TEXTS = TypeAdapter(dict[str, str])


@dataclass(frozen=True, slots=True)
class RosterTrust:
    """Holders of certificates by a roster, at the time of the question."""

    roster: VerifiedRoster
    officer_names: tuple[str, ...] = field(default=ALONE, kw_only=True)

    def holder(self, certificate: x509.Certificate, role: Role) -> str:
        """Return the holder of a certificate: see `Trust.holder`."""
        return self._now().holder_of(certificate, role).name

    def transport_holder(self, certificate: x509.Certificate, role: Role) -> str:
        """Return the holder of a certificate for TLS: see `Trust.transport_holder`."""
        return self._now().transport_holder_of(certificate, role).name

    def clients(self) -> Roster:
        """Return the clients in force: see `Trust.clients`."""
        return self._now().identities()

    def officers(self) -> tuple[str, ...]:
        """Return the names of the officers in force, in order; the first is the authority."""
        return self.officer_names

    def _now(self) -> VerifiedRoster:
        return replace(self.roster, at=now())


@dataclass(frozen=True, slots=True)
class VerifiedBundle(RosterTrust):
    """A bundle in which nothing is wrong, and its keys."""

    bundle: Bundle
    card_keys: CardKeys = field(repr=False)
    """Card keys of the officers in force: see `network.trust.Bundle.card_keys`."""

    @classmethod
    def load(cls, directory: Path, role: Role) -> "VerifiedBundle":
        """Load the folder's bundle; raises KeyFileError, or a subclass that says more."""
        return cls._of(load_bundle(directory, role))

    @classmethod
    def _of(cls, bundle: Bundle) -> "VerifiedBundle":
        officers = bundle.officers()
        names = officers.names if officers else ALONE
        return cls(bundle.roster(), bundle, bundle.card_keys(), officer_names=names)

    @property
    def ca(self) -> ConsortiumAuthority:
        """Certificate authority that has signed the bundle."""
        return self.bundle.ca

    @property
    def age(self) -> tuple[int, int]:
        """Epoch, and version of the roster."""
        return self.bundle.manifest.epoch, self.bundle.manifest.roster_version

    @property
    def policy(self) -> Policy:
        """Signed policy of the consortium."""
        return self.bundle.policy().policy()

    def newer(self, files: str) -> "VerifiedBundle":
        """Return the bundle in `files` if it is newer: see `network.trust.Bundle.newer`."""
        after = self.of_any_age(files)
        if after.age < self.age:
            raise KeyFileError(
                f"a bundle of epoch and roster version {after.age}, older than {self.age}"
            )
        return after

    def of_any_age(self, files: str) -> "VerifiedBundle":
        """Return another bundle of the same consortium and role, which may be an older one.

        Raises:
            KeyFileError: as `load`, of the files as JSON.
        """
        try:
            texts = _TEXTS.validate_json(files, strict=True)
        except ValidationError:
            raise KeyFileError("no files of a bundle") from None
        found = Bundle.of(
            {Path(path): text for path, text in texts.items()}, self.ca.fingerprint, now()
        )
        require_sound(found, self.bundle.manifest.role)
        return self._of(found)


def process_identity(
    directory: Path, passphrase: str, ca: ConsortiumAuthority, role: Role
) -> ProcessIdentity:
    """Return the identity of a process, from its own folder.

    Raises:
        ForeignAuthority, CertificateRefused: another consortium's, or for another role.
        KeyFileError: as `load_identity`.
    """
    own = load_identity(directory, passphrase)
    certificate = read_pem(own.certificate_pem)
    with found_in(directory / layout.IDENTITY_CERTIFICATE):
        holder = holder_certificate(certificate, ca)
        holder.require_role(role)
        if own.transport:
            transport_holder(own.transport, ca).require_identity(holder)
    return ProcessIdentity(
        own.name,
        certificate,
        ca.certificate,
        own.private_key,
        own.transport,
        transport_key(own.private_key) if own.transport else None,
    )
