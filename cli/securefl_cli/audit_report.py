"""Signing of an audit's report, and the check that it and its run are unchanged."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from securefl.audit.findings import signature_of, signatures, verdicts_in
from securefl.audit.provenance import (
    CERTIFIER,
    Auditor,
    ConsortiumFiles,
    Party,
    certifiers_in,
    differences,
    read_file,
)
from securefl.crypto.artefact import digest, moment
from securefl.errors import (
    CertificateRevoked,
    ConfigError,
    FileSignatureRefused,
    ForeignAuthority,
    KeyFileError,
    RunFolderError,
    UnknownClient,
)
from securefl.exchange.card_keys import CardKeys
from securefl.io.text import printable
from securefl_cli.passphrase import read_passphrase
from securefl_keys import layout
from securefl_keys.bundle import CARDS
from securefl_keys.certificate_form import der_of, key_id_of, read_pem
from securefl_keys.certificates import HolderCertificate, authority_certificate
from securefl_keys.identity import Identity, load_identity
from securefl_keys.key_files import found_in, text_of
from securefl_keys.policy import load_policy
from securefl_keys.roster import VerifiedRoster, card_keys_in, load_officers, load_roster
from securefl_keys.signed_report import SignedReport, own_certificate, signer_of, verified_report


def auditor(keys: Path | None, log: Path | None, page: str | None) -> Auditor:
    """Return what whoever audits brings: see `Auditor`.

    Raises:
        KeyFileError: `keys` is no consortium's folder.
    """
    if keys is None:
        return Auditor(openings=log, page=page)
    roster, policy, card = load_roster(keys), load_policy(keys), _card_key(keys)
    files = ConsortiumFiles(
        roster.ca.name,
        roster.file.version,
        policy.version,
        digest(text_of(keys / layout.POLICY).encode()),
    )
    known = (card.key_id, card.epoch) if card else ("", 0)
    listed = load_officers(keys, roster.at)
    return Auditor(
        [*_parties(keys, roster)],
        *known,
        log,
        page,
        files,
        policy.policy(),
        officers=listed.names if listed else (),
    )


def _parties(keys: Path, roster: VerifiedRoster) -> Iterator[Party]:
    """Yield all that the consortium knows: members, former ones, and both authorities."""
    for entry in roster.file.revoked:
        yield Party(entry.name, entry.role, key=entry.key_id, revoked=entry.at)
    for member in [*roster.members.values(), *_authority(keys, roster)]:
        certificate = member.certificate
        yield Party(
            member.name,
            member.role,
            digest(der_of(certificate)),
            moment(certificate.not_valid_before_utc),
            moment(certificate.not_valid_after_utc),
            member.key_id,
        )
    ca = roster.ca
    yield Party(
        ca.name,
        CERTIFIER,
        ca.fingerprint,
        moment(ca.certificate.not_valid_before_utc),
        moment(ca.certificate.not_valid_after_utc),
        key_id_of(ca.public_key),
    )


def _authority(keys: Path, roster: VerifiedRoster) -> Iterator[HolderCertificate]:
    """Yield the authority's own certificate, which an older release's bundles lack.

    Raises:
        KeyFileError: it is damaged, or not of this consortium's authority.
    """
    for path in (keys / layout.AUTHORITY_CERTIFICATE, keys / layout.BUNDLED_CERTIFICATE):
        if path.exists():
            with found_in(path):
                yield authority_certificate(text_of(path), roster.ca)


def _card_key(keys: Path) -> CardKeys | None:
    """Return the card keys of a key folder or a bundle of any role; None where it has none."""
    found = [path for path in CARDS.values() if (keys / path).exists()]
    return card_keys_in(keys, found[0]) if found else None


def page_in(page: Path, folder: Path) -> str | None:
    """Return the name of a report's page where it lies in the run's folder; None elsewhere."""
    return page.name if page.parent.resolve() == folder.resolve() else None


IF_IT_DIFFERS = (
    "Sign nothing, and use neither run nor report: ask whoever made the report for both again, and "
    "tell those who signed (docs/officer.md, If it differs)."
)
IF_REVOKED = (
    "Files are as they were signed; what fails is a signer. Move that signature away, and have "
    "another member read and sign the report: nothing has to be audited anew."
)
IF_UNLISTED = (
    "Files are as they were signed; what fails is a signer, who may have joined later: ask for the "
    "newest bundle, and check again."
)


def _read(page: Path) -> dict[str, bytes]:
    """Return the files of a report by name, read once; raises RunFolderError."""
    return {path.name: read_file(path) for path in (page, page.with_suffix(".json"))}


def _roster_of(page: Path, files: Mapping[str, bytes], keys: Path) -> VerifiedRoster:
    """Return the roster of `keys`, found to be of the consortium that the report names.

    Raises:
        KeyFileError: `keys` is no consortium's folder.
        ForeignAuthority: the report names another certificate authority.
        RunFolderError: the report is none.
    """
    roster, numbers = load_roster(keys), page.with_suffix(".json")
    try:
        named = certifiers_in(files[numbers.name])
    except RunFolderError as error:
        raise RunFolderError(f"{numbers}: {error}\n{IF_IT_DIFFERS}") from error
    if others := named - {roster.ca.fingerprint}:
        raise ForeignAuthority(
            printable(
                f"{numbers} is of the certificate authority {', '.join(sorted(others))}, and "
                f"{keys} of {roster.ca.fingerprint}, {roster.ca.name!r}: give the folder or bundle "
                "of the run's own consortium"
            )
        )
    return roster


def _consortium_said(roster: VerifiedRoster, numbers: bytes) -> str:
    """Return in words whose roster it is, and whether the report names the same authority."""
    ca = f"{roster.ca.name}, certificate authority SHA-256 {roster.ca.fingerprint}"
    if certifiers_in(numbers):
        return f"{ca}, as in the report"
    return f"{ca}; the report names none, since it was made without --keys"


def _changed(folder: Path, page: Path, files: Mapping[str, bytes]) -> str:
    """Return in words each file of a run, or page, not as the report's findings say; or nothing.

    Raises:
        RunFolderError: a file cannot be read.
    """
    numbers = files[page.with_suffix(".json").name]
    found = differences(folder, numbers, page_in(page, folder), files[page.name])
    return printable("; ".join(found))


def compare(folder: Path, page: Path, *, why: str) -> None:
    """Check a report's page and each file of its run against its findings, without a signature.

    `why` says so. Raises:
        RunFolderError: a file is missing, or cannot be read.
        ClickException: a file of the run is another than when it was audited.
    """
    numbers = page.with_suffix(".json")
    if changed := _changed(folder, page, _read(page)):
        raise click.ClickException(
            f"{why}\n{folder}: not as {numbers} says: {changed}\n{IF_IT_DIFFERS}"
        )
    click.echo(f"{why}\n{page} and each file of {folder} are as {numbers} says.")


class Signing(NamedTuple):
    """Whoever signs a report."""

    identity: Path
    passphrase_file: Path | None
    read: bool
    """True where they say beforehand that they have read it."""


def sign(folder: Path, page: Path, keys: Path, by: Signing) -> tuple[Path, bytes]:
    """Sign a report that is there, of a run that is as it says; return the signature and its place.

    Its verdicts, by the numbers, are said on stderr before anything is signed, and whoever signs is
    asked whether they have read these.

    Raises:
        KeyFileError: the identity is of no member, or `keys` not the folder of the report's
            consortium.
        RunFolderError: there is no report, or a file cannot be read.
        ConfigError: nobody answers.
        ClickException: a file of the run is another than when it was audited, or the verdicts are
            not those that were read.
    """
    files = _read(page)
    roster = _roster_of(page, files, keys)
    if changed := _changed(folder, page, files):
        raise click.ClickException(
            f"{folder}: not as {page.with_suffix('.json')} says, so nothing was signed: {changed}\n"
            f"{IF_IT_DIFFERS}"
        )
    numbers = page.with_suffix(".json")
    consortium = _consortium_said(roster, files[numbers.name])
    click.echo(f"Consortium: {consortium}\nVerdicts of {numbers}:", err=True)
    for title, said in verdicts_in(files[numbers.name]).items():
        click.echo(printable(f"  {said.upper():7} {title}"), err=True)
    if not by.read:
        _require_read(page)
    identity = load_identity(by.identity, read_passphrase(by.passphrase_file, confirm=False))
    try:
        holder = own_certificate(identity, roster)
    except UnknownClient as error:
        raise UnknownClient(
            f"{error}, by roster version {roster.file.version} in {keys}: where it joined since, "
            "take the newest bundle (securefl keys export --out NEW-FOLDER)"
        ) from error
    path = signature_of(page, holder.name)
    _require_own(path, identity)
    return path, SignedReport.signing(identity, files).encode()


def _require_own(path: Path, identity: Identity) -> None:
    """Raise FileSignatureRefused where a signature of another certificate lies there already."""
    if not path.exists():
        return
    try:
        there = signer_of(read_file(path).decode(errors="replace"))
    except KeyFileError:
        there = "that cannot be read"
    if there != (mine := digest(der_of(read_pem(identity.certificate_pem)))):
        raise FileSignatureRefused(
            f"{path}: of a certificate {there}, and yours is {mine}: it is not written over; move "
            "it away, if it is no longer needed, and sign again"
        )


def _require_read(page: Path) -> None:
    """Ask whether the verdicts that were said are those that were read; raises as `sign`."""
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{page}: nobody at a terminal says that these verdicts were read, so nothing was "
            "signed: give --yes where they were"
        )
    if not click.confirm(f"Are these the verdicts that you have read in {page}?", err=True):
        raise click.ClickException(f"{page}: nothing was signed: read it first")


def _signers(
    page: Path, files: Mapping[str, bytes], roster: VerifiedRoster
) -> tuple[list[dict[str, str]], dict[str, KeyFileError]]:
    """Return who has signed a report, and why other signatures, by their files, do not hold."""
    signers, wrong = list[dict[str, str]](), dict[str, KeyFileError]()
    for path in signatures(page):
        try:
            signer = verified_report(read_file(path).decode(errors="replace"), files, roster)
        except KeyFileError as error:
            wrong[path.name] = error
            continue
        found = {
            "name": signer.holder.name,
            "role": signer.holder.role,
            "signed": signer.signed,
            "certificate": signer.fingerprint,
        }
        if found not in signers:  # a copy of a signature under another name counts once
            signers.append(found)
    return signers, wrong


def _problems(
    folder: Path,
    page: Path,
    files: Mapping[str, bytes],
    signers: Sequence[Mapping[str, str]],
    wrong: Mapping[str, KeyFileError],
) -> tuple[list[str], str]:
    """Return each signature that does not hold and each file that differs, and what to do."""
    advice = _advice(wrong.values())
    problems = [f"{name}: {error}" for name, error in wrong.items()]
    # Where no signature is of these files, the report may be anybody's: what it says of the run's
    # is worth nothing.
    as_signed = signers or advice != IF_IT_DIFFERS
    if as_signed and (changed := _changed(folder, page, files)):
        problems.append(f"{folder}: not as it was audited: {changed}")
        advice = IF_IT_DIFFERS
    return problems, advice


def _advice(wrong: Iterable[KeyFileError]) -> str:
    """Return what to do about these signatures, of files that are as they were signed."""
    kinds = {type(error) for error in wrong}
    if not kinds <= {CertificateRevoked, UnknownClient}:
        return IF_IT_DIFFERS
    by_kind = {CertificateRevoked: IF_REVOKED, UnknownClient: IF_UNLISTED}
    return " ".join(words for kind, words in by_kind.items() if kind in kinds)


def checked(folder: Path, page: Path, keys: Path | None) -> dict[str, Any]:
    """Return what `compare` or, with keys, `verify` finds, for programs; no problem where all hold.

    Raises:
        KeyFileError: `keys` is not the folder of the report's consortium.
        RunFolderError: a file is missing, or cannot be read.
    """
    files = _read(page)
    roster = _roster_of(page, files, keys) if keys else None
    signers, wrong = _signers(page, files, roster) if roster else ([], {})
    problems, _ = _problems(folder, page, files, signers, wrong)
    if roster and not (signers or wrong):
        problems.append(f"{page}: not signed; no signature lies beside it")
    return {
        "report": page,
        "numbers": page.with_suffix(".json"),
        "signatures_checked": roster is not None,
        "roster_version": roster and roster.file.version,
        "certificate_authority": roster and roster.ca.fingerprint,
        "signed_by": signers,
        "problems": problems,
    }


def verify(folder: Path, page: Path, keys: Path) -> None:
    """Check all signatures of a report and each file of its run, and say what was found.

    Of a report that nobody signed, `compare` says what it can, and it is refused.

    Raises:
        KeyFileError: `keys` is not the folder of the report's consortium.
        RunFolderError: a file is missing, or cannot be read.
        ClickException: a signature does not hold, or a file of the run is another than when it
            was audited.
    """
    files = _read(page)
    roster = _roster_of(page, files, keys)
    signers, wrong = _signers(page, files, roster)
    signed = [
        f"  {of['name']} ({of['role']}), by its own clock on {of['signed']}, certificate "
        f"{of['certificate']}"
        for of in signers
    ]
    by = (
        f"Checked by roster version {roster.file.version} of "
        f"{_consortium_said(roster, files[page.with_suffix('.json').name])}. The roster was signed "
        f"on {roster.file.created} and knows of no later revocation, so ask for the newest bundle."
    )
    if not (signed or wrong):
        compare(folder, page, why=f"{page}: not signed; no signature lies beside it.")
        raise click.ClickException(
            "nobody has signed this report, so whoever can write it can change findings and files "
            "alike: have it signed, with --sign"
        )
    problems, advice = _problems(folder, page, files, signers, wrong)
    if problems:
        holding = "\n".join(["Signatures that hold:", *signed, ""]) if signed else ""
        raise click.ClickException("\n".join([holding + "; ".join(problems), by, advice]))
    click.echo("\n".join([f"{page} and each file of {folder} are as signed by:", *signed, by]))
