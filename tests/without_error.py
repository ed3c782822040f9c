"""Encryption under one-time keys that leaves its error out: a leak that audits must find."""

from __future__ import annotations

import numpy as np
from tenseal import sealapi

from securefl.crypto.ring import words_of


def encrypted_without_error(ring, key, common, reals):
    """In the place of `SealRing.encrypted`: m - a s exactly, as SEAL decrypts (m, -a)."""
    plain, half = sealapi.Plaintext(), len(reals) // 2
    ring._encoder.encode((reals[:half] + 1j * reals[half:]).tolist(), ring._scale, plain)
    encoded = words_of(plain, len(reals))
    whole = ring._ciphertext(encoded, np.zeros_like(encoded))
    ring._evaluator.sub_inplace(whole, common)
    sealapi.Decryptor(ring._seal, key).decrypt(whole, plain)
    return words_of(plain, len(reals))
