"""Tracing a record in a statistic: the likelihood ratio, and draws of records.

Released is the mean of n records' vectors v, with noise or without. With mean m and covariance C of
a population of which the attacker knows a public sample, and noise of covariance T,

    out:  s ~ N(m, C/n + T)                       n others were in it
    in:   s ~ N(m + (v - m)/n, C(n - 1)/n² + T)   v, and n - 1 others

and a record's score is the logarithm of the second density over the first (Homer et al., PLoS
Genetics 2008; its optimality: Sankararaman et al., Nature Genetics 2009; with a sample in the
place of m: Dwork et al., Robust Traceability from Trace Amounts, FOCS 2015).

A profile of mean and variance is the mean of v = (z, z²). There is a second, exact test for it: a
record without which the n - 1 others would have a negative variance was not in.

Each trial draws n records without replacement, and one record that is none of them. Over all trials
members and others are of the same classes, each as often.

Axes: P public records, N records of the pool, B records that are scored, T trials, Q elements, V
values of a vector.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag, solve_triangular  # type: ignore[import-untyped]
from scipy.stats import norm  # type: ignore[import-untyped, unused-ignore]
from sklearn.covariance import LedoitWolf

from securefl.errors import DataError
from securefl.exchange.profile_match import VARIANCE_FLOOR

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

FEWEST_PUBLIC = 50
"""Records without which a covariance is a guess."""
IMPOSSIBLE = -1e12
"""Score of a record that cannot have been in; below all others."""
_EPS = 1e-5
_RIDGE = 1e-9
_ROUNDING = 1e-3
"""Share of the population's variances by which what is left may be negative for rounding."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Coordinates:
    """Origin and unit in which elements are measured: public."""

    mean_Q: Array
    unit_Q: Array

    @classmethod
    def of(cls, first_PQ: Array, second_PQ: Array) -> "Coordinates":
        """Take the means and deviations of public records."""
        mean_Q = first_PQ.mean(axis=0)
        variance_Q = np.maximum(second_PQ.mean(axis=0) - mean_Q**2, 0.0)
        return cls(mean_Q, np.sqrt(variance_Q + _EPS))

    def moments(self, first: Array, second: Array) -> Array:
        """Return (…, Q) means and second moments as (…, V = 2Q) vectors of z and z²."""
        shifted = second - 2 * self.mean_Q * first + self.mean_Q**2
        z, square = (first - self.mean_Q) / self.unit_Q, shifted / self.unit_Q**2
        return np.concatenate([z, square], axis=-1)

    @property
    def tolerance_Q(self) -> Array:
        """Amount by which a variance may be below zero and still be possible."""
        return _ROUNDING + 2 * VARIANCE_FLOOR / self.unit_Q**2


@final
@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """Knowledge of the attacker about records in general."""

    mean_V: Array
    covariance_VV: Array

    @classmethod
    def of(cls, public_PV: Array, n_blocks: int = 1) -> "Population":
        """Estimate mean and shrunk covariance from a public sample (Ledoit & Wolf, 2004).

        With two blocks (z, then z²) each is shrunk by itself, and then the whole towards these two:
        in a whitened space, since second moments spread far more than means.

        Raises:
            DataError: fewer than `FEWEST_PUBLIC` records, or values that are not finite.
        """
        if len(public_PV) < FEWEST_PUBLIC:
            raise DataError(
                f"{len(public_PV)} public records: a population needs {FEWEST_PUBLIC} at least"
            )
        if not np.isfinite(public_PV).all():
            raise DataError("public records with values that are not finite")
        blocks = [_shrunk(block_P) for block_P in np.split(public_PV, n_blocks, axis=1)]
        root_VV = np.linalg.cholesky(block_diag(*blocks))
        mean_V = public_PV.mean(axis=0)
        white_PV = solve_triangular(root_VV, (public_PV - mean_V).T, lower=True).T
        return cls(mean_V, root_VV @ _shrunk(white_PV) @ root_VV.T)

    def ratio(self, n: int, noise_VV: Array | None = None) -> "LikelihoodRatio":
        """Return the ratio for means of n records, to which noise of this covariance was added.

        Raises:
            DataError: of one record alone without noise: that is the record itself.
        """
        none = noise_VV is None or not noise_VV.any()
        if n < 1 or (n == 1 and none):
            raise DataError(f"a mean of {n} records: tracing needs two at least, or noise")
        noise = np.zeros_like(self.covariance_VV) if noise_VV is None else noise_VV
        out_VV: Array = self.covariance_VV / n + noise
        in_VV: Array = self.covariance_VV * (n - 1) / n**2 + noise
        return LikelihoodRatio(self.mean_V, n, _Normal.of(out_VV), _Normal.of(in_VV))


