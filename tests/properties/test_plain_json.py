"""JSON from outside is refused for what a validator would take long over, or take for something."""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefl.errors import KeyFileError, MessageRefused, RunFolderError
from securefl.io.json import MAX_DEPTH, MAX_KEYS, require_plain
from securefl.metrics.metric import PooledBy, PooledScore
from securefl.runs.round_metrics import ClientScore, RoundMetrics, round_in
from securefl_keys.key_files import require_no_secret
from securefl_keys.policy import PolicyFile
from securefl_keys.roster import RosterFile
from securefl_keys.sealed_keys import SealedKey

LINE = asdict(
    RoundMetrics(1, 0.25, math.inf, 0.1, 1000, ("a",), 30.0, clients={"a": ClientScore(0.5, 2.0)})
) | {"pooled": {"value": 0.5, "pooling": "sums", "within": 0}, "of a later release": [1]}


def test_a_round_is_read_as_it_was_written():
    """By the types of its fields: a whole number is a float where one is due."""
    read = round_in(json.dumps(LINE).encode())
    pooled = PooledScore(0.5, PooledBy.SUMS, 0.0)
    known = {name: value for name, value in LINE.items() if name != "of a later release"}
    assert asdict(read) == known | {"dropped": ("a",), "pooled": asdict(pooled)}
    assert read.clients["a"] == ClientScore(0.5, 2.0)
    assert type(read.pooled.within) is float


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"round": True}, "round: must be int"),
        ({"round": "1"}, "round: must be int"),
        ({"loss": None}, "loss: must be float"),
        ({"dropped": "a"}, "dropped: must be tuple"),
        ({"clients": {"a": {"score": 1}}}, "clients.a: lacks loss"),
        ({"pooled": {"value": 1, "pooling": "mean"}}, "pooling: must be PooledBy"),
        ({"at": "\ud800"}, "is no JSON"),
    ],
)
def test_a_round_of_other_types_is_refused(changed, said):
    with pytest.raises(RunFolderError, match=said):
        round_in(json.dumps(LINE | changed).encode())
    with pytest.raises(RunFolderError, match="lacks round"):
        round_in(b"{}")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner, max_size=MAX_KEYS),
    max_leaves=20,
)


@given(values)
def test_what_json_writes_is_plain(value):
    """Text or bytes."""
    require_plain(json.dumps(value), KeyFileError)
    require_plain(json.dumps(value).encode(), KeyFileError)


@given(st.text(max_size=MAX_DEPTH) | st.binary(max_size=MAX_DEPTH))
def test_what_is_no_json_is_left_to_its_reader(content):
    """It is refused where it is too deep or one long word, and here it is not long enough."""
    require_plain(content, MessageRefused)


@given(st.text() | st.binary())
def test_any_bytes_pass_or_are_refused(content):
    """Nothing but a typed error comes of them."""
    with suppress(MessageRefused):
        require_plain(content, MessageRefused)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 1}',
        '{"a": {"b": 1, "b": 2}}',
        '[{"b": 1, "b": 2}]',
        json.dumps(dict.fromkeys(map(str, range(MAX_KEYS + 1)))),
        "[" * 10**5,
    ],
    ids=["twice", "twice inside", "twice in a list", "too many", "too deep"],
)
def test_doubles_thousands_and_depths_are_refused(text):
    """By the error that the caller names."""
    with pytest.raises(MessageRefused):
        require_plain(text, MessageRefused)


@pytest.mark.parametrize("kind", [SealedKey, RosterFile, PolicyFile])
def test_thousands_of_unknown_fields_take_no_longer_than_reading_them(kind):
    """Four megabytes; the validator alone took seconds."""
    fields = {f"field-{i}": i for i in range(150_000)}
    started = time.process_time()
    with pytest.raises(KeyFileError, match="more than any has"):
        kind.parse(json.dumps(fields))
    assert time.process_time() - started < 2


@pytest.mark.parametrize("repeated", [b"securefl-", b"securefl-a-", b"PRIVATE KEY-"])
def test_the_search_for_secrets_takes_linear_time(repeated):
    """Whatever is repeated in what it searches."""
    started = time.process_time()
    require_no_secret(repeated * (4 * 2**20 // len(repeated)))
    assert time.process_time() - started < 2
