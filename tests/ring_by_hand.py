"""Polynomials modulo primes in Python's own integers, as SEAL has them transformed."""

from __future__ import annotations

import numpy as np


def coefficients(residues, moduli):
    """Return the polynomial, around zero: an integer a coefficient, by Chinese remainders."""
    whole = int(np.prod(np.array(moduli, object)))
    total = 0
    for row, modulus in zip(residues, moduli, strict=True):
        others = whole // modulus
        total = total + untransformed(row, modulus) * others * pow(others, -1, modulus)
    total %= whole
    return np.where(2 * total > whole, total - whole, total)


def untransformed(row, modulus):
    """Return the coefficients a_j modulo a prime, from A(ψ^(2k + 1)), k in bit-reversed order."""
    degree = len(row)
    inverse = pow(smallest_root(2 * degree, modulus), -1, modulus)
    bits = degree.bit_length() - 1
    natural = np.array([int(row[int(f"{k:0{bits}b}"[::-1], 2)]) for k in range(degree)], object)
    sums = _cyclic(natural, inverse * inverse % modulus, modulus)
    factors, power = [], pow(degree, -1, modulus)
    for _ in range(degree):
        factors.append(power)
        power = power * inverse % modulus
    return sums * np.array(factors, object) % modulus


def _cyclic(values, root, modulus):
    """Return Σ_k values_k root^(jk) for each j, by halves."""
    if len(values) == 1:
        return values
    even, odd = (_cyclic(values[i::2], root * root % modulus, modulus) for i in (0, 1))
    powers, power = [], 1
    for _ in even:
        powers.append(power)
        power = power * root % modulus
    turned = odd * np.array(powers, object) % modulus
    return np.concatenate([(even + turned) % modulus, (even - turned) % modulus])


def smallest_root(order, modulus):
    """Return the smallest primitive root of one of this order, a power of two."""
    candidates = (pow(g, (modulus - 1) // order, modulus) for g in range(2, 1000))
    root = next(r for r in candidates if pow(r, order // 2, modulus) == modulus - 1)
    square, found, smallest = root * root % modulus, root, root
    for _ in range(order // 2):
        found = found * square % modulus
        smallest = min(smallest, found)
    return smallest
