"""Tracing: whether a statistic, a profile or a sum shows that a record was in it."""
