"""Random sums under one-time keys: none is wrong by more than its noise.

    python benchmarks/random_sums.py --sums 10000

From 3 to 200 clients, 1 to 10^6 values, of sizes from 1e-6 to 1e3, each drawn evenly by its
logarithm; where that would be more than `--most` ciphertexts, there are fewer clients. Weights are
those of clients of 1 to 10^4 samples. A sum is wrong where its count or its weight is, or where a
value errs by more than half of the last bit that is released and eight deviations of its noise.
"""

from __future__ import annotations

import secrets

import click
import numpy as np

from securefl.crypto.params import SUMS
from securefl.exchange.digits import Digits
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.sums import MessageId, Sender

PRECISION_BITS = 32
DEVIATIONS = 8
"""Deviations of Gaussian noise: as many are exceeded once in 10^15 times."""


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw evenly by the logarithm."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def shape_of(rng: np.random.Generator, most: int) -> tuple[int, int, bool]:
    """Draw numbers of clients and of values, of at most so many ciphertexts together.

    Returns also whether that makes it fewer clients than were drawn.
    """
    n_values = round(log_uniform(rng, 1, 10**6))
    drawn = round(log_uniform(rng, 3, 200))
    n_clients = max(3, min(drawn, most // SUMS.n_ciphertexts(n_values)))
    return n_clients, n_values, n_clients < drawn


def error_of(rng: np.random.Generator, n_clients: int, n_values: int) -> float:
    """Return the largest error of a random sum, in what it may err by; infinite if it is wrong."""
    keys, run = KeySet.ephemeral(), secrets.token_hex(32)
    sealer, opener = OneTimeSealer(keys.public), keys.opener()
    about = MessageId(run, int(rng.integers(1, 10**6)), "update/parameters", n_values)
    sizes = np.rint(np.exp(rng.uniform(0, np.log(10**4), n_clients)))
    weights = sizes / 2.0 ** np.ceil(np.log2(sizes.sum()))
    scale, running, nonces = (
        log_uniform(rng, 1e-6, 1e3),
        OneTimeAdder(keys.public).start(n_values),
        {},
    )
    mean, largest = np.zeros(n_values), 0.0
    for i, weight in enumerate(weights):
        sender = Sender(f"client-{i}", secrets.token_bytes(32))
        opener.take_cards(run, sender.name, keys.public.cards(run, sender))
        values = np.clip(scale * rng.normal(size=n_values), -SUMS.max_value, SUMS.max_value)
        payload, nonces[sender.name] = sealer.seal(values, weight, about, sender)
        running, mean = running.plus(payload), mean + weight * values
        largest = max(largest, float(np.abs(values).max()))
    opened = opener.open(running.total(), about, nonces, PRECISION_BITS)
    if (opened.n_clients, opened.weight) != (n_clients, weights.sum()):
        return np.inf
    noise = SUMS.noise(n_clients) * 2.0 ** -Digits.of(SUMS, n_values).finest_bits / weights.sum()
    allowed = DEVIATIONS * noise + largest * (2.0**-PRECISION_BITS + 1e-13)
    return float(np.abs(opened.values - mean / weights.sum()).max() / allowed)


@click.command(help=__doc__)
@click.option("--sums", default=100, help="How many.")
@click.option("--most", default=2000, help="Ciphertexts of one sum, of all clients together.")
@click.option("--seed", default=0, help="Of shapes, values and weights.")
def main(sums: int, most: int, seed: int) -> None:
    """Print how many sums are wrong, and how large the largest error was."""
    rng = np.random.default_rng(seed)
    found, n_fewer = [], 0
    for _ in range(sums):
        n_clients, n_values, fewer = shape_of(rng, most)
        found.append(error_of(rng, n_clients, n_values))
        n_fewer += fewer
    errors = np.array(found)
    click.echo(
        f"{sums} sums, {n_fewer} of fewer clients than drawn, {(errors > 1).sum()} wrong; the "
        f"largest error was {errors.max():.2f} of what is allowed"
    )
    if (errors > 1).any():
        raise SystemExit(1)


if __name__ == "__main__":
    main()
