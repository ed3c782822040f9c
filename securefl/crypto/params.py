"""Parameters under one-time keys, symmetric encryption: of sums and of matches.

The security table is that of the Homomorphic Encryption Standard (Albrecht et al. 2018, Table 1:
ternary secret, classical attacker); keys here are wider.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from securefl.crypto import KEY_DEVIATION
from securefl.errors import ConfigError

MAX_MODULUS_BITS = {
    128: {2048: 54, 4096: 109, 8192: 218, 16384: 438},
    192: {2048: 37, 4096: 75, 8192: 152, 16384: 305},
    256: {2048: 29, 4096: 58, 8192: 118, 16384: 237},
}
"""Most bits of a modulus, the special prime's included, by security level and N."""
BOOKKEEPING_SLOTS = 2
"""Number of slots at a ciphertext's end, for the client's weight and for the number one."""
COUNT_TOLERANCE = 1e-3
"""Distance of an opened count of ones from a whole number, at most."""
_UNUSED_PRIME_BITS = 17
"""Size of the least prime that SEAL has at N = 4096."""


def require_secure(poly_degree: int, modulus_bits: Sequence[int]) -> None:
    """Raises ConfigError below 128-bit security."""
    limit = MAX_MODULUS_BITS[128].get(poly_degree)
    if limit is None:
        raise ConfigError(
            f"poly_degree = {poly_degree}: must be one of {sorted(MAX_MODULUS_BITS[128])}"
        )
    if sum(modulus_bits) > limit:
        raise ConfigError(
            f"modulus_bits = {modulus_bits}: {sum(modulus_bits)} bits in all, but 128-bit "
            f"security at N = {poly_degree} allows {limit}"
        )


@dataclass(frozen=True, slots=True)
class RingParameters:
    """Parameters of messages of whole polynomials.

    Raises:
        ConfigError: below 128-bit security, or no room for the values beside the scale.
    """

    poly_degree: int
    """Degree N, the number of real values in a polynomial: N/2 complex slots."""
    prime_bits: tuple[int, ...]
    """Sizes of the primes whose product is the modulus."""
    scale_bits: int

    def __post_init__(self) -> None:
        require_secure(self.poly_degree, self.all_prime_bits)
        room = self.modulus_bits - 4
        if not 20 <= self.scale_bits <= room:
            raise ConfigError(
                f"scale_bits = {self.scale_bits}: must be 20..{room} beside a modulus of "
                f"{self.modulus_bits} bits"
            )

    @property
    def all_prime_bits(self) -> tuple[int, ...]:
        """Sizes of the primes that SEAL is given: of several it keeps the last one for itself."""
        return self.prime_bits

    @property
    def modulus_bits(self) -> int:
        """Size of the modulus."""
        return sum(self.prime_bits)

    @property
    def ciphertext_bytes(self) -> int:
        """Length in bytes of a ciphertext: a polynomial, each residue in as many as it needs."""
        return self.poly_degree * len(self.prime_bits) * (-(-max(self.prime_bits) // 8))


@dataclass(frozen=True, slots=True)
class SumParameters(RingParameters):
    """Parameters of messages that are added up, and that nobody multiplies."""

    poly_degree: int = 2048
    prime_bits: tuple[int, ...] = (52,)
    scale_bits: int = 37

    @property
    def values_per_ciphertext(self) -> int:
        """Number of slots left for values."""
        return self.poly_degree - BOOKKEEPING_SLOTS

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

    def noise(self, n_clients: int) -> float:
        """Return the standard deviation of a real value of a total of so many clients.

        Each coefficient errs by `KEY_DEVIATION` a client; a slot is the sum of N coefficients on
        the unit circle, half of whose variance is in its real part.
        """
        return sqrt(self.poly_degree / 2 * n_clients) * KEY_DEVIATION / 2.0**self.scale_bits

    @property
    def rounding(self) -> float:
        """Length of what encoding rounds off the values of a ciphertext, at most.

        Half a unit of each coefficient, of length √N / 2; the embedding lengthens it by √(N/2).
        """
        return self.poly_degree / sqrt(8) / 2.0**self.scale_bits


SUMS = SumParameters()


@dataclass(frozen=True, slots=True)
class MatchParameters(RingParameters):
    """Parameters of messages that the server weighs, each by itself: scores of profiles.

    The server scales its weights so that they amplify no noise: their polynomial has length 1.
    """

    poly_degree: int = 4096
    prime_bits: tuple[int, ...] = (46, 46)
    scale_bits: int = 40
    weight_bits: int = 38
    """Scale of the server's weights."""
    range_bits: int = 5
    """Bound 2^range_bits of a score's size; 255 of 256 sealed under another key are beyond it."""

    @property
    def all_prime_bits(self) -> tuple[int, ...]:
        """Sizes of all primes: nothing is encrypted modulo the last, see `RingParameters`."""
        return (*self.prime_bits, _UNUSED_PRIME_BITS)

    @property
    def constant_bytes(self) -> int:
        """Length of a constant coefficient as it travels."""
        return -(-self.modulus_bits // 8)

    @property
    def score_scale_bits(self) -> int:
        """Scale of a score."""
        return self.scale_bits + self.weight_bits

    @property
    def noise(self) -> float:
        """Standard deviation of a score: that of a coefficient's error."""
        return KEY_DEVIATION / 2.0**self.scale_bits


MATCHES = MatchParameters()
