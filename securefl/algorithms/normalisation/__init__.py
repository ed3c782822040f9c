"""Batch normalisation in a round: one policy per file."""
