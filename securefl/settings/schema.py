"""JSON Schema of the settings, by which editors complete and check TOML files."""

import ast
import inspect
from collections.abc import Iterator, Sequence
from itertools import pairwise
from textwrap import dedent
from typing import Any, Literal, get_args

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from securefl.settings.axes import AXES
from securefl.settings.choice import Axis, Choice, OpenChoice
from securefl.settings.table import Table
from securefl.settings.tables import Config

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def settings_schema() -> dict[str, Any]:
    """Return the schema of a file of settings, JSON Schema of draft 2020-12.

    A table of choices is one of its choices' schemas. Of choices of other packages it has the names
    alone, as their code would have to run. Rules between keys are not in it: `securefl run` checks
    them.
    """
    choices: dict[str, tuple[type[Choice], ...]] = {
        axis.table: tuple(axis.own().values()) for axis in AXES
    }
    every = [kind for of in choices.values() for kind in of]
    kinds: list[tuple[type[BaseModel], Literal["validation"]]]
    kinds = [(Config, "validation"), *((kind, "validation") for kind in every)]
    _, found = models_json_schema(kinds, ref_template="#/$defs/{model}")
    defs: dict[str, Any] = found["$defs"]
    for table in (*every, *_tables()):
        texts = _texts(table)
        for key, of in defs[table.__name__].get("properties", {}).items():
            of.pop("title", None)  # the key once more
            if key in texts:
                of["description"] = texts[key]
    schema = defs.pop("Config")
    schema["description"] = schema["description"].partition("\n\nExamples:")[0]
    for axis in AXES:
        for kind in (of_axis := choices[axis.table]):
            _fix_name(axis, one := defs[kind.__name__])
            one["properties"] |= _read_by_others(kind, of_axis)
        refs = [{"$ref": f"#/$defs/{kind.__name__}"} for kind in of_axis]
        schema["properties"][axis.table] = {"anyOf": [*refs, *_of_ones_own(axis)]}
        defs.pop(axis.base.__name__, None)
    return {"$schema": DIALECT, "title": "Settings of SecureFL", **schema, "$defs": defs}


def _tables() -> Iterator[type[Table]]:
    """Yield the classes of the tables that are no choices."""
    for field in Config.model_fields.values():
        for kind in (field.annotation, *get_args(field.annotation)):
            if inspect.isclass(kind) and issubclass(kind, Table) and not issubclass(kind, Choice):
                yield kind


def _fix_name(axis: Axis[Any], schema: dict[str, Any]) -> None:
    """Fix the name in a choice's schema; a table needs it but for the default choice."""
    key = axis.base.key
    name = schema["properties"][key].get("default", axis.default)
    schema["properties"][key] = {"const": name}
    if name != axis.default:
        schema["required"] = [key]


def _read_by_others(kind: type[Choice], kinds: Sequence[type[Choice]]) -> dict[str, Any]:
    """Return keys that other choices alone read: these may stand there with their default."""
    found: dict[str, Any] = {}
    for other in kinds:
        for key, field in other.model_fields.items():
            if key not in kind.model_fields:
                default = {"const": field.get_default(call_default_factory=True)}
                found[key] = default if found.get(key, default) == default else False
    return found


def _of_ones_own(axis: Axis[Any]) -> list[dict[str, Any]]:
    """Return the schema of choices that are named as `module:Class`, or by an installed package."""
    if not axis.open_base:
        return []
    names = [{"pattern": "^[^:]+:[^:]+$", "type": "string"}, {"enum": sorted(axis.installed())}]
    name = {"anyOf": names, "description": "module:Class"}
    return [{"type": "object", "properties": {"name": name}, "required": ["name"]}]


def _texts(table: type[Any]) -> dict[str, str]:
    """Return the text under each key of a table, its own and those that it inherits."""
    found: dict[str, str] = {}
    for kind in reversed(table.__mro__):
        if not kind.__module__.startswith("securefl.") or kind is OpenChoice:
            continue
        (body,) = ast.parse(dedent(inspect.getsource(kind))).body
        lines = body.body if isinstance(body, ast.ClassDef) else []
        for key, text in pairwise(lines):
            match key, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(words))):
                    found[name] = " ".join(words.split())
    return found
