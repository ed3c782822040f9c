"""Dates of certificates: from when, until when, and how many days are left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from securefl.errors import KeyFileError
from securefl_keys import layout
from securefl_keys.certificate_file import CertificateFile
from securefl_keys.certificates import read_authority
from securefl_keys.key_files import load_secret
from securefl_keys.reading import found_in, text_of
from securefl_keys.roster import load_roster
from securefl_keys.sealed_identity import SealedIdentityKey

SOON = timedelta(days=30)
"""Before a certificate's end, when its holder is told to renew it."""


@dataclass(frozen=True, slots=True)
class Dates:
    """When one certificate is valid."""

    whose: str
    use: str
    """What the certificate is for."""
    first: datetime | None
    """None where there is no such certificate."""
    last: datetime | None

    def told(self, at: datetime) -> str:
        """The dates, and how far their end is away at this time, in words."""
        if self.first is None or self.last is None:
            return "none"
        return f"{self.first:%Y-%m-%d} to {self.last:%Y-%m-%d}, {_left(self.last, at)}"


def dates_in(directory: Path, at: datetime) -> Iterator[Dates]:
    """Of every certificate in a key folder, a bundle, or an identity's own folder.

    Raises:
        KeyFileError: a file is missing or damaged.
    """
    if is_identity(directory):
        owner = load_secret(directory / layout.IDENTITY_KEY, SealedIdentityKey.parse).owner
        yield from _both(f"{owner.role} {owner.name}", directory / layout.IDENTITY_CERTIFICATE)
        return
    if not (directory / layout.CA_CERTIFICATE).exists():
        return
    path = directory / layout.CA_CERTIFICATE
    with found_in(path):
        ca = read_authority(text_of(path), at)
    yield _of(f"consortium {ca.name}", "signs all others", ca.certificate)
    if (directory / layout.AUTHORITY_CERTIFICATE).exists():
        yield from _both("authority", directory / layout.AUTHORITY_CERTIFICATE)
    for member in load_roster(directory, at=at).members.values():
        yield _of(f"{member.role} {member.name}", "signing", member.certificate)


def is_identity(directory: Path) -> bool:
    """Whether it is the folder of one identity."""
    try:
        return (directory / layout.IDENTITY_KEY).is_file()
    except OSError:  # a name that no disk takes
        return False


def ending(certificate: x509.Certificate, at: datetime) -> str:
    """When it ends, in words, where that is soon; empty where it is not."""
    last = certificate.not_valid_after_utc
    return f"{last:%Y-%m-%d %H:%M} UTC, {_left(last, at)}" if last - at < SOON else ""


def _both(whose: str, path: Path) -> Iterator[Dates]:
    with found_in(path):
        if not path.is_file():
            raise KeyFileError("missing: the consortium has not sent it back yet")
        file = CertificateFile.parse(text_of(path))
    yield _of(whose, "signing", file.identity)
    yield _of(whose, "TLS", file.transport)


def _of(whose: str, use: str, certificate: x509.Certificate | None) -> Dates:
    if certificate is None:
        return Dates(whose, use, None, None)
    return Dates(whose, use, certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def _left(last: datetime, at: datetime) -> str:
    days = (last - at) // timedelta(days=1)
    return f"{days:,} days left" if days >= 0 else f"ended {-days:,} days ago"
