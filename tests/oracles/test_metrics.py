"""Each metric against scikit-learn or a loop by hand, and its sums over sites against the union."""

from __future__ import annotations

import math
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    f1_score,
    r2_score,
    roc_auc_score,
)
from torch import Tensor

from securefl.errors import ConfigError, DataError
from securefl.metrics.auc import N_BINS
from securefl.metrics.by_name import METRICS, is_better, listed, worst_of
from securefl.metrics.calibration import N_BINS as N_CALIBRATION
from securefl.metrics.chosen import chosen_metric
from securefl.metrics.metric import PooledBy

NAN = math.nan
N_SITES = 4


def drawn(seed, n=60, n_classes=4, *, ties=False, shape=()):
    """Return logits and labels in float64; rounded, so that many are equal, with ties."""
    rng = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, n_classes, *shape, generator=rng, dtype=torch.float64)
    labels = torch.randint(n_classes, (n, *shape), generator=rng)
    return (logits.round() if ties else logits), labels


def by_sites(seed, n):
    """Return the places of samples at sites of unequal sizes; one has a single sample."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    cuts = (0, 1, n // 5, n // 2, n)
    return [order[low:high] for low, high in pairwise(cuts)]


def pooled(metric, outputs, targets, sites):
    """Return the value over sites, of the sum of what each measures by itself."""
    return metric.pooled(sum(metric.sums(outputs[at], targets[at]) for at in sites))


def accuracy(logits, labels):
    return accuracy_score(labels, logits.argmax(1))


def balanced_accuracy(logits, labels):
    with warnings.catch_warnings(action="ignore"):  # of one label alone
        return balanced_accuracy_score(labels, logits.argmax(1))


def macro_f1(logits, labels):
    return f1_score(labels, logits.argmax(1), average="macro")


def area(logits, labels):
    """Mean over the classes that have samples and others."""
    p, n = logits.softmax(1), logits.shape[1]
    columns = [(labels == c, p[:, c]) for c in range(n) if 0 < (labels == c).sum() < len(labels)]
    if n == 2:
        columns = columns[1:]
    return np.mean([roc_auc_score(*column) for column in columns]) if columns else NAN


def calibration_error(logits, labels):
    """Bins of confidence as scikit-learn makes them, weighted by their samples."""
    confidence, told = (values.numpy() for values in logits.softmax(1).max(1))
    right = told == labels.numpy()
    edges = np.linspace(0, 1, N_CALIBRATION + 1)
    n_b = np.bincount(np.searchsorted(edges[1:-1], confidence), minlength=N_CALIBRATION)
    with warnings.catch_warnings(action="ignore"):
        of_b, mean_b = calibration_curve(right, confidence, n_bins=N_CALIBRATION)
    return float((np.abs(of_b - mean_b) * n_b[n_b > 0]).sum() / len(labels))


def dice(logits, labels):
    """By a loop over segments; none is the background."""
    told, found = logits.argmax(1), []
    for c in range(1, logits.shape[1]):
        both = ((told == c) & (labels == c)).sum()
        either = (told == c).sum() + (labels == c).sum()
        found += [2 * int(both) / int(either)] if either else []
    return np.mean(found) if found else NAN


OF_CLASSES = {
    "accuracy": accuracy,
    "balanced-accuracy": balanced_accuracy,
    "macro-f1": macro_f1,
    "auc": area,
    "calibration-error": calibration_error,
    "dice": dice,
}


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3, 7])
@pytest.mark.parametrize("name", OF_CLASSES)
def test_of_classes_it_is_scikit_learns_and_over_sites_that_of_the_union(name, n_classes, ties):
    """AUC over sites to its resolution, which the answer names."""
    metric = chosen_metric(name)
    for seed in range(5):
        logits, labels = drawn(seed, n_classes=n_classes, ties=ties)
        wanted = OF_CLASSES[name](logits, labels)
        assert metric.of(logits, labels) == pytest.approx(wanted, abs=1e-12)
        found = pooled(metric, logits, labels, by_sites(seed, len(labels)))
        if name == "auc":
            assert found.pooling is PooledBy.HISTOGRAM
            assert abs(found.value - wanted) <= found.within + 1e-12
            assert 0 <= found.within < (0.5 if ties else 0.02)
        else:
            assert found.pooling is PooledBy.SUMS
            assert (found.value, found.within) == (pytest.approx(wanted, abs=1e-12), 0)


@pytest.mark.parametrize("name", OF_CLASSES)
def test_one_class_alone_is_scored_or_has_no_value(name):
    """No AUC, of which pairs are lacking, and no Dice where nothing is but background."""
    metric, (logits, _) = chosen_metric(name), drawn(0, n=10, n_classes=3)
    logits[:, 0] += 20  # all are told to be of class 0
    labels = torch.zeros(10, dtype=torch.long)
    wanted = {"auc": NAN, "dice": NAN}.get(name)
    if wanted is None:
        wanted = OF_CLASSES[name](logits, labels)
    assert metric.of(logits, labels) == pytest.approx(wanted, abs=1e-12, nan_ok=True)
    found = metric.pooled(metric.sums(logits, labels))
    assert found.value == pytest.approx(wanted, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("name", OF_CLASSES)
def test_a_site_without_a_class_counts_in_the_union(name):
    """Its own value says nothing of the class, or there is none; its samples are others'."""
    metric, (logits, labels) = chosen_metric(name), drawn(3, n=200, n_classes=3)
    sites = [(labels == 2).nonzero()[:, 0], (labels != 2).nonzero()[:, 0]]
    wanted, found = OF_CLASSES[name](logits, labels), pooled(metric, logits, labels, sites)
    assert found.value == pytest.approx(wanted, abs=found.within + 1e-12)
    assert name != "auc" or math.isnan(metric.of(logits[sites[0]], labels[sites[0]]))


