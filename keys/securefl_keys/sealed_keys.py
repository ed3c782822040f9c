"""The secret at rest that opens cards."""

from __future__ import annotations

from typing import ClassVar, Literal, final

from securefl.crypto.card_secret import CardSecret
from securefl.errors import KeyFileError
from securefl_keys.sealed_file import SealedFile

SEALED_KEY_FORMAT: Literal["securefl-card-secret-key/3"] = "securefl-card-secret-key/3"


@final
class SealedKey(SealedFile):
    """The secret key that opens cards."""

    use: ClassVar[str] = "cards"
    serialisation: ClassVar[str] = "mlkem768-seed-x25519-raw"
    replaced: ClassVar[tuple[str, ...]] = ("securefl-secret-key",)

    format: Literal["securefl-card-secret-key/3"]


def seal_secret(key: CardSecret, passphrase: str) -> str:
    """The text of a file that only `passphrase` opens.

    Raises:
        ConfigError: the passphrase is empty or is no text.
    """
    return SealedKey.sealing(
        key.to_secret_bytes(),
        passphrase,
        key.origin,
        format=SEALED_KEY_FORMAT,
        key_id=key.key_id,
    )


def open_secret(text: str, passphrase: str) -> CardSecret:
    """The key in a file that `seal_secret` wrote.

    Raises:
        WrongPassphrase: another passphrase, or a field was changed.
        KeyFileError: not a sealed secret key, damaged, or of an older SecureFL.
        ConfigError: the passphrase is empty or is no text.
    """
    file = SealedKey.parse(text)
    secret = file.opened(passphrase)
    try:
        key = CardSecret.from_secret_bytes(secret, file.origin)
    except (ValueError, KeyFileError) as error:
        raise KeyFileError(f"what was sealed is no such secret key: {error}") from error
    if key.key_id != file.key_id:
        raise KeyFileError(f"the header names key {file.key_id[:16]}…, inside is {key!r}")
    return key
