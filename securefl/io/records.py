"""Records: dataclasses from lines of JSON, for readers that load no library of validators.

To load one takes longer than to follow a run of a hundred rounds.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from securefl.errors import SecureFLError
from securefl.io.json import require_shallow

Record = TypeVar("Record")


def json_object(content: bytes, refusal: type[SecureFLError]) -> dict[str, Any]:
    """Return the object that a JSON text holds, unchecked; raises `refusal` where it holds none."""
    try:
        text = content.decode()
        require_shallow(text, refusal)
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except ValueError as error:
        if isinstance(error, refusal):
            raise
        raise refusal("is no JSON") from None
    if not isinstance(found, dict):
        raise refusal("is no JSON object")
    return found


def record_in(line: bytes, kind: type[Record], refusal: type[SecureFLError]) -> Record:
    """Return the dataclass that a line of JSON holds, by the annotations of its fields.

    These may be float, int, str, enumerations, dataclasses, tuples of one type, mappings from str,
    and any of these or None. Keys that are no fields are passed over.

    Raises:
        SecureFLError: of the kind `refusal`, with the first fault.
    """
    found: Record = _as(kind, json_object(line, refusal), "line", refusal)
    return found


@cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _record(kind: Any, value: dict[str, Any], where: str, refusal: type[SecureFLError]) -> Any:
    types, found = _types(kind), {}
    for field in fields(kind):
        name = field.name
        if name in value:
            found[name] = _as(types[name], value[name], name, refusal)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise refusal(f"{where}: lacks {name}")
    return kind(**found)


def _as(kind: Any, value: Any, where: str, refusal: type[SecureFLError]) -> Any:  # noqa: PLR0911
    """Return a value of JSON as this type; `where` names it."""
    if isinstance(kind, UnionType):
        if value is None and NoneType in get_args(kind):
            return None
        (kind,) = (of for of in get_args(kind) if of is not NoneType)
    of = get_args(kind)
    match value:
        case int() | float() if kind is float and not isinstance(value, bool):
            return float(value)
        case int() if kind is int and not isinstance(value, bool):
            return value
        case str() if kind is str:
            return value
        case str() if isinstance(kind, type) and issubclass(kind, Enum) and value in {*kind}:
            return kind(value)
        case list() if get_origin(kind) is tuple:
            return tuple(_as(of[0], each, where, refusal) for each in value)
        case dict() if get_origin(kind) is Mapping:
            return {key: _as(of[1], each, f"{where}.{key}", refusal) for key, each in value.items()}
        case dict() if is_dataclass(kind):
            return _record(kind, value, where, refusal)
    raise refusal(f"{where:.40}: must be {getattr(kind, '__name__', kind)}")
