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
SIZES = (64.0, 512.0)
"""Of a row, as its rounding counts. Values of clients may cancel out in a total, and their rounding
does not, so it is not less; whoever crafts chooses the row's size, so it is not more."""
SPREAD = 1.125
"""The root mean square of 2048 Gaussian draws is larger, in deviations, once in 10^14 times."""


def require_real(slots: Slots, noise: float) -> None:
    """Refuse a total of shape (ciphertexts, N/2) with a row that is not real.

    The root mean square of a row's imaginary parts is held against 2^-48 of its own, taken as 64 at
    least and 512 at most, and 9/8 of `noise`, the standard deviation of what else is in them.
    Honest totals reach 2^-52 of theirs: of zeros, ones, normal values, 1e-9, a single one, signs in
    turn, and of 500 clients; values of 1000 that cancel out stay below as well, and so do 4000 of
    any sign in every slot. P = 2^-46 in all slots is refused. What passes is 5000 times below the
    noise on what is released, and 600 times in rows that are filled up for it: of their answers, as
    many as a key gives leave each coefficient of s a standard deviation of 1, where s has 0.8.

    Raises:
        Crafted: a row is not real, or not finite.
    """
    imaginary = np.sqrt(np.mean(slots.imag**2, axis=1))
    size = np.sqrt(np.mean(slots.real**2, axis=1))
    if not (imaginary <= ROUNDING * np.clip(size, *SIZES) + SPREAD * noise).all():
        raise Crafted(
            "the total's slots are not real, as those of encrypted values are: a client or the "
            "server has crafted a ciphertext, or it is rubbish, or its values are all in the "
            "thousands and more than the slots are for; nothing more is opened under this "
            "key, the next round takes a new one"
        )
