"""A secret key at rest: AES-256-GCM under an Argon2id key, in a text file that says what it is.

The whole header is associated data, so a file opens with every field as it was written or not at
all. `keys/FORMAT.md` has the format in words.
"""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar, Literal, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import BaseModel, ConfigDict

from securefl.crypto.artefact import (
    Epoch,
    Moment,
    Origin,
    Sha256,
    canonical,
    parsed_file,
)
from securefl.crypto.base64_text import decoded, encoded
from securefl.errors import KeyFileError, WrongPassphrase
from securefl_keys.holders import Role
from securefl_keys.kdf import KdfCost, KdfHeader

NONCE_BYTES = 12

KDF_COST = KdfCost(iterations=3, lanes=4, memory_kib=64 * 1024)
"""The second recommended option of RFC 9106, section 4."""


class SealedFile(BaseModel):
    """What all kinds have. All but the ciphertext is readable without the passphrase."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    holders: ClassVar[tuple[Role, ...]] = ("authority",)
    use: ClassVar[str]
    """What the key is for, and nothing else."""
    serialisation: ClassVar[str]
    """Of the plaintext: what reads it."""
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
        """The header, and a ciphertext not yet opened.

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
