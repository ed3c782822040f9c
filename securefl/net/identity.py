"""Who a process is: a certificate, its Ed25519 key, and the authority (CA) that vouches for peers.

One identity does both: it opens the connection (TLS 1.3, certificates on both sides), and a
client signs its contributions with it. A peer's name is its certificate's common name.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from securefl.errors import KeyFileError, PeerError, WrongPassphrase

MAX_PEM_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Identity:
    """The files of one party."""

    ca: Path
    cert: Path
    key: Path
    passphrase: str = field(default="", repr=False)
    """Of the key, where it is encrypted."""

    @property
    def name(self) -> str:
        """As others will see it; raises KeyFileError."""
        return common_name(_certificates(self.cert)[0], str(self.cert))

    def signing_key(self) -> Ed25519PrivateKey:
        """The key as what signs messages.

        Raises:
            WrongPassphrase: it does not open the key.
            KeyFileError: missing, damaged, or no Ed25519 key.
        """
        password = self.passphrase.encode() or None
        try:
            key = load_pem_private_key(_read(self.key), password)
        except TypeError:
            raise WrongPassphrase(
                f"{self.key}: encrypted and no passphrase given, or the other way round; see "
                "--key-passphrase-file"
            ) from None
        except ValueError as error:
            raise WrongPassphrase(
                f"{self.key}: the passphrase does not open it, or it is no PEM key"
            ) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyFileError(f"{self.key}: must be an Ed25519 key, which signs messages too")
        return key

    def serving(self) -> ssl.SSLContext:
        """For whoever listens."""
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def joining(self) -> ssl.SSLContext:
        """For whoever connects; the peer's name is to be checked with `peer_name`."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol: int) -> ssl.SSLContext:
        self.signing_key()  # says more plainly than OpenSSL what is wrong with the file
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # names are roles', not hosts'
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self.cert, self.key, lambda: self.passphrase)
            context.load_verify_locations(self.ca)
        except (ssl.SSLError, OSError) as error:
            raise KeyFileError(
                f"{self.cert}, {self.key}, {self.ca}: no certificate with its key and its CA "
                f"({error.strerror or error})"
            ) from error
        return context


def peer_name(tls: ssl.SSLObject, expected_keys: Mapping[str, Ed25519PublicKey] | None) -> str:
    """The name of the peer at the other end of a finished handshake.

    Raises:
        PeerError: it has none; or, where keys are expected, another key than that name has.
    """
    der = tls.getpeercert(binary_form=True)
    if der is None:
        raise PeerError("a peer without a certificate")
    try:
        certificate = x509.load_der_x509_certificate(der)
        name = common_name(certificate, "a peer's certificate")
        key = certificate.public_key()
    except (KeyFileError, ValueError) as error:
        raise PeerError(str(error)) from error
    if expected_keys is None:
        return name
    known = expected_keys.get(name)
    if known is None:
        raise PeerError(f"{name!r:.100} is no client of this run: see --roster")
    if not isinstance(key, Ed25519PublicKey) or _raw(key) != _raw(known):
        raise PeerError(f"{name}: another key than the roster's certificate has")
    return name


def common_name(certificate: x509.Certificate, where: str) -> str:
    """Whom a certificate is of; raises KeyFileError."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1 or not isinstance(names[0].value, str) or len(names[0].value) > 100:
        raise KeyFileError(f"{where}: must have one common name, of at most 100 characters")
    return names[0].value


def read_roster(path: Path) -> dict[str, Ed25519PublicKey]:
    """The clients' names and identity keys: of a folder's *.pem, or of one file of certificates.

    Sorted as client-2 before client-10: in this order clients are added up.

    Raises:
        KeyFileError: no certificate, two of one name, or a key that is not Ed25519.
    """
    files = sorted(path.glob("*.pem")) if path.is_dir() else [path]
    keys: dict[str, Ed25519PublicKey] = {}
    for file in files:
        for certificate in _certificates(file):
            name, key = common_name(certificate, str(file)), certificate.public_key()
            if name in keys:
                raise KeyFileError(f"{path}: two certificates of {name}; leave one out")
            if not isinstance(key, Ed25519PublicKey):
                raise KeyFileError(f"{file}: of {name}: its key must be Ed25519")
            keys[name] = key
    if not keys:
        raise KeyFileError(f"{path}: no certificate (*.pem) of any client")
    return {name: keys[name] for name in sorted(keys, key=lambda name: (len(name), name))}


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(_read(path))
    except ValueError as error:
        raise KeyFileError(f"{path}: no PEM certificate") from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PEM_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_PEM_BYTES:
        raise KeyFileError(f"{path}: larger than any PEM file")
    return data


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)
