"""Differential privacy: what it may be applied to, and what a run has spent of it.

Nothing is imported here: what reads a history or plans a run (`events`, `history`, `accountants`,
`calibration`, `budget`, `plan`, `words`) loads no torch; `coupling`, `gradients` and `prv` do.
"""
