"""The slots of what a context's own key decrypts, imaginary parts and all."""

from __future__ import annotations

import numpy as np
import tenseal as ts
from numpy.typing import NDArray
from tenseal import sealapi

Slots = NDArray[np.complex128]


class Decoder:
    """Decrypts and decodes ciphertexts under the secret key of one context."""

    def __init__(self, context: ts.Context) -> None:
        seal = context.seal_context().data
        self._decryptor = sealapi.Decryptor(seal, context.secret_key().data)
        self._encoder = sealapi.CKKSEncoder(seal)

    def slots(self, ciphertext: sealapi.Ciphertext) -> Slots:
        """The N/2 slots, shape (N/2,); TenSEAL's own `decrypt` drops their imaginary parts."""
        plain = sealapi.Plaintext()
        self._decryptor.decrypt(ciphertext, plain)
        return np.asarray(self._encoder.decode_complex(plain))
