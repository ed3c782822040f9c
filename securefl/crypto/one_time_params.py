"""CKKS parameters of sums under one-time keys: one prime, symmetric encryption, additions alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from securefl.crypto.params import BOOKKEEPING_SLOTS, require_secure
from securefl.errors import ConfigError

KEY_BITS = 42
"""Random bits of a coefficient of a key, half of them counted up and half counted down."""
KEY_DEVIATION = sqrt(KEY_BITS / 4)
"""Standard deviation of a coefficient of a key, and of the encryption's error, which SEAL draws in
the same way: 3.24."""
KEY_BOUND = KEY_BITS // 2
"""Largest absolute coefficient of a key."""


@dataclass(frozen=True, slots=True)
class OneTimeParameters:
    """Parameters of messages that nobody multiplies: one prime carries them.

    Raises:
        ConfigError: below 128-bit security, or no room for the values beside the scale.
    """

    poly_degree: int = 2048
    """N, the number of real values in a polynomial: N/2 complex slots."""
    modulus_bits: int = 52
    """Size of the prime."""
    scale_bits: int = 37

    def __post_init__(self) -> None:
        require_secure(self.poly_degree, (self.modulus_bits,))
        room = self.modulus_bits - 4
        if not 20 <= self.scale_bits <= room:
            raise ConfigError(
                f"scale_bits = {self.scale_bits}: must be 20..{room} beside a prime of "
                f"{self.modulus_bits} bits"
            )

    @property
    def values_per_ciphertext(self) -> int:
        """Slots left for values."""
        return self.poly_degree - BOOKKEEPING_SLOTS

    @property
    def ciphertext_bytes(self) -> int:
        """Length of one on the wire: a polynomial, a coefficient in as many bytes as it needs."""
        return self.poly_degree * (-(-self.modulus_bits // 8))

    @property
    def max_value(self) -> float:
        """Largest absolute total. One bit is the sign's, one is kept free: overflow is silent."""
        return 2.0 ** (self.modulus_bits - self.scale_bits - 2)

    def n_ciphertexts(self, n_values: int) -> int:
        """Return the number of ciphertexts of a message with so many values."""
        return -(-n_values // self.values_per_ciphertext)

    def message_bytes(self, n_values: int) -> int:
        """Return the length of a message with so many values, or of their total."""
        return self.n_ciphertexts(n_values) * self.ciphertext_bytes

    def n_released(self, n_values: int) -> int:
        """Return the number of slots of such a message, whatever they hold."""
        return self.n_ciphertexts(n_values) * self.poly_degree

    def noise(self, n_clients: int) -> float:
        """Return the standard deviation of a real value of a total of so many clients.

        Each coefficient errs by `KEY_DEVIATION` a client; a slot is the sum of N coefficients on
        the unit circle, half of whose variance is in its real part.
        """
        return sqrt(self.poly_degree / 2 * n_clients) * KEY_DEVIATION / 2.0**self.scale_bits


ONE_TIME = OneTimeParameters()
