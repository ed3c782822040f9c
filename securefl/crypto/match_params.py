"""CKKS parameters for the profile match: a score is Σ of a polynomial in encrypted values.

The server evaluates without rescaling, relinearisation or rotation, so the product's scale must
fit beside the score in the data primes; no evaluation key exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from securefl.crypto.params import require_secure
from securefl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MatchParameters:
    """Parameters under which a ciphertext meets the server's plaintext weights.

    Raises:
        ConfigError: below 128-bit security, no room for a score beside its scale, or a number
            that makes no sense.
    """

    degree: int
    """1: the server multiplies by plaintext alone; 2: it also squares."""
    poly_degree: int
    modulus_bits: tuple[int, ...]
    """The primes that carry the data, and the special prime that encryption divides away."""
    scale_bits: int
    """Of what a client encrypts."""
    weight_bits: int
    """Scale of the server's plaintext weights."""
    range_bits: int
    """A normalised score is within ±2^range_bits."""

    def __post_init__(self) -> None:
        if self.degree not in {1, 2}:
            raise ConfigError(f"degree = {self.degree}: the server multiplies (1) or squares (2)")
        if not 2 <= len(self.modulus_bits) <= 16:
            raise ConfigError(f"modulus_bits of {len(self.modulus_bits)} primes: must be 2..16")
        if not all(14 <= bits <= 60 for bits in self.modulus_bits):
            raise ConfigError(f"modulus_bits = {self.modulus_bits}: each prime must have 14..60")
        require_secure(self.poly_degree, self.modulus_bits)
        if min(self.scale_bits, self.weight_bits, self.range_bits) < 1:
            raise ConfigError(
                f"scale_bits, weight_bits, range_bits = {self.scale_bits}, {self.weight_bits}, "
                f"{self.range_bits}: each must be 1 or more"
            )
        needed = self.score_scale_bits + self.range_bits + 1
        if needed > sum(self.modulus_bits[:-1]):
            raise ConfigError(
                f"modulus_bits = {self.modulus_bits}: the data primes must have {needed} bits for "
                f"a score of scale 2^{self.score_scale_bits} within ±2^{self.range_bits}"
            )

    @property
    def security_bits(self) -> int:
        """The level of the standard's table that the constructor has checked."""
        return 128

    @property
    def slots(self) -> int:
        """Values that one ciphertext holds."""
        return self.poly_degree // 2

    @property
    def n_primes(self) -> int:
        """Data primes."""
        return len(self.modulus_bits) - 1

    @property
    def score_scale_bits(self) -> int:
        """Scale of a score."""
        return self.degree * self.scale_bits + self.weight_bits

    @property
    def linear_bits(self) -> int:
        """Scale of the weights of what is not squared."""
        return self.score_scale_bits - self.scale_bits

    @property
    def noise(self) -> float:
        """Noise of a score at unit weights: four standard deviations, and scaled.

        A fresh ciphertext's noise is what rounding leaves when the special prime is divided away
        under a ternary secret: N/18 variance in each coefficient.
        """
        return 4 * sqrt(self.poly_degree / 18) * 2.0**-self.scale_bits


LINEAR = MatchParameters(1, 4096, (47, 46, 16), scale_bits=59, weight_bits=28, range_bits=5)
"""98 kB a ciphertext. Flooding costs the less precision the larger the client's scale is."""

SQUARE = MatchParameters(2, 8192, (46, 46, 46, 46, 20), 66, weight_bits=36, range_bits=14)
"""For the two forms of the paper, which square on the ciphertext."""
