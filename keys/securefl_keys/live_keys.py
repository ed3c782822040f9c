"""Keys and bundles that change while a process runs: the authority's folder, a member's bundle.

Nothing here reads a secret key but that of an identity: a server loads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Literal

from cryptography import x509
from pydantic import TypeAdapter, ValidationError

from securefl.errors import KeyFileError
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.officer import KeySet, Officer, OneTimeOpener
from securefl.exchange.policy import Policy
from securefl.federation.message import Roster
from securefl.io.uncopyable import Held
from securefl.network.identity import ProcessIdentity
from securefl.network.trust import MemberStanding
from securefl_keys import layout
from securefl_keys.bundle import Bundle, load_bundle, require_sound
from securefl_keys.certificate_form import read_pem
from securefl_keys.certificates import ConsortiumAuthority, holder_certificate
from securefl_keys.export import bundle_texts
from securefl_keys.identity import load_identity
from securefl_keys.key_files import found_in, text_of
from securefl_keys.loading import AuthorityKeys, load_authority_keys
from securefl_keys.officers import ALONE, load_officers
from securefl_keys.party_certificates import transport_holder, transport_key
from securefl_keys.roster import VerifiedRoster
from securefl_keys.signed_file import now
from securefl_keys.signer import hold, open_signer, pending, settled
from securefl_keys.subject import MEMBER_ROLES, Role


@contextmanager
def alone(directory: Path, role: Literal["authority", "officer"] = "authority") -> Iterator[None]:
    """Lock out any other process that opens with these keys: it would not know of our totals.

    `directory` is the key folder, or the folder of an officer's identity.

    Raises:
        KeyFileError: there is one already.
    """
    busy = f"{directory}: another authority process serves these keys: stop it first"
    log = layout.LOG
    if role == "officer":
        log = layout.OFFICER_LOG
        busy = f"{directory}: another officer process serves these keys: stop it first"
    with ExitStack() as lock:
        hold(lock, directory / log, busy, timeout_s=0)
        yield


class FolderKeeper(Held):
    """Reader of the authority's key folder, which `securefl keys` may change meanwhile."""

    def __init__(self, directory: Path, passphrase: str) -> None:
        """Read nothing before `now`."""
        self._directory = directory
        self._passphrase = passphrase
        self._seen: tuple[str, ...] = ()
        self._age = (0, 0)
        self._opener: OneTimeOpener | Officer | None = None
        """Opener under the key that is in force; it has the clients' cards."""
        self._lock = Lock()

    def now(self) -> MemberStanding:
        """Return the standing of members now: see `Keeper.now`."""
        with self._lock:
            self._read_again()
            return self._standing

    def _read_again(self) -> None:
        """Open the folder anew where a file has changed: that takes Argon2's time."""
        if not pending(self._directory) and self._texts() == self._seen:
            return
        with settled(self._directory):
            self._read()

    def _texts(self) -> tuple[str, ...]:
        paths = [layout.AUTHORITY_KEY, layout.ROSTER, layout.POLICY]
        if (self._directory / layout.OFFICERS).exists():
            paths.append(layout.OFFICERS)
        return tuple(text_of(self._directory / path) for path in paths)

    def _read(self) -> None:
        texts = self._texts()
        keys = load_authority_keys(self._directory, self._passphrase)
        signer = open_signer(self._directory, self._passphrase, now())
        policy = keys.policy
        if policy is None:
            raise KeyFileError(f"{self._directory}: has no policy")
        roster = signer.roster
        officers = load_officers(self._directory, now())
        names = officers.names if officers else ALONE
        bundles = {r: _files(bundle_texts(self._directory, r, signer)) for r in MEMBER_ROLES}
        age = roster.file.epoch, roster.file.version
        # A restored backup would bring back a revoked member, so an older folder is refused.
        if age < self._age:
            raise KeyFileError(
                f"{self._directory}: of epoch and roster version {age}, and {self._age} was in "
                "force already: put the newest files back"
            )
        self._age = age
        # The opener holds the clients' cards; it is kept while its key stays, or they would be
        # lost.
        if self._opener is None or self._opener.key_id != keys.public.key_id:
            self._opener = _opener(keys)
        self._standing = MemberStanding(
            age=age,
            opener=self._opener,
            trust=RosterTrust(roster, officer_names=names),
            policy=policy,
            bundles=bundles,
        )
        self._seen = texts


def _opener(keys: AuthorityKeys) -> OneTimeOpener | Officer:
    """Return what opens sums, or where there are several officers, what the first adds keys by."""
    if keys.public.quorum.officers > 1:
        return Officer(keys.public, keys.secret)
    return KeySet((keys.secret,)).opener()


def _files(texts: dict[Path, str]) -> str:
    return json.dumps({path.as_posix(): text for path, text in texts.items()})


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
