"""Certificates as PEM text and as DER bytes, each in its one form."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from securefl.errors import CertificateRefused, KeyFileError

UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    UserWarning,
)
"""What `cryptography` raises for X.509 that it does not read, or reads for the last time."""

_ED25519 = bytes.fromhex("300506032b6570")
_BIT_STRING = bytes.fromhex("034100")


@contextmanager
def strictly() -> Iterator[None]:
    """Makes errors of `cryptography`'s warnings, such as of serial numbers below one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def require_one_form(der: bytes, signed: bytes, signature: bytes) -> None:
    """Raises ValueError unless signed part, Ed25519's name and signature are the whole.

    A parser may take the bits around a signature in more forms than one.
    """
    if not der.endswith(signed + _ED25519 + _BIT_STRING + signature):
        raise ValueError("not in its one form")


def pem_blocks(text: str) -> list[str]:
    """Split a text before each block that follows another; nothing is checked."""
    return re.split(r"(?<=-----\n)(?=-----BEGIN )", text)


def read_pem(text: str) -> x509.Certificate:
    """A certificate in its one text form; raises KeyFileError."""
    certificate = _read(x509.load_pem_x509_certificate, text.encode())
    if pem_of(certificate) != text:
        raise KeyFileError("not a certificate in its one form: it was changed")
    return certificate


def read_der(data: bytes) -> x509.Certificate:
    """Raises KeyFileError."""
    return _read(x509.load_der_x509_certificate, data)


def _read(load: Callable[[bytes], x509.Certificate], data: bytes) -> x509.Certificate:
    try:
        with strictly():
            certificate = load(data)
        signed, signature = certificate.tbs_certificate_bytes, certificate.signature
        require_one_form(der_of(certificate), signed, signature)
    except UNREADABLE:
        raise KeyFileError("no certificate, or a damaged one") from None
    return certificate


def public_key_of(certificate: x509.Certificate) -> Ed25519PublicKey:
    """Whom it is for; raises CertificateRefused for a key of another algorithm than ours."""
    try:
        key = certificate.public_key()
    except UNREADABLE:  # of an algorithm that `cryptography` does not know
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise CertificateRefused("its key is not Ed25519, as all of a consortium are")
    return key


def der_of(certificate: x509.Certificate) -> bytes:
    """Its bytes."""
    return certificate.public_bytes(Encoding.DER)


def pem_of(certificate: x509.Certificate) -> str:
    """Its text."""
    return certificate.public_bytes(Encoding.PEM).decode()
