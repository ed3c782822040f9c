"""Metrics of a model's outputs: each in a file of its mathematics, all of them in `by_name`.

These files load no torch at their top, so that a wrong setting is refused before torch is loaded.
"""
