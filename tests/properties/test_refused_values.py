"""NaN, infinity and what is out of range are refused before they are sealed, and named."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils.data import TensorDataset

import securefl
from securefl.algorithms.federated import Federated
from securefl.algorithms.normalisation.client_bn import ClientBN
from securefl.errors import ConfigError, DataError, Diverged, TooFewContributions, ValueRefused
from securefl.exchange.layout import pack, unpack
from securefl.exchange.plain import PlainChannel
from securefl.federation.client import Client
from securefl.federation.contribution import CANNOT_SEND
from securefl.types import Contribution, Kind, MessageSpec

pytestmark = pytest.mark.usefixtures("quick")

CKKS_LIMIT = 8192.0
LIMITS = {"float32": float(np.finfo("f4").max), "float64": float(np.finfo("f8").max)}
DTYPES = {"float32": torch.float32, "float64": torch.float64}

shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.float64])
out_of_numbers = st.sampled_from([float("nan"), float("inf"), float("-inf")])
out_of_range = st.sampled_from([8193.0, -8193.0, 8192.001, 1e20, -1e30])


class RecordingSealer:
    """Seals nothing, and knows what it was asked to."""

    form, key_id = "none", ""

    def __init__(self):
        self.sealed = []

    def max_value(self, n_values):
        return CKKS_LIMIT

    def gains(self, spec):
        return 1.0

    def seal(self, values, weight, *_message):
        self.sealed.append(values)
        return b""


def tensors_with(shape, dtype, index, value):
    """Three tensors, the second with one bad value."""
    bad = torch.zeros(shape, dtype=dtype)
    bad[index] = value
    return {"0.weight": torch.ones(2, 3, dtype=dtype), "1.bias": bad, "2.x": torch.ones(4)}


def index_in(shape, data):
    return tuple(data.draw(st.integers(0, n - 1)) for n in shape)


@settings(deadline=None)
@given(
    shape=shapes,
    dtype=dtypes,
    value=out_of_numbers | out_of_range,
    kind=st.sampled_from(list(Kind)),
    data=st.data(),
)
def test_a_refusal_names_tensor_index_and_value(shape, dtype, value, kind, data):
    """Whatever is refused of whatever kind, nothing is sealed and the message says where it is."""
    index = index_in(shape, data)
    sealer = RecordingSealer()
    client = Client("client-7", 0.5, dict.fromkeys(Kind, sealer))
    spec = MessageSpec(f"update/{kind}", kind, 10)
    with pytest.raises(ValueRefused) as caught:
        client.contribute("ab" * 32, 1, spec, tensors_with(shape, dtype, index, value))
    assert sealer.sealed == []
    text = str(caught.value)
    said = re.fullmatch(r"client-7, (\S+): 1\.bias\[([\d, ]*)\] = (\S+) must be (.+)", text)
    assert said, text
    assert said[1] == spec.name
    assert said[2] == ", ".join(map(str, index))
    stored = torch.tensor(value, dtype=dtype).item()
    assert float(said[3]) == pytest.approx(stored, rel=1e-5, nan_ok=True)
    assert said[4].startswith("within ±8192" if np.isfinite(value) else "a finite number")


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 9000.0])
def test_the_first_of_several_is_named(dtype, value):
    """Of many bad values the first tensor's first is named."""
    tensors = tensors_with((2, 3), dtype, (1, 0), value) | {"2.x": torch.full((4,), float("nan"))}
    tensors["1.bias"][1, 2] = float("inf")
    with pytest.raises(ValueRefused, match=re.escape("1.bias[1, 0]")):
        pack("client-1, m", tensors, CKKS_LIMIT)


