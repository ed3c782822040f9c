"""From a passphrase to an AES key: Argon2id, with the costs that a file names."""

from __future__ import annotations

import os
import time
import unicodedata
from dataclasses import dataclass
from typing import Literal

from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from pydantic import BaseModel, ConfigDict, Field

from securefl.crypto.base64_text import decoded, encoded
from securefl.errors import ConfigError, KeyFileError

SALT_BYTES = 16
KEY_BYTES = 32

MAX_WORK_KIB = 1024 * 1024
"""Passes times memory that a file may ask for: some seconds, not minutes."""


@dataclass(frozen=True, slots=True)
class KdfCost:
    """What one guess at a passphrase costs."""

    iterations: int
    lanes: int
    memory_kib: int


def measured(cost: KdfCost) -> str:
    """The costs in words, with the time of one guess on this machine."""
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
    def fresh(cls, cost: KdfCost) -> KdfHeader:
        """These costs, and a new salt."""
        return cls(
            name="argon2id",
            iterations=cost.iterations,
            lanes=cost.lanes,
            memory_kib=cost.memory_kib,
            salt=encoded(os.urandom(SALT_BYTES)),
        )

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
