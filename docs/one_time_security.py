"""Cost of the best known lattice attack on one-time keys, for docs/one-time-keys.md.

    python docs/one_time_security.py

The primal attack of lattice reduction on LWE of dimension N, by the estimate of Alkim, Ducas,
Pöppelmann and Schwabe (USENIX Security 2016, section 6.3): BKZ finds the secret where its
projection is shorter than the last vectors of the reduced basis. Cost: one sieve of dimension β,
2^(0.292 β) ("core SVP", Becker, Ducas, Gama, Laarhoven 2016), and as the table of the Homomorphic
Encryption Standard counts it, 8 d sieves of 2^(0.292 β + 16.4) operations in dimension d.
"""

from __future__ import annotations

import sys
from math import e, log, log2, pi

from securefl.crypto import KEY_DEVIATION
from securefl.crypto.params import MATCHES, SUMS, RingParameters


def delta(block: int) -> float:
    """Return the root Hermite factor of BKZ with blocks of this size (Chen 2013)."""
    return float(((pi * block) ** (1 / block) * block / (2 * pi * e)) ** (1 / (2 * (block - 1))))


def finds(block: int, n_samples: int, of: RingParameters, deviation: float) -> bool:
    """Return whether blocks of this size find a key of this deviation."""
    n, log_q = of.poly_degree, of.modulus_bits * log(2)
    dimension = n_samples + n + 1
    shortest = log(deviation) + log(block) / 2
    reduced = (2 * block - dimension - 1) * log(delta(block)) + n_samples / dimension * log_q
    return shortest <= reduced


def cheapest(of: RingParameters, deviation: float) -> tuple[int, int]:
    """Return the smallest size of blocks that suffices, and the dimension of the lattice."""
    for block in range(60, 2000):
        for n_samples in range(256, 3 * of.poly_degree, 32):  # more help nobody
            if finds(block, n_samples, of, deviation):
                return block, n_samples + of.poly_degree + 1
    raise ValueError(f"no block of up to 2000 finds a key of deviation {deviation}")


CASES = {
    "nothing else is known": (SUMS, KEY_DEVIATION),
    "sums of keys and errors are known (our argument)": (SUMS, KEY_DEVIATION / 2**0.5),
    "the constant of Hint-LWE's theorem": (SUMS, KEY_DEVIATION / 2),
    "profiles, nothing else is known": (MATCHES, KEY_DEVIATION),
}


def table() -> str:
    """Return the costs as a table in Markdown."""
    lines = ["| | σ | β | core SVP | as the standard counts |", "| --- | --- | --- | --- | --- |"]
    for what, (of, deviation) in CASES.items():
        block, dimension = cheapest(of, deviation)
        core = 0.292 * block
        counted = core + 16.4 + log2(8 * dimension)
        lines.append(f"| {what} | {deviation:.2f} | {block} | 2^{core:.0f} | 2^{counted:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