@pytest.mark.parametrize("name", OF_CLASSES)
def test_labels_that_the_loss_leaves_out_are_left_out(name):
    metric = chosen_metric(name, torch.nn.CrossEntropyLoss(ignore_index=9))
    logits, labels = drawn(1)
    labels[::3] = 9
    kept = labels != 9
    wanted = OF_CLASSES[name](logits[kept], labels[kept])
    assert metric.of(logits, labels) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("name", OF_CLASSES)
def test_each_pixel_of_a_picture_is_a_sample(name):
    logits, labels = drawn(2, n=3, shape=(5, 4))
    flat = logits.permute(0, 2, 3, 1).reshape(-1, 4), labels.reshape(-1)
    assert chosen_metric(name).of(logits, labels) == pytest.approx(OF_CLASSES[name](*flat))


@pytest.mark.parametrize("name", sorted(OF_CLASSES.keys() - {"accuracy"}))
@pytest.mark.parametrize("shape", [(), (1,), (1, 3, 3)])
def test_one_logit_is_two_classes(name, shape):
    rng = torch.Generator().manual_seed(4)
    logit = torch.randn(40, *shape, generator=rng, dtype=torch.float64)
    labels = torch.randint(2, (40, *shape), generator=rng)
    two = torch.stack([torch.zeros_like(logit), logit]).reshape(2, -1).T
    wanted = OF_CLASSES[name](two, labels.reshape(-1))
    for targets in (labels, labels.double()):
        # Of pictures, AUC takes each pixel for a label of its own; here the area of one.
        at = (slice(None), 0, 0, 0) if name == "auc" and len(shape) > 1 else ...
        if name == "auc" and len(shape) > 1:
            wanted = area(two.reshape(40, -1, 2)[:, 0], labels[at])
        assert chosen_metric(name).of(logit[at], targets[at]) == pytest.approx(wanted)


def test_the_auc_of_several_labels_is_the_mean_over_them():
    rng = torch.Generator().manual_seed(5)
    logits = torch.randn(50, 3, generator=rng, dtype=torch.float64)
    labels = torch.randint(2, (50, 3), generator=rng)
    wanted = roc_auc_score(labels, logits, average="macro")
    assert chosen_metric("auc").of(logits, labels) == pytest.approx(wanted, abs=1e-12)
    found = pooled(chosen_metric("auc"), logits, labels, by_sites(5, 50))
    assert found.value == pytest.approx(wanted, abs=found.within + 1e-12)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e3])
