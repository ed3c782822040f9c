"""Data sets by the names that the settings use, and the domains that they come in."""

from collections.abc import Callable, Mapping
from pkgutil import resolve_name

import torch

from securefl.data.catalogue import left_out_of, names_by_domain
from securefl.data.files import Domains
from securefl.data.split import Labelled, Split
from securefl.errors import ConfigError
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


def domain_families(data: DataTable) -> Mapping[str, str]:
    """Return each domain's family: a corruption's kind, a folder's own name; no pictures are read.

    Empty where no client differs from the others by its images' domain.

    Raises:
        DataError: the folder of the domains cannot be read.
    """
    if data.traits.listed:
        listed: Callable[[DataTable], Mapping[str, str]] = resolve_name(data.traits.listed)
        return listed(data)
    return data.families


def left_out(data: DataTable) -> frozenset[str]:
    """Return the domains that `data.leave_out` names; none where it is absent.

    Raises:
        ConfigError: it names none, or all of them.
        DataError: the folder of the domains cannot be read.
    """
    families = domain_families(data)
    return left_out_of(families, data.leave_out) if data.leave_out is not None else frozenset()


def leave_out_choices(data: DataTable) -> list[str]:
    """Return the values of `data.leave_out` for leave-one-out: families of corruptions, or domains.

    Raises:
        ConfigError: there are fewer than two.
        DataError: the folder of the domains cannot be read.
    """
    choices = list(dict.fromkeys(domain_families(data).values()))
    if len(choices) < 2:
        raise ConfigError(
            f'data.dataset = "{data.dataset}" has {" and ".join(choices) or "no domain"}: leaving '
            "one out needs two; set data.corruptions of two families, or a data set of domains: "
            + ", ".join(names_by_domain())
        )
    return choices
