"""Change of what opens sums: the next policy, other officers, and the next epoch.

An epoch has new keys in the place of the old, whose secrets are destroyed. All files change
together, by `Signer` (`signer`).
"""

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from securefl.crypto.cards import CardKey
from securefl.errors import KeyFileError
from securefl.exchange.card_keys import Quorum
from securefl.exchange.policy import Policy
from securefl_keys import layout
from securefl_keys.certificate_form import AUTHORITY
from securefl_keys.consortium import NewPair, new_pair, write_all
from securefl_keys.key_files import appearing_whole, load_secret, replace
from securefl_keys.membership import without
from securefl_keys.officer_card import OfficerCard, way_out
from securefl_keys.policy import PolicyFile, load_policy, stated
from securefl_keys.roster import OFFICERS_FORMAT, ListedOfficer, OfficersFile, load_officers
from securefl_keys.sealed_keys import open_secret
from securefl_keys.signed_file import now
from securefl_keys.signer import (
    NEXT,
    Signer,
    changing,
    finish_locked,
    finish_rotation,
    locked,
    open_signer,
)


def sign_policy(
    directory: Path, policy: Policy, passphrase: str, at: datetime | None = None
) -> PolicyFile:
    """Sign the consortium's next policy, and the roster anew: its version is the age of a bundle.

    So whoever has the new policy takes no older one, and officers get it as they get revocations.

    Raises:
        ConfigError: it leaves the bounds of `PolicyTable`.
        WrongPassphrase: of the certificate authority's key.
        KeyFileError: a file is missing, damaged or cannot be written.
    """
    fields, at = stated(policy), at or now()
    finish_rotation(directory)
    with changing(directory):
        signer, old = open_signer(directory, passphrase, at), load_policy(directory, at)
        text = old.signed_anew(signer.ca, signer.key, at, version=old.version + 1, **fields)
        replace(directory / layout.POLICY, text, mode=0o644)  # first: nobody takes it up yet
        members = signer.roster.file
        roster = members.signed_anew(signer.ca, signer.key, at, version=members.version + 1)
        replace(directory / layout.ROSTER, roster, mode=0o644)
    return PolicyFile.verified(text, signer.ca)


@dataclass(frozen=True, slots=True)
class NextOfficers:
    """Officers of the next epoch beside the authority."""

    cards: tuple[OfficerCard, ...]
    needed: int

    def signed(self, signer: Signer, own: CardKey, at: datetime) -> str:
        """Sign the file of officers, the authority first, where each card key is its officer's.

        Raises as `set_officers`.
        """
        listed = [ListedOfficer.of(AUTHORITY.name, own)]
        for card in self.cards:
            card.require_signed(signer.roster.member(card.name), own.epoch)
            listed.append(card.officer)
        text = OfficersFile.signing(
            signer.ca,
            signer.key,
            at,
            format=OFFICERS_FORMAT,
            epoch=own.epoch,
            needed=self.needed,
            officers=tuple(listed),
        )
        OfficersFile.verified(text, signer.ca).card_keys(own, signer.roster)
        return text


def rotate(
    directory: Path,
    passphrase: str,
    revoking: str | None = None,
    at: datetime | None = None,
    cards: Sequence[OfficerCard] = (),
) -> NewPair:
    """Make a new key pair; sign roster, policy and officers for the new epoch.

    Args:
        directory: the key folder, where the keys were made.
        passphrase: of its secrets.
        revoking: a member who is taken out of the roster in the same step.
        at: when; now where None.
        cards: the card keys of the next epoch, of each officer in force but the authority.

    Raises:
        WrongPassphrase: of the secrets.
        UnknownClient, CertificateRevoked: nobody of the name `revoking`, or revoked before.
        KeyFileError: a file is missing or damaged, or the folder cannot be written; a card key
            lacks or is not of the next epoch, or `revoking` is an officer in force.
    """
    return _rotated(directory, passphrase, revoking, at, lambda old: _kept(old, cards, revoking))


