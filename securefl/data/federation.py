"""Federated data: each client's own samples, its test data, and those that no client trains on.

UniFed (Jiang et al., section 4.1.1): each corruption, or each hospital, is a client.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from securefl.data.catalogue import Targets
from securefl.data.corruptions import corrupt
from securefl.data.domains import left_out
from securefl.data.files import Domains
from securefl.data.partition import Partition, parse_partition, split_clients
from securefl.data.public import carve_public, check_disjoint
from securefl.data.quality import Quality, spoilt_clients
from securefl.data.samples import samples
from securefl.data.skew import noise_ladder, skewed_clients
from securefl.data.split import TEST_SHARE, Labelled, Split, n_outputs
from securefl.errors import ConfigError, DataError
from securefl.settings.data import DataTable

_MIN_PER_DOMAIN = 6  # a fifth of fewer is less than two samples


# Two are compared by identity: tensors have no single truth value to compare by.
@dataclass(frozen=True, slots=True, eq=False)
class Federation:
    """Samples by client, each with its label or its targets."""

    clients: Sequence[Labelled]
    test: Labelled
    n_outputs: int
    """Number of outputs of a model for a sample: one a class, one a number, or one risk."""
    client_tests: Sequence[Labelled] = ()
    """Test data in the order of `clients`; empty where all share `test`."""
    external: Mapping[str, Labelled] = field(default_factory=dict)
    """Samples of clients that do not train, by domain."""
    public: Labelled | None = None
    """Samples that nobody else here has, as they came."""
    qualities: Sequence[Quality] = ()
    """Qualities in the order of `clients`; empty where none are drawn."""

    def flat(self) -> "Federation":
        """Return the same, with each sample as one row of values."""
        return replace(
            self,
            clients=[_flat(data) for data in self.clients],
            test=_flat(self.test),
            client_tests=[_flat(data) for data in self.client_tests],
            external={name: _flat(data) for name, data in self.external.items()},
            public=_flat(self.public) if self.public else None,
        )


def load_federation(
    data: DataTable, seed: int, dtype: torch.dtype, n_public: int = 0
) -> Federation:
    """Load the clients that the settings describe; the same settings and seed give the same ones.

    `n_public` training samples are nobody's: they are set aside before clients get theirs.

    Raises:
        ConfigError: the partition, a quality, a corruption or what is left out does not fit the
            data, or public samples are asked of domains.
        DataError: a file is missing or damaged, a domain is too small, or the data do not give so
            many public samples.
    """
    if n_public and data.traits.by_domain:
        raise ConfigError(
            f'data.dataset = "{data.dataset}" comes by domain: public samples are set aside of '
            "data that a partition deals"
        )
    # Both refuse wrong names before a large data set is read.
    external, partition = left_out(data), parse_partition(data.partition)
    if data.traits.by_domain:
        return by_domain(_load_domains(data, seed, dtype), external, seed, data.traits.targets)
    split, public = _load_split(data, seed, dtype), None
    if n_public:
        public, split = _set_aside(split, n_public, seed)
    rng = np.random.default_rng(seed)
    clients = _dealt(split, partition, data, rng)
    outputs = n_outputs(data.traits.targets, split.train_y, split.test_y)
    found = Federation(clients, (split.test_x, split.test_y), outputs, public=public)
    if data.quality:
        # In one order, whatever the settings' is: parties deal alike.
        shares = {kind: data.quality[kind.value] for kind in Quality if kind.value in data.quality}
        spoilt, qualities = spoilt_clients(clients, shares, rng)
        found = replace(found, clients=spoilt, qualities=qualities)
    elif data.corruptions:
        found = _by_corruption(found, external, data, seed)
    return found


def by_domain(
    domains: Domains,
    external: frozenset[str],
    seed: int,
    targets: Targets = Targets.CLASSES,
) -> Federation:
    """Make a client per domain that tests on a fifth of its samples; `external` ones test on all.

    A domain that comes as a `Split` is tested on its own test samples in the place of that fifth.

    UniFed's shares: it trains on 0.7 or 0.8, tests on 0.2, and holds a validation share to choose
    a model by, which nothing does here. Which fifth depends on the seed and the number of images
    alone. So CIFAR-10-C, which has the same photographs in every corruption, holds out the same
    ones everywhere, and no client is tested on a photograph that another one has learnt. External
    clients are tested on all they have, as in the paper: there on photographs that were learnt
    under other corruptions.

    `test` is the union of the clients' own tests.

    Raises:
        DataError: a domain has too few images to hold some out.
    """
    splits = [_divided(name, domains[name], seed) for name in domains if name not in external]
    tests = [(split.test_x, split.test_y) for split in splits]
    whole = {name: _whole(domain) for name, domain in domains.items()}
    return Federation(
        clients=[(split.train_x, split.train_y) for split in splits],
        test=(torch.cat([x for x, _ in tests]), torch.cat([y for _, y in tests])),
        n_outputs=n_outputs(targets, *(y for _, y in whole.values())),
        client_tests=tests,
        external={name: _shuffled(data, seed) for name, data in whole.items() if name in external},
    )


def _by_corruption(
    dealt: Federation, external: frozenset[str], data: DataTable, seed: int
) -> Federation:
    """Corrupt each client's own images, and for each the whole test set, which it is tested on.

    So all are tested on the same images, which no client has learnt under any corruption. `test`
    is the clean test set.
    """
    names, clients = data.corruptions, dealt.clients
    tests: dict[str, Labelled] = {}
    spoilt = list(clients)
    for i, name in enumerate(names):
        # A generator each: what is left out does not change the others' images.
        rng = np.random.default_rng((seed, i))
        tests[name] = _corrupted(dealt.test, name, data.severity, rng)
        for k in range(i, len(clients), len(names)):
            spoilt[k] = _corrupted(clients[k], name, data.severity, rng)
    holders = [(k, names[k % len(names)]) for k in range(len(clients))]
    return replace(
        dealt,
        clients=[spoilt[k] for k, name in holders if name not in external],
        client_tests=[tests[name] for _, name in holders if name not in external],
        external={name: tests[name] for name in names if name in external},
    )


def _dealt(
    split: Split, partition: Partition, data: DataTable, rng: np.random.Generator
) -> Sequence[Labelled]:
    """Deal the training data out; ConfigError as of `split_clients`, with the table of its key."""
    x, y = split.train_x, split.train_y
    noises = noise_ladder(data.clients, data.feature_noise) if data.feature_noise else ()
    try:
        if noises:
            return skewed_clients(x, y, partition, noises, rng)
        parts = split_clients(y.numpy(), data.clients, partition, rng)
    except ConfigError as error:
        raise ConfigError(f"data.{error}") from None
    return [(x[part], y[part]) for part in map(torch.from_numpy, parts)]


def _set_aside(split: Split, n_public: int, seed: int) -> tuple[Labelled, Split]:
    """Return public samples and the rest, checked before anything that clients do to theirs."""
    public, rest = carve_public(split, n_public, seed)
    others = {
        "the training data": (rest.train_x, rest.train_y),
        "the test data": (rest.test_x, rest.test_y),
    }
    _check_disjoint(public, others)
    return public, rest


def _check_disjoint(public: Labelled, others: Mapping[str, Labelled]) -> None:
    by_owner = {owner: samples(data, owner) for owner, data in others.items()}
    check_disjoint(samples(public, "the public set"), by_owner)


def _corrupted(data: Labelled, name: str, severity: int, rng: np.random.Generator) -> Labelled:
    x, y = data
    return torch.from_numpy(corrupt(x.numpy(), name, severity, rng)), y


def _divided(name: str, domain: Labelled | Split, seed: int) -> Split:
    """Return a domain's own split; of one that has none, with a fifth to test on."""
    if isinstance(domain, Split):
        return domain
    x, y = domain
    train, held_out = _held_out(name, len(y), seed)
    return Split(x[train], y[train], x[held_out], y[held_out])