def test_a_histogram_resolves_outputs_of_any_size(scale):
    """A model that has just begun has logits near zero, a sure one far from it."""
    logits, labels = drawn(6, n=400, n_classes=2)
    found = pooled(chosen_metric("auc"), scale * logits, labels, by_sites(6, 400))
    assert found.value == pytest.approx(area(logits, labels), abs=found.within + 1e-12)
    assert found.within < {1.0: 0.003, 30.0: 0.03}.get(scale, 0.3)
    assert len(chosen_metric("auc").sums(logits, labels)) == 2 * N_BINS


def test_label_accuracy_over_sites_is_that_of_the_union():
    rng = torch.Generator().manual_seed(7)
    logits, labels = torch.randn(30, 3, generator=rng), torch.randint(2, (30, 3), generator=rng)
    wanted = float(((logits > 0) == (labels > 0)).double().mean())
    metric = chosen_metric("label-accuracy")
    assert metric.of(logits, labels) == pytest.approx(wanted, abs=1e-12)
    assert pooled(metric, logits, labels, by_sites(7, 30)).value == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(("metric", "worst"), [("auc", "b"), ("calibration-error", "c")])
def test_the_worst_of_some_values_is_so_in_the_metrics_direction(metric, worst):
    """The first of equals."""
    assert worst_of(metric, {"a": 0.5, "b": 0.1, "c": 0.9, "d": 0.1, "e": 0.9}) == worst


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_r2_over_sites_is_scikit_learns_on_the_union(shape):
    rng = torch.Generator().manual_seed(8)
    y = 3 + torch.randn(50, *shape, generator=rng, dtype=torch.float64)
    output = y + torch.randn(50, *shape, generator=rng, dtype=torch.float64)
    metric, wanted = chosen_metric("r2"), r2_score(y.reshape(50, -1), output.reshape(50, -1))
    assert metric.of(output, y) == pytest.approx(wanted, abs=1e-12)
    found = pooled(metric, output, y, by_sites(8, 50))
    assert (found.value, found.pooling) == (pytest.approx(wanted, abs=1e-12), PooledBy.SUMS)


@pytest.mark.parametrize(("met", "wanted"), [(True, 1.0), (False, 0.0)])
def test_a_target_that_never_changes_at_any_site_counts_as_scikit_learn_has_it(met, wanted):
    y = torch.full((20,), 0.5, dtype=torch.float64)
    output = y if met else y + 1
    metric = chosen_metric("r2")
    assert metric.of(output, y) == r2_score(y, output) == wanted
    assert pooled(metric, output, y, by_sites(0, 20)).value == wanted


def c_index(risk, time, event):
    """By hand, pair by pair."""
    pairs = in_order = 0
    for i, j in np.ndindex(len(risk), len(risk)):
        after = time[i] < time[j] or (time[i] == time[j] and not event[j])
        if event[i] and after:
            pairs += 1
            in_order += 1 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0
    return in_order / pairs if pairs else NAN


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("column", [False, True])
def test_the_c_index_is_the_share_of_comparable_pairs_in_order(ties, column):
    for seed in range(5):
        rng = torch.Generator().manual_seed(seed)
        risk = torch.randn(40, generator=rng, dtype=torch.float64)
        time = 5 * torch.rand(40, generator=rng, dtype=torch.float64)
        if ties:
            risk, time = risk.round(), time.ceil()
        event = torch.randint(2, (40,), generator=rng)
        targets = torch.stack([time, event.double()], dim=1)
        found = chosen_metric("c-index").of(risk[:, None] if column else risk, targets)
        assert found == pytest.approx(c_index(risk.tolist(), time.tolist(), event), abs=1e-12)


def test_where_all_events_are_at_two_times_the_c_index_is_scikit_learns_auc():
    rng = torch.Generator().manual_seed(9)
    risk = torch.randn(60, generator=rng, dtype=torch.float64).mul(2).round()
    early = torch.randint(2, (60,), generator=rng)
    targets = torch.stack([2.0 - early, torch.ones(60)], dim=1)
    found = chosen_metric("c-index").of(risk, targets)
    assert found == pytest.approx(roc_auc_score(early, risk), abs=1e-12)