@settings(deadline=None)
@given(
    values=st.lists(st.floats(-CKKS_LIMIT, CKKS_LIMIT), min_size=1, max_size=20),
    dtype=dtypes,
)
@example([CKKS_LIMIT, -CKKS_LIMIT, 0.0, -0.0, 5e-324], torch.float64)
@example([CKKS_LIMIT, -CKKS_LIMIT], torch.float32)
def test_what_is_in_range_is_packed_and_unpacked(values, dtype):
    """The bounds themselves are allowed, and each tensor comes back with its shape and type."""
    tensor = torch.tensor(values, dtype=dtype)
    tensors = {"a": tensor, "b": tensor[:1].reshape(()), "c": tensor[:0]}
    packed = pack("m", tensors, CKKS_LIMIT)
    assert packed.dtype == (np.float64 if dtype is torch.float64 else np.float32)
    for name, back in unpack(packed, tensors).items():
        assert back.dtype == dtype
        assert back.shape == tensors[name].shape
        assert torch.equal(back, tensors[name])


@pytest.mark.parametrize("beyond", [np.nextafter(CKKS_LIMIT, np.inf), -CKKS_LIMIT - 1e-9])
def test_the_bound_is_exact(beyond):
    """The next double beyond the bound is refused."""
    with pytest.raises(ValueRefused, match=r"w\[0\]"):
        pack("m", {"w": torch.tensor([beyond], dtype=torch.float64)}, CKKS_LIMIT)


def test_a_value_just_out_of_range_is_told_from_the_bound():
    """The value that a refusal names is not the bound itself."""
    with pytest.raises(ValueRefused) as caught:
        pack("m", {"w": torch.tensor([8192.001], dtype=torch.float64)}, CKKS_LIMIT)
    assert "= 8192 must" not in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [
        (torch.float32, "float32"),
        (torch.float64, "float64"),
        (torch.float64, "float32"),
        (torch.float32, "float64"),
        (torch.float16, "float32"),
        (torch.bfloat16, "float32"),
    ],
    ids=str,
)
def test_infinity_is_refused_in_the_clear(dtype, limit):
    """Plain channels refuse infinity in tensors as narrow as their own type, and narrower."""
    for value in (float("-inf"), float("inf")):
        with pytest.raises(ValueRefused, match=r"w\[1\] = -?inf must be a finite number"):
            pack("m", {"w": torch.tensor([0.0, value], dtype=dtype)}, LIMITS[limit])


@settings(deadline=None)
@given(dtype=st.sampled_from(list(DTYPES)), value=out_of_numbers, kind=st.sampled_from(list(Kind)))
def test_plain_clients_refuse_too(dtype, value, kind):
    """Nothing that is not finite leaves a client in the clear either."""
    client = Client("client-1", 0.5, dict.fromkeys(Kind, PlainChannel(dtype)))
    tensors = {"w": torch.tensor([1.0, value], dtype=DTYPES[dtype])}
    with pytest.raises(ValueRefused, match=r"client-1, m: w\[1\] = .* must be a finite number"):
        client.contribute("ab" * 32, 1, MessageSpec("m", kind, 2), tensors)


def test_what_float32_cannot_hold_is_refused_in_the_clear():
    """A double that would become infinite on its way is refused before."""
    channel = PlainChannel("float32")
    with pytest.raises(ValueRefused, match=r"w\[0\] = 1e\+39 must be within"):
        pack("m", {"w": torch.tensor([1e39], dtype=torch.float64)}, channel.max_value(1))


class Breaking:
    """FedAvg in which a client whose labels are all 2 contributes `value` in some rounds."""

    def __init__(self, value, kind, rounds):
        fedavg = Federated()
        self.plan, self.init, self.update = fedavg.plan, fedavg.init, fedavg.update
        self.value, self.kind, self.rounds = value, kind, rounds

    def client(self, state, work, exchange):
        contribution = Federated().client(state, work, exchange)
        if state.round + 1 in self.rounds and (next(work.batches)[1] == 2).all():
            first = next(iter(contribution.tensors[self.kind].values()))
            first.view(-1)[1] = self.value
        return contribution


def with_marked_clients(task, *numbers):
    """The task's clients, of which some have the label 2 alone."""
    return [
        (x, torch.full_like(y, 2) if number in numbers else y.clamp_max(1))
        for number, (x, y) in enumerate(task.clients, 1)
    ]


def dropped(result):
    return [metrics.dropped for metrics in result.metrics]


def assert_finite(result):
    assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())


