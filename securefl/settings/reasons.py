"""Reasons why settings are refused: pydantic's errors in the words of keys and values."""

import difflib
from collections.abc import Iterable, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

MAX_ERRORS = 20  # in a message, since settings may have thousands
MAX_REASON = 1000  # characters of one of them
MAX_SHOWN = 200  # characters of a value in a message


def reasons_of(
    error: ValidationError, model: type[BaseModel], within: Sequence[str] = ()
) -> list[str]:
    """Return a reason for each error in what was to be a `model`.

    Args:
        error: pydantic's.
        model: the model that was asked for.
        within: keys that lead to it from the top of the settings.
    """
    found = error.errors(include_url=False)
    causes = _first_causes(found[:MAX_ERRORS])
    reasons = _together(_explained(model, cause, within)[:MAX_REASON] for cause in causes)
    if len(found) > MAX_ERRORS:
        reasons.append(f"and {len(found) - MAX_ERRORS} more")
    return reasons


def _together(reasons: Iterable[str]) -> list[str]:
    """Return each key's reasons as one: of a value that could have been of several kinds."""
    rules: dict[str, list[str]] = {}
    for reason in dict.fromkeys(reasons):
        key, colon, rule = reason.partition(": input should be ")
        rules.setdefault(key + colon, []).append(rule)
    return [key + ", or ".join(of) for key, of in rules.items()]


def _first_causes(errors: Sequence[Any]) -> list[Any]:
    """Return those that do not follow from an error inside: a list of wrong items is too short."""
    places = [error["loc"] for error in errors]
    return [
        error
        for error, place in zip(errors, places, strict=True)
        if not any(len(p) > len(place) and p[: len(place)] == place for p in places)
    ]


def _explained(model: type[BaseModel], error: Any, within: Sequence[str]) -> str:
    loc = error["loc"]
    if loc and isinstance(loc[-1], int):  # one of a list, which no key names
        loc = loc[:-1]
    place = [*within, *_keys_of(model, loc)]
    key = ".".join(place) if place else "settings"
    if error["type"] == "extra_forbidden":
        return f"{key}: no such key{_suggestion(model, error['loc'], within)}"
    if place and place[-1] == "[key]":
        return f"{'.'.join(place[:-1])}: no such key; known here: {error['ctx']['expected']}"
    if error["type"] == "value_error":
        return f"{error['ctx']['error']}"
    said = {
        "missing": f"{key}: is missing, and has no default: write {key} = value",
        "model_type": f"{key} is a table: write {key}.key = value",
    }
    if error["type"] in said:
        return said[error["type"]]
    return _explained_value(key, error, is_one_kind=len(loc) > len(place) - len(within))


def _explained_value(key: str, error: Any, *, is_one_kind: bool) -> str:
    """Explain a value that does not fit; `is_one_kind` where the key takes other kinds, too."""
    said = f"{key} = {shown(error['input'])}"
    if error["type"] == "string_type" and isinstance(error["input"], int | float):
        if is_one_kind:
            return f"{said}: no text in quotes, which would do, too"
        return f"{said}: must be text, write it in quotes"
    # The words of TOML for what pydantic calls otherwise.
    words = {"valid tuple": "valid list", "valid dictionary": "table, such as {name = value}"}
    rule = error["msg"].lower()
    for pydantic, ours in words.items():
        rule = rule.replace(pydantic, ours)
    return f"{said}: {rule}"


def _keys_of(model: type[BaseModel], place: Sequence[str | int]) -> list[str]:
    """Return the keys of a place, without what pydantic adds for the alternatives of a value."""
    keys: list[str] = []
    table: type[BaseModel] | None = model
    for part in place:
        keys.append(str(part))
        field = table.model_fields.get(str(part)) if table else None
        if field is None:
            continue
        kinds = (field.annotation, *get_args(field.annotation))
        table = next((kind for kind in kinds if _is_table(kind)), None)
        if table is None and len(kinds) > 1 and get_origin(field.annotation) in {Union, UnionType}:
            return keys
    return keys


def shown(value: Any) -> str:
    """Return a value as messages show it, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no decimals of an integer of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _suggestion(model: type[BaseModel], place: tuple[str | int, ...], within: Sequence[str]) -> str:
    *tables, unknown = map(str, place)
    for part in place[:-1]:
        if isinstance(part, int):  # one of a list of tables
            continue
        annotation = model.model_fields[part].annotation
        found = [kind for kind in (annotation, *get_args(annotation)) if _is_table(kind)]
        if not found:
            return ""
        (model,) = found
    return suggestion([*within, *tables], unknown, model.model_fields)


def suggestion(tables: Iterable[str], unknown: str, known: Iterable[str]) -> str:
    """Return the known key that is meant, or all of them, to follow a message on an unknown one."""
    known = list(known)
    close = difflib.get_close_matches(unknown, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {'.'.join([*tables, close[0]])}?"
    return f"; known here: {', '.join(known)}"


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
