"""Settings that go together, as Markdown: python docs/combinations.py > docs/combinations.md.

The rules of securefl.settings.clashes speak of two axes at a time, so tables of pairs say all,
but for encrypt = "statistics", which needs one axis of all that sends some. tests/properties/
test_grid.py runs all products of the axes, and test_grid_of_data_sets.py the data sets, and hold
them against `reason`. What other installed packages register is on the page, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from typing import get_args

import torch
from torch import nn

from securefl.build.job import job_of
from securefl.data.catalogue import DATA_SETS, DataSet, Inputs
from securefl.errors import ConfigError, DataError
from securefl.models.build import build_model
from securefl.settings.axes import NORMALISATIONS, REFINEMENTS, SELECTORS
from securefl.settings.axes import SERVERS as OPTIMISERS
from securefl.settings.axes import SOLVERS as LOCAL
from securefl.settings.load import load_config
from securefl.settings.models import MODELS
from securefl.settings.tables import (
    Config,
    ModelTable,
    TrainTable,
)
from securefl.task import Task

Settings = tuple[str, ...]
NEUTRAL = ("algorithm.name=fedavg", "exchange.encrypt=none", "run.engine=sequential")
"""Values of an axis that is not spoken of; the engine that trains whatever goes together."""
LABELS = torch.zeros(2, dtype=torch.int64)


def _names(table: type, key: str) -> tuple[str, ...]:
    return get_args(table.model_fields[key].annotation)  # type: ignore[attr-defined]


POLICIES: dict[str, Settings] = {
    name: (f"algorithm.name={name}",) for name in NORMALISATIONS.names()
} | {
    "fedtan, fused": ("algorithm.name=fedtan", "algorithm.moments=fused"),
    "fedtan-ii, fused": ("algorithm.name=fedtan-ii", "algorithm.moments=fused"),
    "fixbn, window": (
        *("algorithm.name=fixbn", "algorithm.switch=window"),
        *("algorithm.window=2", "run.rounds=4"),  # the shortest that is full within the run
    ),
    "fixbn, affine": ("algorithm.name=fixbn", "algorithm.freeze=affine"),
    "fixbn, both": ("algorithm.name=fixbn", "algorithm.freeze=both"),
}
SOLVERS = {name: (f"solver.name={name}",) for name in LOCAL.names()}
SERVERS = {name: (f"server.name={name}",) for name in OPTIMISERS.names()}
MOMENTA = {
    name: ("train.momentum=0.5", f"train.momentum_across_rounds={name}")
    for name in _names(TrainTable, "momentum_across_rounds")
}
NORMS = {
    name: (f"model.norm={name}", f"model.name={'resnet20' if name == 'fixup' else 'cnn'}")
    for name in _names(ModelTable, "norm")
}
FNR = {name: (f"fnr.name={name}",) for name in REFINEMENTS.names()}
SELECTIONS: dict[str, Settings] = {name: (f"selection.name={name}",) for name in SELECTORS.names()}
SELECTIONS["cfcfm"] = (*SELECTIONS["cfcfm"], "devices.preset=emnist")
SELECTIONS |= {
    "random, full": (*SELECTIONS["random"], "selection.aggregation=full"),
    "random, with replacement": (*SELECTIONS["random"], "selection.replacement=with"),
}
_PRIVATE = ("algorithm.weights=uniform", "train.batch_size=8")
PRIVACY = {
    "none": (),
    "record": ("privacy.level=record", "privacy.records=100", *_PRIVATE),
    "client": ("privacy.level=client", *_PRIVATE),
}


def _data_set(name: str, line: DataSet) -> Settings:
    root = ("data.root=.",) if line.files else ()
    model = ("model.name=unet",) if line.inputs is Inputs.VOLUMES else ()
    return (f"data.dataset={name}", "data.partition=iid", *root, *model)


DATA = {name: _data_set(name, line) for name, line in DATA_SETS.items()}
WITH_DATA: dict[str, Settings] = {
    **{name: (f"model.name={name}",) for name in MODELS},
    "dealt by classes": ("data.partition=classes:2",),
    "noise": ("data.feature_noise=0.1",),
    "corruptions": ('data.corruptions=["fog","snow"]',),
    "low quality": ("data.quality={polluted=0.2}",),
    "FNR-FL": FNR["matched"],
    "fedprof": SELECTIONS["fedprof"],
    "records": (*PRIVACY["record"], *POLICIES["fixbn"]),
}
ALL_SELECTED = "selection.fraction=1.0"
"""Selection of all, so that FNR-FL and encryption have the clients that they need."""
ENCRYPT = {name: (f"exchange.encrypt={name}",) for name in ("none", "statistics", "model")}


def reason(*chosen: Settings) -> str:
    """Return why these settings do not go together; empty where they do."""
    return _reason(tuple(setting for settings in chosen for setting in settings))


@cache
def _reason(chosen: Settings) -> str:
    settings = [*NEUTRAL, *chosen]
    if any(s.startswith("selection.name=") and s != "selection.name=all" for s in settings):
        settings.append(ALL_SELECTED)
    try:
        config = load_config(None, settings)
        if config.data != Config().data:  # its line says all; its samples are not here
            return ""
        shape = (2, 64) if config.model.name == "mlp" else (2, 1, 8, 8)
        samples, public = ((x, LABELS) for x in (torch.zeros(shape), torch.ones(shape)))
        task = Task(_model(config), [samples] * 4, samples, public=public)
        job_of(config, task)
    except (ConfigError, DataError) as error:
        return str(error)
    return ""


def _model(config: Config) -> nn.Module:
    name, norm = config.model.name, config.model.norm
    return build_model(name, norm, in_channels=1, n_features=64, n_classes=10, width=2)


def table(rows: dict[str, Settings], columns: dict[str, Settings], notes: list[str]) -> str:
    """Return one pair of axes; what does not go together has the number of its note."""
    lines = [_line(("", *columns)), _line("---" for _ in range(len(columns) + 1))]
    for name, row in rows.items():
        cells = [_cell(reason(row, column), notes) for column in columns.values()]
        lines.append(_line((name, *cells)))
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(why: str, notes: list[str]) -> str:
    if not why:
        return "✓"
    *_, why = why.split(": ", 1)  # what is combined stands in the table
    if why not in notes:
        notes.append(why)
    return f"({notes.index(why) + 1})"


def _with_fixbn(axis: dict[str, Settings]) -> dict[str, Settings]:
    return {name: (*settings, *POLICIES["fixbn"]) for name, settings in axis.items()}


def page() -> str:
    """Return all of docs/combinations.md."""
    notes: list[str] = []
    pairs = {
        "Normalisation × solver": (POLICIES, SOLVERS),
        "Normalisation × server optimiser": (POLICIES, SERVERS),
        "Solver × server optimiser": (SOLVERS, SERVERS),
        "Normalisation × momentum across rounds": (POLICIES, MOMENTA),
        "Solver × momentum across rounds": (SOLVERS, MOMENTA),
        "Normalisation × FNR-FL": (POLICIES, FNR),
        "Solver × FNR-FL": (SOLVERS, FNR),
        "Server optimiser × FNR-FL": (SERVERS, FNR),
        "Momentum across rounds × FNR-FL": (MOMENTA, FNR),
        "Normalisation × selection": (POLICIES, SELECTIONS),
        "Solver × selection": (SOLVERS, SELECTIONS),
        "Server optimiser × selection": (SERVERS, SELECTIONS),
        "Momentum across rounds × selection": (MOMENTA, SELECTIONS),
        "FNR-FL × selection": (FNR, SELECTIONS),
        "Selection × encryption": (
            SELECTIONS,
            {**ENCRYPT, "profiles": ("exchange.encrypt=profiles",)},
        ),
        "Normalisation × layer": (POLICIES, NORMS),
        "Normalisation × encryption": (POLICIES, ENCRYPT),
        "Layer × encryption": (
            {n: (*s, "algorithm.name=fedavg") for n, s in NORMS.items()},
            ENCRYPT,
        ),
        "FNR-FL × encryption, without BN": (
            {n: (*s, *NORMS["group"]) for n, s in FNR.items()},
            ENCRYPT,
        ),
        "FNR-FL × encryption, with FedBN": (
            {n: (*s, *POLICIES["fedbn"]) for n, s in FNR.items()},
            ENCRYPT,
        ),
        "Normalisation × privacy": (POLICIES, PRIVACY),
        "Solver × privacy, with FixBN": (_with_fixbn(SOLVERS), PRIVACY),
        "Server optimiser × privacy, with FixBN": (_with_fixbn(SERVERS), PRIVACY),
        "Selection × privacy, with FixBN": (_with_fixbn(SELECTIONS), PRIVACY),
        "FNR-FL × privacy, with FixBN": (_with_fixbn(FNR), PRIVACY),
        "Data set × what uses it": (DATA, WITH_DATA),
    }
    parts = [f"## {title}\n\n{table(*axes, notes)}" for title, axes in pairs.items()]
    numbered = "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1))
    return "\n\n".join([HEAD, *parts, f"## Why not\n\n{numbered}"]) + "\n"


HEAD = """# What goes with what

Made by `python docs/combinations.py`; a test says that it is up to date, and others run every
product of normalisation, solver and server optimiser, in the clear and encrypted, and refined by
FNR-FL, and every pair of them with rounds of some of the clients; and each data set's form of
samples. ✓ runs; a number is the reason why the combination is refused. A model of your own without
BN layers is refused by every policy that needs them. FNR-FL needs public samples, and in each round
three clients more than it refines. Privacy is that of `privacy.level`, in the clear."""

if __name__ == "__main__":
    sys.stdout.write(page())
