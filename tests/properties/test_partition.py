"""Clients share the samples out: nothing twice, nothing lost, and the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from securefl.data.partition import ClassesPerClient, Dirichlet, Iid, parse_partition, split_clients
from securefl.data.sizes import Dominant, NormalSizes, normal_sizes
from securefl.errors import ConfigError

pytestmark = pytest.mark.shapes

TEN_CLASSES = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 23))

partitions = st.one_of(
    st.just(Iid()),
    st.builds(NormalSizes, st.floats(0.01, 0.99)),
    st.builds(ClassesPerClient, st.integers(1, 12)),
    st.builds(Dirichlet, st.floats(0.5, 1e6)),
)
some_labels = st.builds(
    lambda sizes, seed: np.random.default_rng(seed).permutation(
        np.repeat(np.arange(len(sizes)), sizes)
    ),
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.integers(0, 2**32),
)


def split_or_skip(labels, n_clients, partition, seed):
    try:
        return split_clients(labels, n_clients, partition, np.random.default_rng(seed))
    except ConfigError:
        assume(False)


@given(some_labels, st.integers(1, 12), partitions, st.integers(0, 2**32))
def test_every_sample_goes_to_exactly_one_client(labels, n_clients, partition, seed):
    """Clients hold disjoint samples, two or more each, and all samples between them."""
    clients = split_or_skip(labels, n_clients, partition, seed)
    assert len(clients) == n_clients
    assert min(map(len, clients)) >= 2
    np.testing.assert_array_equal(np.sort(np.concatenate(clients)), np.arange(len(labels)))
    assert all((np.diff(held) > 0).all() for held in clients)


@given(some_labels, st.integers(1, 12), partitions, st.integers(0, 2**32))
def test_the_seed_decides_who_holds_what(labels, n_clients, partition, seed):
    """The same seed gives every client the same samples again."""
    clients = split_or_skip(labels, n_clients, partition, seed)
    again = split_or_skip(labels, n_clients, partition, seed)
    for held, held_again in zip(clients, again, strict=True):
        np.testing.assert_array_equal(held, held_again)


@pytest.mark.parametrize(
    "partition", [Iid(), NormalSizes(0.2), ClassesPerClient(4), Dirichlet(1.0)], ids=str
)
def test_another_seed_gives_another_split(partition):
    """Two seeds do not give the first client the same samples."""
    first, other = (
        split_clients(TEN_CLASSES, 5, partition, np.random.default_rng(seed)) for seed in (0, 1)
    )
    assert not np.array_equal(first[0], other[0])


@given(some_labels, st.integers(1, 12), st.integers(0, 2**32))
def test_iid_shares_are_equal(labels, n_clients, seed):
    """Without skew, no client has more than one sample more than another."""
    sizes = [len(held) for held in split_or_skip(labels, n_clients, Iid(), seed)]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 80), st.integers(0, 3000), st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_drawn_sizes_sum_to_all_samples(n_clients, extra, share, seed):
    """Two or more each, the same for the same seed; the partition deals just these."""
    n_samples, partition = 2 * n_clients + extra, NormalSizes(share)
    sizes = normal_sizes(n_samples, n_clients, partition, np.random.default_rng(seed))
    assert sizes.sum() == n_samples
    assert sizes.min() >= 2
    clients = split_clients(np.zeros(n_samples), n_clients, partition, np.random.default_rng(seed))
    assert [len(held) for held in clients] == sizes.tolist()


@pytest.mark.parametrize("share", [101 / 514, 0.05])
def test_drawn_sizes_have_the_deviation_that_their_share_says(share):
    """FedProf's GasTurbine: N(514, 101²), and as many clients below the mean as above."""
    sizes = normal_sizes(514 * 2000, 2000, NormalSizes(share), np.random.default_rng(0))
    assert sizes.std() == pytest.approx(share * 514, rel=0.05)
    assert (sizes < 514).mean() == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("n_targets", [1, 2])
