"""The authority's secrets at rest: the key that opens cards, and the key of profile matches."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, TypeVar, final

from securefl.crypto.match_params import MatchParameters
from securefl.crypto.match_secret import MatchSecretKey

from securefl.crypto.card_secret import CardSecret
from securefl.errors import KeyFileError
from securefl_keys.sealed_file import SealedFile

SEALED_KEY_FORMAT: Literal["securefl-card-secret-key/3"] = "securefl-card-secret-key/3"
SEALED_MATCH_KEY_FORMAT: Literal["securefl-match-secret-key/2"] = "securefl-match-secret-key/2"

_Key = TypeVar("_Key", CardSecret, MatchSecretKey)


@final
class SealedKey(SealedFile):
    """The secret key that opens cards."""

    use: ClassVar[str] = "cards"
    serialisation: ClassVar[str] = "mlkem768-seed-x25519-raw"
    replaced: ClassVar[tuple[str, ...]] = ("securefl-secret-key",)

    format: Literal["securefl-card-secret-key/3"]


@final
class SealedMatchKey(SealedFile):
    """The secret key of profile matches."""

    use: ClassVar[str] = "matches"

    format: Literal["securefl-match-secret-key/2"]
    parameters: MatchParameters


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
    return _checked(file, lambda: CardSecret.from_secret_bytes(secret, file.origin))


def seal_match_secret(key: MatchSecretKey, passphrase: str) -> str:
    """As `seal_secret`, for a match key."""
    return SealedMatchKey.sealing(
        key.to_secret_bytes(),
        passphrase,
        key.origin,
        format=SEALED_MATCH_KEY_FORMAT,
        key_id=key.key_id,
        parameters=key.parameters,
    )


def open_match_secret(text: str, passphrase: str) -> MatchSecretKey:
    """The key in a file that `seal_match_secret` wrote.

    Raises:
        WrongPassphrase, ConfigError: as `open_secret`.
        KeyFileError: not a sealed secret key, damaged, or of another TenSEAL version.
    """
    file = SealedMatchKey.parse(text)
    secret = file.opened(passphrase)
    return _checked(
        file, lambda: MatchSecretKey.from_secret_bytes(secret, file.parameters, file.origin)
    )


def _checked(file: SealedFile, read: Callable[[], _Key]) -> _Key:
    try:
        key = read()
    except (RuntimeError, ValueError, KeyFileError) as error:
        raise KeyFileError(f"what was sealed is no such secret key: {error}") from error
    if key.key_id != file.key_id:
        raise KeyFileError(f"the header names key {file.key_id[:16]}…, inside is {key!r}")
    return key
