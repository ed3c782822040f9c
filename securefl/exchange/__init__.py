"""Sums over clients: in the clear, or on ciphertext that only the authority can open."""