def test_targets_that_are_numbers_are_dealt_without_looking_at_them(n_targets):
    """As classes would be; a partition by class is refused with the ways out."""
    targets = np.random.default_rng(0).normal(size=(60, n_targets))
    for partition in (Iid(), NormalSizes(0.3)):
        numbers, classes = (
            split_clients(labels, 5, partition, np.random.default_rng(1))
            for labels in (targets, np.arange(60) % 3)
        )
        assert all(map(np.array_equal, numbers, classes))
    for partition in (ClassesPerClient(2), Dominant(0.5), Dirichlet(1.0)):
        with pytest.raises(ConfigError, match=r'deals samples by class, .* write "iid", or "sizes'):
            split_clients(targets, 5, partition, np.random.default_rng(0))


@given(some_labels, st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32))
def test_the_holders_of_a_class_share_it_equally(labels, n_clients, k, seed):
    """No holder of a class has more than one sample of it more than another holder."""
    clients = split_or_skip(labels, n_clients, ClassesPerClient(k), seed)
    n_classes = len(np.unique(labels))
    for name in range(n_classes):
        shares = [
            int((labels[held] == name).sum())
            for i, held in enumerate(clients)
            if (name - i * n_classes // n_clients) % n_classes < k
        ]
        assert max(shares) - min(shares) <= 1
        assert sum(shares) == (labels == name).sum()


@pytest.mark.parametrize(
    ("k", "classes_of_clients"),
    [
        (2, [{1, 2}, {3, 4}, {5, 6}, {7, 8}, {9, 10}]),
        (4, [{1, 2, 3, 4}, {3, 4, 5, 6}, {5, 6, 7, 8}, {7, 8, 9, 10}, {9, 10, 1, 2}]),
        (
            6,
            [
                {1, 2, 3, 4, 5, 6},
                {3, 4, 5, 6, 7, 8},
                {5, 6, 7, 8, 9, 10},
                {7, 8, 9, 10, 1, 2},
                {9, 10, 1, 2, 3, 4},
            ],
        ),
        (
            8,
            [
                {1, 2, 3, 4, 5, 6, 7, 8},
                {3, 4, 5, 6, 7, 8, 9, 10},
                {5, 6, 7, 8, 9, 10, 1, 2},
                {7, 8, 9, 10, 1, 2, 3, 4},
                {9, 10, 1, 2, 3, 4, 5, 6},
            ],
        ),
        (10, [{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}] * 5),
    ],
)
def test_five_clients_hold_the_classes_of_fedtans_appendix_d(k, classes_of_clients):
    """With ten classes, five clients hold k classes each, two further on at each client."""
    clients = split_clients(TEN_CLASSES, 5, ClassesPerClient(k), np.random.default_rng(0))
    # The paper counts classes from 1, the labels from 0.
    assert [set((TEN_CLASSES[held] + 1).tolist()) for held in clients] == classes_of_clients


def test_a_small_alpha_skews_the_classes_and_a_large_one_does_not():
    """Dirichlet shares are near 1/N for a large alpha, and far from it for a small one."""
    labels = np.repeat(np.arange(10), 500)

    def furthest_share(alpha: float) -> float:
        clients = split_clients(labels, 4, Dirichlet(alpha), np.random.default_rng(0))
        counts = np.array([np.bincount(labels[held], minlength=10) for held in clients])
        return float(np.abs(counts / 500 - 1 / 4).max())

    assert furthest_share(1e5) < 0.02
    assert furthest_share(0.1) > 0.5


def test_labels_need_not_count_from_zero():
    """Only which samples share a label matters, not what the label is."""
    rngs = [np.random.default_rng(0) for _ in range(2)]
    plain = split_clients(TEN_CLASSES, 5, ClassesPerClient(4), rngs[0])
    renamed = split_clients(3 * TEN_CLASSES - 7, 5, ClassesPerClient(4), rngs[1])
    for held, held_renamed in zip(plain, renamed, strict=True):
        np.testing.assert_array_equal(held, held_renamed)


@given(
    st.one_of(
        st.just(Iid()),
        st.builds(NormalSizes, st.floats(0, 1, exclude_min=True, exclude_max=True)),
        st.builds(Dominant, st.floats(0, 1, exclude_min=True, exclude_max=True)),
        st.builds(ClassesPerClient, st.integers(1, 999_999_999)),
        st.builds(Dirichlet, st.floats(0, exclude_min=True, allow_infinity=False)),
    )
)
def test_a_partition_is_read_back_from_its_text(partition):
    """What a partition is written as, is what it is read from."""
    assert parse_partition(str(partition)) == partition


@pytest.mark.parametrize("text", ["iid", "sizes:0.2", "classes:2", "dirichlet:0.5", "dirichlet:1"])
def test_a_text_is_given_back_by_its_partition(text):
    """A configuration's text survives being read and written."""
    assert str(parse_partition(text)) == text


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "must have the form"),
        ("IID", "must have the form"),
        ("iid:2", "must have the form"),
        ("classes", "must have the form"),
        ("classes:two", "must have the form"),
        ("classes:2.5", "must have the form"),
        ("classes:0", "at least 1 class"),
        ("classes:-2", "at least 1 class"),
        ("sizes", "must have the form"),
        ("sizes:0.0", "between 0 and 1"),
        ("sizes:-0.1", "between 0 and 1"),
        ("sizes:1.0", "between 0 and 1"),
        ("dirichlet:", "must have the form"),
        ("dirichlet:nan", "must have the form"),
        ("dirichlet:0", "above 0"),
        ("dirichlet:-1", "above 0"),
        ("dirichlet:1e999", "finite"),
    ],
)
def test_a_wrong_text_is_refused_with_the_text_and_the_rule(text, rule):
    """A text that names no partition is a configuration error that shows one that does."""
    with pytest.raises(ConfigError, match=rule) as refused:
        parse_partition(text)
    assert f'partition = "{text.replace("1e999", "inf")}"' in str(refused.value)
    assert any(form in str(refused.value) for form in ("classes:2", "sizes:0.2", "dirichlet:0.5"))


