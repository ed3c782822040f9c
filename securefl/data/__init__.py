"""Data sets, and their partition into clients."""

from __future__ import annotations

from securefl.data.digits import load_digits
from securefl.data.partition import (
    ClassesPerClient,
    Dirichlet,
    Iid,
    LabelQuantitySkew,
    Partition,
    QuantitySkew,
    parse_partition,
    split_clients,
)
from securefl.data.sizes import Dominant, NormalSizes
from securefl.data.split import Split

__all__ = [
    "ClassesPerClient",
    "Dirichlet",
    "Dominant",
    "Iid",
    "LabelQuantitySkew",
    "NormalSizes",
    "Partition",
    "QuantitySkew",
    "Split",
    "load_digits",
    "parse_partition",
    "split_clients",
]
