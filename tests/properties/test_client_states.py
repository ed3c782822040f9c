"""What clients keep is kept as it was given, each for itself, in no more room than it must have."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from securefl.exchange.layout import Row, Rows
from securefl.runs.checkpoint import Checkpoint
from securefl.simulation.client_state import ClientStates
from securefl.simulation.processes.ipc import packed, unpacked
from securefl.simulation.stacked.block import block_client_state
from securefl.types import ClientState, Kind, State

NAMES = [f"client-{i}" for i in range(5)]
PARTS = ("own", "momentum", "solver", "policy")
F32, F64, I64 = torch.float32, torch.float64, torch.int64
LAYOUTS = (
    {},
    {"w": ((2, 3), F32), "b": ((3,), F32)},
    {"b": ((3,), F32), "w": ((2, 3), F32)},
    {"w": ((2, 3), F64), "b": ((3,), F64)},
    {"w": ((2, 3), F32), "b": ((3,), F64), "n": ((), I64)},
    {"w": ((0, 2), F32), "x": ((), F32)},
    {"w": ((9,), F32)},
)


def drawn(layout, seed):
    rng = torch.Generator().manual_seed(seed)
    return {n: torch.randn(s, generator=rng).mul(99).to(of) for n, (s, of) in layout.items()}


def as_row(named):
    """In one vector, where one type holds all."""
    if len({value.dtype for value in named.values()}) != 1:
        return named
    return Row(torch.cat([value.reshape(-1) for value in named.values()]), named)


def require_same(client_state, expected):
    for part in PARTS:
        found, named = getattr(client_state, part), getattr(expected, part)
        assert set(found) == set(named)
        for name, value in named.items():
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
            assert torch.equal(found[name], value)


said = st.tuples(
    st.sampled_from(NAMES),
    st.fixed_dictionaries({part: st.sampled_from(LAYOUTS) for part in PARTS}),
    st.integers(0, 2**31),
    st.booleans(),
)


@given(st.lists(said, max_size=12))
def test_client_states_are_those_of_a_dict_of_copies(sayings):
    """Whatever is kept by whom, in what order, of what layout, and what becomes of it outside."""
    client_states, expected = ClientStates(NAMES), {name: ClientState() for name in NAMES}
    for name, layouts, seed, rows in sayings:
        given_ = {part: drawn(layout, seed) for part, layout in layouts.items()}
        expected[name] = ClientState(**copy.deepcopy(given_))
        client_states[name] = ClientState(
            **{p: as_row(v) if rows else v for p, v in given_.items()}
        )
        for named in given_.values():
            for value in named.values():
                value.zero_()
            named["more"] = torch.zeros(1)
        for client in NAMES:
            require_same(client_states[client], expected[client])
    assert list(client_states) == NAMES
    assert len(client_states) == len(NAMES)
    assert dict(client_states).keys() == expected.keys()


def kept(value, n=3):
    return ClientState(
        own={"w": torch.full((n,), float(value)), "b": torch.full((2,), float(-value))}
    )


def test_a_population_takes_the_room_of_those_who_have_trained():
    """Rows double in number as they are needed, up to one a client."""
    client_states = ClientStates(f"client-{i}" for i in range(10_000))
    for i in range(0, 10_000, 100):
        client_states[f"client-{i}"] = kept(i)
    (stack,) = client_states._parts["own"]._stacks.values()
    assert len(stack._matrix_KN) == 128
    assert not client_states._parts["momentum"]._stacks
    for i in range(0, 10_000, 100):
        require_same(client_states[f"client-{i}"], kept(i))
    few = ClientStates(NAMES)
    for name in NAMES:
        few[name] = kept(1)
    (stack,) = few._parts["own"]._stacks.values()
    assert len(stack._matrix_KN) == len(NAMES)


def test_rows_of_a_layout_that_nobody_has_any_more_are_let_go():
    """A window that grows from round to round leaves no earlier ones behind."""
    client_states = ClientStates(NAMES)
    for length in range(1, 6):
        for name in NAMES:
            client_states[name] = kept(length, n=length)
    assert len(client_states._parts["own"]._stacks) == 1
    client_states[NAMES[0]] = ClientState()
    client_states[NAMES[1]] = kept(7, n=5)
    client_states[NAMES[2]] = kept(8, n=5)
    require_same(client_states[NAMES[0]], ClientState())
    for name in NAMES:
        client_states[name] = ClientState()
    assert not client_states._parts["own"]._stacks


def test_what_a_client_keeps_as_it_read_it_stays():
    """Also where two of its tensors change places, which lie in the row that they go to."""
    client_states = ClientStates(NAMES)
    client_states["client-0"] = ClientState(solver={"a": torch.ones(3), "b": torch.zeros(3)})
    read = client_states["client-0"]
    client_states["client-0"] = read
    require_same(
        client_states["client-0"], ClientState(solver={"a": torch.ones(3), "b": torch.zeros(3)})
    )
    of = client_states["client-0"].solver
    client_states["client-0"] = ClientState(solver={"a": of["b"], "b": of["a"]})
    require_same(
        client_states["client-0"], ClientState(solver={"a": torch.zeros(3), "b": torch.ones(3)})
    )
    client_states["client-1"] = client_states["client-0"]
    client_states["client-0"] = ClientState()
    require_same(
        client_states["client-1"], ClientState(solver={"a": torch.zeros(3), "b": torch.ones(3)})
    )


def test_nobody_else_is_remembered():
    """Clients are those of the run."""
    client_states = ClientStates(NAMES)
    with pytest.raises(KeyError):
        client_states["client-9"]
    with pytest.raises(KeyError):
        client_states["client-9"] = ClientState()
    assert "client-9" not in client_states


def test_who_keeps_nothing_has_nothing_that_another_could_add_to():
    """One empty state serves all."""
    client_states = ClientStates(NAMES)
    with pytest.raises(TypeError):
        client_states["client-0"].own["w"] = torch.ones(1)
    assert client_states["client-1"] == ClientState()


def test_a_worker_is_sent_one_clients_bytes():
    """Of a matrix of a thousand, its row."""
    client_states = ClientStates(f"client-{i}" for i in range(1000))
    for i, name in enumerate(client_states):
        client_states[name] = ClientState(solver={"w": torch.full((100, 10), float(i))})
    parts = packed(client_states["client-7"])
    assert sum(part.nbytes for part in parts) < 2 * 4000
    found = unpacked([bytearray(part) for part in parts])
    require_same(found, ClientState(solver={"w": torch.full((100, 10), 7.0)}))


def test_what_is_kept_does_not_keep_what_it_was_like():
    """A row of clients side by side is like tensors of all of them."""
    wide = torch.ones(100, 10)
    rows = list(Rows(wide.reshape(10, 100), {"w": wide[:10]}))
    client_states = ClientStates(NAMES)
    client_states["client-0"] = ClientState(solver=rows[0])
    found = client_states["client-0"].solver
    assert {of.untyped_storage().nbytes() for of in found.like.values()} == {4}
    again = pickle.loads(pickle.dumps(rows[0]))
    assert {of.untyped_storage().nbytes() for of in again.like.values()} == {4}
    assert torch.equal(again["w"], wide[:10])


def test_a_checkpoint_gives_back_what_clients_keep(tmp_path):
    """To the bit, each client its own."""
    client_states, n = ClientStates(NAMES), len(LAYOUTS)
    for i, name in enumerate(NAMES[1:]):
        parts = {p: drawn(LAYOUTS[(i + j) % n], i) for j, p in enumerate(PARTS)}
        client_states[name] = ClientState(**parts)
    path = tmp_path / "file"
    state = State(3, {Kind.PARAMETERS: {"w": torch.ones(2)}})
    path.write_bytes(Checkpoint(state, client_states).to_bytes())
    again = ClientStates(NAMES)
    for name, client_state in Checkpoint.read(path).client_states.items():
        again[name] = client_state
    for name in NAMES:
        require_same(again[name], client_states[name])


@pytest.mark.parametrize("who", [(0, 1, 2), (0, 2), (1,), ()], ids=str)
@pytest.mark.parametrize("rows", [True, False], ids=["rows", "tensors"])
def test_clients_side_by_side_have_each_its_own_memory(rows, who):
    """Zeros, or for what is of the model its tensors, for who keeps nothing."""
    model = {"w": torch.full((2, 3), 9.0), "b": torch.full((3,), 8.0)}
    client_states = {f"client-{i}": ClientState() for i in range(3)}
    if rows:
        client_states = ClientStates(client_states)
    for i in who:
        client_states[f"client-{i}"] = ClientState(
            own=drawn(LAYOUTS[1], i), solver=drawn(LAYOUTS[1], 9 + i)
        )
    state = State(0, {Kind.PARAMETERS: model})
    wide = block_client_state(list(client_states.values()), state, torch.device("cpu"))
    assert set(wide.own) == set(wide.solver) == (set(model) if who else set())
    for name in wide.own:
        own = [drawn(LAYOUTS[1], i)[name] if i in who else model[name] for i in range(3)]
        zeros = torch.zeros_like(model[name])
        solver = [drawn(LAYOUTS[1], 9 + i)[name] if i in who else zeros for i in range(3)]
        assert torch.equal(wide.own[name], torch.cat(own))
        assert torch.equal(wide.solver[name], torch.cat(solver))
    assert not wide.momentum


def test_parts_that_change_places_are_read_before_they_are_written():
    """As rows, and as what lies in them."""
    for taken in (lambda named: named, dict):
        client_states = ClientStates(NAMES)
        first, other = ({"w": torch.full((3,), value)} for value in (1.0, 2.0))
        client_states["client-0"] = ClientState(own=first, solver=other)
        client_state = client_states["client-0"]
        client_states["client-0"] = ClientState(
            own=taken(client_state.solver), solver=taken(client_state.own)
        )
        require_same(client_states["client-0"], ClientState(own=other, solver=first))
