"""Data sets by the names that the settings use, and the domains that they come in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch

from securefl.data.cifar import CIFAR10_C, load_cifar10, load_cifar10_c, load_cifar100
from securefl.data.corruptions import CORRUPTIONS
from securefl.data.digits import load_digits
from securefl.data.files import Domains, check_archive
from securefl.data.folders import (
    camelyon_centers,
    load_camelyon17,
    load_domain_folders,
    picture_domains,
)
from securefl.data.gas_turbine import load_gas_turbine
from securefl.data.mnist import EMNIST_CLASSES, FASHION_MNIST_SHA256, load_emnist, load_mnist
from securefl.data.split import Split
from securefl.errors import ConfigError
from securefl.settings.data import DOMAIN_DATASETS, DataTable

_FROM_FILES: Mapping[str, Callable[[Path], Split]] = MappingProxyType(
    {
        "mnist": load_mnist,
        "fashion-mnist": partial(load_mnist, sha256s=FASHION_MNIST_SHA256),
        **{f"emnist-{split}": partial(load_emnist, split=split) for split in EMNIST_CLASSES},
        "cifar10": load_cifar10,
        "cifar100": load_cifar100,
    }
)

_ARCHIVES = {
    "emnist": ("gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"),
    "cifar10": ("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar100": ("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    "cifar10-c": ("CIFAR-10-C.tar", "56bf5dcef84df0e2308c6dcbcbbd8499"),
}
"""Archive and the MD5 that its publisher names, by data set; EMNIST's six splits are one."""


def load_split(data: DataTable, seed: int, dtype: torch.dtype) -> Split:
    """Load the samples of a data set that a partition deals to clients.

    Images are (n, channels, height, width), readings (n, features).

    Raises:
        DataError: a file is missing or damaged; the message says what to put where.
    """
    if data.dataset == "digits":
        return load_digits(seed, dtype).as_images()
    if data.dataset == "gas-turbine":
        return load_gas_turbine(_root(data), seed, dtype).as_split()
    _check_archive(data)
    split = _FROM_FILES[data.dataset](_root(data))
    return replace(split, train_x=split.train_x.to(dtype), test_x=split.test_x.to(dtype))


def load_domains(data: DataTable, dtype: torch.dtype) -> Domains:
    """Load the images of a data set that comes by domain.

    Raises:
        ConfigError: an unknown corruption.
        DataError: a file is missing or damaged; the message says what to put where.
    """
    _check_archive(data)
    match data.dataset:
        case "cifar10-c":
            domains = load_cifar10_c(_root(data), list(domain_families(data)), data.severity)
        case "camelyon17":
            domains = load_camelyon17(_root(data), data.side, data.n_per_center)
        case _:
            domains = load_domain_folders(_root(data), data.side)
    return {name: (x.to(dtype), y) for name, (x, y) in domains.items()}


def domain_families(data: DataTable) -> Mapping[str, str]:
    """Return each domain's family: a corruption's kind, a folder's own name; no pictures are read.

    Empty where no client differs from the others by its images' domain.

    Raises:
        ConfigError: an unknown corruption.
        DataError: the folder of the domains cannot be read.
    """
    match data.dataset:
        case "cifar10-c":
            return _families(data.corruptions or tuple(CIFAR10_C), CIFAR10_C)
        case "camelyon17":
            return {name: name for name in camelyon_centers(_root(data))}
        case "folders":
            return {name: name for name in picture_domains(_root(data))}
        case _:
            known = {name: corruption.family for name, corruption in CORRUPTIONS.items()}
            return _families(data.corruptions, known)


def left_out(data: DataTable) -> frozenset[str]:
    """Return the domains that `data.leave_out` names; none where it is absent.

    Raises:
        ConfigError: it names none, or all of them, or a corruption is unknown.
        DataError: the folder of the domains cannot be read.
    """
    families = domain_families(data)
    if data.leave_out is None:
        return frozenset()
    found = frozenset(d for d, family in families.items() if data.leave_out in {d, family})
    if not found:
        choices = ", ".join(dict.fromkeys([*families.values(), *families]))
        raise ConfigError(f'data.leave_out = "{data.leave_out}": must be one of {choices}')
    if len(found) == len(families):
        raise ConfigError(
            f'data.leave_out = "{data.leave_out}": leaves nobody to train; have other domains too'
        )
    return found


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
            + ", ".join(DOMAIN_DATASETS)
        )
    return choices


def _families(names: tuple[str, ...], known: Mapping[str, str]) -> Mapping[str, str]:
    for name in names:
        if name not in known:
            raise ConfigError(f'data.corruptions: "{name}" must be one of {", ".join(known)}')
    return {name: known[name] for name in names}


def _check_archive(data: DataTable) -> None:
    kind = "emnist" if data.dataset.startswith("emnist-") else data.dataset
    if kind in _ARCHIVES:
        check_archive(_root(data), *_ARCHIVES[kind])


def _root(data: DataTable) -> Path:
    # The table has refused data sets without a root.
    return Path(data.root or "")
