"""Signing of an audit's report, and the check that it and its run are unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from securefl.audit.provenance import Auditor
    from securefl.exchange.card_keys import CardKeys
    from securefl_keys.identity import Identity


def auditor(
    identity: Identity | None, keys: Path | None, log: Path | None, report: frozenset[str]
) -> Auditor:
    """Return whoever audits, and what they bring: see `Auditor`.

    Raises:
        KeyFileError: the identity is of no member, or `keys` is no consortium's folder.
    """
    from securefl.audit.provenance import NOBODY, Auditor, Party
    from securefl.crypto.artefact import digest, moment
    from securefl_keys.certificate_form import der_of
    from securefl_keys.roster import load_roster
    from securefl_keys.signed_report import own_certificate

    roster = load_roster(keys) if keys else None
    card = _card_key(keys) if keys else None
    name = NOBODY
    if identity and roster:
        holder = own_certificate(identity, roster)
        name = f"{holder.name} ({holder.role}), certificate {digest(der_of(holder.certificate))}"
    parties = [
        Party(
            member.name,
            member.role,
            digest(der_of(member.certificate)),
            moment(member.certificate.not_valid_after_utc),
        )
        for member in (roster.members.values() if roster else ())
    ]
    if roster:
        ca = roster.ca
        until = moment(ca.certificate.not_valid_after_utc)
        parties.append(Party(ca.name, "certificate authority", ca.fingerprint, until))
    known = (card.key_id, card.epoch) if card else ("", 0)
    return Auditor(name, parties, *known, openings=log, report=report)


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


def verify(folder: Path, page: Path, keys: Path) -> None:
    """Check a signed report and each file of its run, and say what was found.

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
