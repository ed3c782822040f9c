"""Encryption under one-time keys that leaves its error out: a leak that audits must find."""

from __future__ import annotations

import numpy as np

from securefl.crypto.ciphertext_codec import words_of


def encrypted_without_error(ring, key, common, reals):
    """Return m - a s exactly, in the place of `SealRing.encrypted`."""
    n_words = len(ring.primes) * len(reals)
    encoded = words_of(ring._encoded(reals, ring._scale), n_words).reshape(ring.shape)
    whole = ring._ciphertext(encoded, np.zeros_like(encoded))
    ring._evaluator.sub_inplace(whole, ring._product(key, common))
    return words_of(ring._sum(whole), n_words).reshape(ring.shape)
