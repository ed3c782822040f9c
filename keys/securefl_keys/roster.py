"""Roster and officers in force: who takes part in the consortium, signed by its authority.

Officer 1 is the authority; the others are members of the role officer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from cryptography import x509
from pydantic import BaseModel, ConfigDict, Field

from securefl.crypto.artefact import Moment, Sha256, decoded, encoded
from securefl.crypto.cards import CardKey, CardKeyFile
from securefl.errors import (
    CertificateExpired,
    CertificateRefused,
    CertificateRevoked,
    ConfigError,
    KeyFileError,
    UnknownClient,
)
from securefl.exchange.card_keys import CardKeys, Quorum
from securefl.federation.message import Roster
from securefl.types import MOST_OFFICERS
from securefl_keys import layout
from securefl_keys.certificate_form import (
    AUTHORITY,
    MAX_NAME_BYTES,
    MEMBER_ROLES,
    ROLES,
    Role,
    alike,
    der_of,
    read_der,
)
from securefl_keys.certificates import (
    ConsortiumAuthority,
    HolderCertificate,
    TransportCertificate,
    holder_certificate,
    read_authority,
    transport_holder,
)
from securefl_keys.key_files import found_in, load, require_not_older, text_of
from securefl_keys.signed_file import Counting, SignedFile, VersionedFile, now

ROSTER_FORMAT: Literal["securefl-roster/2"] = "securefl-roster/2"
MAX_MEMBERS = 2000


class Revoked(BaseModel):
    """A former member."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    role: Role
    key_id: Sha256
    at: Moment
    epoch: Counting
    """Epoch of the keys that a client knew."""


class RosterFile(VersionedFile):
    """Roster file as it is written."""

    format: Literal["securefl-roster/2"]
    certificates: Annotated[tuple[str, ...], Field(max_length=MAX_MEMBERS)]
    """Certificates as DER in base64, in the order of joining."""
    revoked: Annotated[tuple[Revoked, ...], Field(max_length=MAX_MEMBERS)]


