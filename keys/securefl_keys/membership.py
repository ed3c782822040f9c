"""Membership: members let into the consortium, and taken out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from os.path import lexists
from pathlib import Path

from securefl.crypto.artefact import moment
from securefl.errors import KeyFileError, RequestRefused
from securefl.io.files import settle
from securefl_keys import layout
from securefl_keys.consortium import lacking_transport
from securefl_keys.key_files import replace, write_new
from securefl_keys.party_certificates import CertificateFile, issue_file
from securefl_keys.request import JoinRequest
from securefl_keys.roster import (
    MAX_MEMBERS,
    Revoked,
    VerifiedRoster,
    listing,
)
from securefl_keys.signed_file import now
from securefl_keys.signer import Signer, changing, finish_rotation, open_signer
from securefl_keys.subject import AUTHORITY, alike, key_id_of


@dataclass(frozen=True, slots=True)
class JoinApproval:
    """A request whose fingerprint was compared."""

    request: JoinRequest
    certificate: Path
    """File for the certificate, which is not there yet."""


def approve(
    directory: Path, approvals: Sequence[JoinApproval], passphrase: str, at: datetime | None = None
) -> VerifiedRoster:
    """Issue the certificates, and list them in the roster; all of them or none.

    The authority of an older release gets its own certificate for TLS by the way.

    Raises:
        RequestRefused: a name or a key is already, or no longer, in the roster, or there twice.
        WrongPassphrase: of the certificate authority's key.
        KeyFileError: a file is missing, damaged or cannot be written, or a certificate is there.
    """
    at = at or now()
    finish_rotation(directory)
    with changing(directory):
        require_distinct(approvals)
        for approval in approvals:
            _require_free(approval.certificate)
        signer = open_signer(directory, passphrase, at)
        for approval in approvals:
            _require_new(approval.request, signer.roster)
        if len(signer.roster.members) + len(approvals) > MAX_MEMBERS:
            raise RequestRefused(f"a roster lists at most {MAX_MEMBERS} members")
        files = issued(signer, approvals, at)
        new = {a.certificate: file for a, file in zip(approvals, files, strict=True)}
        completed = lacking_transport(directory, signer, passphrase)
        certificates = [member.certificate for member in signer.roster.members.values()]
        old = signer.roster.file
        text = old.signed_anew(
            signer.ca,
            signer.key,
            at,
            version=old.version + 1,
            certificates=listing([*certificates, *(file.identity for file in new.values())]),
        )
        if completed:
            replace(directory / layout.AUTHORITY_CERTIFICATE, completed, mode=0o644)
        _write(directory, new, text)
    return VerifiedRoster.parse(text, signer.ca, at)


def issued(
    signer: Signer, approvals: Sequence[JoinApproval], at: datetime
) -> list[CertificateFile]:
    """Issue the certificates of each request, in their order."""
    requests = [approval.request for approval in approvals]
    return [
        issue_file(signer.ca, signer.key, of, (of.public_key, of.transport_key), at)
        for of in requests
    ]


def without(
    roster: VerifiedRoster, name: str, at: datetime
) -> tuple[tuple[str, ...], tuple[Revoked, ...]]:
    """Return the roster's certificates without that member, and the revoked ones with it.

    Raises:
        UnknownClient, CertificateRevoked: no such member, or revoked before.
        KeyFileError: the roster holds no more.
    """
    if name not in roster.members:
        roster.member(name)  # says why not
    old, gone = roster.file, roster.members[name]
    if len(old.revoked) >= MAX_MEMBERS:
        raise KeyFileError("the roster is full of revoked members: make a new consortium")
    entry = Revoked(name=name, role=gone.role, key_id=gone.key_id, at=moment(at), epoch=old.epoch)
    kept = [member.certificate for member in roster.members.values() if member.name != name]
    return listing(kept), (*old.revoked, entry)


def require_distinct(approvals: Sequence[JoinApproval]) -> None:
    """Raises RequestRefused, or KeyFileError where two certificates would be one file."""
    names = {alike(approval.request.name) for approval in approvals}
    key_ids = {key_id_of(approval.request.public_key) for approval in approvals}
    if not len(names) == len(key_ids) == len(approvals):
        raise RequestRefused("two of the requests are for one name or one key: nobody was approved")
    paths = [approval.certificate for approval in approvals]
    for path in paths:
        if paths.count(path) > 1:
            raise _taken(path)


def _require_free(path: Path) -> None:
    if lexists(path):
        raise _taken(path)


def _taken(path: Path) -> KeyFileError:
    return KeyFileError(f"{path} exists: name another with --out, or move it away")


def _require_new(request: JoinRequest, roster: VerifiedRoster) -> None:
    key_id = key_id_of(request.public_key)
    if alike(request.name) == AUTHORITY.name:
        raise RequestRefused(f"{request.name!r}: the authority's own name: take another")
    for name, member in roster.members.items():
        if alike(name) == alike(request.name):
            raise RequestRefused(
                f"{request.name!r}: the roster lists {name!r} already; if it is the same "
                "member with the same key: securefl keys renew approve; with another key, first: "
                f"securefl keys revoke {shlex.quote(name)} --keys DIR"
            )
        if member.key_id == key_id:
            raise RequestRefused(f"{request.name!r}: its key is that of {member.role} {name!r}")
    if key_id in {entry.key_id for entry in roster.file.revoked}:
        raise RequestRefused(f"{request.name!r}: its key was revoked; make a new request")


def _write(directory: Path, certificates: dict[Path, CertificateFile], roster: str) -> None:
    written: list[Path] = []
    try:
        for path, certificate in certificates.items():
            write_new(path, certificate.text, mode=0o644)
            written.append(path)
        for folder in {path.parent for path in written}:
            settle(folder)
        replace(directory / layout.ROSTER, roster, mode=0o644)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
