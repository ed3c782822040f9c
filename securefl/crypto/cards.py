"""Cards: a client's secret of a run, sealed to the authority that adds up its messages' keys.

HPKE (RFC 9180) with ML-KEM-768 and X25519, so that neither a broken lattice nor a quantum computer
opens a card alone. The key pair seals no value: whoever has its public half makes cards, and the
secret half opens them.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, final

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PublicKey, Suite
from pydantic import BaseModel, ConfigDict, Field

from securefl.crypto.artefact import (
    Epoch,
    Moment,
    Origin,
    Sha256,
    canonical,
    decoded,
    digest,
    encoded,
    parsed_file,
)
from securefl.crypto.derived import SEED_BYTES
from securefl.errors import KeyFileError
from securefl.io.uncopyable import Held

CARD_KEY_FORMAT: Literal["securefl-card-key/3"] = "securefl-card-key/3"
REPLACED = ("securefl-ckks-public-key", "securefl-ckks-parameters")
"""Names of the public files of sums before there were cards."""
SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_LATTICE_BYTES, _CURVE_BYTES = 1184, 32
KEY_BYTES = _LATTICE_BYTES + _CURVE_BYTES
"""Length of the public half."""
_TAG_BYTES = 16


def card_bytes(n_secrets: int) -> int:
    """Return the length of a card: what HPKE encapsulates, the secrets, and its tag."""
    return KEM.MLKEM768_X25519.enc_length() + n_secrets * SEED_BYTES + _TAG_BYTES


class CardKeyFile(BaseModel):
    """Text form of a card key: JSON of just these fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["securefl-card-key/3"]
    key_id: Sha256
    epoch: Epoch
    created: Moment
    key: Annotated[str, Field(max_length=2 * KEY_BYTES)]
    """Base64 of the public half: ML-KEM's 1184 bytes, then X25519's 32."""
    sha256: Sha256
    """Digest over all other fields."""

    def content(self) -> bytes:
        """Return the bytes that the digest is over."""
        return canonical(self.model_dump(exclude={"sha256"}))


@final
class CardKey(Held):
    """Public half of a card key, which makes cards. Every role may hold it."""

    def __init__(self, key: bytes, origin: Origin) -> None:
        """Raises KeyFileError where these are no bytes of such a key."""
        if len(key) != KEY_BYTES:
            raise KeyFileError(f"a card key of {len(key)} bytes, expected {KEY_BYTES}")
        try:
            lattice = MLKEM768PublicKey.from_public_bytes(key[:_LATTICE_BYTES])
            curve = X25519PublicKey.from_public_bytes(key[_LATTICE_BYTES:])
        except ValueError as error:
            raise KeyFileError(f"damaged card key: {error}") from error
        self._key = MLKEM768X25519PublicKey(lattice, curve)
        self._bytes = key
        self.origin = origin
        self.key_id = digest(key)

    @property
    def epoch(self) -> int:
        """Epoch of the key."""
        return self.origin.epoch

    def card(self, secrets: Sequence[bytes], about: bytes) -> bytes:
        """Return the card of secrets of 32 bytes each; it opens for the same `about` alone."""
        return SUITE.encrypt(b"".join(secrets), self._key, info=about)

    def to_json(self) -> str:
        """Return the file of clients and server."""
        file = CardKeyFile(
            format=CARD_KEY_FORMAT,
            key_id=self.key_id,
            epoch=self.origin.epoch,
            created=self.origin.created,
            key=encoded(self._bytes),
            sha256="0" * 64,
        )
        stated = file.model_copy(update={"sha256": digest(file.content())})
        return stated.model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str) -> "CardKey":
        """Parse the file.

        Raises:
            KeyFileError: damaged, of another kind, or not the key that its key id names.
        """
        file = parsed_file(CardKeyFile, text, "not a SecureFL key file", replaced=REPLACED)
        if digest(file.content()) != file.sha256:
            raise KeyFileError("damaged key file: its content does not match its SHA-256")
        key = cls(decoded(file.key), Origin(file.epoch, file.created))
        if key.key_id != file.key_id:
            raise KeyFileError("the card key does not match its key id: the file was changed")
        return key
