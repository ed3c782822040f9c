"""The secret key at rest: AES-256-GCM under an Argon2id key, in a text file that says what it is.

The whole header is associated data, so a file opens with every field as it was written or not at
all. `keys/FORMAT.md` has the format in words.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from securefl.crypto.params import CkksParameters
from securefl.crypto.public import CODEC
from securefl.crypto.secret import SecretKey
from securefl.errors import ConfigError, KeyFileError, WrongPassphrase

FORMAT: Final = "securefl-secret-key/1"
SALT_BYTES = 16
NONCE_BYTES = 12
KEY_BYTES = 32

MAX_WORK_KIB = 4 * 1024 * 1024
"""Passes times memory that a file may ask for: some seconds, not minutes."""


@dataclass(frozen=True, slots=True)
class KdfCost:
    """What one guess at a passphrase costs."""

    iterations: int
    lanes: int
    memory_kib: int


KDF_COST = KdfCost(iterations=3, lanes=4, memory_kib=64 * 1024)
"""The second recommended option of RFC 9106, section 4."""


class KdfHeader(BaseModel):
    """Argon2id with the costs that a file names: bounded, as they are believed unauthenticated."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Literal["argon2id"]
    iterations: int = Field(ge=1, le=16)
    lanes: int = Field(ge=1, le=16)
    memory_kib: int = Field(ge=8, le=1024 * 1024)
    salt: str

    def derive(self, passphrase: str) -> bytes:
        """The AES-256 key.

        Raises:
            ConfigError: the passphrase is empty or is no text.
            KeyFileError: costs that Argon2id does not take, or more memory than there is.
        """
        if self.iterations * self.memory_kib > MAX_WORK_KIB:
            raise KeyFileError(
                f"damaged secret key file: {self.iterations} passes over {self.memory_kib} KiB"
            )
        salt = _decoded(self.salt, SALT_BYTES)
        secret = _passphrase_bytes(passphrase)
        try:
            return Argon2id(
                salt=salt,
                length=KEY_BYTES,
                iterations=self.iterations,
                lanes=self.lanes,
                memory_cost=self.memory_kib,
            ).derive(secret)
        except ValueError as error:
            raise KeyFileError(f"damaged secret key file: {error}") from error
        except MemoryError as error:
            raise KeyFileError(
                f"deriving the key takes {self.memory_kib} KiB of memory, which are not free: "
                "open it on a larger machine"
            ) from error


class SealedFile(BaseModel):
    """The file as JSON. All but the ciphertext is readable without the passphrase."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["securefl-secret-key/1"]
    role: Literal["authority"]
    key_id: str = Field(pattern=r"^[0-9a-f]{64}$")
    created: str = Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")
    codec: str
    poly_degree: int
    modulus_bits: tuple[int, int]
    scale_bits: int
    kdf: KdfHeader
    cipher: Literal["aes-256-gcm"]
    nonce: str
    ciphertext: str

    @classmethod
    def parse(cls, text: str) -> SealedFile:
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
        if file.codec != CODEC:
            raise KeyFileError(f"made by {file.codec}, this is {CODEC}: make the keys anew")
        return file

    @property
    def parameters(self) -> CkksParameters:
        """The key's CKKS parameters, checked; raises KeyFileError."""
        try:
            return CkksParameters(self.poly_degree, self.modulus_bits, self.scale_bits)
        except ConfigError as error:
            raise KeyFileError(f"damaged secret key file: {error}") from error

    def associated_data(self) -> bytes:
        """Every field but the ciphertext, as canonical JSON: sorted keys, no spaces, ASCII."""
        header = self.model_dump(exclude={"ciphertext"})
        return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def seal_secret(key: SecretKey, passphrase: str) -> str:
    """The text of a file that only `passphrase` opens.

    Raises:
        ConfigError: the passphrase is empty or is no text.
    """
    nonce = os.urandom(NONCE_BYTES)
    file = SealedFile(
        format=FORMAT,
        role="authority",
        key_id=key.key_id,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        codec=CODEC,
        poly_degree=key.parameters.poly_degree,
        modulus_bits=key.parameters.modulus_bits,
        scale_bits=key.parameters.scale_bits,
        kdf=KdfHeader(
            name="argon2id",
            iterations=KDF_COST.iterations,
            lanes=KDF_COST.lanes,
            memory_kib=KDF_COST.memory_kib,
            salt=_encoded(os.urandom(SALT_BYTES)),
        ),
        cipher="aes-256-gcm",
        nonce=_encoded(nonce),
        ciphertext="",
    )
    ciphertext = AESGCM(file.kdf.derive(passphrase)).encrypt(
        nonce, key.to_secret_bytes(), file.associated_data()
    )
    sealed = file.model_copy(update={"ciphertext": _encoded(ciphertext)})
    return sealed.model_dump_json(indent=1) + "\n"


def open_secret(text: str, passphrase: str) -> SecretKey:
    """The key in a file that `seal_secret` wrote.

    Raises:
        WrongPassphrase: another passphrase, or a field was changed.
        KeyFileError: not a sealed secret key, damaged, or of another TenSEAL version.
        ConfigError: the passphrase is empty or is no text.
    """
    file = SealedFile.parse(text)
    parameters = file.parameters
    nonce, ciphertext = _decoded(file.nonce, NONCE_BYTES), _decoded(file.ciphertext)
    cipher = AESGCM(file.kdf.derive(passphrase))
    try:
        secret = cipher.decrypt(nonce, ciphertext, file.associated_data())
    except InvalidTag:
        raise WrongPassphrase(
            f"the passphrase does not open secret key {file.key_id[:16]}…, or the file was changed"
        ) from None
    try:
        key = SecretKey.from_secret_bytes(secret, parameters)
    except (RuntimeError, ValueError) as error:
        raise KeyFileError(f"what was sealed is no CKKS secret key: {error}") from error
    if key.key_id != file.key_id:
        raise KeyFileError(f"the header names key {file.key_id[:16]}…, inside is {key!r}")
    return key


def _passphrase_bytes(passphrase: str) -> bytes:
    if not passphrase:
        raise ConfigError("the passphrase is empty: give one of several random words")
    try:
        # Keyboards differ in how they compose an accent; the same word must be the same key.
        return unicodedata.normalize("NFC", passphrase).encode()
    except UnicodeEncodeError:
        raise ConfigError("the passphrase is not valid UTF-8: write it in UTF-8") from None


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str, n_bytes: int | None = None) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise KeyFileError(f"damaged secret key file: {error}") from error
    # Base64 has spare bits at its end: two texts for the same bytes, of which one was changed.
    if _encoded(data) != text or n_bytes not in {None, len(data)}:
        raise KeyFileError("damaged secret key file: base64 of another length or form")
    return data
