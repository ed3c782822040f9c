"""Rounds of all clients."""

from typing import ClassVar, Literal

from securefl.settings.axes import SelectorChoice


class Everybody(SelectorChoice):
    """All clients that are there, in each round."""

    name: Literal["all"] = "all"
    selects: ClassVar[bool] = False
