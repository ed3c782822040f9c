"""How likely an attack that knows nothing would do as well, and what so few samples can show."""

from __future__ import annotations

import math

import numpy as np

# scipy has no type information of its own.
from scipy.stats import hypergeom, mannwhitneyu, norm  # type: ignore[import-untyped, unused-ignore]

from securefl.audit.roc import Roc, allowed


def chance_of_area(roc: Roc) -> float:
    """P of so large an AUC under no difference: Mann & Whitney's test, one-sided, with ties."""
    scores = np.concatenate([roc.members, roc.others])
    if (scores == scores[0]).all():
        return 1.0
    found = mannwhitneyu(roc.members, roc.others, alternative="greater", method="asymptotic")
    return float(found.pvalue)


def chance_of_rate(roc: Roc, fpr: float) -> float:
    """P of so many members above the threshold of so many false alarms under no difference; exact.

    Let b be the false alarms that are allowed, and a the members above the (b + 1)th of the others.
    If all orders of the scores are equally likely, a or more are there where among the a + b
    highest of all there are at most b others. Ties count against the attack, as in `Roc.tpr_at`.
    """
    m, n = len(roc.members), len(roc.others)
    b = allowed(fpr, n)
    a = int((roc.members > np.sort(roc.others)[::-1][b]).sum())
    return float(hypergeom.cdf(b, m + n, n, a + b))


def least_visible_area(members: int, others: int, probability: float) -> float:
    """The AUC that has so small a probability under no difference, where nothing is tied."""
    deviation = math.sqrt((members + others + 1) / (12 * members * others))
    return float(0.5 + norm.isf(probability) * deviation)
