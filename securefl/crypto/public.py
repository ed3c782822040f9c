"""What the server and the clients may hold: a context that adds, a key that encrypts."""

from __future__ import annotations

from typing import final

import numpy as np
import tenseal as ts
from numpy.typing import NDArray

from securefl.crypto.artefact import Artefact, FileKind, Origin, digest
from securefl.crypto.contexts import without_secret_key
from securefl.crypto.held import Held
from securefl.crypto.params import CkksParameters
from securefl.crypto.ring import RingFrame
from securefl.errors import KeyFileError, MessageRefused

PARAMETERS_FILE = FileKind("securefl-ckks-parameters/2", "server", "sums")
PUBLIC_KEY_FILE = FileKind("securefl-ckks-public-key/2", "client", "sums")

SumsArtefact = Artefact[CkksParameters]


@final
class AddingContext(Held):
    """CKKS parameters without any key: ciphertexts can be added, not made and not read.

    This is all of CKKS that a server ever gets.
    """

    def __init__(self, artefact: SumsArtefact) -> None:
        """Raises KeyFileError where the artefact holds any key."""
        self._artefact = artefact
        self._context = artefact.parsed()
        self.key_id, self.epoch = artefact.key_id, artefact.origin.epoch
        self.parameters = artefact.parameters
        self.frame = RingFrame.of_fresh(self._context, artefact.parameters.scale_bits)
        if self._context.has_public_key():
            raise KeyFileError("this context holds a public key: a server needs parameters alone")

    def to_json(self) -> str:
        """The server's file."""
        return self._artefact.to_json(PARAMETERS_FILE)

    @classmethod
    def from_json(cls, text: str) -> AddingContext:
        """Parse the server's file; raises KeyFileError."""
        return cls(Artefact.from_json(text, PARAMETERS_FILE, CkksParameters))

    def sum(self) -> CiphertextSum:
        """An empty sum of ciphertexts."""
        return CiphertextSum(self._context, self.frame)


class CiphertextSum:
    """Ciphertexts added as they arrive: memory does not grow with their number."""

    def __init__(
        self, context: ts.Context, frame: RingFrame, vector: ts.CKKSVector | None = None
    ) -> None:
        self.frame = frame
        self._context = context
        self._vector = vector

    def plus(self, coefficients: bytes) -> CiphertextSum:
        """A new sum with one ciphertext more.

        Raises:
            MessageRefused: not a ciphertext of these parameters.
        """
        vector = self.frame.loaded(self._context, self.frame.from_wire(coefficients))
        try:
            if self._vector is not None:
                vector += self._vector
        except (RuntimeError, ValueError) as error:
            raise MessageRefused(f"ciphertext refused by TenSEAL: {error}") from error
        return CiphertextSum(self._context, self.frame, vector)

    def coefficients(self) -> bytes:
        """The sum, as bytes that `SecretKey.decrypt` takes."""
        if self._vector is None:
            raise RuntimeError("a sum of no ciphertexts")
        return self.frame.encrypted(self._vector)


@final
class PublicKey(Held):
    """Encrypts. What a client holds."""

    def __init__(self, artefact: SumsArtefact) -> None:
        """Raises KeyFileError where the artefact is not the public key that its key id names."""
        self._artefact = artefact
        self._context = artefact.parsed()
        self.key_id, self.epoch = artefact.key_id, artefact.origin.epoch
        self.parameters = artefact.parameters
        self.frame = RingFrame.of_fresh(self._context, artefact.parameters.scale_bits)
        if not self._context.has_public_key():
            raise KeyFileError("this context holds no public key: a client cannot encrypt with it")
        if digest(artefact.context) != self.key_id:
            raise KeyFileError("the public key does not match its key id: the file was changed")
        try:
            self.encrypt(np.zeros(self.parameters.poly_degree // 2))
        except RuntimeError as error:
            raise KeyFileError(f"damaged key file: {error}") from error

    @classmethod
    def of(cls, context: bytes, parameters: CkksParameters, origin: Origin) -> PublicKey:
        """The key in a context of this process's own making."""
        return cls(Artefact(context, digest(context), parameters, origin))

    @property
    def origin(self) -> Origin:
        """Its epoch, and when it was made."""
        return self._artefact.origin

    def adding_context(self) -> AddingContext:
        """The server's part: parameters, no key."""
        context = without_secret_key(self._context, public_key=False)
        return AddingContext(Artefact(context, self.key_id, self.parameters, self.origin))

    def to_json(self) -> str:
        """A client's file."""
        return self._artefact.to_json(PUBLIC_KEY_FILE)

    @classmethod
    def from_json(cls, text: str) -> PublicKey:
        """Parse a client's file; raises KeyFileError."""
        return cls(Artefact.from_json(text, PUBLIC_KEY_FILE, CkksParameters))

    def encrypt(self, slots: NDArray[np.float64]) -> bytes:
        """Coefficients of one ciphertext of N/2 slots, each within ±`parameters.max_value`."""
        return self.frame.encrypted(ts.ckks_vector(self._context, slots.tolist()))
