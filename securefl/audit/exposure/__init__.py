"""Exposure: every byte by the party that saw it, and what is not as the settings promise."""
