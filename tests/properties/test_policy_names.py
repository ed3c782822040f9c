"""The default policy opens what SecureFL's algorithms send, and nothing else."""

from __future__ import annotations

import pytest
import test_grid as grid

from securefl.errors import OpeningRefused
from securefl_keys.policy import DEFAULT, SENT

pytestmark = pytest.mark.shapes


def opened_by(settings, keys, job=None, rounds=1):
    """The names that the authority has opened; `test_grid` looks at those of pairs of settings."""
    result = grid.run([*settings, f"run.rounds={rounds}"], "model", keys, job)
    return {opening.name for opening in result.openings}


@pytest.fixture(scope="module")
def opened(key_set):
    """By every normalisation, solver, server optimiser, momentum, selection and refinement."""
    names, few = set(), ["algorithm.name=fedavg"]
    for axis in (grid.REFINABLE, grid.SOLVERS, grid.SERVERS, grid.MOMENTA):
        for settings in axis.values():
            rounds = 4 if any("window" in setting for setting in settings) else 1  # to freeze BN
            names |= opened_by([*few, *settings], key_set, rounds=rounds)
    # Moments are fused about those of the round before.
    names |= opened_by(grid.POLICIES["fedtan, fused"], key_set, rounds=2)
    for fnr in grid.FNR.values():
        refined = [*few, *fnr, "fnr.epochs=1"] if fnr != grid.FNR["none"] else few
        names |= opened_by(refined, key_set, grid.task_with_public())
    for selection in grid.SELECTIONS.values():
        if "selection.replacement=with" in selection:
            continue  # sealed sums are of clients that count once each
        some = [*few, *selection, "selection.fraction=0.8", "exchange.encrypt=model"]
        some = some if selection != grid.SELECTIONS["all"] else few
        names |= opened_by(some, key_set, grid.task_with_public())
    private = ["privacy.level=record", "privacy.records=6", "privacy.statistics_sigma=0.01"]
    policy = [*grid.POLICIES["fixbn"], "algorithm.weights=uniform"]
    names |= opened_by([*policy, *private], key_set)
    return names


def test_every_message_of_the_grid_is_opened(opened):
    """By a rule of its own kind, at the precision that the authority releases."""
    assert {name.rpartition("/")[2] for name in opened} >= {
        *("sum", "mean", "variance", "gradient", "moments")
    }
    for name in opened:
        assert DEFAULT.rule_for(name).precision_bits == 32


def test_no_rule_is_for_nothing(opened):
    """Without any one of them, some message of the grid would not be opened."""
    for names in SENT:
        rules = tuple(rule for rule in DEFAULT.rules if rule.names != names)
        others = type(DEFAULT)(rules=rules)
        with pytest.raises(OpeningRefused):
            [others.rule_for(name) for name in opened]


@pytest.mark.parametrize(
    "name", ["", "secret", "layer/maximum", "mean", "profiles", "*", "Update/x"]
)
def test_an_invented_name_is_not(name):
    """What no algorithm sends, no default opens."""
    with pytest.raises(OpeningRefused):
        DEFAULT.rule_for(name)
