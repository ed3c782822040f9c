"""ε of a sequence of releases, by Google's dp-accounting, and by Opacus as a check.

Both accountants give upper bounds. PLD composes privacy loss distributions (Koskela, Jälkö,
Honkela, Computing Tight Differential Privacy Guarantees Using FFT, AISTATS 2020; discretised as in
Doroshenko et al., Connect the Dots, PoPETs 2022) and is tight to its grid. RDP adds up Rényi
divergences (Mironov, Talwar, Zhang, Rényi Differential Privacy of the Sampled Gaussian Mechanism,
2019) and lies above it: it is what most papers print. The library takes a second to load: what
nobody counts does without.

Gopi, Lee, Wutschitz, Numerical Composition of Differential Privacy, NeurIPS 2021.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from securefl.errors import ConfigError
from securefl.privacy.events import Gaussian, PrivacyEvent, SampledGaussian, WithoutPrivacy

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


GRID = 1e-4
"""Grid on which PLD rounds privacy losses, upwards, where ε is below 10."""
RELATIVE_GRID = 1e-5
"""Grid over ε where ε is larger; the distribution of so large losses fits no memory else."""
MIN_DELTA, MAX_DELTA = 1e-12, 0.1

# An order of RDP whose series does not converge is left out, which makes the bound larger, never
# wrong; the library says so on stderr for each.
logging.getLogger("absl").addFilter(lambda record: "Excluding this order" not in str(record.msg))


class Accountant(StrEnum):
    """Accountant by which releases add up to ε."""

    PLD = "PLD"
    RDP = "RDP"


def epsilon(
    events: Iterable[PrivacyEvent], delta: float, accountant: Accountant = Accountant.PLD
) -> float:
    """Return the ε that all these releases together satisfy at this δ, an upper bound.

    It depends on how often each release happens, not on the order: of a history that was stored
    and continued it is the same float as without a stop. 0 for no event, and infinite
    (`math.inf`) after a stage without privacy.

    Args:
        events: releases that one record, or one client, is exposed to; of one level.
        delta: the probability with which ε may fail, from 1e-12 to 0.1; below 1 / records.
        accountant: PLD for the value that counts, RDP to compare. An ε of thousands, which PLD
            cannot always resolve, is RDP's.

    Raises:
        ConfigError: δ is out of range.
    """
    check_delta(delta)
    counted = _counted(events)
    if counted is None:
        return math.inf
    return _spent(tuple(counted), delta, accountant) if counted else 0.0


@lru_cache(maxsize=1024)
def _spent(
    counted: tuple[tuple[SampledGaussian | Gaussian, int], ...],
    delta: float,
    accountant: Accountant,
) -> float:
    """Return ε: before and after each round, and at each site, the same one is asked for."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from dp_accounting.rdp import RdpAccountant
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    orders, rdp = RdpAccountant().orders, sum(n * _divergences(kind) for kind, n in counted)
    by_rdp = float(compute_epsilon(orders, rdp, delta)[0])
    if accountant is Accountant.RDP:
        return by_rdp
    # A power of two, so that a run that goes on has few grids, and each distribution is kept.
    grid = GRID * 2.0 ** max(0, math.ceil(math.log2(max(by_rdp, 1e-300) * RELATIVE_GRID / GRID)))
    try:
        composed = reduce(
            PrivacyLossDistribution.compose, (_distribution(kind, n, grid) for kind, n in counted)
        )
        return float(composed.get_epsilon_for_delta(delta))
    except OverflowError:  # exp(ε) leaves the doubles where hardly any noise was added
        return by_rdp


def check_delta(delta: float) -> None:
    """Raises ConfigError where δ means nothing, or less than the accountants resolve."""
    if not MIN_DELTA <= delta <= MAX_DELTA:
        raise ConfigError(
            f"delta = {delta:g}: must be {MIN_DELTA:g}..{MAX_DELTA:g}, and below 1 / records; "
            "1e-5 is usual"
        )


def _counted(
    events: Iterable[PrivacyEvent],
) -> list[tuple[SampledGaussian | Gaussian, int]] | None:
    """Return each kind of release, as one step, with its number; None where one lacks noise."""
    counts: Counter[SampledGaussian | Gaussian] = Counter()
    for event in events:
        match event:
            case SampledGaussian(noise_multiplier, sample_rate, steps):
                counts[SampledGaussian(noise_multiplier, sample_rate)] += steps
            case Gaussian(noise_multiplier, steps):
                counts[Gaussian(noise_multiplier)] += steps
            case WithoutPrivacy():
                return None
    return sorted(counts.items(), key=lambda item: repr(item[0]))


def _distribution(
    event: SampledGaussian | Gaussian, steps: int, grid: float
) -> PrivacyLossDistribution:
    """Return the distribution of the privacy loss in so many steps."""
    if isinstance(event, Gaussian):
        return _one_step(event.noise_multiplier / math.sqrt(steps), 1.0, grid)
    return _one_step(event.noise_multiplier, event.sample_rate, grid).self_compose(steps)


@lru_cache(maxsize=64)
def _one_step(noise_multiplier: float, sample_rate: float, grid: float) -> PrivacyLossDistribution:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    return from_gaussian_mechanism(
        noise_multiplier, sampling_prob=sample_rate, value_discretization_interval=grid
    )


@lru_cache(maxsize=64)
def _divergences(event: SampledGaussian | Gaussian) -> NDArray[np.float64]:
    """Return the Rényi divergences of one step, at the library's orders."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    release: DpEvent = GaussianDpEvent(event.noise_multiplier)
    if isinstance(event, SampledGaussian):
        release = PoissonSampledDpEvent(event.sample_rate, release)
    found: NDArray[np.float64] = RdpAccountant().compose(release).rdp
    return found


def prv_epsilon(events: Iterable[PrivacyEvent], delta: float, error: float = 0.01) -> float:
    """Return the ε of these releases at this δ: an upper bound, about `error` too large at most.

    Time and memory grow with 1 / error. Infinite after a stage without privacy.

    Raises:
        ConfigError: δ is out of range.
    """
    check_delta(delta)
    history: list[tuple[float, float, int]] = []
    for event in events:
        if isinstance(event, WithoutPrivacy):
            return math.inf
        rate = event.sample_rate if isinstance(event, SampledGaussian) else 1.0
        history.append((event.noise_multiplier, rate, event.steps))
    if not history:
        return 0.0
    from opacus.accountants import PRVAccountant  # it loads torch

    accountant = PRVAccountant()
    accountant.history = history
    # log(1 - q) of a release that is not sampled is -inf, which is right. The warning is about the
    # bound by RDP that the grid's length is taken from: a looser one makes the grid longer.
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order is the")
        return float(accountant.get_epsilon(delta, eps_error=error))
