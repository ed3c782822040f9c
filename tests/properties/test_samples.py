"""Mini-batches, the randomness that they are drawn with, and what a model scores on them."""

from __future__ import annotations

from itertools import chain, islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import r2_score
from torch import nn
from torch.nn import functional

import securefl
from securefl.algorithms.scoring import evaluate
from securefl.data.samples import in_order, minibatches, samples
from securefl.errors import DataError
from securefl.federation.training import round_generator
from securefl.metrics.r_squared import RSquared

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


@given(st.integers(2, 20), st.integers(1, 25))
def test_in_order_each_sample_comes_once_and_no_batch_is_empty(n, batch_size):
    """All batches but the last have the size that is asked for."""
    batches = list(in_order(samples((torch.arange(n), torch.arange(n)), "test"), batch_size))
    assert torch.equal(torch.cat([y for _, y in batches]), torch.arange(n))
    assert all(len(y) == batch_size for _, y in batches[:-1])
    assert 0 < len(batches[-1][1]) <= batch_size


def test_loss_and_accuracy_are_means_over_samples():
    """Also where the last batch of the evaluation is smaller than the others."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(1500, 3, generator=rng), torch.randint(4, (1500,), generator=rng)
    model = nn.Linear(3, 4)
    score = evaluate(model, samples((x, y), "test"), functional.cross_entropy)
    assert abs(score.loss - float(functional.cross_entropy(model(x), y).detach())) < 1e-5
    assert score.accuracy == float((model(x).argmax(1) == y).double().mean())


@given(
    st.integers(2, 40),
    st.lists(st.integers(1, 3), max_size=2),
    st.integers(0, 2**32 - 1),
    st.floats(-1e3, 1e3),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_r_squared_is_scikit_learns(n, shape, seed, offset, dtype):
    """The plain mean over a sample's targets, however large they are beside their spread."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randn(n, *shape, generator=rng, dtype=dtype) + offset
    output = y + torch.randn(n, *shape, generator=rng, dtype=dtype)
    expected = r2_score(*(v.reshape(n, -1).double().numpy() for v in (y, output)))
    assert RSquared().of(output, y) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_target_that_never_changes_is_met_or_not():
    """As in scikit-learn: 1 and 0, and a mean over targets counts them so."""
    y = torch.tensor([[1.0, 5.0, 1.0], [2.0, 5.0, 1.0], [4.0, 5.0, 1.0]])
    output = y + torch.tensor([0.5, 0.0, 0.1])
    assert RSquared().of(output, y) == pytest.approx(r2_score(y.numpy(), output.numpy()))
    assert RSquared().of(output[:, 1], y[:, 1]) == 1
    assert RSquared().of(output[:, 2], y[:, 2]) == 0


@pytest.mark.parametrize("batch_size", [7, 100, 1024])
def test_a_regression_is_scored_by_r_squared_over_all_its_batches(batch_size):
    """Not by a mean of the batches' own; the targets' mean scores 0, and worse is below it."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(100, 3, generator=rng)
    y = x @ torch.randn(3, 2, generator=rng) + torch.randn(100, 2, generator=rng)
    model, data = nn.Linear(3, 2), samples((x, y), "test")
    score = evaluate(model, data, functional.mse_loss, batch_size=batch_size)
    with torch.no_grad():
        assert score.metric == "r2"
        assert score.value == pytest.approx(
            r2_score(y.double().numpy(), model(x).double().numpy()), abs=1e-6
        )
        assert score.loss == pytest.approx(functional.mse_loss(model(x), y).item(), rel=1e-5)
        model.weight.zero_()
        model.bias.copy_(y.mean(dim=0))
        assert evaluate(model, data, functional.mse_loss).value == pytest.approx(0, abs=1e-6)
        model.bias += 9
    assert evaluate(model, data, functional.mse_loss).value < -1


@pytest.mark.parametrize(
    ("shape", "loss", "rule"),
    [
        ((8,), functional.mse_loss, r"mse_loss needs a target for each output, not .*\(4, 2\)"),
        ((8, 1), functional.mse_loss, "mse_loss needs a target for each output"),
        ((8, 2), functional.cross_entropy, "metric scores the loss cross_entropy.* give one"),
    ],
)
def test_targets_of_another_shape_or_without_a_loss_for_them_are_refused(shape, loss, rule):
    """They would be broadcast, or be taken for shares of classes."""
    with pytest.raises(DataError, match=rule):
        securefl.evaluate(nn.Linear(3, 2), (torch.randn(8, 3), torch.randn(shape)), loss=loss)
