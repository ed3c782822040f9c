"""The noise that hides an officer's key in what it gives to an opening.

CKKS is not IND-CPA-D secure: an exact opening shows its ciphertext's noise, and that is linear in
the key. Gaussian noise of σ = √(12 τ) 2^(s/2) t in each coefficient makes τ openings safe to s bits
(Li, Micciancio, Schultz, Sorrell 2022), t the Euclidean length of the noise that it hides, over all
N coefficients: between two Gaussians that far apart, the divergence of one opening is
t² / 2σ² = 2^-s / (24 τ).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from securefl.crypto.params import CkksParameters
from securefl.errors import ConfigError

STATISTICAL_BITS = 30
"""s."""

NOISE_MARGIN = 1.25
"""The noise's length varies by a few per cent from one opening to the next."""

TAIL = 8
"""Standard deviations that no opened slot is away from what it should be."""


@dataclass(frozen=True, slots=True)
class Flood:
    """How much noise each officer adds to each of its shares.

    Every officer adds all of it, since the others may have compared notes: then its own alone
    hides its key.

    Raises:
        ConfigError: a number that makes no sense, or noise that drowns the count of clients.
    """

    parameters: CkksParameters
    n_officers: int
    max_clients: int
    """Ciphertexts in one total, at most: each brings noise."""
    max_releases: int
    """τ: ciphertexts that are opened under one key, at most."""

    def __post_init__(self) -> None:
        if self.n_officers < 2:
            raise ConfigError(f"n_officers = {self.n_officers}: a committee has two or more")
        if min(self.max_clients, self.max_releases) < 1:
            raise ConfigError(
                f"max_clients, max_releases = {self.max_clients}, {self.max_releases}: "
                "each must be 1 or more"
            )
        if self.tolerance > 0.25:
            raise ConfigError(
                f"scale_bits = {self.parameters.scale_bits}: the noise that hides the officers' "
                f"keys is ±{self.tolerance:.2g} in what is opened, and clients could not be "
                "counted; take a larger scale_bits, or open less under one key"
            )

    @property
    def noise(self) -> float:
        """The noise of a total: t.

        Each fresh ciphertext brings what rounding leaves when SEAL divides the special prime away:
        variance N/18 in a coefficient under one ternary key, n times that under the sum of n.
        """
        degree = self.parameters.poly_degree
        return NOISE_MARGIN * degree * sqrt(self.max_clients * self.n_officers / 18)

    @property
    def deviation(self) -> float:
        """Of one officer's noise in each coefficient: σ."""
        return sqrt(12 * self.max_releases) * 2 ** (STATISTICAL_BITS / 2) * self.noise

    @property
    def slot_deviation(self) -> float:
        """The same noise in the real part, and in the imaginary part, of each slot."""
        scale = 2.0**self.parameters.scale_bits
        return self.deviation * sqrt(self.parameters.poly_degree / 2) / scale

    @property
    def opened_deviation(self) -> float:
        """Of what is opened, from all officers' noise together: the price in accuracy."""
        return sqrt(self.n_officers) * self.slot_deviation

    @property
    def tolerance(self) -> float:
        """No opened slot errs by more."""
        return TAIL * self.opened_deviation
