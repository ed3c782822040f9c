"""Losses: the targets that each takes, and the one that goes with a data set."""
