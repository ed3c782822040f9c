"""Signing of an audit's report, and the check that it and its run are unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from securefl.audit.provenance import Auditor
    from securefl.exchange.card_keys import CardKeys
    from securefl_keys.certificates import HolderCertificate
    from securefl_keys.identity import Identity
    from securefl_keys.roster import VerifiedRoster


def auditor(
    identity: Identity | None, keys: Path | None, log: Path | None, report: frozenset[str]
) -> Auditor:
    """Return whoever audits, and what they bring: see `Auditor`.

    Raises:
        KeyFileError: the identity is of no member, or `keys` is no consortium's folder.
    """
    from securefl.audit.provenance import NOBODY, Auditor, Party
    from securefl.crypto.artefact import digest, moment
    from securefl_keys.certificate_form import der_of, key_id_of
    from securefl_keys.roster import load_roster
    from securefl_keys.signed_report import own_certificate

    roster = load_roster(keys) if keys else None
    card = _card_key(keys) if keys else None
    name = NOBODY
    if identity and roster:
        holder = own_certificate(identity, roster)
        name = f"{holder.name} ({holder.role}), certificate {digest(der_of(holder.certificate))}"
    parties = []
    if keys and roster:
        certified = [*roster.members.values(), *authority_certificate(keys, roster)]
        parties = [
            Party(
                member.name,
                member.role,
                digest(der_of(member.certificate)),
                moment(member.certificate.not_valid_after_utc),
                member.key_id,
            )
            for member in certified
        ]
        ca = roster.ca
        until = moment(ca.certificate.not_valid_after_utc)
        key = key_id_of(ca.public_key)
        parties.append(Party(ca.name, "certificate authority", ca.fingerprint, until, key))
    known = (card.key_id, card.epoch) if card else ("", 0)
    return Auditor(name, parties, *known, openings=log, report=report)


def authority_certificate(keys: Path, roster: VerifiedRoster) -> Iterator[HolderCertificate]:
    """Yield the authority's own certificate, which is in its key folder and in no bundle.

    Raises:
        KeyFileError: it is damaged, or not of this consortium.
    """
    from securefl_keys.certificates import holder_certificate
    from securefl_keys.key_files import found_in, text_of
    from securefl_keys.layout import AUTHORITY_CERTIFICATE
    from securefl_keys.party_certificates import CertificateFile

    path = keys / AUTHORITY_CERTIFICATE
    if path.exists():
        with found_in(path):
            yield holder_certificate(CertificateFile.parse(text_of(path)).identity, roster.ca)


def _card_key(keys: Path) -> CardKeys | None:
    """Return the card keys of a key folder or a bundle of any role; None where it has none."""
    from securefl_keys.bundle import CARDS
    from securefl_keys.roster import card_keys_in

    found = [path for path in CARDS.values() if (keys / path).exists()]
    return card_keys_in(keys, found[0]) if found else None


def own_files(page: Path, folder: Path) -> frozenset[str]:
    """Return the names of a report's files where they lie in the run's folder; none elsewhere."""
    if page.parent.resolve() != folder.resolve():
        return frozenset()
    return frozenset({page.name, *(page.with_suffix(end).name for end in (".json", ".sig"))})


def compare(folder: Path, page: Path, *, why: str) -> None:
    """Check each file of a run against a report's findings, of which nobody's signature is checked.

    `why` says so. Raises:
        RunFolderError: a file is missing, or cannot be read.
        ClickException: a file of the run is another than when it was audited.
    """
    from securefl.audit.provenance import differences, read_file
    from securefl.io.text import printable

    numbers = page.with_suffix(".json")
    changed = differences(folder, read_file(numbers), own_files(page, folder))
    if changed:
        raise click.ClickException(
            f"{why}\n{folder}: not as {numbers} says: " + printable("; ".join(changed))
        )
    click.echo(f"{why}\nEach file of {folder} is as {numbers} says.")


def verify(folder: Path, page: Path, keys: Path) -> None:
    """Check a signed report and each file of its run, and say what was found.

    Of a report that was not signed, `compare` says what it can, and it is refused.

    Raises:
        KeyFileError: the signature is none, not of the consortium, or of other files.
        RunFolderError: a file is missing, or cannot be read.
        ClickException: a file of the run is another than when it was audited.
    """
    from securefl.audit.provenance import differences, read_file
    from securefl.io.text import printable
    from securefl_keys.key_files import found_in
    from securefl_keys.roster import load_roster
    from securefl_keys.signed_report import verified_report

    numbers, signature = page.with_suffix(".json"), page.with_suffix(".sig")
    roster = load_roster(keys)
    if not signature.exists():
        compare(folder, page, why=f"{page}: not signed; there is no {signature.name} beside it.")
        raise click.ClickException(
            "nobody has signed this report, so whoever can write it can change findings and files "
            "alike: have it signed, with --sign"
        )
    files = {path.name: read_file(path) for path in (page, numbers)}
    text = read_file(signature).decode(errors="replace")
    with found_in(signature):
        signer = verified_report(text, files, roster)
    changed = differences(folder, files[numbers.name], own_files(page, folder))
    if changed:
        raise click.ClickException(
            f"{folder}: not as it was audited on {signer.signed}: " + printable("; ".join(changed))
        )
    holder = signer.holder
    click.echo(
        f"{page} and each file of {folder} are as {holder.name} ({holder.role} of "
        f"{roster.ca.name}) signed them on {signer.signed}.\n"
        f"Certificate of {holder.name}: {signer.fingerprint}"
    )
