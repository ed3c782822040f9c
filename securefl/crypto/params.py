"""CKKS parameters for sums: a checked literal with its security, capacity and sizes.

The security table is that of the Homomorphic Encryption Standard (Albrecht et al. 2018, Table 1:
ternary secret, classical attacker).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from securefl.errors import ConfigError

MAX_MODULUS_BITS = {
    128: {2048: 54, 4096: 109, 8192: 218, 16384: 438},
    192: {2048: 37, 4096: 75, 8192: 152, 16384: 305},
    256: {2048: 29, 4096: 58, 8192: 118, 16384: 237},
}
"""By security level and N: the most bits that a modulus may have, the special prime's included."""
BOOKKEEPING_SLOTS = 2
"""Each ciphertext ends with the client's weight and with the number one."""
COUNT_TOLERANCE = 1e-3
"""How far an opened count of ones may be from a whole number."""


def require_secure(poly_degree: int, modulus_bits: Sequence[int]) -> None:
    """Raises ConfigError below 128-bit security."""
    limit = MAX_MODULUS_BITS[128].get(poly_degree)
    if limit is None:
        raise ConfigError(
            f"poly_degree = {poly_degree}: must be one of {sorted(MAX_MODULUS_BITS[128])}; "
            "4096 suits sums and linear matches"
        )
    if sum(modulus_bits) > limit:
        raise ConfigError(
            f"modulus_bits = {modulus_bits}: {sum(modulus_bits)} bits in all, but 128-bit "
            f"security at N = {poly_degree} allows {limit}"
        )


@dataclass(frozen=True, slots=True)
class CkksParameters:
    """Parameters under which ciphertexts are added and nothing else.

    Raises:
        ConfigError: below 128-bit security, or no room for the values beside the scale.
    """

    poly_degree: int = 4096
    modulus_bits: tuple[int, ...] = (47, 46, 16)
    """The primes that carry the data, then the special one that encryption divides away."""
    scale_bits: int = 78

    def __post_init__(self) -> None:
        require_secure(self.poly_degree, self.modulus_bits)
        if len(self.modulus_bits) < 2 or not all(16 <= bits <= 60 for bits in self.modulus_bits):
            raise ConfigError(
                f"modulus_bits = {self.modulus_bits}: must be two primes or more of 16..60 bits"
            )
        room = sum(self.modulus_bits[:-1]) - 4
        if not 20 <= self.scale_bits <= room:
            raise ConfigError(
                f"scale_bits = {self.scale_bits}: must be 20..{room} beside data primes of "
                f"{self.modulus_bits[:-1]} bits; 78 suits sums"
            )

    @property
    def security_bits(self) -> int:
        """The level of the standard's table that the constructor has checked."""
        return 128

    @property
    def values_per_ciphertext(self) -> int:
        """Slots left for values."""
        return self.poly_degree // 2 - BOOKKEEPING_SLOTS

    @property
    def ciphertext_bytes(self) -> int:
        """Two polynomials modulo each data prime, a coefficient in as many bytes as it needs."""
        *data, _ = self.modulus_bits
        return 2 * self.poly_degree * len(data) * (-(-max(data) // 8))

    @property
    def max_value(self) -> float:
        """Largest absolute total. One bit is the sign's, one is kept free: overflow is silent."""
        return 2.0 ** (sum(self.modulus_bits[:-1]) - self.scale_bits - 2)

    def message_bytes(self, n_values: int) -> int:
        """Of a message with so many values, or of their total."""
        return self.n_ciphertexts(n_values) * self.ciphertext_bytes

    def n_released(self, n_values: int) -> int:
        """Slots of such a message: what opening it shows, whatever they hold."""
        return self.n_ciphertexts(n_values) * self.poly_degree // 2

    def noise(self, n_clients: int) -> float:
        """Two standard deviations of what a slot of a sum of so many ciphertexts errs by.

        It is what remains when the special prime is divided away: rounding, times the ternary
        secret, of variance N/18 in each coefficient.
        """
        return 2 * (self.poly_degree / 6) * sqrt(n_clients) / 2.0**self.scale_bits

    def n_ciphertexts(self, n_values: int) -> int:
        """Ciphertexts of a message with so many values."""
        return -(-n_values // self.values_per_ciphertext)


SUMS = CkksParameters()
