"""Key material that stays where it was made or read, and that no text shows."""

from collections.abc import Iterator
from typing import Any, NoReturn, SupportsIndex, final

_FIELDS = "__dataclass_fields__"


class Held:
    """Mixin that can be neither pickled nor copied, nor be taken apart as a dataclass."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A dataclass with slots is made twice, the second time with its fields. `asdict`, `astuple`
        # and `replace` look for them at the instance, and `dataclass` itself at the class.
        if _FIELDS in vars(cls):
            setattr(cls, _FIELDS, _OfTheClass(vars(cls)[_FIELDS]))

    def __reduce__(self) -> NoReturn:
        _refuse(self)

    def __rich_repr__(self) -> Iterator[Any]:
        """Show rich, which would take a dataclass apart, the class alone."""
        return iter(())


@final
class SecretBytes(Held, bytes):
    """Bytes of a secret, which a `repr` does not show, nor a traceback with its variables.

    So are slices of them; what else is made of them is plain bytes.
    """

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return SecretBytes(found) if isinstance(found, bytes) else found

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        _refuse(self)

    def __repr__(self) -> str:
        return f"SecretBytes({len(self)})"

    __str__ = __repr__


class _OfTheClass:
    """Attribute of a class that instances refuse."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __get__(self, instance: object, owner: type) -> Any:
        return self._value if instance is None else _refuse(instance)


def _refuse(held: object) -> NoReturn:
    raise TypeError(f"{type(held).__name__} cannot be pickled or copied")
