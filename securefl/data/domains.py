"""Domains that a data set comes in, known without its samples, and mostly without torch."""

from collections.abc import Callable, Mapping
from pkgutil import resolve_name

from securefl.data.catalogue import left_out_of, names_by_domain
from securefl.errors import ConfigError
from securefl.settings.data import DataTable


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
        ConfigError: one is left out already, or there are fewer than two.
        DataError: the folder of the domains cannot be read.
    """
    if data.leave_out is not None:
        raise ConfigError(
            f'data.leave_out = "{data.leave_out}": leave-one-out leaves out each domain in turn; '
            "leave this setting out"
        )
    choices = list(dict.fromkeys(domain_families(data).values()))
    if len(choices) < 2:
        raise ConfigError(
            f'data.dataset = "{data.dataset}" has {" and ".join(choices) or "no domain"}: leaving '
            "one out needs two; set data.corruptions of two families, or a data set of domains: "
            + ", ".join(names_by_domain())
        )
    return choices
