"""What ends a run ends it alike in one process and in several."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from securefl import Config
from securefl.build.exchange import least_clients
from securefl.errors import Diverged, TooFewContributions
from securefl.exchange.plain import PlainChannel
from securefl.network import server
from securefl.network.party import server_party
from securefl.network.server import Patience, ServerProcess
from securefl.runs.folder_writer import RunFolder
from securefl.types import Kind

pytestmark = pytest.mark.usefixtures("quick")


def config(encrypt="statistics", **train):
    """A server's settings."""
    return Config.model_validate(
        {
            "run": {"rounds": 3},
            "data": {"clients": 5},
            "algorithm": {"name": "fedavg"},
            "train": train,
            "exchange": {"encrypt": encrypt},
        }
    )


class Alone:
    """A server process without its connections, in whose rounds `factors` scale the model."""

    def __init__(self, settings, here, monkeypatch, tmp_path):
        self.party = server_party(settings)
        self.process = ServerProcess(None, None, self.party, Patience(), lambda _text: None)
        self.folder = RunFolder.create(tmp_path / "run", settings)
        plain = PlainChannel("float32", least_clients(settings))
        self.desk = SimpleNamespace(members=None, plain=plain)
        self.state = self.party.common.algorithm.init(self.party.common.model)

        async def present(_process, _members, _number):
            return {f"client-{i}": None for i in range(here)}

        monkeypatch.setattr(ServerProcess, "_present", present)
        self.monkeypatch = monkeypatch

    def round(self, factor):
        """One in which the clients' mean is the last model times this."""
        before = self.state

        class Round:
            def __init__(self, *_):
                pass

            async def run(self):
                weights = before.tensors[Kind.PARAMETERS]
                tensors = {**before.tensors, Kind.PARAMETERS: _times(weights, factor)}
                return replace(before, round=before.round + 1, tensors=tensors)

        self.monkeypatch.setattr(server, "ServerRound", Round)
        round_ = self.process._round(self.desk, self.folder, before, None)
        self.state = asyncio.run(round_)


def _times(named, factor):
    return {name: value * factor for name, value in named.items()}


def test_a_servers_run_is_lost_where_a_simulations_is(monkeypatch, tmp_path):
    """At a million times the first round's loss, while it is finite."""
    alone = Alone(config(), 5, monkeypatch, tmp_path)
    alone.round(1.0)
    with pytest.raises(Diverged, match=r"round 2: the loss on the test data is .*: training div"):
        alone.round(1e12)


@pytest.mark.parametrize(
    ("encrypt", "here", "enough"),
    [
        ("statistics", 2, False),
        ("statistics", 3, True),
        ("none", 2, True),
        ("none", 0, False),
    ],
)
def test_a_servers_round_needs_as_many_as_a_simulations(
    monkeypatch, tmp_path, encrypt, here, enough
):
    """Two train for nothing where the authority would open no total of theirs."""
    alone = Alone(config(encrypt), here, monkeypatch, tmp_path)
    if enough:
        alone.round(1.0)
    else:
        with pytest.raises(TooFewContributions, match=rf"round 1: {here} clients are connected"):
            alone.round(1.0)
