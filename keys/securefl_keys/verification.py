"""A folder checked completely, and what its holder can and cannot do, in plain words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from securefl.errors import KeyFileError
from securefl_keys import layout
from securefl_keys.bundle import Bundle
from securefl_keys.certificate_file import CertificateFile
from securefl_keys.certificates import ConsortiumAuthority
from securefl_keys.description import describe
from securefl_keys.epochs import require_one_epoch
from securefl_keys.holders import Role
from securefl_keys.identity import listed, load_identity, no_tls
from securefl_keys.journal import require_settled
from securefl_keys.loading import card_keys_in, load_authority_keys
from securefl_keys.no_secret import require_no_secret
from securefl_keys.officers import load_officers
from securefl_keys.policy import load_policy
from securefl_keys.reading import found_in, text_of
from securefl_keys.roster import VerifiedRoster, load_roster
from securefl_keys.signed_file import now
from securefl_keys.signer import open_signer


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found."""

    what: str
    ca: ConsortiumAuthority | None
    """Who signed it; None where nobody did."""
    role: Role | None
    """Whom a bundle is for."""
    roster: VerifiedRoster | None
    can: tuple[str, ...]
    cannot: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What is in order, and not enough for everything."""
    officers: str = ""
    """Names of several officers and their quorum, in words; empty where the authority is alone."""


CAN = {
    "client": (
        "encrypt what it sends, and make cards that the authority alone opens",
        "tell the consortium's files from forged ones",
    ),
    "server": ("add ciphertexts", "check who signed a contribution"),
    "authority": (
        "check who signed a contribution",
        "open cards, totals and scores, with a secret key that is in no bundle",
    ),
    "owner": (
        "open cards, totals and scores, with the passphrase",
        "approve and revoke clients, servers and officers, with the passphrase",
    ),
    "officer": (
        "check who signed a contribution",
        "add up keys of sums, with a card secret that is in no bundle",
    ),
}
CANNOT = {
    "client": (
        "decrypt anything: no secret key is in this folder",
        "sign contributions, without its own identity key",
    ),
    "server": ("decrypt anything: no secret key is in this folder", "sign for a client"),
    "authority": ("decrypt with this folder alone: no secret key is in it", "sign for a client"),
    "owner": ("sign for a client: clients keep their identity keys",),
    "officer": (
        "decrypt anything: no secret key is in this folder",
        "open a sum without other officers",
    ),
}
WITH_OFFICERS = {
    CAN["client"][0]: "encrypt what it sends, and make cards that the officers alone open",
    CAN["authority"][1]: "add up keys of sums, with a secret key that is in no bundle",
    CAN["owner"][0]: "add up keys of sums as the first officer, with the passphrase",
}
"""Said in the place of these where sums need several officers."""
WITH_IDENTITY: dict[Role, str] = {
    "client": "sign contributions as",
    "server": "show that it is the server",
    "authority": "show that it is the",
    "officer": "show that it is the officer",
}


def verify(
    directory: Path,
    identity: Path | None = None,
    authority: str | None = None,
    at: datetime | None = None,
    passphrase: str | None = None,
) -> Verdict:
    """All that can be found wrong with a bundle or a key folder.

    Args:
        directory: the folder.
        identity: a member's own folder, to be checked against it.
        authority: the fingerprint that the consortium must have.
        at: when; now where None.
        passphrase: opens what is sealed; without it, that is not looked into.

    Raises:
        KeyFileError: neither a bundle nor a key folder.
    """
    at = at or now()
    if (directory / layout.MANIFEST).is_file():
        verdict = _bundle(directory, authority, at)
    elif (directory / layout.IDENTITY_KEY).is_file():
        raise KeyFileError(
            f"{directory}: an identity is checked against its consortium's bundle: "
            f"securefl keys verify BUNDLE --identity {directory}"
        )
    else:
        verdict = _key_folder(directory, authority, at)
        if passphrase is not None:
            verdict = _opened(verdict, lambda: _open_all(directory, passphrase, at))
    if identity is not None:
        verdict = _with_identity(verdict, identity)
        if passphrase is not None:
            verdict = _opened(verdict, lambda: load_identity(identity, passphrase))
    return verdict


def _opened(verdict: Verdict, open_sealed: Callable[[], object]) -> Verdict:
    try:
        open_sealed()
    except KeyFileError as error:
        return replace(verdict, problems=(*verdict.problems, str(error)))
    return verdict


def _open_all(directory: Path, passphrase: str, at: datetime) -> None:
    require_settled(directory)  # a look changes nothing
    load_authority_keys(directory, passphrase)
    if (directory / layout.CA_KEY).exists():
        open_signer(directory, passphrase, at)
        load_identity(directory / layout.AUTHORITY, passphrase)


def _bundle(directory: Path, authority: str | None, at: datetime) -> Verdict:
    try:
        bundle = Bundle.read(directory, authority, at)
    except KeyFileError as error:
        return Verdict("A bundle that cannot be trusted", None, None, None, (), (), (str(error),))
    problems, roster = [str(problem) for problem in bundle.problems()], None
    try:
        roster = bundle.roster()
    except (KeyError, KeyFileError):
        problems = problems or ["the roster cannot be read"]
    role = bundle.manifest.role
    officers = ""
    if not problems:
        file = bundle.officers()
        officers = file.told() if file else ""
    what = f"A bundle for the role {role}, epoch {bundle.manifest.epoch}"
    can, cannot, found = _can(role, officers), CANNOT[role], _all(problems, roster)
    return Verdict(what, bundle.ca, role, roster, can, cannot, found, officers=officers)


def _can(who: str, officers: str) -> tuple[str, ...]:
    return tuple(WITH_OFFICERS.get(text, text) if officers else text for text in CAN[who])


def _key_folder(directory: Path, authority: str | None, at: datetime) -> Verdict:
    files = describe(directory)
    problems = [f"{entry.path}: {problem}" for entry in files for problem in entry.problems]
    for entry in files:
        if entry.path.parts[0] != "authority":
            problems += _secrets(directory / entry.path)
    notes = [f"{entry.path}: {note}" for entry in files for note in entry.notes]
    roster, officers = None, ""
    owner = "owner" if (directory / layout.AUTHORITY_KEY).exists() else None
    if (directory / layout.CA_CERTIFICATE).exists():
        try:
            roster = load_roster(directory, authority, at)
            load_policy(directory, at)
            if owner:
                require_one_epoch(directory, at)
                card_keys_in(directory, layout.AUTHORITY_PUBLIC_KEY, roster)
                file = load_officers(directory, at)
                officers = file.told() if file else ""
                mine = listed(directory / layout.AUTHORITY, roster)
                mine.require_role("authority")
                path = directory / layout.AUTHORITY_CERTIFICATE
                if CertificateFile.parse(text_of(path)).transport is None:
                    notes.append(f"{path}: {no_tls(mine)}")
        except KeyFileError as error:
            problems.append(str(error))
        if not owner:
            gone = "the signed list of its files is missing: take the whole bundle again"
            problems.append(f"{layout.MANIFEST}: {gone}")
    elif authority is not None:
        problems.append("nothing in it is signed: it has no consortium")
    can, cannot = (_can(owner, officers), CANNOT[owner]) if owner else ((), ())
    ca = roster.ca if roster else None
    found = _all(problems, roster)
    return Verdict("A key folder", ca, None, roster, can, cannot, found, tuple(notes), officers)


def _secrets(path: Path) -> list[str]:
    try:
        with found_in(path):
            require_no_secret(text_of(path).encode())
    except KeyFileError as error:
        return [str(error)]
    return []


def _all(problems: list[str], roster: VerifiedRoster | None) -> tuple[str, ...]:
    expired = list(roster.expirations()) if roster else []
    return tuple(dict.fromkeys(problems + expired))


def _with_identity(verdict: Verdict, identity: Path) -> Verdict:
    if verdict.roster is None:
        unchecked = f"{identity}: not checked, for there is no roster that can be trusted"
        return replace(verdict, problems=(*verdict.problems, unchecked))
    try:
        mine = listed(identity, verdict.roster)
        mine.require_role(verdict.role or mine.role)
    except KeyFileError as error:
        return replace(verdict, problems=(*verdict.problems, str(error)))
    path = identity / layout.IDENTITY_CERTIFICATE
    if CertificateFile.parse(text_of(path)).transport is None:
        verdict = replace(verdict, notes=(*verdict.notes, f"{path}: {no_tls(mine)}"))
    can = (*verdict.can, f"{WITH_IDENTITY[mine.role]} {mine.name}")
    cannot = tuple(text for text in verdict.cannot if not text.startswith("sign contributions"))
    return replace(verdict, can=can, cannot=cannot)
