"""Membership: members let into the consortium, given new dates, and taken out.

A member writes its request anew; the authority issues certificates of new dates and lists them in
the place of the old. Name, role and identity key stay, so nothing of a run changes.
"""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from os.path import lexists
from pathlib import Path

from cryptography import x509

from securefl.crypto.artefact import moment
from securefl.errors import KeyFileError, RequestRefused
from securefl.io.files import settle
from securefl_keys import layout
from securefl_keys.certificate_form import AUTHORITY, alike, key_id_of, public_key_of
from securefl_keys.certificates import CertificateFile, issue_file, read_authority
from securefl_keys.consortium import lacking_transport
from securefl_keys.identity import SealedIdentityKey, open_identity_key
from securefl_keys.key_files import found_in, load_secret, replace, text_of, write_new
from securefl_keys.request import JoinRequest, make_request, read_request
from securefl_keys.roster import (
    MAX_MEMBERS,
    Revoked,
    VerifiedRoster,
    listing,
    load_roster,
)
from securefl_keys.signed_file import now
from securefl_keys.signer import Signer, changing, finish_rotation, open_signer


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


SOON = timedelta(days=30)
"""Time before a certificate's end from which its holder is told to renew it."""


@dataclass(frozen=True, slots=True)
class Dates:
    """Dates between which one certificate is valid."""

    whose: str
    use: str
    """Purpose of the certificate."""
    first: datetime | None
    """First second; None where there is no such certificate."""
    last: datetime | None

    def told(self, at: datetime) -> str:
        """Return the dates, and how far their end is away at this time, in words."""
        if self.first is None or self.last is None:
            return "none"
        return f"{self.first:%Y-%m-%d} to {self.last:%Y-%m-%d}, {_left(self.last, at)}"


def dates_in(directory: Path, at: datetime) -> Iterator[Dates]:
    """Yield the dates of every certificate in a key folder, a bundle, or an identity's folder.

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
    for path in (layout.AUTHORITY_CERTIFICATE, layout.BUNDLED_CERTIFICATE):
        if (directory / path).exists():
            yield from _both("authority", directory / path)
    for member in load_roster(directory, at=at).members.values():
        yield _of(f"{member.role} {member.name}", "signing", member.certificate)


def is_identity(directory: Path) -> bool:
    """Return whether the folder is one identity's."""
    try:
        return (directory / layout.IDENTITY_KEY).is_file()
    except OSError:  # a name that no disk takes
        return False


def ending(certificate: x509.Certificate, at: datetime) -> str:
    """Return when a certificate ends, in words, where that is soon; empty where it is not."""
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


def write_request(directory: Path, passphrase: str) -> JoinRequest:
    """Write the request of a member's folder anew, of the key that lies there.

    Raises:
        RequestRefused: the folder is the authority's, whose certificates last as long as its CA's.
        WrongPassphrase: another passphrase, or the key's file was changed.
        KeyFileError: a file is missing, damaged or readable by other users, or cannot be written.
    """
    path = directory / layout.IDENTITY_KEY
    owner, key = load_secret(path, lambda text: open_identity_key(text, passphrase))
    text = make_request(owner, key)
    request = directory / layout.IDENTITY_REQUEST
    try:
        replace(request, text, mode=0o644)
    except OSError as error:
        raise KeyFileError(f"{request}: cannot be written: {error.strerror or error}") from error
    return read_request(text)


def renew(
    directory: Path, approvals: Sequence[JoinApproval], passphrase: str, at: datetime | None = None
) -> VerifiedRoster:
    """Issue certificates in the place of those that the roster lists; all of them or none.

    The old ones end when they would have ended: they are of the same key. The authority of an older
    release gets its own certificate for TLS by the way.

    Raises:
        RequestRefused: the roster lists no such member, or not with these keys and this role.
        CertificateRevoked, UnknownClient: it is no member any more, or never was.
        WrongPassphrase: of the certificate authority's key.
        KeyFileError: a file is missing, damaged or cannot be written, or is of another key.
    """
    at = at or now()
    finish_rotation(directory)
    with changing(directory):
        require_distinct(approvals)
        signer = open_signer(directory, passphrase, at)
        for approval in approvals:
            _require_member(approval.request, signer.roster)
            _require_own(approval)
        files = issued(signer, approvals, at)
        new = {a.request.name: file for a, file in zip(approvals, files, strict=True)}
        completed = lacking_transport(directory, signer, passphrase)
        members, old = signer.roster.members, signer.roster.file
        certificates = [
            new[name].identity if name in new else member.certificate
            for name, member in members.items()
        ]
        text = old.signed_anew(
            signer.ca, signer.key, at, version=old.version + 1, certificates=listing(certificates)
        )
        try:
            if completed:
                replace(directory / layout.AUTHORITY_CERTIFICATE, completed, mode=0o644)
            # A new certificate of a listed key is believed before the roster has it, too.
            for approval in approvals:
                replace(approval.certificate, new[approval.request.name].text, mode=0o644)
                settle(approval.certificate.parent)
            replace(directory / layout.ROSTER, text, mode=0o644)
        except OSError as error:
            raise KeyFileError(
                f"{error.filename or directory}: cannot be written: {error.strerror or error}"
            ) from error
    return VerifiedRoster.parse(text, signer.ca, at)


def _require_member(request: JoinRequest, roster: VerifiedRoster) -> None:
    member = roster.members.get(request.name)
    if member is None:
        roster.member(request.name)  # says why not
        return
    if (member.role, member.key_id) != (request.role, key_id_of(request.public_key)):
        raise RequestRefused(
            f"{request.name!r}: the roster lists a {member.role} of this name with key "
            f"{member.key_id[:16]}…, and this is a request of a {request.role} with key "
            f"{key_id_of(request.public_key)[:16]}…: a renewal keeps both"
        )
    if request.transport_key is None:
        raise RequestRefused(
            f"{request.name!r}: a request of an older release, without a key for TLS: make it anew "
            "with: securefl keys renew request"
        )


def _require_own(approval: JoinApproval) -> None:
    """Refuse to write over a file that is no certificate of this key."""
    path, key = approval.certificate, approval.request.public_key
    if not lexists(path):
        return
    with suppress(KeyFileError):
        if public_key_of(CertificateFile.parse(text_of(path)).identity) == key:
            return
    raise KeyFileError(
        f"{path} exists, and is no certificate of {approval.request.name}'s key: name another with "
        "--out, or move it away"
    )