def set_officers(
    directory: Path,
    passphrase: str,
    cards: Sequence[OfficerCard],
    needed: int = 1,
    at: datetime | None = None,
) -> NewPair:
    """Begin a new epoch with these officers beside the authority; without any, it is alone.

    Args:
        directory: the key folder, where the keys were made.
        passphrase: of its secrets.
        cards: their card keys of the next epoch, in the officers' order.
        needed: how many of them and the authority open sums.
        at: when; now where None.

    Raises:
        ConfigError: too many officers, or `needed` is not more than half of them.
        UnknownClient, CertificateRevoked, CertificateExpired, CertificateRefused: of an officer.
        FileSignatureRefused: a card key is not what its officer has signed.
        WrongPassphrase, KeyFileError: as `rotate`.
    """
    Quorum(needed, 1 + len(cards))
    return _rotated(directory, passphrase, None, at, lambda _: NextOfficers(tuple(cards), needed))


def _rotated(
    directory: Path,
    passphrase: str,
    revoking: str | None,
    at: datetime | None,
    chosen: Callable[[OfficersFile | None], NextOfficers | None],
) -> NewPair:
    at = at or now()
    with locked(directory):
        finish_locked(directory)
        old = load_secret(
            directory / layout.AUTHORITY_KEY, lambda text: open_secret(text, passphrase)
        )
        epoch = old.origin.epoch + 1
        made = new_pair(passphrase, epoch)
        public = dict(made.public)
        if (directory / layout.ROSTER).exists():
            panel = chosen(load_officers(directory, at))
            public |= _signed_anew(directory, passphrase, made.card, at, revoking, panel)
        elif revoking is not None:
            raise KeyFileError(f"{directory}: has no consortium, so nobody can be revoked")
        elif chosen(None):
            raise KeyFileError(f"{directory}: has no consortium, so it has no officers")
        try:
            with appearing_whole(directory / NEXT) as building:
                write_all(building, made.secret, public)
        except OSError as error:
            raise KeyFileError(
                f"{directory}: cannot be written ({error.strerror or error}): the old keys are "
                "still in force"
            ) from error
        finish_locked(directory)
        _delete_unused(directory)
    return made


def _delete_unused(directory: Path) -> None:
    """Delete the files that older releases had for profile matches, a secret key among them."""
    with suppress(OSError):  # `keys show` tells of what is left
        for path in (layout.MATCH_KEY, layout.MATCH_PARAMETERS, layout.MATCH_PUBLIC_KEY):
            (directory / path).unlink(missing_ok=True)
        if (directory / layout.RELEASES).is_dir():
            shutil.rmtree(directory / layout.RELEASES)


def _kept(
    old: OfficersFile | None, cards: Sequence[OfficerCard], revoking: str | None
) -> NextOfficers | None:
    """Return the officers as they were, with these card keys; None where there never was one."""
    names = old.names[1:] if old else ()
    if revoking in names:
        raise KeyFileError(
            f"{revoking} is an officer in force: set the others first, with: securefl keys "
            "officers set DIR --threshold K FILE...; then revoke it"
        )
    given = {card.name: card for card in cards}
    if old and (lacking := [name for name in names if name not in given]):
        raise KeyFileError(
            f"the card keys of epoch {old.epoch + 1} lack of {', '.join(lacking)}: "
            f"{way_out(old.epoch + 1)}"
        )
    if len(cards) != len(names) or given.keys() - {*names}:
        raise KeyFileError(
            f"the officers in force are {', '.join(names) or 'none'} beside the authority, and "
            f"card keys are given of {', '.join(card.name for card in cards)}: change officers "
            "with: securefl keys officers set"
        )
    return NextOfficers(tuple(given[name] for name in names), old.needed) if old else None


def _signed_anew(
    directory: Path,
    passphrase: str,
    card: CardKey,
    at: datetime,
    revoking: str | None,
    panel: NextOfficers | None,
) -> dict[Path, str]:
    signer = open_signer(directory, passphrase, at)
    changes: dict[str, Any] = {}
    if revoking is not None:
        certificates, revoked = without(signer.roster, revoking, at)
        changes = {"certificates": certificates, "revoked": revoked}
    roster, policy = signer.roster.file, load_policy(directory, at)
    by, epoch = (signer.ca, signer.key, at), card.epoch
    texts = {
        layout.ROSTER: roster.signed_anew(*by, epoch=epoch, version=roster.version + 1, **changes),
        layout.POLICY: policy.signed_anew(*by, epoch=epoch),
    }
    if panel:
        texts[layout.OFFICERS] = panel.signed(signer, card, at)
    return texts
