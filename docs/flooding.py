"""Prints the noise that hides the key of sums, for the table in flooding.md.

    python docs/flooding.py

σ is the standard deviation on each opened Σ weight_i x_i, at the default policy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from securefl.crypto.params import SUMS, CkksParameters
from securefl.exchange.policy import Flooding

ONE_PRIME = CkksParameters(modulus_bits=(60, 49), scale_bits=45)
N_CLIENTS = (5, 50, 500, 10_000)


def table(flooding: Flooding, n_clients: Sequence[int] = N_CLIENTS) -> str:
    """A row for each parameters, in Markdown."""
    lines = [
        _row("", *(f"n = {n:,}".replace(",", " ") for n in n_clients)),
        _row("---", *("---" for _ in n_clients)),
    ]
    for name, parameters in (("two data primes", SUMS), ("one data prime", ONE_PRIME)):
        bits = ", ".join(map(str, parameters.modulus_bits))
        sigmas = (flooding.deviation(parameters.noise(n)) for n in n_clients)
        label = f"{name}, [{bits}] at 2^{parameters.scale_bits}"
        lines.append(_row(label, *(f"{sigma:.1e}" for sigma in sigmas)))
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write(table(Flooding()))
