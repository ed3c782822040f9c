"""JSON from outside is refused for what a validator would take long over, or take for something."""

from __future__ import annotations

import json
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefl.errors import KeyFileError, MessageRefused
from securefl.io.json import MAX_DEPTH, MAX_KEYS, require_plain
from securefl_keys.key_files import require_no_secret
from securefl_keys.policy import PolicyFile
from securefl_keys.roster import RosterFile
from securefl_keys.sealed_keys import SealedKey

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
