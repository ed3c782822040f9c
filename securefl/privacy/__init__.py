"""Differential privacy: releases that it applies to, and the account of what a run has spent.

Nothing is imported here: what reads a history or plans a run (`events`, `history`, `accountants`,
`calibration`, `odometer`, `plan`, `wording`) loads no torch; `coupling` and `gradients` do.
"""
