"""What a client tells the others when it cannot send its values: that it cannot, and no more."""

from __future__ import annotations

import re

import pytest
import torch
from over_loopback import NAMES, Consortium, Job, OnTask
from torch import nn

from securefl import Task
from securefl.build.simulation import simulated
from securefl.crypto.params import SUMS
from securefl.errors import SecureFLError
from securefl.exchange.digits import Digits
from securefl.federation.clients_round import ClientsRound
from securefl.federation.contribution import CANNOT_SEND
from securefl.network import bodies
from securefl.network.frames import Frame, Link
from securefl.settings.load import load_config
from securefl.task import own_settings
from securefl.types import ClientState, Contribution, Kind

pytestmark = pytest.mark.usefixtures("no_hang", "quick")

N_VALUES = 64
"""Of the message, and thresholds that one index told apart."""
LIMIT = Digits.of(SUMS, N_VALUES).max_value
HIGHEST = 10.0
COLUMN = 1
SETTINGS = (
    "algorithm.name=fedtan",
    "algorithm.local_steps=1",
    "train.batch_size=12",
    "exchange.encrypt=model",
    "exchange.blind=true",
    "run.rounds=1",
    "run.reproducible=false",
    "sites.scores=mean",
)


def asking(highest: float = HIGHEST) -> nn.Module:
    """A model of a server that asks: unit i is out of range where a mean is above threshold i."""
    thresholds = torch.linspace(highest, -HIGHEST, N_VALUES)
    slope = LIMIT / (2 * HIGHEST)
    linear = nn.Linear(3, N_VALUES)
    with torch.no_grad():
        linear.weight.zero_()
        linear.weight[:, COLUMN] = slope
        linear.bias.copy_(LIMIT - slope * thresholds)
    return nn.Sequential(linear, nn.BatchNorm1d(N_VALUES), nn.ReLU(), nn.Linear(N_VALUES, 3))


def task_with(model: nn.Module, scale: float = 1.0) -> Task:
    rng = torch.Generator().manual_seed(1)
    n = 12 * len(NAMES)
    shifts = torch.repeat_interleave(torch.randn(len(NAMES), 3, generator=rng) * 2, 12, 0)
    x, y = (
        scale * (torch.randn(n, 3, generator=rng) + shifts),
        torch.randint(3, (n,), generator=rng),
    )
    clients = [(x[i : i + 12], y[i : i + 12]) for i in range(0, n, 12)]
    return Task(model, clients, (x, y))


def incidents(model: nn.Module, *settings: str, scale: float = 1.0):
    task = task_with(model, scale)
    config = own_settings(load_config(None, [*SETTINGS, *settings]), task)
    rounds = simulated(config, task, None, None)
    with pytest.raises(SecureFLError) as ended:
        rounds.run(None)
    return rounds.parts.record.incidents, str(ended.value)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_the_same_is_told_whichever_value_it_is(engine, caplog):
    """Whatever is out of range, and by how much, and also where it is no number."""
    told = set()
    for highest, scale in [(HIGHEST, 1), (-5.0, 1), (5.0, 1), (HIGHEST, 1e30), (HIGHEST, 1e34)]:
        found, ended = incidents(asking(highest), f"run.engine={engine}", scale=scale)
        assert found
        told |= {(i.name, i.reason.replace(i.client, "NAME"), i.diverged) for i in found}
        assert not re.search(r"mean\[|±", ended)
    assert told == {("1/mean", f"NAME, 1/mean: {CANNOT_SEND}", True)}
    own = {re.search(r"1/mean: mean\[(\d+)\] = (\S+)", line)[1] for line in caplog.messages}
    assert len(own) > 3, "the clients' own log has the index, which told the mean"


@pytest.mark.parametrize("kind", [Kind.PARAMETERS, Kind.STATISTICS, "own"])
def test_at_a_rounds_end_nobody_is_told_which_message_it_is(kind, monkeypatch):
    """Nor whether it is one that the client keeps."""
    finish = ClientsRound.finish

    def spoiled(self, name, contribution):
        tensors = {k: dict(named) for k, named in contribution.tensors.items()}
        nan = {"x": torch.tensor([float("nan")])}
        if kind == "own":
            return finish(self, name, Contribution(tensors, client_state=ClientState(own=nan)))
        first = next(iter(tensors[kind]))
        tensors[kind][first] = torch.full_like(tensors[kind][first], float("nan"))
        return finish(self, name, Contribution(tensors, client_state=contribution.client_state))

    monkeypatch.setattr(ClientsRound, "finish", spoiled)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    found, _ = incidents(model, "algorithm.name=fedavg", "exchange.blind=false")
    told = {(i.name, i.reason.replace(i.client, "NAME"), i.diverged) for i in found}
    assert told == {("update", f"NAME, update: {CANNOT_SEND}", True)}


def test_a_crafted_model_reads_one_bit_of_a_client_over_processes(tmp_path, monkeypatch, caplog):
    """No frame says more, also GOODBYE, which tells others; the index would be six bits."""
    sent = list[tuple[Frame, str]]()
    send = Link.send

    async def recording(self, frame, body=b"", more=b""):
        if frame in {Frame.LEAVE, Frame.GOODBYE}:
            sent.append((frame, bodies.parsed(bodies.Reason, body, "peer").reason))
        await send(self, frame, body, more)

    monkeypatch.setattr(Link, "send", recording)
    job = Job(Consortium(tmp_path / "c"), tmp_path / "job", SETTINGS, task_with(asking()))
    loop = OnTask(job)
    with pytest.raises(SecureFLError):
        loop.run()
    left = {r.split(": leaves the round: ")[-1] for frame, r in sent if frame is Frame.LEAVE}
    assert left == {f"{name}, 1/mean: {CANNOT_SEND}" for name in NAMES}
    ended = [reason for frame, reason in sent if frame is Frame.GOODBYE and reason]
    assert any(CANNOT_SEND in reason for reason in ended), "others are told of the first refusal"
    others = "\n".join([*loop.said, *(reason for _, reason in sent)])
    assert not re.search(r"mean\[|±|normalise", others)
    own = {re.match(r"(\w+), 1/mean: mean\[\d+\] = ", line)[1] for line in caplog.messages}
    assert own == {*NAMES}, "each client's log, which nobody else has, says which value it is"
