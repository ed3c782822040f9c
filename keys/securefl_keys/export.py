"""Export of bundles: each with only the files that its role may hold, and no secret."""

from datetime import datetime
from os.path import lexists
from pathlib import Path

from securefl.crypto.artefact import digest
from securefl.errors import KeyFileError
from securefl_keys import layout
from securefl_keys.bundle import (
    BUNDLE_FORMAT,
    CARDS,
    COMMON,
    BundledFile,
    Manifest,
)
from securefl_keys.certificate_form import ROLES, Role
from securefl_keys.certificates import authority_certificate
from securefl_keys.key_files import (
    appearing_whole,
    found_in,
    require_no_secret,
    require_not_older,
    text_of,
    write_new,
)
from securefl_keys.policy import PolicyFile
from securefl_keys.roster import VerifiedRoster, card_keys_in
from securefl_keys.signed_file import now
from securefl_keys.signer import Signer, finish_rotation, open_signer


def export(
    directory: Path, role: Role, out: Path, passphrase: str, at: datetime | None = None
) -> Manifest:
    """Write a new folder with the files that `role` may hold; it appears whole or not at all.

    Raises:
        SecretFound: a file that was to be in it holds a secret.
        WrongPassphrase: of the certificate authority's key, which signs the list.
        KeyFileError: a file is missing or damaged, or `out` exists.
    """
    signer = _signer_for(directory, out, passphrase, at or now())
    texts = bundle_texts(directory, role, signer)
    _write(out, texts)
    return Manifest.verified(texts[layout.MANIFEST], signer.ca)


def export_all(
    directory: Path, out: Path, passphrase: str, at: datetime | None = None
) -> tuple[Manifest, ...]:
    """Write a bundle for each role into a new folder, as `export`; all of them or none."""
    signer = _signer_for(directory, out, passphrase, at or now())
    bundles = {role: bundle_texts(directory, role, signer) for role in _roles(signer.roster)}
    _write(
        out, {Path(r, path): text for r, texts in bundles.items() for path, text in texts.items()}
    )
    return tuple(Manifest.verified(texts[layout.MANIFEST], signer.ca) for texts in bundles.values())


def _roles(roster: VerifiedRoster) -> list[Role]:
    """Return the roles that somebody has."""
    return [role for role in ROLES if role != "officer" or roster.officers()]


def _signer_for(directory: Path, out: Path, passphrase: str, at: datetime) -> Signer:
    if lexists(out):
        raise KeyFileError(f"{out} exists: bundles are never overwritten; name another folder")
    finish_rotation(directory)
    for role in ROLES:
        _without_secrets(directory, role)
    return open_signer(directory, passphrase, at)


def _without_secrets(directory: Path, role: Role) -> dict[Path, str]:
    """Return the role's files; raises SecretFound."""
    require_not_older(directory, CARDS[role])
    officers = [layout.OFFICERS] if (directory / layout.OFFICERS).exists() else []
    texts = {path: text_of(directory / path) for path in (CARDS[role], *COMMON, *officers)}
    texts[layout.BUNDLED_CERTIFICATE] = text_of(directory / layout.AUTHORITY_CERTIFICATE)
    for path, text in texts.items():
        with found_in(directory / path):
            require_no_secret(text.encode())
    return texts


def bundle_texts(directory: Path, role: Role, signer: Signer) -> dict[Path, str]:
    """Return the texts of a bundle for that role as it is now, by path; raises as `export`."""
    texts = _without_secrets(directory, role)
    keys = card_keys_in(directory, CARDS[role], signer.roster)
    with found_in(directory / layout.POLICY):
        policy = PolicyFile.verified(texts[layout.POLICY], signer.ca)
    with found_in(directory / layout.AUTHORITY_CERTIFICATE):
        authority_certificate(texts[layout.BUNDLED_CERTIFICATE], signer.ca)
    at = signer.roster.at
    roster = VerifiedRoster.parse(texts[layout.ROSTER], signer.ca, at).file
    texts[layout.MANIFEST] = Manifest.signing(
        signer.ca,
        signer.key,
        at,
        format=BUNDLE_FORMAT,
        epoch=roster.epoch,
        role=role,
        key_id=keys.key_id,
        roster_version=roster.version,
        policy_version=policy.version,
        files=tuple(_entry(path, text) for path, text in texts.items()),
    )
    return texts


def _entry(path: Path, text: str) -> BundledFile:
    content = text.encode()
    return BundledFile(path=path.as_posix(), n_bytes=len(content), sha256=digest(content))


def _write(out: Path, texts: dict[Path, str]) -> None:
    try:
        with appearing_whole(out) as building:
            for path, text in texts.items():
                (building / path).parent.mkdir(parents=True, exist_ok=True)
                write_new(building / path, text, mode=0o644)
    except OSError as error:
        raise KeyFileError(
            f"{out}: cannot be made: {error.strerror or error}; nothing of it was left"
        ) from error
