"""The noise that hides an officer's key in what it gives to an opening.

CKKS is not IND-CPA-D secure: an exact opening shows its ciphertext's noise t, and that is linear
in the key. Gaussian noise of σ = √(12 τ) 2^(s/2) t makes τ openings safe to s bits (Li, Micciancio,
Schultz, Sorrell 2022). Counted as where one authority opens: τ are values, N/2 of a ciphertext,
and t is two standard deviations of a slot's noise.

The combiner sees all N coefficients. With coefficients' noise of standard deviation d, the
divergence of one ciphertext's opening is N d² / 2σ² at σ per coefficient, half of the
(N/2) (2d)² / 2σ² that N/2 values are counted by.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from securefl.crypto.params import COUNT_TOLERANCE, CkksParameters
from securefl.errors import ConfigError

TAIL = 8
"""Standard deviations that no opened slot is away from what it should be."""

EXACT = 2.0**53
"""Noise is drawn in floating point, whose numbers have gaps beyond: its low bits would hide
nothing."""


@dataclass(frozen=True, slots=True)
class Flood:
    """How much noise each officer adds to each of its shares.

    Every officer adds all of it, since the others may have compared notes: then its own alone
    hides its key.

    Raises:
        ConfigError: a number that makes no sense, or noise that drowns the count of clients, or
            that is too large to be drawn.
    """

    parameters: CkksParameters
    n_officers: int
    max_clients: int
    """Ciphertexts in one total, at most: each brings noise."""
    statistical_bits: int
    """s."""
    releases: int
    """τ: values that are opened under one key, at most; a ciphertext has N/2."""

    def __post_init__(self) -> None:
        if self.n_officers < 2:
            raise ConfigError(f"n_officers = {self.n_officers}: a committee has two or more")
        if min(self.max_clients, self.statistical_bits, self.releases) < 1:
            raise ConfigError(
                f"max_clients, statistical_bits, releases = {self.max_clients}, "
                f"{self.statistical_bits}, {self.releases}: each must be 1 or more"
            )
        if self.tolerance > COUNT_TOLERANCE:
            raise ConfigError(
                f"scale_bits = {self.parameters.scale_bits}: the noise that hides the officers' "
                f"keys is ±{self.tolerance:.2g} in what is opened, and clients could not be "
                "counted; take a larger scale_bits, or open less under one key"
            )
        if TAIL * self.deviation > EXACT:
            raise ConfigError(
                f"scale_bits = {self.parameters.scale_bits}: the noise that hides the officers' "
                f"keys is ±{TAIL * self.deviation:.2g} in a coefficient, and can be drawn to "
                f"{EXACT:.2g}; take fewer statistical_bits, or open less under one key"
            )

    @property
    def noise(self) -> float:
        """Of a slot of a total: t. Under the sum of n keys its variance is n times as large."""
        return self.parameters.noise(self.max_clients * self.n_officers)

    @property
    def slot_deviation(self) -> float:
        """Of one officer's noise in the real part, and in the imaginary part, of each slot: σ."""
        return sqrt(12 * self.releases) * 2 ** (self.statistical_bits / 2) * self.noise

    @property
    def deviation(self) -> float:
        """The same noise in each coefficient."""
        scale = 2.0**self.parameters.scale_bits
        return self.slot_deviation * scale / sqrt(self.parameters.poly_degree / 2)

    @property
    def opened_deviation(self) -> float:
        """Of what is opened, from all officers' noise together: the price in accuracy."""
        return sqrt(self.n_officers) * self.slot_deviation

    @property
    def tolerance(self) -> float:
        """No opened slot errs by more."""
        return TAIL * self.opened_deviation