def _whole(domain: Labelled | Split) -> Labelled:
    if not isinstance(domain, Split):
        return domain
    x = torch.cat([domain.train_x, domain.test_x])
    return x, torch.cat([domain.train_y, domain.test_y])


def _held_out(domain: str, n: int, seed: int) -> tuple[Int64[Tensor, " _"], Int64[Tensor, " _"]]:
    """Return indices that train and indices that test, in random order."""
    from sklearn.model_selection import train_test_split

    if n < _MIN_PER_DOMAIN:
        raise DataError(
            f"domain {domain}: {n} images; a fifth is held out for testing, so it needs "
            f"at least {_MIN_PER_DOMAIN}"
        )
    train, held_out = train_test_split(np.arange(n), test_size=TEST_SHARE, random_state=seed)
    return torch.from_numpy(train), torch.from_numpy(held_out)


def _shuffled(data: Labelled, seed: int) -> Labelled:
    # Folders come class by class; statistics of a batch would be those of one class.
    x, y = data
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
    return x[order], y[order]


def _flat(data: Labelled) -> Labelled:
    x, y = data
    return x.flatten(1), y


def _load_split(data: DataTable, seed: int, dtype: torch.dtype) -> Split:
    """Load the samples of a data set that a partition deals to clients.

    Images are (n, channels, height, width), readings (n, features).

    Raises:
        DataError: a file is missing or damaged; the message says what to put where.
    """
    read: Callable[[DataTable, int], Split] = resolve_name(data.traits.reader)
    return read(data, seed).to(dtype)


def _load_domains(data: DataTable, seed: int, dtype: torch.dtype) -> Domains:
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