def test_over_sites_the_c_index_is_the_mean_weighted_by_samples_and_named_so():
    """A site without events has no comparable pair, no value, and no part in it."""
    rng = torch.Generator().manual_seed(10)
    risk = torch.randn(40, generator=rng, dtype=torch.float64)
    time, event = torch.rand(40, generator=rng), torch.ones(40)
    event[30:] = 0
    targets, sites = torch.stack([time, event], dim=1), torch.arange(40).split([10, 20, 10])
    metric = chosen_metric("c-index")
    own = [metric.of(risk[at], targets[at]) for at in sites]
    assert math.isnan(own[2])
    found = pooled(metric, risk, targets, sites)
    assert found.pooling is PooledBy.MEAN
    assert found.value == pytest.approx((10 * own[0] + 20 * own[1]) / 30, abs=1e-12)
    none = metric.pooled(metric.sums(risk[30:], targets[30:]))
    assert math.isnan(none.value)


def median_error(outputs: Tensor, targets: Tensor) -> float:
    """Return a function of one's own, which is none of sums."""
    return float((outputs - targets).abs().median())


def test_over_sites_a_function_of_ones_own_is_the_weighted_mean():
    rng = torch.Generator().manual_seed(11)
    outputs, y = torch.randn(2, 30, generator=rng, dtype=torch.float64)
    metric, sites = chosen_metric(median_error), torch.arange(30).split([5, 25])
    own = [median_error(outputs[at], y[at]) for at in sites]
    found = pooled(metric, outputs, y, sites)
    assert found.pooling is PooledBy.MEAN
    assert found.value == pytest.approx((5 * own[0] + 25 * own[1]) / 30, abs=1e-12)


def data_for(name):
    """Return outputs and targets that a metric takes."""
    logits, labels = drawn(12)
    if name == "c-index":
        return logits[:, 0], torch.stack([logits[:, 1], labels % 2], dim=1)
    if name == "r2":
        return logits, logits.roll(1, dims=0)
    return (logits, (logits > 1).long()) if name == "label-accuracy" else (logits, labels)


@pytest.mark.parametrize("name", METRICS)
def test_an_output_that_is_nan_leaves_no_value(name):
    outputs, targets = data_for(name)
    assert math.isfinite(chosen_metric(name).of(outputs, targets))
    outputs[7] = NAN
    assert math.isnan(chosen_metric(name).of(outputs, targets))
    assert math.isnan(chosen_metric(name).pooled(chosen_metric(name).sums(outputs, targets)).value)


@pytest.mark.parametrize("name", METRICS)
def test_data_of_another_form_are_refused_and_the_form_is_told(name):
    outputs, targets = data_for(name)
    for wrong in (targets[:-1], targets.unsqueeze(-1)):
        with pytest.raises(DataError, match=rf"metric {name}: needs .*\(60, ") as refused:
            chosen_metric(name).of(outputs.reshape(60, -1), wrong)
        assert METRICS[name].needs in str(refused.value)


def test_labels_and_events_that_are_neither_0_nor_1_are_refused():
    outputs = torch.randn(4)
    with pytest.raises(DataError, match="labels are 0 or 1"):
        chosen_metric("macro-f1").of(outputs, torch.arange(4))
    with pytest.raises(DataError, match="event is 1"):
        chosen_metric("c-index").of(outputs, torch.arange(8.0).reshape(4, 2))


def test_the_number_of_sums_is_known_of_a_few_samples():
    """The message that they travel in has a length of its own."""
    for name in METRICS:
        outputs, targets = data_for(name)
        sums = chosen_metric(name).sums(outputs, targets)
        assert (sums.dtype, sums.shape) == (torch.float64, (len(sums),))
        assert chosen_metric(name).n_sums(outputs[:4], targets[:4]) == len(sums)


def test_messages_list_every_metric():
    assert all(f'"{name}"' in listed() for name in METRICS)
    with pytest.raises(ConfigError, match=", ".join(METRICS)):
        chosen_metric("auroc")


def test_a_larger_value_is_better_but_for_the_calibration_error():
    assert is_better("auc", 0.9, 0.8)
    assert is_better("median_error", 0.9, 0.8)
    assert is_better("calibration-error", 0.1, 0.2)
    assert not is_better("auc", NAN, 0.8)


def test_the_page_on_sites_has_each_metric_as_it_is_declared():
    said = {"sums": "of sums", "histogram": "of histograms, ± their resolution"}
    page = (Path(__file__).parents[2] / "docs/own-data.md").read_text()
    for name, metric in METRICS.items():
        pooled_as = said.get(metric.pooling, "weighted mean")
        assert f"| `{name}` | {metric.about} | {pooled_as} |\n" in page
