"""A secret key at rest: AES-256-GCM under an Argon2id key, in a text file that says what it is.

The whole header is associated data, so a file opens with every field as it was written or not at
all. `keys/FORMAT.md` has the format in words.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, Self, TypeVar, final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from securefl.crypto.artefact import CODEC, Sha256, canonical
from securefl.crypto.match_params import MatchParameters
from securefl.crypto.match_secret import MatchSecretKey
from securefl.crypto.params import CkksParameters
from securefl.crypto.secret import SecretKey
from securefl.errors import ConfigError, KeyFileError, WrongPassphrase
from securefl_keys.base64_text import decoded, encoded
from securefl_keys.holders import Role
from securefl_keys.kdf import KdfCost, KdfHeader

SEALED_KEY_FORMAT: Literal["securefl-secret-key/1"] = "securefl-secret-key/1"
SEALED_MATCH_KEY_FORMAT: Literal["securefl-match-secret-key/1"] = "securefl-match-secret-key/1"
NONCE_BYTES = 12

KDF_COST = KdfCost(iterations=3, lanes=4, memory_kib=64 * 1024)
"""The second recommended option of RFC 9106, section 4."""

_Key = TypeVar("_Key", SecretKey, MatchSecretKey)


class SealedFile(BaseModel):
    """What all kinds have. All but the ciphertext is readable without the passphrase."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    holders: ClassVar[tuple[Role, ...]] = ("authority",)
    serialisation: ClassVar[str] = CODEC
    """Of the plaintext: what reads it."""

    format: str
    role: Role
    key_id: Sha256
    created: str = Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")
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
            first = error.errors(include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise KeyFileError(
                f"not a sealed secret key: {f'{field}: ' if field else ''}{first['msg']}"
            ) from None
        if file.role not in cls.holders:
            raise KeyFileError(f"not a sealed secret key: role: {cls.holders[0]} is needed")
        if file.codec != cls.serialisation:
            raise KeyFileError(
                f"made by {file.codec}, this is {cls.serialisation}: make the keys anew"
            )
        return file

    @classmethod
    def sealing(
        cls, secret: bytes, passphrase: str, role: Role = "authority", **fields: Any
    ) -> str:
        """The text of a file with these fields and a fresh salt and nonce."""
        nonce = os.urandom(NONCE_BYTES)
        file = cls(
            role=role,
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
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

    format: Literal["securefl-secret-key/1"]
    poly_degree: int
    modulus_bits: tuple[int, int]
    scale_bits: int

    @property
    def parameters(self) -> CkksParameters:
        """The key's CKKS parameters, checked; raises KeyFileError."""
        try:
            return CkksParameters(self.poly_degree, self.modulus_bits, self.scale_bits)
        except ConfigError as error:
            raise KeyFileError(f"damaged secret key file: {error}") from error


@final
class SealedMatchKey(SealedFile):
    """The secret key of profile matches."""

    format: Literal["securefl-match-secret-key/1"]
    parameters: MatchParameters


def seal_secret(key: SecretKey, passphrase: str) -> str:
    """The text of a file that only `passphrase` opens.

    Raises:
        ConfigError: the passphrase is empty or is no text.
    """
    return SealedKey.sealing(
        key.to_secret_bytes(),
        passphrase,
        format=SEALED_KEY_FORMAT,
        key_id=key.key_id,
        poly_degree=key.parameters.poly_degree,
        modulus_bits=key.parameters.modulus_bits,
        scale_bits=key.parameters.scale_bits,
    )


def open_secret(text: str, passphrase: str) -> SecretKey:
    """The key in a file that `seal_secret` wrote.

    Raises:
        WrongPassphrase: another passphrase, or a field was changed.
        KeyFileError: not a sealed secret key, damaged, or of another TenSEAL version.
        ConfigError: the passphrase is empty or is no text.
    """
    file = SealedKey.parse(text)
    parameters = file.parameters
    secret = file.opened(passphrase)
    return _checked(file, lambda: SecretKey.from_secret_bytes(secret, parameters))


def seal_match_secret(key: MatchSecretKey, passphrase: str) -> str:
    """As `seal_secret`, for a match key."""
    return SealedMatchKey.sealing(
        key.to_secret_bytes(),
        passphrase,
        format=SEALED_MATCH_KEY_FORMAT,
        key_id=key.key_id,
        parameters=key.parameters,
    )


def open_match_secret(text: str, passphrase: str) -> MatchSecretKey:
    """The key in a file that `seal_match_secret` wrote; raises as `open_secret`."""
    file = SealedMatchKey.parse(text)
    secret = file.opened(passphrase)
    return _checked(file, lambda: MatchSecretKey.from_secret_bytes(secret, file.parameters))


def _checked(file: SealedFile, read: Callable[[], _Key]) -> _Key:
    try:
        key = read()
    except (RuntimeError, ValueError) as error:
        raise KeyFileError(f"what was sealed is no CKKS secret key: {error}") from error
    if key.key_id != file.key_id:
        raise KeyFileError(f"the header names key {file.key_id[:16]}…, inside is {key!r}")
    return key
