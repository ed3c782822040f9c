"""Names of settings that are treated alike, by the rules and by what follows them."""

from __future__ import annotations

POOLED = {"fedtan", "fedtan-ii", "forward-only"}
"""Algorithms that add up statistics in the middle of a step."""
STATISTICS_STAY = {"fedbn", "silobn"}
ALONE = {"centralised", "singlenet"}
FREEZE_BN = {"fixbn", "fedtan-ii"}
CORRECTED = {"scaffold", "feddyn", "feddc"}
"""By what the server follows as a mean over all clients."""
DRIFTING = {"feddyn", "feddc"}
"""Those with a server's half of their own."""
ADAPTIVE = {"fedadam", "fedadagrad", "fedyogi"}
DRAWN = {"random", "data-share", "fedprof"}
SELECTED = {*DRAWN, "afl", "cfcfm"}
REFINED = {"matched", "literal"}
"""Ways of FNR-FL in which the weakest clients are refined."""
