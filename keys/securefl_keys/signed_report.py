"""A report on a run that a member of the consortium has signed: whose it is, and of which files.

The signature is over the digests of the report's files; the findings among them have the digests
of the run's own files.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

from cryptography.exceptions import InvalidSignature
from pydantic import BaseModel, ConfigDict, Field

from securefl.crypto.artefact import (
    Moment,
    Sha256,
    canonical,
    decoded,
    digest,
    encoded,
    moment,
    parsed_file,
)
from securefl.errors import CertificateRevoked, FileSignatureRefused, KeyFileError, UnknownClient
from securefl_keys.certificate_form import AUTHORITY, der_of, read_pem
from securefl_keys.certificates import HolderCertificate, holder_certificate
from securefl_keys.identity import Identity
from securefl_keys.roster import VerifiedRoster
from securefl_keys.signed_file import SIGNATURE_BYTES, now

REPORT_FORMAT: Literal["securefl-report/1"] = "securefl-report/1"
_DOMAIN = b"securefl-report/1\n"
_ANEW = "sign it anew, with: securefl audit RUN --sign IDENTITY --keys DIR"


class SignedReport(BaseModel):
    """File with a member's signature over the files of a report."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["securefl-report/1"]
    certificate: Annotated[str, Field(max_length=2**14)]
    """Certificate of the signer's identity, PEM."""
    signed: Moment
    files: Annotated[dict[str, Sha256], Field(min_length=1, max_length=10)]
    """SHA-256 of each file of the report, by name."""
    signature: str

    @classmethod
    def signing(cls, identity: Identity, files: Mapping[str, bytes]) -> str:
        """Sign the contents of these files, and return the text of the signature's file."""
        unsigned = cls(
            format=REPORT_FORMAT,
            certificate=identity.certificate_pem,
            signed=moment(now()),
            files={name: digest(content) for name, content in files.items()},
            signature="",
        )
        signature = encoded(identity.private_key.sign(unsigned.to_be_signed()))
        return unsigned.model_copy(update={"signature": signature}).text()

    def text(self) -> str:
        """Return the file's one text form."""
        return json.dumps(self.model_dump(), indent=1) + "\n"

    def to_be_signed(self) -> bytes:
        """Return the bytes that the signature is over."""
        return _DOMAIN + canonical(self.model_dump(exclude={"signature"}))


@dataclass(frozen=True, slots=True)
class ReportSigner:
    """Member that has signed a report."""

    holder: HolderCertificate
    fingerprint: str
    """SHA-256 of the certificate, hex."""
    signed: str
    """Time at which the signer says that it signed, UTC."""


def verified_report(text: str, files: Mapping[str, bytes], roster: VerifiedRoster) -> ReportSigner:
    """Return who has signed these files of a report, found in the consortium.

    Args:
        text: content of the signature's file.
        files: contents of the report's files, by name.
        roster: the consortium's.

    Raises:
        KeyFileError: no such file.
        FileSignatureRefused: a file, or the signature's, was changed; the message names it.
        ForeignAuthority, CertificateRefused: another consortium's, or of none.
        CertificateExpired: the certificate was not valid when it says it was signed.
        CertificateRevoked: its key was revoked since, so that nobody knows who signed.
        UnknownClient: the roster does not list it, as one of before it joined. Of these two all
            else was found to be as it was signed.
    """
    report = parsed_file(SignedReport, text, "no signature of a report", _ANEW)
    if report.text() != text:
        raise FileSignatureRefused("changed since it was signed: not in its one form")
    holder = holder_certificate(read_pem(report.certificate), roster.ca)
    try:
        signature = decoded(report.signature, SIGNATURE_BYTES)
        holder.public_key.verify(signature, report.to_be_signed())
    except (InvalidSignature, KeyFileError):
        raise FileSignatureRefused("changed since it was signed: wrong signature") from None
    holder.require_current(datetime.fromisoformat(report.signed).astimezone(UTC))
    if report.files.keys() != files.keys():
        raise FileSignatureRefused(f"it is of {', '.join(report.files):.200}, not of these files")
    for name, content in files.items():
        if digest(content) != report.files[name]:
            raise FileSignatureRefused(f"{name}: changed since it was signed")
    _require_member(holder, roster)
    return ReportSigner(holder, digest(der_of(holder.certificate)), report.signed)


def _require_member(holder: HolderCertificate, roster: VerifiedRoster) -> None:
    """Raise CertificateRevoked or UnknownClient where the roster does not list the holder's key.

    The authority is in no roster: its certificate says it all.
    """
    if holder.key_id in {entry.key_id for entry in roster.file.revoked}:
        raise CertificateRevoked(
            f"the key of {holder.name!r} was revoked, and nobody knows when it was lost"
        )
    listed = {member.key_id for member in roster.members.values()}
    if holder.role != AUTHORITY.role and holder.key_id not in listed:
        raise UnknownClient(
            f"{holder.name!r} is not listed by roster version {roster.file.version}"
        )


def signer_of(text: str) -> str:
    """Return the SHA-256 of the certificate in a signature's file, which nobody has checked.

    Raises:
        KeyFileError: no such file.
    """
    report = parsed_file(SignedReport, text, "no signature of a report", _ANEW)
    return digest(der_of(read_pem(report.certificate)))


def own_certificate(identity: Identity, roster: VerifiedRoster) -> HolderCertificate:
    """Return the certificate of an identity, found to be of a member now.

    Raises:
        ForeignAuthority, CertificateRefused: another consortium's.
        CertificateExpired, CertificateRevoked, UnknownClient: no longer, or never, a member.
    """
    return roster.holder_of(read_pem(identity.certificate_pem), identity.role)
