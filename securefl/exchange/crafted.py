"""Refusal of totals whose slots are not real: what nobody gets who only encrypts.

Clients encode real numbers, so a total of honest ciphertexts is p(X) = p(1/X) but for rounding and
noise, and all its slots are real. The secret key s is not: who adds P to the second polynomial of a
ciphertext adds P s to the total, whose slots then have imaginary parts as large as the real ones
(Li and Micciancio 2021 is the attack by noise; this one needs none).
"""

from __future__ import annotations

import numpy as np

from securefl.crypto.decoding import Slots
from securefl.errors import Crafted

ROUNDING = 2.0**-48
"""Of the encoders' and the decoder's doubles, relative to the slots: 15 times what is found."""
USUAL = 64.0
"""Values of clients may cancel out in a total, and their rounding does not: so large it may be."""
SPREAD = 1.125
"""The root mean square of 2048 Gaussian draws is larger, in deviations, once in 10^14 times."""


def require_real(slots: Slots, noise: float) -> None:
    """Refuse a total of shape (ciphertexts, N/2) with a row that is not real.

    The root mean square of a row's imaginary parts is held against 2^-48 of its own (of 64 where
    that is more) and 9/8 of `noise`, the standard deviation of what else is in them. Honest totals
    reach 2^-52: of zeros, ones, normal values, 8000, 1e-9, a single one, signs in turn, and of 500
    clients; values of 1000 that cancel out stay below as well. P = 2^-46 in all slots is refused;
    what passes is 5000 times below the noise on what is released.

    Raises:
        Crafted: a row is not real, or not finite.
    """
    imaginary = np.sqrt(np.mean(slots.imag**2, axis=1))
    size = np.sqrt(np.mean(slots.real**2, axis=1))
    if not (imaginary <= ROUNDING * np.maximum(size, USUAL) + SPREAD * noise).all():
        raise Crafted(
            "the total's slots are not real, as those of encrypted values are: a client or the "
            "server has crafted a ciphertext, or it is rubbish; nothing more is opened under this "
            "key, the next round takes a new one"
        )
