"""Verified bundle of a member, which changes while its process runs, and its identity.

Nothing here reads a secret key but that of an identity: a server loads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from cryptography import x509
from pydantic import TypeAdapter, ValidationError

from securefl.errors import KeyFileError
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.policy import Policy
from securefl.federation.message import Roster
from securefl.network.identity import ProcessIdentity
from securefl_keys import layout
from securefl_keys.bundle import Bundle, load_bundle, require_sound
from securefl_keys.certificate_form import read_pem
from securefl_keys.certificates import ConsortiumAuthority, holder_certificate
from securefl_keys.identity import load_identity
from securefl_keys.key_files import found_in
from securefl_keys.officers import ALONE
from securefl_keys.party_certificates import transport_holder, transport_key
from securefl_keys.roster import VerifiedRoster
from securefl_keys.signed_file import now
from securefl_keys.subject import Role

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
class SoundBundle(RosterTrust):
    """A bundle in which nothing is wrong, and its keys."""

    bundle: Bundle
    card_keys: CardKeys = field(repr=False)
    """Card keys of the officers in force: see `network.trust.Bundle.card_keys`."""

    @classmethod
    def load(cls, directory: Path, role: Role) -> SoundBundle:
        """Load the folder's bundle; raises KeyFileError, or a subclass that says more."""
        return cls._of(load_bundle(directory, role))

    @classmethod
    def _of(cls, bundle: Bundle) -> SoundBundle:
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

    def newer(self, files: str) -> SoundBundle:
        """Return the bundle in `files` if it is newer: see `network.trust.Bundle.newer`."""
        after = self.of_any_age(files)
        if after.age < self.age:
            raise KeyFileError(
                f"a bundle of epoch and roster version {after.age}, older than {self.age}"
            )
        return after

    def of_any_age(self, files: str) -> SoundBundle:
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
