"""The secret key: made, held and used by the authority alone."""

from __future__ import annotations

import numpy as np
import tenseal as ts
from numpy.typing import NDArray

from securefl.crypto.artefact import Origin
from securefl.crypto.contexts import fresh_context, with_secret_key, without_secret_key
from securefl.crypto.decoding import Decoder, Slots
from securefl.crypto.held import Held
from securefl.crypto.params import SUMS, CkksParameters
from securefl.crypto.public import AddingContext, PublicKey
from securefl.errors import KeyFileError, MessageRefused


class SecretKey(Held):
    """Decrypts. It has no text form, cannot be pickled, and says nothing of itself."""

    def __init__(self, context: ts.Context, parameters: CkksParameters, origin: Origin) -> None:
        """Use `generate` or `from_secret_bytes`."""
        if not context.has_secret_key():
            raise KeyFileError("this context holds no secret key")
        self._context = context
        self._decoder = Decoder(context)
        self.parameters = parameters
        public = without_secret_key(context, public_key=True)
        self.public_key = PublicKey.of(public, parameters, origin)

    @classmethod
    def generate(cls, parameters: CkksParameters = SUMS, epoch: int = 1) -> SecretKey:
        """A fresh key from the operating system's randomness, without evaluation keys."""
        return cls(fresh_context(parameters), parameters, Origin.now(epoch))

    @classmethod
    def from_secret_bytes(
        cls, secret: bytes, parameters: CkksParameters, origin: Origin
    ) -> SecretKey:
        """Read what `to_secret_bytes` wrote. Only for bytes whose authenticity is established."""
        return cls(ts.context_from(secret), parameters, origin)

    def to_secret_bytes(self) -> bytes:
        """The key itself, IN CLEAR: for encryption at rest, and for nothing else."""
        return with_secret_key(self._context)

    @property
    def key_id(self) -> str:
        """SHA-256 of the public key, in hex: 32 bytes that name this pair in every message."""
        return self.public_key.key_id

    @property
    def origin(self) -> Origin:
        """Its epoch, and when it was made."""
        return self.public_key.origin

    def adding_context(self) -> AddingContext:
        """The server's part: parameters, no key."""
        return self.public_key.adding_context()

    def decrypt(self, coefficients: bytes) -> NDArray[np.float64]:
        """The real parts of `slots`; raises as it does."""
        return self.slots(coefficients).real

    def slots(self, coefficients: bytes) -> Slots:
        """The N/2 slots of a ciphertext, which are real where it was made by encryption.

        Raises:
            MessageRefused: not a ciphertext of these parameters.
        """
        ciphertext = self.public_key.frame.parsed(self._context, coefficients)
        try:
            return self._decoder.slots(ciphertext)
        except (RuntimeError, ValueError) as error:
            raise MessageRefused(f"ciphertext refused by TenSEAL: {error}") from error

    def __repr__(self) -> str:
        return f"SecretKey(key_id={self.key_id[:16]}…)"
