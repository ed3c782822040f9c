"""Models of the jobs in haiku, channels last: those of `models.py`, whose sizes they share.

Batch normalisation is by the batch's statistics, and keeps no running ones: less to do than the
other tools have.
"""

from __future__ import annotations

import haiku as hk
import jax
import jax.numpy as jnp
from jax import Array, nn

N_CLASSES, N_HIDDEN, WIDTH = 10, 30, 16


class BatchNorm(hk.Module):
    """Norm of the last axis over all others."""

    def __call__(self, x: Array) -> Array:
        """Return the same shape, normalised."""
        axes, shape = tuple(range(x.ndim - 1)), x.shape[-1:]
        gamma = hk.get_parameter("gamma", shape, init=jnp.ones)
        beta = hk.get_parameter("beta", shape, init=jnp.zeros)
        centred = x - x.mean(axes)
        return gamma * centred * jax.lax.rsqrt((centred**2).mean(axes) + 1e-5) + beta


def mlp(x: Array) -> Array:
    """Map by 784-30-10."""
    return hk.Linear(N_CLASSES)(nn.relu(BatchNorm()(hk.Linear(N_HIDDEN)(x))))


def cnn(x: Array) -> Array:
    """Map by four normalised convolutions, two poolings."""
    for width in (WIDTH, 2 * WIDTH):
        for _ in range(2):
            x = nn.relu(BatchNorm()(hk.Conv2D(width, 3, with_bias=False)(x)))
        x = hk.max_pool(x, 2, 2, "VALID", channel_axis=-1)
    return hk.Linear(N_CLASSES)(x.mean((1, 2)))


def lenet(x: Array) -> Array:
    """Map by LeNet-5, for 28 × 28."""
    for width, padding in ((6, "SAME"), (16, "VALID")):
        x = nn.relu(hk.Conv2D(width, 5, padding=padding)(x))
        x = hk.max_pool(x, 2, 2, "VALID", channel_axis=-1)
    x = x.reshape(len(x), -1)
    for width in (120, 84):
        x = nn.relu(hk.Linear(width)(x))
    return hk.Linear(N_CLASSES)(x)


MODELS = {"mlp": mlp, "cnn": cnn, "lenet": lenet}
