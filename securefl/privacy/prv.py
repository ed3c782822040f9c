"""ε by Opacus' PRV accountant: another implementation of a tight bound, to check the first by.

Gopi, Lee, Wutschitz, Numerical Composition of Differential Privacy, NeurIPS 2021.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable

import numpy as np
from opacus.accountants import PRVAccountant

from securefl.privacy.accountants import check_delta
from securefl.privacy.events import PrivacyEvent, SampledGaussian, WithoutPrivacy


def prv_epsilon(events: Iterable[PrivacyEvent], delta: float, error: float = 0.01) -> float:
    """The ε of these releases at this δ: an upper bound that is at most about `error` too large.

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
    accountant = PRVAccountant()
    accountant.history = history
    # log(1 - q) of a release that is not sampled is -inf, which is right. The warning is about the
    # bound by RDP that the grid's length is taken from: a looser one makes the grid longer.
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order is the")
        return float(accountant.get_epsilon(delta, eps_error=error))
