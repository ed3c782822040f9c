"""Settings that separate processes run, by axis: what is held against a simulation."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
from combinations import POLICIES, SERVERS, SOLVERS

NORMALISATIONS = {
    name: POLICIES[name]
    for name in (
        *("fedavg", "fedtan", "fedtan-ii", "forward-only", "fixbn", "fixbn, window"),
        *("static-bn", "fedbn", "silobn", "local-affine", "singlenet"),
    )
}
LOCAL = {name: SOLVERS[name] for name in ("sgd", "scaffold", "fedprox")}
CENTRAL = {name: SERVERS[name] for name in ("average", "fedadam")}
SOME = ("selection.fraction=0.6",)
SELECTIONS = {
    "random": ("selection.name=random", *SOME),
    "data-share": ("selection.name=data-share", "selection.replacement=with", *SOME),
    "fedprof": ("selection.name=fedprof", *SOME),
    "afl": ("selection.name=afl", *SOME),
}
SEEDED = ("privacy.noise=seeded", "algorithm.weights=uniform")
RECORDS = ("privacy.level=record", "privacy.records=50", "privacy.statistics_sigma=0.1", *SEEDED)
BESIDE = {
    **SELECTIONS,
    "random, full": (*SELECTIONS["random"], "selection.aggregation=full"),
    "momentum, local": ("train.momentum=0.5", "train.momentum_across_rounds=local"),
    "momentum, global": ("train.momentum=0.5", "train.momentum_across_rounds=global"),
    "fnr, matched": ("fnr.name=matched", "fnr.share=0.4", "fnr.epochs=1"),
    "fnr, server": ("fnr.name=server", "fnr.epochs=1"),
    "records": RECORDS,
    "records, fedprof": (*RECORDS, *SELECTIONS["fedprof"]),
    "clients": ("privacy.level=client", *SEEDED),
    "clients, fedprof": ("privacy.level=client", *SEEDED, *SELECTIONS["fedprof"]),
    "bfloat16": ("train.precision=bfloat16",),
}
"""Settings beside the algorithm. CFCFM needs simulated devices, which no process is."""
ENCRYPT = ("statistics", "model")
