"""Objects of a run from its settings, one file an axis."""