@pytest.mark.parametrize(
    ("labels", "n_clients", "partition", "way_out"),
    [
        (TEN_CLASSES, 0, Iid(), "at least 1"),
        (np.arange(9), 5, Iid(), "at most 4 clients"),
        (np.arange(7), 4, NormalSizes(0.2), "at most 3 clients"),
        (TEN_CLASSES, 5, ClassesPerClient(11), 'write "classes:10" or fewer'),
        (TEN_CLASSES, 3, ClassesPerClient(3), 'write "classes:4" or more.* at least 4 clients'),
        (np.repeat([0, 1], [90, 2]), 4, ClassesPerClient(1), "fewer clients, or more classes"),
        (TEN_CLASSES, 50, Dirichlet(1e-3), "raise alpha, or have fewer clients"),
    ],
)
def test_a_split_that_cannot_be_made_says_the_way_out(labels, n_clients, partition, way_out):
    """Too many clients or too few classes are configuration errors that say what would do."""
    with pytest.raises(ConfigError, match=way_out):
        split_clients(labels, n_clients, partition, np.random.default_rng(0))


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 30))
def test_the_way_out_of_an_unheld_class_is_one(n_classes, n_clients, k):
    """So many classes per client, or so many clients, as the message names leave no class over."""
    labels = np.repeat(np.arange(n_classes), 60)
    enough_k = -(-n_classes // n_clients)
    k = min(k, n_classes)
    enough_clients = -(-n_classes // k)
    rng = np.random.default_rng(0)
    assert split_clients(labels, n_clients, ClassesPerClient(enough_k), rng)
    assert split_clients(labels, enough_clients, ClassesPerClient(k), rng)
