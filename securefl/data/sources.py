"""Samples of data sets by the names that the settings use."""

from collections.abc import Callable
from pkgutil import resolve_name

import torch

from securefl.data.files import Domains
from securefl.data.split import Labelled, Split
from securefl.settings.data import DataTable


def load_split(data: DataTable, seed: int, dtype: torch.dtype) -> Split:
    """Load the samples of a data set that a partition deals to clients.

    Images are (n, channels, height, width), readings (n, features).

    Raises:
        DataError: a file is missing or damaged; the message says what to put where.
    """
    read: Callable[[DataTable, int], Split] = resolve_name(data.traits.reader)
    return read(data, seed).to(dtype)


def load_domains(data: DataTable, seed: int, dtype: torch.dtype) -> Domains:
    """Load the samples of a data set that comes by domain.

    Images are (n, channels, height, width), readings (n, features).

    Raises:
        DataError: a file is missing or damaged; the message says what to put where.
    """
    read: Callable[[DataTable, int], Domains] = resolve_name(data.traits.reader)
    return {name: _of_type(domain, dtype) for name, domain in read(data, seed).items()}


def _of_type(domain: Labelled | Split, dtype: torch.dtype) -> Labelled | Split:
    if isinstance(domain, Split):
        return domain.to(dtype)
    x, y = domain
    return x.to(dtype), y.to(dtype) if y.is_floating_point() else y