@dataclass(frozen=True, slots=True)
class VerifiedRoster:
    """A roster whose signature and certificates were checked."""

    ca: ConsortiumAuthority
    file: RosterFile = field(repr=False)
    members: dict[str, HolderCertificate]
    """Members by name, also those whose certificate has expired."""
    at: datetime
    """Time that decides which certificates have expired."""

    @classmethod
    def parse(cls, text: str, ca: ConsortiumAuthority, at: datetime) -> "VerifiedRoster":
        """Parse and check a roster; raises as `SignedFile.verified`.

        CertificateRefused, too, where it lists what it may not.
        """
        file = RosterFile.verified(text, ca)
        members: dict[str, HolderCertificate] = {}
        for written in file.certificates:
            member = holder_certificate(read_der(decoded(written)), ca)
            if member.role not in MEMBER_ROLES or alike(member.name) == AUTHORITY.name:
                raise CertificateRefused("the roster lists the authority, which is no member")
            members[member.name] = member
        names = {alike(name) for name in members}
        key_ids = {member.key_id for member in members.values()}
        if not len(names) == len(key_ids) == len(file.certificates):
            raise CertificateRefused("the roster lists a name or a key twice")
        if key_ids & {entry.key_id for entry in file.revoked}:
            raise CertificateRevoked("the roster lists a key that it has revoked")
        return cls(ca, file, members, at)

    def expirations(self) -> Iterator[str]:
        """Yield the reason for each member whose certificate is not valid at this time."""
        for member in self.members.values():
            try:
                member.require_current(self.at)
            except CertificateExpired as error:
                yield str(error)

    def member(self, name: str) -> HolderCertificate:
        """Return a client, a server or an officer that may take part.

        Raises:
            CertificateExpired, CertificateRevoked, UnknownClient: it may not, and why.
        """
        if name not in self.members:
            gone = [entry for entry in self.file.revoked if entry.name == name]
            if gone:
                raise CertificateRevoked(f"{name!r:.80} was revoked on {gone[-1].at}")
            raise UnknownClient(f"{name!r:.80} is no member of consortium {self.ca.name!r}")
        self.members[name].require_current(self.at)
        return self.members[name]

    def holder_of(self, certificate: x509.Certificate, role: Role) -> HolderCertificate:
        """Return the member that shows this certificate, found to have that role now.

        It is the roster's, or another of the same key, as an earlier one of a renewed member: both
        must be valid at this time.

        Raises:
            ForeignAuthority: another consortium's.
            CertificateRefused: of another role.
            CertificateExpired, CertificateRevoked, UnknownClient: no longer, or never, a member.
        """
        shown = holder_certificate(certificate, self.ca)
        shown.require_role(role)
        if role == "authority":
            shown.require_current(self.at)  # in no roster: the certificate says it all
            return shown
        self._require_not_revoked(shown.key_id, shown.name)
        member = self.member(shown.name)
        if (member.role, member.key_id) != (shown.role, shown.key_id):
            raise UnknownClient(
                f"{shown.name!r}: the roster lists another certificate, of another key"
            )
        shown.require_current(self.at)
        return shown

    def transport_holder_of(
        self, certificate: x509.Certificate, role: Role
    ) -> TransportCertificate:
        """Return the member of this TLS certificate, found to have that role and identity now.

        Raises as `holder_of`.
        """
        shown = transport_holder(certificate, self.ca)
        shown.require_role(role)
        shown.require_current(self.at)
        if role == "authority":
            return shown  # in no roster: the certificate says it all
        self._require_not_revoked(shown.identity, shown.name)
        member = self.member(shown.name)
        if (member.role, member.key_id) != (shown.role, shown.identity):
            raise UnknownClient(f"{shown.name!r}: the roster lists another identity key")
        return shown

    def _require_not_revoked(self, key_id: str, name: str) -> None:
        if key_id in {entry.key_id for entry in self.file.revoked}:
            raise CertificateRevoked(f"the key {key_id[:16]}… of {name!r} was revoked")

    def clients(self) -> list[HolderCertificate]:
        """Return its clients, also those whose certificate has expired."""
        return [member for member in self.members.values() if member.role == "client"]

    def officers(self) -> list[HolderCertificate]:
        """Return its officers, in force or not, also those whose certificate has expired."""
        return [member for member in self.members.values() if member.role == "officer"]

    def identities(self) -> Roster:
        """Return the clients whose certificate is valid at this time, for checks on messages."""
        clients = self.clients()
        current = [client for client in clients if client.is_current(self.at)]
        return Roster(
            {client.name: client.public_key for client in current},
            expired=[client.name for client in clients if client not in current],
            revoked=[entry.name for entry in self.file.revoked if entry.name not in self.members],
        )


def load_roster(
    directory: Path, authority: str | None = None, at: datetime | None = None
) -> VerifiedRoster:
    """Load the verified roster in a key folder or a bundle.

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
    """Load the folder's CA certificate.

    Raises:
        KeyFileError: there is none.
        ForeignAuthority: of another fingerprint.
    """
    path = directory / layout.CA_CERTIFICATE
    if not path.exists():
        roles = [role for role in ROLES if (directory / role / layout.CA_CERTIFICATE).exists()]
        if roles:
            raise KeyFileError(
                f"{directory}: has a bundle for each role; name one of them, such as "
                f"{directory / roles[0]}"
            )
    text = text_of(path)
    with found_in(path):
        ca = read_authority(text, at)
        ca.require_fingerprint(authority)
    return ca


def listing(certificates: list[x509.Certificate]) -> tuple[str, ...]:
    """Return certificates as a roster lists them."""
    return tuple(encoded(der_of(certificate)) for certificate in certificates)


OFFICERS_FORMAT: Literal["securefl-officers/1"] = "securefl-officers/1"
ALONE = (AUTHORITY.name,)
"""Names of the officers where the authority is the only one."""


class ListedOfficer(BaseModel):
    """One officer, with its card key of the epoch."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES)]
    card: CardKeyFile

    @classmethod
    def of(cls, name: str, key: CardKey) -> "ListedOfficer":
        """Return the entry of an officer of this name and key."""
        return cls(name=name, card=CardKeyFile.model_validate_json(key.to_json()))

    def key(self) -> CardKey:
        """Return the card key; raises KeyFileError where it is damaged."""
        return CardKey.from_json(self.card.model_dump_json())


