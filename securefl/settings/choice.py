"""Choices by name: a table of settings of which each choice is declared beside its mathematics.

A choice's file loads no torch at its top, since settings are read and checked before torch is.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args, get_origin

from pydantic import Field, ValidationError, model_validator

from securefl.errors import ConfigError
from securefl.io.allowed_code import is_allowed, not_allowed
from securefl.settings.reasons import reasons_of, shown, suggestion
from securefl.settings.table import Table


class Choice(Table):
    """One choice on an axis: its keys, their defaults, and its traits as class variables."""

    key: ClassVar[str] = "name"
    """Key of the table that says which choice it is."""

    def clashes(self, config: Any) -> Iterator[str]:  # noqa: ARG002
        """Yield reasons why its own keys do not go with the other settings of a `Config`."""
        yield from ()


class OpenChoice(Choice):
    """A choice on an axis to which users add classes of their own."""

    name: str = Field(default="", max_length=200)
    """A choice of your own may leave it out: `module:Class` then."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_given: Any) -> None:
        """Leave out the name where it is a parent's: a class of its own is another choice."""
        parents = [base for base in cls.__mro__[1:] if issubclass(base, OpenChoice)]
        if named(cls) in map(named, parents) and named(cls):
            cls.model_fields["name"] = OpenChoice.model_fields["name"]
            cls.model_rebuild(force=True)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        if isinstance(given, dict) and not given.get("name") and not named(cls):
            return {**given, "name": f"{cls.__module__}:{cls.__qualname__}"}
        return given


Kind = TypeVar("Kind", bound=Choice)


def named(kind: type[Choice]) -> str:
    """Return the name by which settings know a choice; empty for one without a name of its own."""
    field = kind.model_fields.get(kind.key)
    return str(field.default or "") if field else ""


@cache  # each load of settings asks for all of them
def _own(homes: tuple[str, ...], base: type[Kind]) -> dict[str, type[Kind]]:
    return {
        named(kind): kind
        for home in homes
        for kind in vars(import_module(home)).values()
        if isinstance(kind, type)
        and issubclass(kind, base)
        and kind.__module__ == home
        and named(kind)
    }


