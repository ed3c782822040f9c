"""A client's identity: made on its own machine, where the secret half stays.

DIR/identity.key    sealed with the client's own passphrase, mode 0600
DIR/identity.csr    the signing request, for the consortium
DIR/identity.crt    the certificate that comes back
"""

from __future__ import annotations

from dataclasses import dataclass, field
from os.path import lexists
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefl.errors import CertificateRefused, KeyFileError, RequestRefused, UnknownClient
from securefl_keys import layout
from securefl_keys.certificate_text import read_pem
from securefl_keys.certificates import ClientCertificate, client_certificate
from securefl_keys.fingerprints import key_id_of
from securefl_keys.key_files import appearing_whole, load_secret, write_new
from securefl_keys.member_names import require_name
from securefl_keys.reading import found_in, text_of
from securefl_keys.request import JoinRequest, make_request, read_request
from securefl_keys.roster import VerifiedRoster
from securefl_keys.sealed_identity import SealedIdentityKey, open_identity_key, seal_identity_key


@dataclass(frozen=True, slots=True)
class Identity:
    """A client's private key, and the certificate that makes others believe it."""

    name: str
    private_key: Ed25519PrivateKey = field(repr=False)
    certificate_pem: str = field(repr=False)


def make_identity(directory: Path, name: str, passphrase: str) -> JoinRequest:
    """A new folder with a new key and the request to join; it appears whole or not at all.

    Raises:
        RequestRefused: `name` cannot be one.
        ConfigError: the passphrase is empty.
        KeyFileError: `directory` exists, or cannot be written.
    """
    require_name(name, RequestRefused)
    if lexists(directory):
        raise KeyFileError(f"{directory} exists: identities are never overwritten; name another")
    key = Ed25519PrivateKey.generate()
    sealed, request = seal_identity_key(key, name, passphrase), make_request(name, key)
    try:
        with appearing_whole(directory) as building:
            building.chmod(0o700)
            write_new(building / layout.IDENTITY_KEY, sealed, mode=0o600)
            write_new(building / layout.IDENTITY_REQUEST, request, mode=0o644)
    except OSError as error:
        raise KeyFileError(
            f"{directory}: cannot make the folder: {error.strerror or error}; nothing was left"
        ) from error
    return read_request(request)


def load_identity(directory: Path, passphrase: str) -> Identity:
    """What a client signs with. Whether the consortium still lists it, `listed` tells.

    Raises:
        WrongPassphrase: another passphrase, or the key's file was changed.
        CertificateRefused: the certificate is of another name or key.
        KeyFileError: a file is missing, damaged, or readable by other users.
    """
    path = directory / layout.IDENTITY_KEY
    name, key = load_secret(path, lambda text: open_identity_key(text, passphrase))
    pem = _certificate_text(directory)
    with found_in(directory / layout.IDENTITY_CERTIFICATE):
        certificate = read_pem(pem)
        if certificate.public_key() != key.public_key():
            raise CertificateRefused(f"it is not of {name}'s key: put the right one there")
    return Identity(name, key, pem)


def listed(directory: Path, roster: VerifiedRoster) -> ClientCertificate:
    """The certificate in an identity's folder, found in the roster; needs no passphrase.

    Raises:
        ForeignAuthority, CertificateRefused: another consortium's, or not a client's.
        CertificateExpired, CertificateRevoked, UnknownClient: no longer, or never, a member.
        KeyFileError: a file is missing, damaged, or readable by other users.
    """
    header = load_secret(directory / layout.IDENTITY_KEY, SealedIdentityKey.parse)
    with found_in(directory / layout.IDENTITY_CERTIFICATE):
        certificate = read_pem(_certificate_text(directory))
        mine = client_certificate(certificate, roster.ca)
        if (mine.name, mine.key_id) != (header.name, header.key_id):
            raise CertificateRefused(
                f"it is {mine.name}'s, and {layout.IDENTITY_KEY} is {header.name}'s key "
                f"{header.key_id[:16]}…"
            )
        roster.require_key(mine.name, key_id_of(mine.public_key))
        if roster.member(mine.name).certificate != certificate:
            raise UnknownClient(f"{mine.name}: the roster lists another certificate")
    return mine


def _certificate_text(directory: Path) -> str:
    path = directory / layout.IDENTITY_CERTIFICATE
    if not path.is_file():
        raise KeyFileError(
            f"{path}: missing: it is what the consortium sends back, made by: securefl keys join "
            f"approve {layout.IDENTITY_REQUEST} --keys DIR"
        )
    return text_of(path)
