"""CKKS under one-time keys, and the cards from whose secrets these follow.

The only package that imports tenseal.
"""

from math import sqrt

KEY_BITS = 42
"""Random bits of a coefficient of a key or an error, half counted up and half counted down."""
KEY_DEVIATION = sqrt(KEY_BITS / 4)
"""Standard deviation of a coefficient of a key, and of the encryption's error: 3.24."""