@dataclass(frozen=True, slots=True)
class Axis(Generic[Kind]):
    """The choices of one table of settings: those of SecureFL, and others that are installed."""

    table: str
    noun: str
    """Name of a choice in words, and of the group of entry points, `securefl.NOUN`."""
    base: type[Kind]
    default: str
    homes: tuple[str, ...]
    """Modules that declare SecureFL's own, in the order in which they are listed."""
    open_base: str = ""
    """Class that a choice of a user's own derives from; empty where there is none."""

    @property
    def group(self) -> str:
        """Group of entry points by which other packages register choices of theirs."""
        return f"securefl.{self.noun}"

    def opened(self) -> type[Kind]:
        """Return the class `open_base`."""
        module, _, name = self.open_base.rpartition(".")
        found: type[Kind] = getattr(import_module(module), name)
        return found

    def takes(self, kind: type[Choice]) -> bool:
        """Return True for a choice of ours on an axis with `open_base`, and one that derives it."""
        if not self.open_base:
            return False
        return kind in self.own().values() or issubclass(kind, self.opened())

    def own(self) -> dict[str, type[Kind]]:
        """Return SecureFL's own choices by name."""
        return dict(_own(self.homes, self.base))

    def is_own(self, kind: type[Choice]) -> bool:
        """Return True for a class that is none of SecureFL's: a subclass of one is none either."""
        return kind not in self.own().values()

    def installed(self) -> dict[str, EntryPoint]:
        """Return the choices that other installed packages register, by name; loads none."""
        points = entry_points(group=self.group) if self.open_base else ()
        return {point.name: point for point in points}

    def by_default(self) -> Kind:
        """Return the choice of settings that name none."""
        return self.own()[self.default]()

    def names(self) -> tuple[str, ...]:
        """Return the names of SecureFL's own choices, in their order, and of installed ones."""
        return tuple(dict.fromkeys([*self.own(), *self.installed()]))

    def those(self, trait: Callable[[type[Kind]], object]) -> str:
        """Return the names of SecureFL's choices of a trait, as a message lists them."""
        return " or ".join(f'"{name}"' for name, kind in self.own().items() if trait(kind))

    def parse(self, given: Any) -> Kind:
        """Return the choice that a table of settings names, with its keys.

        Raises:
            ValueError: no such choice, a key that it does not read, or a value that does not fit.
        """
        if isinstance(given, self.base):
            self._require_unlike_ours(given)
            return given
        if not isinstance(given, Mapping):
            raise ValueError(f"{self.table} is a table: write {self.table}.key = value")  # noqa: TRY004
        name = given.get(self.base.key, self.default)
        if not isinstance(name, str):
            raise ValueError(  # noqa: TRY004  (pydantic collects these alone)
                f"{self._key} = {shown(name)}: must be text, write it in quotes"
            )
        kind = self._kind(name)
        self._require_named(kind, name)
        try:
            return kind.model_validate(self._read(kind, name, {**given, self.base.key: name}))
        except ValidationError as error:
            raise ValueError("; ".join(reasons_of(error, kind, (self.table,)))) from None

    def _require_named(self, kind: type[Kind], name: str) -> None:
        """Raise ValueError for a class that settings name otherwise than it allows."""
        field = kind.model_fields[self.base.key]
        allowed = get_args(field.annotation) if get_origin(field.annotation) is Literal else (name,)
        if name not in allowed:
            ways = [f"take {self._key} = {shown(n)}" for n in allowed if n in self.own()]
            ways.append(f"leave {self.base.key} out of the class, or write {self.base.key}: str")
            raise ValueError(
                f'{self._key} = "{name}": its class is called {" or ".join(map(shown, allowed))} '
                f"by a Literal, and so by no other name: {', or '.join(ways)}"
            )

    def _require_unlike_ours(self, given: Kind) -> None:
        """Raise ConfigError for a choice of one's own under a name of ours: a resume takes ours."""
        kind, name = type(given), getattr(given, self.base.key)
        if self.is_own(kind) and name in self.own():
            raise ConfigError(
                f'{self._key} = "{name}": is SecureFL\'s own, and not {kind.__module__}:'
                f"{kind.__qualname__}: leave {self.base.key} out of the class, or take another"
            )

    @property
    def _key(self) -> str:
        return f"{self.table}.{self.base.key}"

    def _kind(self, name: str) -> type[Kind]:
        if found := self.own().get(name):
            return found
        if self.open_base and ":" in name:
            return self._named_by_class(name)
        if point := self.installed().get(name):
            return self._loaded(name, point.load)
        known = self.names()
        meant = get_close_matches(name, known, n=1, cutoff=0.5)
        ways = [*known, "MODULE:CLASS of your own"] if self.open_base else known
        raise ValueError(
            f"{self._key} = {shown(name)}: "
            f"{f'did you mean {meant[0]}? M' if meant else 'm'}ust be {', '.join(ways[:-1])}, "
            f"or {ways[-1]}"
        )

    def _named_by_class(self, name: str) -> type[Kind]:
        module, _, qualified = name.partition(":")
        if is_allowed(name):
            return self._loaded(name, lambda: getattr(import_module(module), qualified))
        # Of a module that is loaded already, to name a class runs nothing: its __getattr__ would.
        loaded = vars(sys.modules[module]) if module in sys.modules else {}
        if qualified not in loaded:
            raise ValueError(not_allowed(self._key, name))
        return self._loaded(name, lambda: loaded[qualified])

    def _loaded(self, name: str, load: Callable[[], object]) -> type[Kind]:
        try:
            found = load()
        except Exception as error:  # a module of others may raise anything
            raise ValueError(
                f'{self._key} = "{name}": cannot be loaded ({type(error).__name__}: '
                f"{error!s:.200}): install the module here, put its folder into PYTHONPATH, or "
                "mend it"
            ) from error
        # Not a base class of the table alone, which has its keys and does nothing.
        if not (isinstance(found, type) and issubclass(found, opened := self.opened())):
            raise ValueError(  # noqa: TRY004  (pydantic collects these alone)
                f'{self._key} = "{name}": is none that this table takes: derive its class '
                f"from {self.open_base}"
            )
        if found is opened and not isabstract(found):
            raise ValueError(
                f'{self._key} = "{name}": is the class to derive from, and does nothing: name one '
                f"of your own that derives from {self.open_base}"
            )
        if isabstract(found):
            raise ValueError(
                f'{self._key} = "{name}": the class lacks '
                f"{', '.join(sorted(found.__abstractmethods__))}: define what {self.open_base} asks"
            )
        return found

    def _read(self, kind: type[Kind], name: str, given: dict[str, Any]) -> dict[str, Any]:
        """Return what the choice reads; what only others read may stand at their default."""
        read = {}
        for key, value in given.items():
            field = kind.model_fields.get(key)
            if field is not None:
                if value is not None or field.get_default(call_default_factory=True) is None:
                    read[key] = value
                continue
            self._require_default(kind, name, key, value)
        return read

    def _require_default(self, kind: type[Kind], name: str, key: str, value: Any) -> None:
        others = {n: c.model_fields[key] for n, c in self.own().items() if key in c.model_fields}
        if not others:
            known = suggestion((self.table,), key, kind.model_fields)
            raise ValueError(f"{self.table}.{key}: no such key{known}")
        defaults = [f.get_default(call_default_factory=True) for f in others.values()]
        if value is not None and any(value != default for default in defaults):
            readers = " or ".join(f'"{other}"' for other in sorted(others))
            raise ValueError(
                f"{self.table}.{key} = {shown(value)} is read with {self._key} = {readers} "
                f'alone, not with "{name}": leave it out'
            )
