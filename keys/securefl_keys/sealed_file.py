"""A secret key at rest: AES-256-GCM under an Argon2id key, in a text file that names its costs.

The whole header is associated data, so a file opens with every field as it was written or not at
all. `keys/FORMAT.md` has the format in words.
"""

import json
import os
import time
import unicodedata
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from pydantic import BaseModel, ConfigDict, Field

from securefl.crypto.artefact import (
    Epoch,
    Moment,
    Origin,
    Sha256,
    canonical,
    decoded,
    encoded,
    parsed_file,
)
from securefl.errors import ConfigError, KeyFileError, WrongPassphrase
from securefl.io.uncopyable import SecretBytes
from securefl_keys.certificate_form import Role

SALT_BYTES = 16
KEY_BYTES = 32

MAX_WORK_KIB = 1024 * 1024
"""Most passes times memory, in KiB, that a file may ask for: some seconds, not minutes."""


@dataclass(frozen=True, slots=True)
class KdfCost:
    """Cost of one guess at a passphrase."""

    iterations: int
    lanes: int
    memory_kib: int


def measured(cost: KdfCost) -> str:
    """Return the costs in words, with the time of one guess on this machine."""
    started = time.perf_counter()
    KdfHeader.fresh(cost).derive("a guess")
    seconds = time.perf_counter() - started
    return (
        f"Argon2id (RFC 9106): {cost.iterations} passes over {cost.memory_kib // 1024} MiB in "
        f"{cost.lanes} lanes, {seconds:.2f} s a guess on this machine"
    )


class KdfHeader(BaseModel):
    """Argon2id with the costs that a file names: bounded, as they are believed unauthenticated."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Literal["argon2id"]
    iterations: int = Field(ge=1, le=16)
    lanes: int = Field(ge=1, le=16)
    memory_kib: int = Field(ge=8, le=1024 * 1024)
    salt: str

    @classmethod
    def fresh(cls, cost: KdfCost) -> "KdfHeader":
        """Return a header of these costs and a new salt."""
        return cls(
            name="argon2id",
            iterations=cost.iterations,
            lanes=cost.lanes,
            memory_kib=cost.memory_kib,
            salt=encoded(os.urandom(SALT_BYTES)),
        )

    def derive(self, passphrase: str) -> bytes:
        """Derive the AES-256 key.

        Raises:
            ConfigError: the passphrase is empty or is no text.
            KeyFileError: costs that Argon2id does not take, or more memory than there is.
        """
        if self.iterations * self.memory_kib > MAX_WORK_KIB:
            raise KeyFileError(
                f"damaged secret key file: {self.iterations} passes over {self.memory_kib} KiB"
            )
        salt = decoded(self.salt, SALT_BYTES)
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


def _passphrase_bytes(passphrase: str) -> bytes:
    if not passphrase:
        raise ConfigError("the passphrase is empty: give one of several random words")
    try:
        # Keyboards differ in how they compose an accent; the same word must be the same key.
        return unicodedata.normalize("NFC", passphrase).encode()
    except UnicodeEncodeError:
        raise ConfigError("the passphrase is not valid UTF-8: write it in UTF-8") from None


NONCE_BYTES = 12

KDF_COST = KdfCost(iterations=3, lanes=4, memory_kib=64 * 1024)
"""Costs of the second recommended option of RFC 9106, section 4."""


class SealedFile(BaseModel):
    """Fields that all kinds have. All but the ciphertext is readable without the passphrase."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    holders: ClassVar[tuple[Role, ...]] = ("authority",)
    use: ClassVar[str]
    """Purpose of the key, and nothing else."""
    serialisation: ClassVar[str]
    """Serialisation of the plaintext: the format that reads it."""
    replaced: ClassVar[tuple[str, ...]] = ()
    """Names of older formats, without their version, whose place this one has taken."""

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
        """Parse the header, and a ciphertext not yet opened.

        Raises:
            KeyFileError: not a sealed secret key, or costs out of bounds.
        """
        file = parsed_file(cls, text, "not a sealed secret key", replaced=cls.replaced)
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
        secret: SecretBytes,
        passphrase: str,
        origin: Origin,
        role: Role = "authority",
        **fields: Any,
    ) -> str:
        """Return the text of a file with these fields and a fresh salt and nonce."""
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
        """Epoch of the key, and when it was made."""
        return Origin(self.epoch, self.created)

    def header(self) -> dict[str, Any]:
        """Return every field but the ciphertext."""
        return self.model_dump(exclude={"ciphertext"})

    def associated_data(self) -> bytes:
        """Return the header as canonical JSON."""
        return canonical(self.header())

    def opened(self, passphrase: str) -> SecretBytes:
        """Open the ciphertext and return what was sealed.

        Raises:
            WrongPassphrase: another passphrase, or a field was changed.
            KeyFileError: damaged.
            ConfigError: the passphrase is empty or is no text.
        """
        nonce, ciphertext = decoded(self.nonce, NONCE_BYTES), decoded(self.ciphertext)
        cipher = AESGCM(self.kdf.derive(passphrase))
        try:
            return SecretBytes(cipher.decrypt(nonce, ciphertext, self.associated_data()))
        except InvalidTag:
            raise WrongPassphrase(
                f"the passphrase does not open secret key {self.key_id[:16]}…, or the file was "
                "changed"
            ) from None
