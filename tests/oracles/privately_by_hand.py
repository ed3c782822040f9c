"""What differential privacy adds, for the tests: draws replayed, and a look at a scatter.

Nothing here is SecureFL's own, but for a round's generator.
"""

from __future__ import annotations

import by_hand
import numpy as np
import torch
from scipy import stats

from securefl.algorithms.algorithm import Sgd, Work
from securefl.data.samples import samples
from securefl.federation.training import round_generator
from securefl.types import ClientState

UNIFORM = ("algorithm.weights=uniform", "privacy.noise=seeded")


def config(*settings, rounds):
    """As `by_hand.config`, of clients that all count alike and noise that can be replayed."""
    return by_hand.config(*UNIFORM, *settings, rounds=rounds)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def replayed(rng):
    """NumPy's generator, seeded by the next 62 bits of a client's own."""
    return np.random.default_rng(int(torch.randint(2**62, (), generator=rng)))


def draws(done, i, before=0):
    """Client i's in the round after `done`, where others were drawn before."""
    rng = round_generator(by_hand.SEED, done, i)
    for _ in range(before):
        replayed(rng)
    return replayed(rng)


def work_of(model, data, loss, *, seed=0, n_steps=1, client_state=None):
    """What a client has for a round; no batch is ever drawn."""
    held = samples(data, "a client")
    client_state = client_state or ClientState()
    return Work(model, held, iter(()), n_steps, loss, Sgd(0.1), client_state, generator(seed))


def require_scatter(values, deviation, alpha=1e-3):
    """Asserts mean zero and this deviation of independent normal values, each at level α."""
    scaled = np.asarray(values, dtype=float).ravel() / deviation
    low, high = stats.chi2(scaled.size).interval(1 - alpha)
    assert low <= np.square(scaled).sum() <= high
    assert abs(scaled.mean()) * scaled.size**0.5 <= stats.norm.isf(alpha / 2)
