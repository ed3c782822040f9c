"""Settings that separate processes run, by axis: what is held against a simulation.

Every normalisation, solver and server optimiser is there, and every selection but one. Not there:

- `algorithm.name = "centralised"` has one client, which holds all data: the parties of a consortium
  refuse it.
- `selection.name = "cfcfm"`, and `[devices]`, need simulated devices, which no process is.
- `model.norm`: messages depend on the layers of a model by their shapes alone. Tests of layers
  train them (`test_norm_layers.py`, `test_uncommon_layers.py`).
- `run.engine`: processes are held against `sequential`, and the tests of engines hold the others
  against it.
- Officers and blind totals, which tests of their own run over processes
  (`test_officer_processes.py`, `test_blind.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
from combinations import POLICIES, SERVERS, SOLVERS

NORMALISATIONS = {name: POLICIES[name] for name in POLICIES if name != "centralised"}
LOCAL, CENTRAL = SOLVERS, SERVERS
SOME = ("selection.fraction=0.6",)
SELECTIONS = {
    "random": ("selection.name=random", *SOME),
    "random, with replacement": ("selection.name=random", "selection.replacement=with", *SOME),
    "data-share": ("selection.name=data-share", "selection.replacement=with", *SOME),
    "fedprof": ("selection.name=fedprof", *SOME),
    "afl": ("selection.name=afl", *SOME),
}
SEEDED = ("privacy.noise=seeded", "algorithm.weights=uniform")
RECORDS = ("privacy.level=record", "privacy.records=50", "privacy.statistics_sigma=0.1", *SEEDED)
BESIDE = {
    **SELECTIONS,
    "random, full": (*SELECTIONS["random"], "selection.aggregation=full"),
    "momentum, reset": ("train.momentum=0.5",),
    "momentum, local": ("train.momentum=0.5", "train.momentum_across_rounds=local"),
    "momentum, global": ("train.momentum=0.5", "train.momentum_across_rounds=global"),
    "fnr, matched": ("fnr.name=matched", "fnr.share=0.4", "fnr.epochs=1"),
    "fnr, literal": ("fnr.name=literal", "fnr.share=0.4", "fnr.epochs=1"),
    "fnr, server": ("fnr.name=server", "fnr.epochs=1"),
    "records": RECORDS,
    "records, fedprof": (*RECORDS, *SELECTIONS["fedprof"]),
    "clients": ("privacy.level=client", *SEEDED),
    "clients, fedprof": ("privacy.level=client", *SEEDED, *SELECTIONS["fedprof"]),
    "bfloat16": ("train.precision=bfloat16",),
}
"""Settings beside the algorithm."""
ENCRYPT = ("statistics", "model")
