"""The roster: who is a client of the consortium, signed by its certificate authority."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from cryptography import x509
from pydantic import BaseModel, ConfigDict, Field

from securefl.crypto.artefact import Sha256
from securefl.errors import (
    CertificateExpired,
    CertificateRefused,
    CertificateRevoked,
    UnknownClient,
)
from securefl.roles import wire
from securefl_keys import layout
from securefl_keys.base64_text import decoded, encoded
from securefl_keys.certificate_text import der_of, read_der
from securefl_keys.certificates import (
    ClientCertificate,
    ConsortiumAuthority,
    client_certificate,
    read_authority,
)
from securefl_keys.member_names import alike
from securefl_keys.reading import found_in, text_of
from securefl_keys.signed_file import Counting, Moment, SignedFile, now

ROSTER_FORMAT: Literal["securefl-roster/1"] = "securefl-roster/1"
MAX_CLIENTS = 2000


class Revoked(BaseModel):
    """A client that was one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    key_id: Sha256
    at: Moment
    epoch: Counting
    """Of the CKKS keys that it knew."""


class RosterFile(SignedFile):
    """The roster as it is written."""

    format: Literal["securefl-roster/1"]
    version: Counting
    """One more with each change."""
    certificates: Annotated[tuple[str, ...], Field(max_length=MAX_CLIENTS)]
    """DER in base64, in the order of joining."""
    revoked: Annotated[tuple[Revoked, ...], Field(max_length=MAX_CLIENTS)]


@dataclass(frozen=True, slots=True)
class VerifiedRoster:
    """A roster whose signature and certificates were checked."""

    ca: ConsortiumAuthority
    file: RosterFile = field(repr=False)
    members: dict[str, ClientCertificate]
    """By name, also those whose certificate has expired."""
    at: datetime
    """When: decides who has expired."""

    @classmethod
    def parse(cls, text: str, ca: ConsortiumAuthority, at: datetime) -> VerifiedRoster:
        """Raises as `SignedFile.verified`; CertificateRefused where it lists what it may not."""
        file = RosterFile.verified(text, ca)
        members: dict[str, ClientCertificate] = {}
        for written in file.certificates:
            member = client_certificate(read_der(decoded(written)), ca)
            members[member.name] = member
        names = {alike(name) for name in members}
        key_ids = {member.key_id for member in members.values()}
        if not len(names) == len(key_ids) == len(file.certificates):
            raise CertificateRefused("the roster lists a name or a key twice")
        if key_ids & {entry.key_id for entry in file.revoked}:
            raise CertificateRevoked("the roster lists a key that it has revoked")
        return cls(ca, file, members, at)

    @property
    def rotation_due(self) -> bool:
        """Whether somebody who was revoked knew this epoch's keys."""
        return any(entry.epoch == self.file.epoch for entry in self.file.revoked)

    def expirations(self) -> Iterator[str]:
        """Of each client whose certificate is not valid at this time, why."""
        for member in self.members.values():
            try:
                member.require_current(self.at)
            except CertificateExpired as error:
                yield str(error)

    def member(self, name: str) -> ClientCertificate:
        """A client that may take part.

        Raises:
            CertificateExpired, CertificateRevoked, UnknownClient: it may not, and why.
        """
        if name not in self.members:
            gone = [entry for entry in self.file.revoked if entry.name == name]
            if gone:
                raise CertificateRevoked(f"{name!r:.80} was revoked on {gone[-1].at}")
            raise UnknownClient(f"{name!r:.80} is no client of consortium {self.ca.name!r}")
        self.members[name].require_current(self.at)
        return self.members[name]

    def require_key(self, name: str, key_id: str) -> None:
        """As `member`, and it must have this key: one that was revoked is named as such."""
        if key_id in {entry.key_id for entry in self.file.revoked}:
            raise CertificateRevoked(f"the key {key_id[:16]}… of {name!r:.80} was revoked")
        if self.member(name).key_id != key_id:
            raise UnknownClient(f"the roster lists {name!r:.80} with another key")

    def identities(self) -> wire.Roster:
        """For the checks on messages: every client whose certificate is valid at this time."""
        current = [m for m in self.members.values() if m.is_current(self.at)]
        return wire.Roster({member.name: member.public_key for member in current})


def load_roster(
    directory: Path, authority: str | None = None, at: datetime | None = None
) -> VerifiedRoster:
    """The verified roster in a key folder or a bundle.

    Args:
        directory: the folder.
        authority: the fingerprint that its certificate authority must have.
        at: when; now where None.

    Raises:
        KeyFileError: and its subclasses, each for what it says.
    """
    at = at or now()
    ca = load_authority_certificate(directory, authority, at)
    path = directory / layout.ROSTER
    text = text_of(path)
    with found_in(path):
        return VerifiedRoster.parse(text, ca, at)


def load_authority_certificate(
    directory: Path, authority: str | None, at: datetime
) -> ConsortiumAuthority:
    """The certificate in the folder; raises ForeignAuthority where it has another fingerprint."""
    path = directory / layout.CA_CERTIFICATE
    text = text_of(path)
    with found_in(path):
        ca = read_authority(text, at)
        ca.require_fingerprint(authority)
    return ca


def listing(certificates: list[x509.Certificate]) -> tuple[str, ...]:
    """Certificates as a roster lists them."""
    return tuple(encoded(der_of(certificate)) for certificate in certificates)
