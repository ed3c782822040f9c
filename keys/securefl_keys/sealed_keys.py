"""The CKKS secret keys at rest: of sums, and of profile matches."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, TypeVar, final

from securefl.crypto.match_params import MatchParameters
from securefl.crypto.match_secret import MatchSecretKey
from securefl.crypto.params import CkksParameters
from securefl.crypto.secret import SecretKey
from securefl.errors import KeyFileError
from securefl_keys.sealed_file import SealedFile

SEALED_KEY_FORMAT: Literal["securefl-secret-key/2"] = "securefl-secret-key/2"
SEALED_MATCH_KEY_FORMAT: Literal["securefl-match-secret-key/2"] = "securefl-match-secret-key/2"

_Key = TypeVar("_Key", SecretKey, MatchSecretKey)


@final
class SealedKey(SealedFile):
    """The secret key of sums."""

    use: ClassVar[str] = "sums"

    format: Literal["securefl-secret-key/2"]
    parameters: CkksParameters


@final
class SealedMatchKey(SealedFile):
    """The secret key of profile matches."""

    use: ClassVar[str] = "matches"

    format: Literal["securefl-match-secret-key/2"]
    parameters: MatchParameters


def seal_secret(key: SecretKey, passphrase: str) -> str:
    """The text of a file that only `passphrase` opens.

    Raises:
        ConfigError: the passphrase is empty or is no text.
    """
    return _sealed(SealedKey, SEALED_KEY_FORMAT, key, passphrase)


def open_secret(text: str, passphrase: str) -> SecretKey:
    """The key in a file that `seal_secret` wrote.

    Raises:
        WrongPassphrase: another passphrase, or a field was changed.
        KeyFileError: not a sealed secret key, damaged, or of another TenSEAL version.
        ConfigError: the passphrase is empty or is no text.
    """
    file = SealedKey.parse(text)
    secret = file.opened(passphrase)
    return _checked(file, lambda: SecretKey.from_secret_bytes(secret, file.parameters, file.origin))


def seal_match_secret(key: MatchSecretKey, passphrase: str) -> str:
    """As `seal_secret`, for a match key."""
    return _sealed(SealedMatchKey, SEALED_MATCH_KEY_FORMAT, key, passphrase)


def open_match_secret(text: str, passphrase: str) -> MatchSecretKey:
    """The key in a file that `seal_match_secret` wrote; raises as `open_secret`."""
    file = SealedMatchKey.parse(text)
    secret = file.opened(passphrase)
    return _checked(
        file, lambda: MatchSecretKey.from_secret_bytes(secret, file.parameters, file.origin)
    )


def _sealed(
    kind: type[SealedFile], format_: str, key: SecretKey | MatchSecretKey, passphrase: str
) -> str:
    return kind.sealing(
        key.to_secret_bytes(),
        passphrase,
        key.origin,
        format=format_,
        key_id=key.key_id,
        parameters=key.parameters,
    )


def _checked(file: SealedFile, read: Callable[[], _Key]) -> _Key:
    try:
        key = read()
    except (RuntimeError, ValueError) as error:
        raise KeyFileError(f"what was sealed is no CKKS secret key: {error}") from error
    if key.key_id != file.key_id:
        raise KeyFileError(f"the header names key {file.key_id[:16]}…, inside is {key!r}")
    return key
