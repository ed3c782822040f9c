"""Secret half of a card key: made, held and used by the authority or an officer alone."""

from typing import final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey

from securefl.crypto.artefact import Origin
from securefl.crypto.cards import SUITE, CardKey, card_bytes
from securefl.crypto.derived import SEED_BYTES
from securefl.errors import KeyFileError, MessageRefused
from securefl.io.uncopyable import Held, SecretBytes

_LATTICE_SEED_BYTES, _CURVE_BYTES = 64, 32


@final
class CardSecret(Held):
    """Secret half of a card key, which opens cards. The authority holds it, and nobody else."""

    def __init__(
        self, lattice: MLKEM768PrivateKey, curve: X25519PrivateKey, origin: Origin
    ) -> None:
        """Use `generate` or `from_secret_bytes`."""
        self._lattice, self._curve = lattice, curve
        self._key = MLKEM768X25519PrivateKey(lattice, curve)
        public = lattice.public_key().public_bytes_raw() + curve.public_key().public_bytes_raw()
        self.public = CardKey(public, origin)

    @classmethod
    def generate(cls, epoch: int = 1) -> "CardSecret":
        """Return a fresh key from the operating system's randomness."""
        return cls(MLKEM768PrivateKey.generate(), X25519PrivateKey.generate(), Origin.now(epoch))

    @classmethod
    def from_secret_bytes(cls, secret: SecretBytes, origin: Origin) -> "CardSecret":
        """Read what `to_secret_bytes` wrote; raises KeyFileError where it is none."""
        if len(secret) != _LATTICE_SEED_BYTES + _CURVE_BYTES:
            raise KeyFileError(f"a card key's secret of {len(secret)} bytes, expected 96")
        lattice = MLKEM768PrivateKey.from_seed_bytes(secret[:_LATTICE_SEED_BYTES])
        return cls(lattice, X25519PrivateKey.from_private_bytes(secret[-_CURVE_BYTES:]), origin)

    def to_secret_bytes(self) -> SecretBytes:
        """Return the key itself, IN CLEAR: for encryption at rest, and for nothing else."""
        return SecretBytes(self._lattice.private_bytes_raw() + self._curve.private_bytes_raw())

    @property
    def key_id(self) -> str:
        """SHA-256 of the public half, in hex, which names this pair in every message."""
        return self.public.key_id

    @property
    def origin(self) -> Origin:
        """Epoch of the key, and when it was made."""
        return self.public.origin

    def secrets_in(self, card: bytes, n_secrets: int, about: bytes) -> list[SecretBytes]:
        """Return the secrets in a card, 32 bytes each.

        Raises:
            MessageRefused: made for another key or purpose, changed, or of another length.
        """
        if len(card) != card_bytes(n_secrets):
            raise MessageRefused(
                f"a card of {len(card)} bytes, expected exactly {card_bytes(n_secrets)}"
            )
        try:
            secrets = SecretBytes(SUITE.decrypt(card, self._key, info=about))
        except (InvalidTag, ValueError) as error:
            raise MessageRefused("a card that does not open under this key") from error
        return [secrets[i : i + SEED_BYTES] for i in range(0, len(secrets), SEED_BYTES)]

    def __repr__(self) -> str:
        return f"CardSecret(key_id={self.key_id[:16]}…)"
