"""A secret key at rest: AES-256-GCM under an Argon2id key, in a text file that says what it is.

The whole header is associated data, so a file opens with every field as it was written or not at
all. `keys/FORMAT.md` has the format in words.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self, TypeVar, final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import BaseModel, ConfigDict, ValidationError

from securefl.crypto.artefact import CODEC, Epoch, Moment, Origin, Sha256, canonical
from securefl.crypto.match_params import MatchParameters
from securefl.crypto.match_secret import MatchSecretKey
from securefl.crypto.params import CkksParameters
from securefl.crypto.secret import SecretKey
from securefl.errors import KeyFileError, WrongPassphrase
from securefl_keys.base64_text import decoded, encoded
from securefl_keys.holders import Role
from securefl_keys.kdf import KdfCost, KdfHeader
from securefl_keys.versions import require_not_older

SEALED_KEY_FORMAT: Literal["securefl-secret-key/2"] = "securefl-secret-key/2"
SEALED_MATCH_KEY_FORMAT: Literal["securefl-match-secret-key/2"] = "securefl-match-secret-key/2"
NONCE_BYTES = 12

KDF_COST = KdfCost(iterations=3, lanes=4, memory_kib=64 * 1024)
"""The second recommended option of RFC 9106, section 4."""

_Key = TypeVar("_Key", SecretKey, MatchSecretKey)


class SealedFile(BaseModel):
    """What all kinds have. All but the ciphertext is readable without the passphrase."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    holders: ClassVar[tuple[Role, ...]] = ("authority",)
    use: ClassVar[str]
    """What the key is for, and nothing else."""
    serialisation: ClassVar[str] = CODEC
    """Of the plaintext: what reads it."""

    format: str
    role: Role
    purpose: str
    key_id: Sha256
    epoch: Epoch
    created: Moment
    codec: str
    kdf: KdfHeader
    cipher: Literal["aes-256-gcm"]
    nonce: str
    ciphertext: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """The header, and a ciphertext not yet opened.

        Raises:
            KeyFileError: not a sealed secret key, costs out of bounds, or another TenSEAL version.
        """
        try:
            file = cls.model_validate_json(text)
        except ValidationError as error:
            require_not_older(cls, error, "make it anew, with what goes with it")
            first = error.errors(include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise KeyFileError(
                f"not a sealed secret key: {f'{field}: ' if field else ''}{first['msg']}"
            ) from None
        if file.role not in cls.holders or file.purpose != cls.use:
            raise KeyFileError(
                f"not a sealed secret key of {' or '.join(cls.holders)} for {cls.use}: it names "
                f"{file.role!r} and {file.purpose!r:.40}"
            )
        if file.codec != cls.serialisation:
            raise KeyFileError(
                f"made by {file.codec}, this is {cls.serialisation}: make the keys anew"
            )
        return file

    @classmethod
    def sealing(
        cls,
        secret: bytes,
        passphrase: str,
        origin: Origin,
        role: Role = "authority",
        **fields: Any,
    ) -> str:
        """The text of a file with these fields and a fresh salt and nonce."""
        nonce = os.urandom(NONCE_BYTES)
        file = cls(
            role=role,
            purpose=cls.use,
            epoch=origin.epoch,
            created=origin.created,
            codec=cls.serialisation,
            kdf=KdfHeader.fresh(KDF_COST),
            cipher="aes-256-gcm",
            nonce=encoded(nonce),
            ciphertext="",
            **fields,
        )
        cipher = AESGCM(file.kdf.derive(passphrase))
        ciphertext = cipher.encrypt(nonce, secret, file.associated_data())
        return json.dumps(file.header() | {"ciphertext": encoded(ciphertext)}, indent=1) + "\n"

    @property
    def origin(self) -> Origin:
        """The key's epoch, and when it was made."""
        return Origin(self.epoch, self.created)

    def header(self) -> dict[str, Any]:
        """Every field but the ciphertext."""
        return self.model_dump(exclude={"ciphertext"})

    def associated_data(self) -> bytes:
        """The header as canonical JSON."""
        return canonical(self.header())

    def opened(self, passphrase: str) -> bytes:
        """What was sealed.

        Raises:
            WrongPassphrase: another passphrase, or a field was changed.
            KeyFileError: damaged.
            ConfigError: the passphrase is empty or is no text.
        """
        nonce, ciphertext = decoded(self.nonce, NONCE_BYTES), decoded(self.ciphertext)
        cipher = AESGCM(self.kdf.derive(passphrase))
        try:
            return cipher.decrypt(nonce, ciphertext, self.associated_data())
        except InvalidTag:
            raise WrongPassphrase(
                f"the passphrase does not open secret key {self.key_id[:16]}…, or the file was "
                "changed"
            ) from None


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
    return SealedKey.sealing(
        key.to_secret_bytes(),
        passphrase,
        key.origin,
        format=SEALED_KEY_FORMAT,
        key_id=key.key_id,
        parameters=key.parameters,
    )


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
    return SealedMatchKey.sealing(
        key.to_secret_bytes(),
        passphrase,
        key.origin,
        format=SEALED_MATCH_KEY_FORMAT,
        key_id=key.key_id,
        parameters=key.parameters,
    )


def open_match_secret(text: str, passphrase: str) -> MatchSecretKey:
    """The key in a file that `seal_match_secret` wrote; raises as `open_secret`."""
    file = SealedMatchKey.parse(text)
    secret = file.opened(passphrase)
    return _checked(
        file, lambda: MatchSecretKey.from_secret_bytes(secret, file.parameters, file.origin)
    )


def _checked(file: SealedFile, read: Callable[[], _Key]) -> _Key:
    try:
        key = read()
    except (RuntimeError, ValueError) as error:
        raise KeyFileError(f"what was sealed is no CKKS secret key: {error}") from error
    if key.key_id != file.key_id:
        raise KeyFileError(f"the header names key {file.key_id[:16]}…, inside is {key!r}")
    return key