class OfficersFile(SignedFile):
    """The officers of an epoch."""

    anew: ClassVar[str] = "make it anew, with: securefl keys officers set"

    format: Literal["securefl-officers/1"]
    needed: Annotated[int, Field(ge=1, le=MOST_OFFICERS)]
    """Quorum k: number of officers that together open a sum."""
    officers: Annotated[tuple[ListedOfficer, ...], Field(min_length=1, max_length=MOST_OFFICERS)]

    @property
    def names(self) -> tuple[str, ...]:
        """Names in order, the authority first."""
        return tuple(officer.name for officer in self.officers)

    def told(self) -> str:
        """Return names and quorum in words; empty where the authority is alone."""
        if len(self.names) == 1:
            return ""
        return f"{self.needed} of {len(self.names)} officers open sums: {', '.join(self.names)}"

    def card_keys(self, own: CardKey, roster: VerifiedRoster) -> CardKeys:
        """Return all card keys, found to go with the authority's and with the roster.

        Raises:
            KeyFileError: officer 1 has another key, somebody is no officer by the roster, or the
                keys are of several epochs.
            ConfigError: no quorum may be so.
        """
        first, *others = self.names
        if first != AUTHORITY.name or len(set(self.names)) != len(self.names):
            raise KeyFileError("officer 1 is not the authority, or an officer is there twice")
        for name in others:
            listed = roster.members.get(name)
            if listed is None or listed.role != "officer":
                raise KeyFileError(f"{name!r:.80} is no officer by the roster: {self.anew}")
        keys = tuple(officer.key() for officer in self.officers)
        if keys[0].to_json() != own.to_json():
            raise KeyFileError(f"officer 1 has another card key than the authority: {self.anew}")
        if {key.epoch for key in keys} != {self.epoch}:
            raise KeyFileError(f"a card key is not of epoch {self.epoch}: {self.anew}")
        try:
            return CardKeys(keys, Quorum(self.needed, len(keys)))
        except ConfigError as error:
            raise KeyFileError(f"{error}: {self.anew}") from error


def load_officers(directory: Path, at: datetime) -> OfficersFile | None:
    """Load the officers in a key folder or a bundle; None where there never was one.

    Whether they go with roster and keys, `OfficersFile.card_keys` tells.

    Raises:
        KeyFileError: and its subclasses, as `SignedFile.verified`.
    """
    path = directory / layout.OFFICERS
    if not path.exists():
        return None
    ca = load_authority_certificate(directory, None, at)
    with found_in(path):
        return OfficersFile.verified(text_of(path), ca)


def card_keys_in(directory: Path, path: Path, roster: VerifiedRoster | None = None) -> CardKeys:
    """Load the officers' card keys, of whom the authority's lies at `path`.

    Raises:
        KeyFileError: a file is missing or damaged, or they do not go together.
    """
    own = card_key_in(directory, path)
    if not (directory / layout.OFFICERS).exists():
        return CardKeys((own,))
    roster = roster or load_roster(directory)
    with found_in(directory / layout.OFFICERS):
        file = OfficersFile.verified(text_of(directory / layout.OFFICERS), roster.ca)
        return file.card_keys(own, roster)


def card_key_in(directory: Path, path: Path) -> CardKey:
    """Load the card key in a key folder's file; raises KeyFileError."""
    require_not_older(directory, path)
    return load(directory / path, CardKey.from_json)
