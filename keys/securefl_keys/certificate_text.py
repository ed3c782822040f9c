"""Certificates as PEM text and as DER bytes, each in its one form."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from securefl.errors import KeyFileError


def read_pem(text: str) -> x509.Certificate:
    """A certificate in its one text form; raises KeyFileError."""
    try:
        certificate = x509.load_pem_x509_certificate(text.encode())
    except ValueError:
        raise KeyFileError("not a certificate in PEM") from None
    if pem_of(certificate) != text:
        raise KeyFileError("not a certificate in its one form: it was changed")
    return certificate


def read_der(data: bytes) -> x509.Certificate:
    """Raises KeyFileError."""
    try:
        return x509.load_der_x509_certificate(data)
    except ValueError:
        raise KeyFileError("damaged certificate") from None


def der_of(certificate: x509.Certificate) -> bytes:
    """Its bytes."""
    return certificate.public_bytes(Encoding.DER)


def pem_of(certificate: x509.Certificate) -> str:
    """Its text."""
    return certificate.public_bytes(Encoding.PEM).decode()
