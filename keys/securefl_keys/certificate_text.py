"""Certificates as PEM text and as DER bytes, each in its one form."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.utils import CryptographyDeprecationWarning

from securefl.errors import KeyFileError

UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What `cryptography` raises for X.509 that it does not read."""


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
        with warnings.catch_warnings():  # of what a later release will refuse
            warnings.simplefilter("error", CryptographyDeprecationWarning)
            return load(data)
    except (*UNREADABLE, CryptographyDeprecationWarning):
        raise KeyFileError("no certificate, or a damaged one") from None


def der_of(certificate: x509.Certificate) -> bytes:
    """Its bytes."""
    return certificate.public_bytes(Encoding.DER)


def pem_of(certificate: x509.Certificate) -> str:
    """Its text."""
    return certificate.public_bytes(Encoding.PEM).decode()
