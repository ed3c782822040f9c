"""The secrets at rest that open cards: the authority's, and an officer's."""

from typing import ClassVar, Literal, final

from securefl.crypto.card_secret import CardSecret
from securefl.errors import KeyFileError
from securefl_keys.certificate_form import Role
from securefl_keys.sealed_file import SealedFile

SEALED_KEY_FORMAT: Literal["securefl-card-secret-key/3"] = "securefl-card-secret-key/3"


class _SealedCardKey(SealedFile):
    use: ClassVar[str] = "cards"
    serialisation: ClassVar[str] = "mlkem768-seed-x25519-raw"
    replaced: ClassVar[tuple[str, ...]] = ("securefl-secret-key",)

    format: Literal["securefl-card-secret-key/3"]


@final
class SealedKey(_SealedCardKey):
    """Sealed file of the authority's secret key that opens cards."""


@final
class SealedOfficerKey(_SealedCardKey):
    """Sealed file of an officer's secret key that opens cards."""

    holders: ClassVar[tuple[Role, ...]] = ("officer",)


def seal_secret(key: CardSecret, passphrase: str) -> str:
    """Seal the authority's key in the text of a file that only `passphrase` opens.

    Raises:
        ConfigError: the passphrase is empty or is no text.
    """
    return _sealed(SealedKey, key, passphrase, "authority")


def seal_officer_secret(key: CardSecret, passphrase: str) -> str:
    """Seal an officer's key as `seal_secret` does the authority's; raises as `seal_secret`."""
    return _sealed(SealedOfficerKey, key, passphrase, "officer")


def open_secret(text: str, passphrase: str) -> CardSecret:
    """Open the key in a file that `seal_secret` wrote.

    Raises:
        WrongPassphrase: another passphrase, or a field was changed.
        KeyFileError: not a sealed secret key, damaged, or of an older SecureFL.
        ConfigError: the passphrase is empty or is no text.
    """
    return _opened(SealedKey.parse(text), passphrase)


def open_officer_secret(text: str, passphrase: str) -> CardSecret:
    """Open the key in a file that `seal_officer_secret` wrote; raises as `open_secret`."""
    return _opened(SealedOfficerKey.parse(text), passphrase)


def _sealed(kind: type[_SealedCardKey], key: CardSecret, passphrase: str, role: Role) -> str:
    return kind.sealing(
        key.to_secret_bytes(),
        passphrase,
        key.origin,
        role,
        format=SEALED_KEY_FORMAT,
        key_id=key.key_id,
    )


def _opened(file: _SealedCardKey, passphrase: str) -> CardSecret:
    secret = file.opened(passphrase)
    try:
        key = CardSecret.from_secret_bytes(secret, file.origin)
    except (ValueError, KeyFileError) as error:
        raise KeyFileError(f"what was sealed is no such secret key: {error}") from error
    if key.key_id != file.key_id:
        raise KeyFileError(f"the header names key {file.key_id[:16]}…, inside is {key!r}")
    return key
