"""Clients side by side that take unequal numbers of local steps end where they end one by one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from by_hand import task
from pairs import grid
from side_by_side import ALONE, SMALL, require_same

import securefl
from securefl.errors import ConfigError
from securefl.simulation.stacked.grouping import split

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from combinations import POLICIES, SERVERS, SOLVERS, reason

UNEQUAL = (
    "algorithm.local_epochs=2",
    "train.batch_size=4",
    "train.momentum=0.9",
)
"""Clients of 9, 30, 14, 4 and 17 samples take 4, 14, 6, 2 and 8 steps."""


SHARES: dict[str, tuple[str, ...]] = {"0.0": (), "0.5": ()}
STOPPED = {name: SOLVERS[name] for name in ("sgd", "fedprox", "scaffold")}
STOPPED["fednova"] = SERVERS["fednova"]


@pytest.mark.parametrize(("policy", "solver", "share"), grid(POLICIES, STOPPED, SHARES))
def test_clients_of_unequal_steps_each_stop_after_their_own(policy, solver, share, monkeypatch):
    """Whoever waits for the longest client beside it sends what it had, and keeps that."""
    for least in ("LEAST_SHARE", "LEAST_USED"):
        monkeypatch.setattr(f"securefl.simulation.stacked.grouping.{least}", float(share))
    beside = STOPPED[solver]
    if reason(POLICIES[policy], beside):
        pytest.skip("refused together")
    settings = ["run.rounds=2", *POLICIES[policy], *beside, *UNEQUAL]
    job = task(sizes=(9, 30, 14, 4, 17))
    if policy in ALONE:
        with pytest.raises(ConfigError, match="mixes into a client's batches what that client"):
            require_same(settings, job)
        return
    waiting = policy.startswith(("fedtan", "forward-only"))
    if waiting and (float(share) or solver not in {"sgd", "fedprox"}):
        with pytest.raises(ConfigError, match=r"wait for each other's sums, and their .*steps are"):
            require_same(settings, job)
    else:
        require_same(settings, job)


@pytest.mark.parametrize("across", ["local", "global"])
def test_momentum_that_lasts_is_of_a_clients_own_steps(across):
    """Clients of unequal steps are then not in one block."""
    lasting = f"train.momentum_across_rounds={across}"
    require_same(["algorithm.name=fedavg", *UNEQUAL, lasting], task(sizes=(9, 30, 14, 4, 17)))


def test_who_takes_many_more_steps_is_not_waited_for():
    """By no one who takes less than half as many."""
    steps = {"a": 4, "b": 14, "c": 6, "d": 2, "e": 8, "f": 7}

    def blocks(most, share):
        return ["".join(names) for names in split(list(steps), steps.__getitem__, most, share)]

    assert blocks(3, 0.5) == ["bef", "ca", "d"]
    assert blocks(6, 0.5) == ["bef", "ca", "d"]
    assert blocks(6, 0.0) == ["befcad"]


def test_clients_who_wait_for_each_others_sums_are_in_one_block_or_one_by_one():
    """The words about the engine say it, and idle channels would cost more than they save."""
    said = []
    for sizes in ((60, 17, 9), (30, 17, 9), (30, 28, 17)):
        config = securefl.load_config(None, [*SMALL, "algorithm.name=fedtan", *UNEQUAL])
        securefl.run(config, task(sizes=sizes), on_start=said.append)
    assert said[0].endswith("each other's sums, and their batches or steps are too unequal")
    assert said[1].startswith("vectorised: ")
    assert said[2].startswith("vectorised: ")
    require_same(["algorithm.name=fedtan", *UNEQUAL], task(sizes=(30, 28, 17)))
