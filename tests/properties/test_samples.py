"""Mini-batches, and the randomness that they are drawn with."""

from __future__ import annotations

from itertools import chain, islice

import torch
from torch import nn
from torch.nn import functional

from securefl.data.samples import minibatches, samples
from securefl.engines.evaluation import evaluate
from securefl.engines.training import round_generator

CPU = torch.device("cpu")


def drawn(n, batch_size, n_batches, rng):
    data = samples((torch.arange(n).float(), torch.arange(n)), "a client")
    return [y.tolist() for _, y in islice(minibatches(data, batch_size, rng, CPU), n_batches)]


def test_an_epoch_takes_each_sample_once_and_the_next_is_shuffled_anew():
    """Batches are disjoint until a permutation is used up; then comes another permutation."""
    batches = drawn(12, 4, 6, torch.Generator().manual_seed(0))
    first, second = (list(chain.from_iterable(half)) for half in (batches[:3], batches[3:]))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second


def test_every_client_and_every_round_draws_its_own_batches():
    """A generator depends on seed, round and client, and on nothing else."""
    keys = [(s, r, c) for s in (0, 1) for r in (0, 1) for c in (0, 1)]
    orders = {key: tuple(drawn(50, 50, 1, round_generator(*key))[0]) for key in keys}
    assert len(set(orders.values())) == len(keys)
    again = {key: tuple(drawn(50, 50, 1, round_generator(*key))[0]) for key in keys}
    assert orders == again


def test_a_small_client_takes_all_it_has():
    """A batch is never larger than the client's data."""
    assert sorted(drawn(5, 32, 1, torch.Generator())[0]) == list(range(5))


def test_loss_and_accuracy_are_means_over_samples():
    """Also where the last batch of the evaluation is smaller than the others."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(1500, 3, generator=rng), torch.randint(4, (1500,), generator=rng)
    model = nn.Linear(3, 4)
    score = evaluate(model, samples((x, y), "test"), functional.cross_entropy)
    assert abs(score.loss - float(functional.cross_entropy(model(x), y).detach())) < 1e-5
    assert score.accuracy == float((model(x).argmax(1) == y).double().mean())
