"""Two states have one digest just where clients would be sent the same model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from securefl.federation.total import state_digest
from securefl.types import Kind, State

FIRST = State(
    3,
    {
        Kind.PARAMETERS: {"b": torch.ones(2, 3), "a": torch.tensor(1.5)},
        Kind.STATISTICS: {"a": torch.zeros(2, dtype=torch.float64)},
    },
    {"kept": torch.ones(1)},
)


def changed(kind, name, value):
    return replace(FIRST, tensors=FIRST.tensors | {kind: FIRST.tensors[kind] | {name: value}})


def test_the_digest_is_of_what_is_sent_alone():
    """Order, memory layout, round and what the server keeps make no difference."""
    turned = {k: dict(reversed(FIRST.tensors[k].items())) for k in reversed(FIRST.tensors)}
    turned[Kind.PARAMETERS]["b"] = torch.ones(3, 2).T
    assert state_digest(State(4, turned)) == state_digest(FIRST)


@pytest.mark.parametrize(
    "other",
    [
        changed(Kind.PARAMETERS, "a", torch.tensor(1.5000001)),
        changed(Kind.PARAMETERS, "a", torch.tensor([1.5])),
        changed(Kind.PARAMETERS, "b", torch.ones(3, 2)),
        changed(Kind.PARAMETERS, "c", torch.ones(0)),
        changed(Kind.STATISTICS, "a", torch.zeros(2, dtype=torch.int64)),
        replace(FIRST, tensors={Kind.MOMENTUM: FIRST.tensors[Kind.PARAMETERS]}),
    ],
)
def test_any_other_model_has_another_digest(other):
    """A value, a shape, a type, a name or a kind."""
    assert state_digest(other) != state_digest(FIRST)


def test_the_digest_is_written_as_it_was():
    """Parties of one run may have been installed at different times."""
    wanted = "df5893e9681dcb01e20a705e21d8af6f364816a9a1333885bb1a71ef277ebdb1"
    assert state_digest(FIRST) == wanted
