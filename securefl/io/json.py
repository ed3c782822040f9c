"""Text from outside, JSON or TOML: of bounded depth, words and fields before a parser sees it."""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from securefl.errors import SecureFLError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

MAX_KEYS = 64
"""Most keys in one object: validators name every unknown key, which is slow for thousands."""
MAX_DEPTH = 32
"""Depth of nested lists and tables, and number of parts of a dotted key."""
MAX_WORD = 160
"""Most characters of a key with its number, outside of quotes."""
MAX_VALUES = 200_000
"""Most commas and lines: a validator describes the fault of each, which is slow."""
_MANY_ERRORS = 1000
_SHOWN = 40
_Value = TypeVar("_Value")

# Each quote takes all that follows it, closed or not: no text is looked through twice. What is a
# comment or a quote in TOML alone ends every parser of JSON, so that nothing hides behind it.
_QUOTED = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:""")?'
    r"|'''(?:[^']|'(?!''))*+(?:''')?"
    r'|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+",
    re.DOTALL,
)
_WORD = re.compile(rf"[^\n,\[\]{{}}]{{{MAX_DEPTH},}}")
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKET = bytes(set(range(256)) - set(_STEPS))


def require_shallow(text: str, refusal: type[SecureFLError], max_values: int = MAX_VALUES) -> None:
    """Raises `refusal` for JSON or TOML that is too deep, too long, or has a word without end."""
    bare = _QUOTED.sub("''", text)
    n_values = bare.count(",") + bare.count("\n")
    if n_values > max_values:
        raise refusal(f"{n_values} commas and lines, and there are {max_values} at most")
    brackets = bare.encode(errors="replace").translate(None, _NO_BRACKET)
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_DEPTH:
        raise refusal(f"nested more than {MAX_DEPTH} deep, as no file or message of ours is")
    for found in _WORD.finditer(bare):
        word = found[0].strip()
        if len(word) > MAX_WORD or word.count(".") > MAX_DEPTH:
            raise refusal(
                f"{word[:_SHOWN]!r}…: {len(word)} characters without a quote or a comma, more than "
                f"a key with its number has ({MAX_WORD}, {MAX_DEPTH} of them dots)"
            )


def parsed(
    parser: TypeAdapter[_Value], content: str | bytes, refusal: type[SecureFLError]
) -> _Value:
    """Returns the value that a JSON text holds; raises `refusal`, with the first fault in it."""
    from pydantic import ValidationError

    try:
        text = content if isinstance(content, str) else content.decode()
        require_shallow(text, refusal)
        return parser.validate_json(text)
    except UnicodeDecodeError:
        raise refusal("is no UTF-8 text") from None
    except ValidationError as error:
        raise refusal(fault_in(error)) from None


def fault_in(error: ValidationError) -> str:
    """Returns the place and the rule of the first fault that a validator has found."""
    if error.error_count() > _MANY_ERRORS:  # to spell them out takes longer than to find them
        return f"{error.error_count()} faults"
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "file"
    return f"{where:.{_SHOWN}}: {first['msg']}"


def require_plain(text: str | bytes, refusal: type[SecureFLError]) -> None:
    """Raises `refusal` as `require_shallow`, and for a key that is there twice or for too many.

    Text that is no JSON is left to its parser.
    """

    def checked(pairs: list[tuple[str, object]]) -> None:
        if len(pairs) > MAX_KEYS:
            raise refusal(f"an object of {len(pairs)} fields, more than any has")
        if len({key for key, _ in pairs}) < len(pairs):
            raise refusal("a field is there twice")

    try:
        read = text if isinstance(text, str) else text.decode()
        require_shallow(read, refusal)
        json.loads(read, object_pairs_hook=checked)
    except SecureFLError:
        raise  # some are ValueErrors, too
    except ValueError:
        return
