"""Runs of a blink and what an audit finds in the folder that they leave, and on their wires."""

from __future__ import annotations

from matching_runs import make_task

import securefl
from securefl import Config
from securefl.audit.exposure.evidence import FolderEvidence, leaks_in
from securefl.audit.replay import replayed
from securefl.runs.folder_reader import read_run

FEDPROF = {"name": "fedprof", "fraction": 0.75, "alpha": 1.0}
"""Three of four clients."""
SEEDED = {"noise": "seeded", "delta": 0.01}
TABLES = {
    "fedtan": {"algorithm": {"name": "fedtan"}},
    "blind": {
        "algorithm": {"name": "fedtan"},
        "exchange": {"encrypt": "statistics", "blind": True},
    },
    "blind, whole models": {
        "algorithm": {"name": "fedtan", "moments": "fused"},
        "exchange": {"encrypt": "model", "blind": True},
    },
    "blind records": {
        "algorithm": {"name": "fixbn"},
        "exchange": {"encrypt": "statistics", "blind": True},
        "privacy": SEEDED | {"level": "record", "records": 16, "statistics_sigma": 0.05},
    },
    "fedavg": {"exchange": {"encrypt": "statistics"}},
    "model": {"exchange": {"encrypt": "model"}},
    "nothing": {"exchange": {"encrypt": "none"}},
    "momentum": {
        "exchange": {"encrypt": "model"},
        "train": {"momentum": 0.9, "momentum_across_rounds": "global"},
    },
    "scaffold": {"exchange": {"encrypt": "model"}, "solver": {"name": "scaffold"}},
    "fednova": {"exchange": {"encrypt": "model"}, "server": {"name": "fednova"}},
    "fixbn": {"algorithm": {"name": "fixbn", "freeze": "both"}},
    "window": {
        "algorithm": {"name": "fixbn", "switch": "window", "window": 2},
        "run": {"rounds": 4},
    },
    "bn-scaffold": {
        "algorithm": {"name": "bn-scaffold"},
        "exchange": {"encrypt": "statistics"},
        "solver": {"name": "scaffold"},
    },
    "hbn": {"algorithm": {"name": "hbn"}, "exchange": {"encrypt": "statistics"}},
    "fbn": {"algorithm": {"name": "fbn"}, "exchange": {"encrypt": "statistics"}},
    "fedbn": {"algorithm": {"name": "fedbn"}, "exchange": {"encrypt": "model"}},
    "profiles": {"exchange": {"encrypt": "profiles"}, "selection": FEDPROF},
    "profiles in the clear": {"exchange": {"encrypt": "statistics"}, "selection": FEDPROF},
    "profiles alone and officers": {
        "exchange": {"encrypt": "profiles", "officers": 3},
        "selection": FEDPROF,
    },
    "profiles and officers": {
        "exchange": {"encrypt": "model", "officers": 3},
        "selection": FEDPROF,
    },
    "losses": {"exchange": {"encrypt": "model"}, "selection": {"name": "afl", "fraction": 0.75}},
    "drawn twice": {
        "selection": {"name": "data-share", "fraction": 1.0, "replacement": "with"},
        "exchange": {"encrypt": "none"},
    },
    "clipping": {
        "exchange": {"encrypt": "model"},
        "privacy": SEEDED | {"level": "client", "clipping": "adaptive"},
    },
    "noisy scores": {
        "exchange": {"encrypt": "model"},
        "selection": FEDPROF,
        "privacy": {"level": "client", "delta": 0.01},
    },
    "records": {
        "algorithm": {"name": "fixbn"},
        "privacy": SEEDED | {"level": "record", "records": 16, "statistics_sigma": 0.05},
    },
    "dropouts": {
        "run": {"rounds": 3},
        "selection": {"name": "random", "fraction": 0.75},
        "devices": {"dropout": 0.3},
        "exchange": {"encrypt": "model"},
    },
    "deadline": {
        "run": {"rounds": 3},
        "selection": {"name": "cfcfm", "fraction": 1.0},
        "devices": {"preset": "emnist", "deadline_s": 0.45},
        "exchange": {"encrypt": "model"},
    },
    "officers": {"exchange": {"officers": 3}},
    "four of five officers": {
        "exchange": {"encrypt": "model", "officers": 5, "threshold": 4},
    },
    "coarse": {"exchange": {"encrypt": "model", "precision_bits": 16}},
    "refined": {
        "exchange": {"encrypt": "model"},
        "fnr": {"name": "matched", "epochs": 1, "share": 0.25},
    },
}
"""Settings by name, beside the usual ones: FedAvg, two rounds of one step, statistics encrypted."""


def settings(name):
    usual = {
        "run": {"rounds": 2},
        "algorithm": {"name": "fedavg", "local_steps": 1, "weights": "uniform"},
        "train": {"batch_size": 8, "lr": 0.1},
    }
    changes = TABLES[name]
    return Config.model_validate(
        {table: usual.get(table, {}) | changes.get(table, {}) for table in usual | changes}
    )


def task_of(name):
    """Return four clients where some are selected, three where all are."""
    return make_task(4 if TABLES[name].keys() & {"selection", "fnr"} else 3)


def in_folder(folder, task, dtype="float32"):
    """Return what a run's folder shows to be wrong."""
    run = read_run(folder)
    return leaks_in(FolderEvidence.of(run), expected(run, task), dtype)


def expected(run, task):
    return replayed(run.config, task, lambda _done, _all: None, run.participants).ledger


def played(name, folder, **keys):
    """Play the run itself; return its folder."""
    securefl.run(settings(name), task_of(name), out=folder, **keys)
    return folder
