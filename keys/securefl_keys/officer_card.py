"""An officer's card key of an epoch: its secret stays with the officer, who signs the public half.

The authority lists it among the officers of the epoch: `rotation.set_officers`.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict

from securefl.crypto.artefact import canonical, decoded, encoded, parsed_file
from securefl.crypto.card_secret import CardSecret
from securefl.errors import CertificateRefused, FileSignatureRefused, KeyFileError
from securefl.exchange.card_keys import CardKeys, Quorum
from securefl.io.files import settle
from securefl_keys import layout
from securefl_keys.certificates import HolderCertificate
from securefl_keys.identity import load_identity
from securefl_keys.key_files import load_secret, write_new
from securefl_keys.roster import ListedOfficer
from securefl_keys.sealed_keys import open_officer_secret, seal_officer_secret
from securefl_keys.signed_file import SIGNATURE_BYTES

CARD_FORMAT: Literal["securefl-officer-card/1"] = "securefl-officer-card/1"
_SIGNED_AS = b"SecureFL officer card 1\0"
"""Prefix of the signed text: the identity key signs messages too, which start otherwise."""


class OfficerCard(BaseModel):
    """The public half of an officer's card key, signed with its identity key."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["securefl-officer-card/1"]
    officer: ListedOfficer
    signature: str

    @classmethod
    def signing(cls, officer: ListedOfficer, key: Ed25519PrivateKey) -> "OfficerCard":
        """Sign the card key of this officer."""
        unsigned = cls(format=CARD_FORMAT, officer=officer, signature="")
        signature = encoded(key.sign(unsigned.to_be_signed()))
        return unsigned.model_copy(update={"signature": signature})

    @classmethod
    def parse(cls, text: str) -> "OfficerCard":
        """Parse the file, whoever signed it; raises KeyFileError."""
        anew = "make it anew, with: securefl keys officers card"
        file = parsed_file(cls, text, "no card key of an officer", anew)
        if file.text() != text:
            raise FileSignatureRefused("changed since it was signed: not in its one form")
        return file

    @property
    def name(self) -> str:
        """Name of the officer who says that the key is theirs."""
        return self.officer.name

    def require_signed(self, by: HolderCertificate, epoch: int) -> None:
        """Raise KeyFileError where it is not this officer's card key of this epoch.

        Raises:
            CertificateRefused: whoever signed it has another role.
            FileSignatureRefused: changed, or signed by somebody else.
        """
        by.require_role("officer")
        try:
            signature = decoded(self.signature, SIGNATURE_BYTES)
            by.public_key.verify(signature, self.to_be_signed())
        except (InvalidSignature, KeyFileError):
            raise FileSignatureRefused(
                f"not signed by {self.name}, or changed since: have it sent again"
            ) from None
        if self.officer.key().epoch != epoch:
            raise KeyFileError(
                f"a card key of epoch {self.officer.card.epoch}, and the next epoch is {epoch}: "
                f"{way_out(epoch)}"
            )

    def text(self) -> str:
        """Return the file's one text form."""
        return json.dumps(self._fields() | {"signature": self.signature}, indent=1) + "\n"

    def to_be_signed(self) -> bytes:
        """Return the bytes that are signed."""
        return _SIGNED_AS + canonical(self._fields())

    def _fields(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"signature"})


def way_out(epoch: int) -> str:
    """Return the command that makes an officer's file, as a way out."""
    return f"the officer makes it with: securefl keys officers card DIR --epoch {epoch} --out FILE"


def make_card(directory: Path, epoch: int, passphrase: str, out: Path) -> OfficerCard:
    """Make an officer's card key of an epoch: the secret in its folder, the public file at `out`.

    A secret of that epoch that is there already is kept, and its public file written anew.

    Raises:
        WrongPassphrase: of the identity's key, under which the secret is sealed too.
        CertificateRefused: the folder is no officer's.
        KeyFileError: a file is missing, damaged or cannot be written, or `out` exists.
    """
    own = load_identity(directory, passphrase)
    if own.role != "officer":
        raise CertificateRefused(
            f"{directory}: {own.name} is a {own.role}, and officers alone have card keys: "
            "securefl keys join request NAME --role officer"
        )
    path = directory / layout.card_secret_of(epoch)
    fresh = None if path.exists() else CardSecret.generate(epoch)
    secret = fresh or _opened(path, passphrase, epoch)
    file = OfficerCard.signing(ListedOfficer.of(own.name, secret.public), own.private_key)
    try:
        if fresh:
            write_new(path, seal_officer_secret(fresh, passphrase), mode=0o600)
            settle(directory)
        write_new(out, file.text(), mode=0o644)
        settle(out.parent)
    except FileExistsError as error:
        raise KeyFileError(
            f"{error.filename} exists: name another with --out, or move it away"
        ) from error
    except OSError as error:
        raise KeyFileError(
            f"{error.filename or directory}: cannot be written: {error.strerror or error}"
        ) from error
    return file


class OfBundle(Protocol):
    """Parts of a verified bundle that an officer goes by."""

    @property
    def card_keys(self) -> CardKeys:
        """Card keys of the officers in force."""

    def officers(self) -> tuple[str, ...]:
        """Return the officers' names, in the order of `card_keys`."""


def load_officer(
    directory: Path, bundle: OfBundle, passphrase: str
) -> tuple[CardSecret, int, Quorum]:
    """Load an officer's secret of the epoch in force, its number from 0, and the quorum.

    Secrets of earlier epochs are deleted: nothing is sealed to them any more.

    Raises:
        WrongPassphrase: another passphrase, or the secret's file was changed.
        CertificateRefused: the folder is not of an officer in force.
        KeyFileError: a file is missing, damaged, or readable by other users, or the secret is not
            of the key that the bundle lists.
    """
    own, keys, names = load_identity(directory, passphrase), bundle.card_keys, bundle.officers()
    if own.role != "officer" or own.name not in names:
        raise CertificateRefused(
            f"{directory}: {own.role} {own.name} is none of the officers in force, "
            f"{', '.join(names)}: the authority sets them with: securefl keys officers set"
        )
    number = names.index(own.name)
    path = directory / layout.card_secret_of(keys.epoch)
    if not path.exists():
        raise KeyFileError(
            f"{path}: missing: the card key of epoch {keys.epoch} was made elsewhere, or is lost: "
            f"{way_out(keys.epoch + 1)}, and the authority rotates the keys"
        )
    secret = _opened(path, passphrase, keys.epoch)
    listed = keys.keys[number]
    if secret.public.to_json() != listed.to_json():
        raise KeyFileError(
            f"{path}: of key {secret.key_id[:16]}…, and the consortium lists "
            f"{listed.key_id[:16]}…: put the right file back, or {way_out(keys.epoch + 1)}"
        )
    with suppress(OSError):  # the next time, then
        for epoch, old in card_secrets(directory).items():
            if epoch < keys.epoch:
                old.unlink()
    return secret, number, keys.quorum


def card_secrets(directory: Path) -> dict[int, Path]:
    """Return the secrets in an officer's folder, by epoch."""
    found = {path.stem.removeprefix("card-"): path for path in directory.glob("card-*.key")}
    return {int(epoch): path for epoch, path in sorted(found.items()) if epoch.isdecimal()}


def _opened(path: Path, passphrase: str, epoch: int) -> CardSecret:
    secret = load_secret(path, lambda text: open_officer_secret(text, passphrase))
    if secret.origin.epoch != epoch:
        raise KeyFileError(f"{path}: of epoch {secret.origin.epoch}: put the right file back")
    return secret
