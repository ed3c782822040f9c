"""The certificate authority's side: made with the keys, approves clients and revokes them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from os.path import lexists
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from filelock import FileLock, Timeout

from securefl.errors import KeyFileError, RequestRefused
from securefl_keys import layout
from securefl_keys.certificate_text import pem_of
from securefl_keys.certificates import ConsortiumAuthority, issue, make_authority, read_authority
from securefl_keys.fingerprints import key_id_of
from securefl_keys.key_files import load_secret, replace, write_new
from securefl_keys.member_names import alike
from securefl_keys.policy import DEFAULT, POLICY_FORMAT, PolicyFile
from securefl_keys.releases import lock_of
from securefl_keys.request import JoinRequest
from securefl_keys.roster import (
    MAX_CLIENTS,
    ROSTER_FORMAT,
    Revoked,
    RosterFile,
    VerifiedRoster,
    listing,
    load_roster,
)
from securefl_keys.sealed_identity import open_ca_key, seal_ca_key
from securefl_keys.signed_file import moment, now

LOCK_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class NewConsortium:
    """The texts of a consortium's first files."""

    ca: ConsortiumAuthority
    sealed_key: str = field(repr=False)
    public: dict[Path, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Signer:
    """The opened certificate authority of a folder, and its roster."""

    roster: VerifiedRoster
    key: Ed25519PrivateKey = field(repr=False)

    @property
    def ca(self) -> ConsortiumAuthority:
        """Its certificate."""
        return self.roster.ca


def new_consortium(name: str, passphrase: str, at: datetime | None = None) -> NewConsortium:
    """A certificate authority with an empty roster and the default policy.

    Raises:
        ConfigError: the passphrase is empty.
        KeyFileError: `name` cannot be one.
    """
    at, key = at or now(), Ed25519PrivateKey.generate()
    certificate = pem_of(make_authority(name, key, at))
    ca = read_authority(certificate, at)
    empty = {"format": ROSTER_FORMAT, "version": 1, "certificates": (), "revoked": ()}
    roster = RosterFile.signing(ca, key, at, epoch=1, **empty)
    policy = PolicyFile.signing(ca, key, at, format=POLICY_FORMAT, epoch=1, **DEFAULT)
    public = {layout.CA_CERTIFICATE: certificate, layout.ROSTER: roster, layout.POLICY: policy}
    return NewConsortium(ca, seal_ca_key(key, passphrase), public)


def approve(
    directory: Path,
    request: JoinRequest,
    certificate_path: Path,
    passphrase: str,
    at: datetime | None = None,
) -> VerifiedRoster:
    """Issue a certificate, whose fingerprint was compared, and list it in the roster.

    Raises:
        RequestRefused: the name or the key is already, or no longer, in the roster.
        WrongPassphrase: of the certificate authority's key.
        KeyFileError: a file is missing, damaged or cannot be written.
    """
    at = at or now()
    if lexists(certificate_path):
        raise KeyFileError(f"{certificate_path} exists: name another with --out, or move it away")
    with _locked(directory):
        signer = open_signer(directory, passphrase, at)
        _require_new(request, signer.roster)
        certificate = issue(signer.ca, signer.key, request.name, request.public_key, at)
        certificates = [member.certificate for member in signer.roster.members.values()]
        text = _next(signer, at, [*certificates, certificate], signer.roster.file.revoked)
        write_new(certificate_path, pem_of(certificate), mode=0o644)
        try:
            replace(directory / layout.ROSTER, text, mode=0o644)
        except BaseException:
            certificate_path.unlink(missing_ok=True)
            raise
    return VerifiedRoster.parse(text, signer.ca, at)


def revoke(
    directory: Path, name: str, passphrase: str, at: datetime | None = None
) -> VerifiedRoster:
    """A new roster without that client. Whoever has an older one still believes it.

    Raises:
        UnknownClient, CertificateRevoked: no such client, or revoked before.
        WrongPassphrase: of the certificate authority's key.
        KeyFileError: a file is missing, damaged or cannot be written.
    """
    at = at or now()
    with _locked(directory):
        signer = open_signer(directory, passphrase, at)
        members = signer.roster.members
        if name not in members:
            signer.roster.member(name)  # says why not
        old, gone = signer.roster.file, members[name]
        if len(old.revoked) >= MAX_CLIENTS:
            raise KeyFileError("the roster is full of revoked clients: make a new consortium")
        entry = Revoked(name=name, key_id=gone.key_id, at=moment(at), epoch=old.epoch)
        kept = [member.certificate for member in members.values() if member.name != name]
        text = _next(signer, at, kept, (*old.revoked, entry))
        replace(directory / layout.ROSTER, text, mode=0o644)
    return VerifiedRoster.parse(text, signer.ca, at)


def open_signer(directory: Path, passphrase: str, at: datetime) -> Signer:
    """What signs for the consortium.

    Raises:
        WrongPassphrase: another passphrase, or the key's file was changed.
        KeyFileError: no consortium, or a file is missing, damaged, or open to others.
    """
    path = directory / layout.CA_KEY
    if not path.exists():
        raise KeyFileError(
            f"{path}: missing: only the folder in which the keys were made has it; make one with: "
            "securefl keys init DIR --consortium NAME"
        )
    roster = load_roster(directory, at=at)
    key = load_secret(path, lambda text: open_ca_key(text, passphrase))
    if key.public_key() != roster.ca.public_key:
        raise KeyFileError(f"{path}: not the key of {directory / layout.CA_CERTIFICATE}")
    return Signer(roster, key)


def _require_new(request: JoinRequest, roster: VerifiedRoster) -> None:
    key_id = key_id_of(request.public_key)
    for name, member in roster.members.items():
        if alike(name) == alike(request.name):
            raise RequestRefused(
                f"{request.name!r}: the roster lists {name!r} already; to renew it, first: "
                f"securefl keys revoke {shlex.quote(name)} --keys DIR"
            )
        if member.key_id == key_id:
            raise RequestRefused(f"{request.name!r}: its key is that of client {name!r}")
    if key_id in {entry.key_id for entry in roster.file.revoked}:
        raise RequestRefused(f"{request.name!r}: its key was revoked; make a new request")
    if len(roster.members) >= MAX_CLIENTS:
        raise RequestRefused(f"a roster lists at most {MAX_CLIENTS} clients")


def _next(
    signer: Signer,
    at: datetime,
    certificates: list[x509.Certificate],
    revoked: tuple[Revoked, ...],
) -> str:
    old = signer.roster.file
    return RosterFile.signing(
        signer.ca,
        signer.key,
        at,
        format=ROSTER_FORMAT,
        epoch=old.epoch,
        version=old.version + 1,
        certificates=listing(certificates),
        revoked=revoked,
    )


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    if not (directory / layout.ROSTER).is_file():
        raise KeyFileError(
            f"{directory}: has no consortium: make one with: securefl keys init DIR --consortium "
            "NAME"
        )
    try:
        with FileLock(lock_of(directory / layout.ROSTER), timeout=LOCK_TIMEOUT_S):
            yield
    except Timeout:
        raise KeyFileError(f"{directory}: another process is changing the roster") from None
    except OSError as error:
        raise KeyFileError(
            f"{directory}: the roster cannot be changed: {error.strerror or error}"
        ) from error