@pytest.mark.usefixtures("no_hang")
@pytest.mark.parametrize("encrypt", ["none", "statistics", "model"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    ("kind", "value"),
    [(Kind.PARAMETERS, float("nan")), (Kind.STATISTICS, float("-inf"))],
)
def test_a_client_that_diverges_in_one_round_drops_out_of_it(
    tiny_config, tiny_task, encrypt, dtype, kind, value, caplog
):
    """The round goes on with the others, its own log says why, and the client comes back."""
    task = tiny_task(dtype=dtype, algorithm=Breaking(value, kind, {2}))
    task = replace(task, clients=with_marked_clients(task, 4))
    config = tiny_config(
        run={"rounds": 3}, algorithm={"name": "fedavg"}, exchange={"encrypt": encrypt}
    )
    result = securefl.run(config, task)
    assert dropped(result) == [(), ("client-4",), ()]
    assert_finite(result)
    (incident,) = result.incidents
    assert (incident.round, incident.client) == (2, "client-4")
    tensor = "0.weight[0, 1]" if kind is Kind.PARAMETERS else "1.running_mean[1]"
    assert incident.reason == f"client-4, update: {CANNOT_SEND}"
    own = f"client-4, update/{kind}: {tensor} = {value:g} must be a finite number"
    assert caplog.messages == [own]
    signers = [set(opening.signers) for opening in result.openings if opening.round == 2]
    assert all(names == {f"client-{i}" for i in (1, 2, 3, 5)} for names in signers)
    assert bool(signers) == (encrypt != "none")


@pytest.mark.usefixtures("no_hang")
@pytest.mark.parametrize("encrypt", ["none", "model"])
@pytest.mark.parametrize(("value", "refused"), [(9000.0, False), (9e6, True), (3e38, True)])
def test_what_ciphertext_cannot_hold_is_refused_in_the_clear_too(
    tiny_config, tiny_task, encrypt, value, refused, caplog
):
    """A client that breaks drops out, and its 3e38 is not all that is left of the model."""
    task = tiny_task(algorithm=Breaking(value, Kind.STATISTICS, {2}))
    task = replace(task, clients=with_marked_clients(task, 4))
    config = tiny_config(algorithm={"name": "fedavg"}, exchange={"encrypt": encrypt})
    result = securefl.run(config, task)
    assert dropped(result) == [(), ("client-4",) if refused else ()]
    assert len(caplog.messages) == refused
    assert all(" must be within ±8.3" in message for message in caplog.messages)


@pytest.mark.usefixtures("no_hang")
@pytest.mark.parametrize("encrypt", ["none", "statistics"])
def test_a_client_of_fedtan_that_diverges_in_one_round_drops_out_of_it(
    tiny_config, tiny_task, encrypt
):
    """A loss of NaN shows in the gradients of the statistics, in the middle of the round.

    Where totals of statistics were opened before, the difference could show it: the round passes.
    """
    calls = []

    def loss(output, y):
        value = functional.cross_entropy(output, y)
        if (y == 2).all():
            calls.append(y)
            return value * float("nan") if len(calls) == 2 else value
        return value

    task = tiny_task(loss=loss, metric="accuracy")
    task = replace(task, clients=with_marked_clients(task, 4))
    config = tiny_config(
        run={"rounds": 3}, algorithm={"local_steps": 1}, exchange={"encrypt": encrypt}
    )
    result = securefl.run(config, task)
    everyone = tuple(f"client-{i}" for i in range(1, 6))
    assert dropped(result) == [(), everyone if encrypt == "statistics" else ("client-4",), ()]
    assert result.incidents[0].name == "1/gradient"
    assert result.incidents[0].client == "client-4"
    assert_finite(result)


@pytest.mark.usefixtures("no_hang")
def test_too_few_that_did_not_diverge_stop_the_run(tiny_config, tiny_task):
    """With three of five clients gone, the other two's total is not opened; the reason is named."""
    task = tiny_task(algorithm=Breaking(float("nan"), Kind.PARAMETERS, {2}))
    task = replace(task, clients=with_marked_clients(task, 1, 2, 3))
    config = tiny_config(algorithm={"name": "fedavg"})
    with pytest.raises(TooFewContributions, match=r"Refused before: client-1.* cannot be sent"):
        securefl.run(config, task)


@pytest.mark.usefixtures("no_hang")
@pytest.mark.parametrize("encrypt", ["none", "statistics", "model"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedtan", "forward-only"])
def test_a_run_that_diverges_says_how_it_would_not(tiny_config, tiny_task, encrypt, algorithm):
    """Where every client's values are refused the run ends, and names the first and the way out."""
    config = tiny_config(
        algorithm={"name": algorithm}, train={"lr": 1e6}, exchange={"encrypt": encrypt}
    )
    steep = tiny_task(
        loss=lambda output, y: 1e35 * functional.cross_entropy(output, y), metric="accuracy"
    )
    with pytest.raises(Diverged, match=r"client-1, \S+: .* cannot be sent.*lower train\.lr"):
        securefl.run(config, steep)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("owner", ["client-3", "the test data"])
def test_inputs_that_are_not_finite_stop_the_run_before_it_starts(
    tiny_config, tiny_task, tmp_path, value, owner
):
    """A NaN or infinity among one client's inputs, or the test's, is a DataError; no folder."""
    task = tiny_task()
    (x, y) = task.test if owner == "the test data" else task.clients[2]
    x = x.clone()
    x[5, 1] = value
    if owner == "the test data":
        task = replace(task, test=(x, y))
    else:
        task.clients[2] = (x, y)
    with pytest.raises(DataError, match=f"{owner}: inputs hold NaN or infinity"):
        securefl.run(tiny_config(), task, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_hang")
def test_values_that_are_seen_only_while_training_cost_their_client_alone(tiny_config, tiny_task):
    """NaN in a Dataset, which nobody reads before, drops its client; the others train."""
    task = tiny_task()
    x, y = task.clients[1]
    task.clients[1] = TensorDataset(torch.full_like(x, float("nan")), y)
    result = securefl.run(tiny_config(), task)
    assert dropped(result) == [("client-2",), ("client-2",)]
    assert_finite(result)


class SpoilingItsOwn:
    """FedBN in which a client whose labels are all 2 ruins what it keeps to itself."""

    def __init__(self):
        inner = Federated(ClientBN("fedbn"))
        self.plan, self.init, self.update, self.inner = inner.plan, inner.init, inner.update, inner

    def client(self, state, work, exchange):
        contribution = self.inner.client(state, work, exchange)
        if state.round == 1 and (next(work.batches)[1] == 2).all():
            next(iter(contribution.client_state.own.values())).view(-1)[0] = float("nan")
        return contribution


def test_a_client_that_ruins_its_own_tensors_harms_nobody(tiny_config, tiny_task):
    """It is out of that round, with a reason, and keeps what it had before."""
    task = tiny_task()
    task = replace(task, clients=with_marked_clients(task, 1), algorithm=SpoilingItsOwn())
    result = securefl.run(tiny_config(exchange={"encrypt": "none"}), task)
    assert dropped(result)[:2] == [(), ("client-1",)]
    assert "its own" in result.incidents[0].reason
    assert_finite(result)


@pytest.mark.parametrize("made", ["init", "plan", "client", "update"])
def test_an_algorithm_that_returns_nothing_is_told_so(tiny_config, tiny_task, made):
    """The message names the method and what it must return."""
    algorithm = SpoilingItsOwn()
    setattr(algorithm, made, lambda *_: None)
    with pytest.raises(ConfigError, match=rf"{made}\(\) gave a NoneType: it must return"):
        securefl.run(
            tiny_config(exchange={"encrypt": "none"}), replace(tiny_task(), algorithm=algorithm)
        )


def test_an_algorithm_that_leaves_out_what_it_plans_is_told_so(tiny_config, tiny_task):
    algorithm = SpoilingItsOwn()
    algorithm.client = lambda *_: Contribution({})
    said = r"a Contribution without .*update/parameters.*, which its plan\(\) lists"
    with pytest.raises(ConfigError, match=said):
        securefl.run(
            tiny_config(exchange={"encrypt": "none"}), replace(tiny_task(), algorithm=algorithm)
        )