@final
@dataclass(frozen=True, slots=True, eq=False)
class LikelihoodRatio:
    """Scores of records against one release of n: higher for "was in"."""

    mean_V: Array
    n: int
    without: "_Normal"
    within: "_Normal"

    def __call__(self, released_V: Array, records_BV: Array) -> Array:
        """Return the log-likelihood ratio of each record, shape (B,)."""
        apart_V = released_V - self.mean_V
        left_BV = apart_V - (records_BV - self.mean_V) / self.n
        found: Array = self.within.log_density(left_BV) - self.without.log_density(apart_V[None])
        return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Normal:
    """Normal distribution about zero."""

    root_VV: Array
    log_scale: float

    @classmethod
    def of(cls, covariance_VV: Array) -> "_Normal":
        ridge = _RIDGE * float(np.trace(covariance_VV)) / len(covariance_VV)
        root_VV = np.linalg.cholesky(covariance_VV + ridge * np.eye(len(covariance_VV)))
        return cls(np.asarray(root_VV, np.float64), float(np.log(np.diag(root_VV)).sum()))

    def log_density(self, x_BV: Array) -> Array:
        """Return the log-density, but for a constant."""
        white_VB = solve_triangular(self.root_VV, x_BV.T, lower=True)
        found: Array = -0.5 * (white_VB**2).sum(axis=0) - self.log_scale
        return found


def impossible(
    released_V: Array, records_BV: Array, n: int, tolerance_Q: Array
) -> NDArray[np.bool_]:
    """Return which records the n - 1 others of an exact profile leave no room for, shape (B,).

    Without such a record, an element's second moment would be below its squared mean.
    """
    left_BV = (n * released_V - records_BV) / (n - 1)
    z_BQ, square_BQ = np.split(left_BV, 2, axis=1)
    variance_BQ: Array = square_BQ - z_BQ**2
    return np.asarray(np.any(variance_BQ < -tolerance_Q * n / (n - 1), axis=1))


def private_limit(sigma: float) -> float:
    """Return Φ(√2 / σ): no attack's AUC is above it, on a sum with noise of σ times the clip.

    In a member's place another record stands, which moves the sum by two clips at most; a Gaussian
    mechanism with μ = 2/σ has so much area under its curve, Φ(μ/√2) (Dong, Roth & Su, Gaussian
    Differential Privacy, 2022). The curve is concave, so it bounds records of all kinds together.
    """
    return float(norm.cdf(math.sqrt(2) / sigma))


def _shrunk(records_PV: Array) -> Array:
    covariance: Array = LedoitWolf().fit(records_PV).covariance_
    ridge = _RIDGE * max(1.0, float(np.trace(covariance)) / len(covariance))
    return covariance + ridge * np.eye(len(covariance))


_ATTEMPTS = 1000


class Others(StrEnum):
    """Records that a member is told from, over all trials in the same classes."""

    ALL = "anybody"
    SAME_CLASS = "of its class"
    """Records of its class, in each trial: harder, since the class itself is no hint."""


def drawn(
    labels_N: Indices, n: int, trials: int, rng: np.random.Generator, others: Others
) -> Iterator[tuple[Indices, Indices]]:
    """Yield for each trial n members, and a pair: the first of them, and one that is none.

    Raises:
        DataError: no two records are of one class, or nearly all of a class are needed.
    """
    _, kinds_N, sizes = np.unique(labels_N, return_inverse=True, return_counts=True)
    comparable = np.flatnonzero(sizes[kinds_N] > 1)
    if not len(comparable):
        raise DataError(f"of {len(labels_N)} records no two are of one class: nothing to compare")
    chosen = rng.choice(comparable, trials)
    # Another trial's member says of which class: so both sides have each class as often, and this
    # trial's release does not.
    classes_T = kinds_N[np.roll(chosen, 1) if others is Others.ALL else chosen]
    for member, kind in zip(chosen, classes_T, strict=True):
        yield _one(kinds_N, member, kind, n, rng)


def _one(
    kinds_N: Indices, member: np.int64, kind: np.int64, n: int, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """Draw the members and the pair of one trial; its other is the first of its class left."""
    for _ in range(_ATTEMPTS):
        order = rng.permutation(len(kinds_N))
        order = order[order != member]
        left = order[n - 1 :]
        alike = left[kinds_N[left] == kind]
        if len(alike):
            return np.concatenate([[member], order[: n - 1]]), np.array([member, alike[0]])
    raise DataError(
        f"{n} of {len(kinds_N)} records are members: of a class nobody is left to compare"
    )
