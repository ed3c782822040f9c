"""Gradient inversion: what each attacker can do, and that the verdict says it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from securefl.audit.findings import Findings
from securefl.audit.inversion import limits
from securefl.audit.inversion.assumptions import feeding, fixed, measured, recovered_statistics
from securefl.audit.inversion.first_layer import first_linear, inputs_of
from securefl.audit.inversion.gradient_matching import Prior, Search, SeenGradient, match
from securefl.audit.inversion.hidden_statistics import Attacker, compared
from securefl.audit.inversion.rebuilding import attacked, protection
from securefl.audit.inversion.report_section import InversionEffort, inversion_section, likeness
from securefl.audit.inversion.sample_kind import (
    BEST_PSNR,
    ImageKind,
    ReadingKind,
    kind_of,
    matched,
    mean_interval,
    median_interval,
    psnr,
    ssim,
)
from securefl.audit.inversion.target import (
    Assumed,
    NormalisedBatch,
    Target,
    batch_gradient,
    mini_batches,
    pooled,
)
from securefl.audit.inversion.verdict import STATISTICS_SEALED
from securefl.audit.rules import Verdict, decided
from securefl.data.digits import load_digits
from securefl.errors import DataError
from securefl.models.build import build_model

BRIEF = Search(steps=200, restarts=2)
LOSS = functional.cross_entropy
IMAGES = ImageKind((8, 8))
LOSS_2 = functional.mse_loss


@cache
def digits(dtype=torch.float32):
    return load_digits(dtype=dtype)


def model(name="mlp", dtype=torch.float32, norm="batch"):
    sizes = {"in_channels": 1, "n_features": 64, "n_classes": 10}
    return build_model(name, norm, **sizes, seed=3).to(dtype)


def shaped(x, name):
    return x if name == "mlp" else x.view(-1, 1, 8, 8)


def parameters(net):
    return {name: p.detach() for name, p in net.named_parameters()}


def target(normalised=NormalisedBatch.GIVEN, name="mlp", n=40, dtype=torch.float32):
    """Constants are those of other clients' images."""
    d, net = digits(dtype), model(name, dtype)
    other = (shaped(d.train_x[900:932], name), d.train_y[900:932])
    return Target(
        "first round",
        net,
        (shaped(d.train_x[:n], name), d.train_y[:n]),
        (shaped(d.test_x, name), d.test_y),
        normalised,
        measured(net.eval(), other[0]) if normalised is NormalisedBatch.GIVEN else None,
        other if normalised is NormalisedBatch.POOLED else None,
    )


@cache
def single_images():
    """Eight mini-batches of one image, normalised by constants."""
    return attacked(target(), 8, 1, BRIEF, seed=0)


def test_psnr_is_its_formula():
    """A constant error of 0.1 is 20 dB; none at all is the ceiling."""
    flat = np.full((2, 8, 8), 0.5)
    assert psnr(flat, flat + np.array([0.1, 0.0])[:, None, None]) == pytest.approx([20, BEST_PSNR])


def test_an_interval_of_ssim_ends_where_it_can():
    assert mean_interval([1.0, 0.7, 1.0]).high > 1
    assert likeness(np.array([[1.0], [0.7], [1.0]])).high == 1.0


def test_ssim_is_wang_et_als():
    """By hand over the four 7 × 7 windows of an 8 × 8 image, with sample covariances."""
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 8, 8))
    by_hand = []
    for i, j in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        p, q = a[i : i + 7, j : j + 7].ravel(), b[i : i + 7, j : j + 7].ravel()
        cov = np.cov(p, q)
        means = (2 * p.mean() * q.mean() + 1e-4) / (p.mean() ** 2 + q.mean() ** 2 + 1e-4)
        by_hand.append(means * (2 * cov[0, 1] + 9e-4) / (cov[0, 0] + cov[1, 1] + 9e-4))
    assert ssim(a[None], b[None]) == pytest.approx([np.mean(by_hand)])
    assert ssim(a[None], a[None]) == pytest.approx([1.0])


def test_rebuilt_images_are_put_beside_the_originals_they_fit():
    """Whatever order the attacker has them in."""
    images = np.random.default_rng(0).random((8, 8, 8))
    assert (matched(images, images[[3, 1, 7, 0, 2, 6, 5, 4]]) == images).all()


def test_the_interval_of_a_mean_is_students():
    """1, 2, 3: 2 ± 4.303 · 1 / √3."""
    found = mean_interval([1.0, 2.0, 3.0])
    assert (found.value, found.high) == pytest.approx((2.0, 2 + 4.302653 / 3**0.5), abs=1e-5)


def test_the_interval_of_a_median_is_the_sign_tests():
    """Of twenty values the 6th and the 15th: outside lie fewer than 6 heads with 2.07 % each."""
    values = np.random.default_rng(0).permutation(20.0 ** np.arange(20))
    found = median_interval(values)
    assert (found.low, found.high) == (20.0**5, 20.0**14)
    assert found.value == pytest.approx((20.0**9 + 20.0**10) / 2)
    assert median_interval([3.0, 1.0]).high == 3.0


def test_an_error_of_rows_is_in_deviations_of_each_column():
    """By hand: 1 off where σ is 2, and 3 off where it is 1; a column that never varies is none."""
    public = torch.tensor([[-2.0, 1.0, 7.0], [2.0, -1.0, 7.0]])
    kind = ReadingKind.of(public)
    found = kind.measured(np.zeros((1, 3)), np.array([[1.0, -3.0, 50.0]]))
    assert found == pytest.approx([(1 / 2 + 3 / 1) / 2])
    drawn = torch.randn(4000, 1, generator=torch.Generator().manual_seed(0))
    blind = ReadingKind.of(drawn).measured(drawn.numpy(), np.zeros((4000, 1)))
    assert blind.mean() == pytest.approx((2 / np.pi) ** 0.5, abs=0.03)
    with pytest.raises(DataError, match="alike"):
        ReadingKind.of(torch.ones(3, 2))


def test_a_sample_is_an_image_or_readings_by_its_shape_and_range():
    """Flat squares in 0..1 are images; series and tables are not; words cannot be followed."""
    one = torch.rand(5, 64)
    assert kind_of(one, one).shape == (8, 8)
    assert kind_of(one.view(5, 1, 8, 8), one.view(5, 1, 8, 8)).shape == (8, 8)
    assert kind_of(one[:, :49], one[:, :49]).noun == "rows"
    assert kind_of(16 * one, 16 * one).noun == "rows"
    assert kind_of(one.view(5, 16, 4), one.view(5, 16, 4)).shape == (64,)
    with pytest.raises(DataError, match="embedding"):
        kind_of(torch.ones(5, 7, dtype=torch.int64), torch.ones(5, 7, dtype=torch.int64))


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_the_victims_gradient_is_that_of_batch_norm_in_training(name):
    """To the last bits of float64; and its statistics are the batch's."""
    d, net = digits(torch.float64), model(name, torch.float64).train()
    x, y = shaped(d.train_x[:8], name), d.train_y[:8]
    gradient, own = batch_gradient(net, parameters(net), x, y, Assumed(), LOSS)
    functional.cross_entropy(net(x), y).backward()
    for key, p in net.named_parameters():
        torch.testing.assert_close(gradient[key], p.grad, rtol=1e-9, atol=1e-12)
    first = next(iter(own))
    torch.testing.assert_close(net.get_buffer(f"{first}.running_mean"), own[first][0] * 0.1)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_given_statistics_are_constants_of_the_gradient(name):
    """As of batch norm in evaluation, for a single image."""
    d, net = digits(torch.float64), model(name, torch.float64)
    net.train()(shaped(d.train_x[:50], name))
    net.eval()
    given = {
        key: (m.running_mean, m.running_var)
        for key, m in net.named_modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm)
    }
    x, y = shaped(d.train_x[60:61], name), d.train_y[60:61]
    gradient, _ = batch_gradient(net, parameters(net), x, y, Assumed(given), LOSS)
    functional.cross_entropy(net(x), y).backward()
    for key, p in net.named_parameters():
        torch.testing.assert_close(gradient[key], p.grad, rtol=1e-9, atol=1e-12)


def test_fedtans_gradient_is_the_clients_part_of_the_unions():
    """By hand: each client has its own copy of the weights, and BN is over all their images."""
    d, net = digits(torch.float64), model(dtype=torch.float64)
    parts = [slice(0, 3), slice(3, 10)]
    batches = [(d.train_x[s], d.train_y[s]) for s in parts]
    copies = [{k: v.clone().requires_grad_() for k, v in parameters(net).items()} for _ in batches]
    pairs = list(zip(copies, batches, strict=True))
    hidden = torch.cat([functional.linear(x, w["0.weight"], w["0.bias"]) for w, (x, _) in pairs])
    normal = (hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-5).sqrt()
    scores = torch.cat(
        [
            functional.linear(
                (normal[s] * w["1.weight"] + w["1.bias"]).relu(), w["3.weight"], w["3.bias"]
            )
            for w, s in zip(copies, parts, strict=True)
        ]
    )
    functional.cross_entropy(scores, d.train_y[:10]).backward()
    given, totals = pooled(net, LOSS, *batches)
    for weights, (x, y) in pairs:
        found, _ = batch_gradient(net, parameters(net), x, y, Assumed(given, totals), LOSS)
        for key, weight in weights.items():
            share = len(x) / 10
            torch.testing.assert_close(share * found[key], weight.grad, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("batch", [1, 8])
def test_the_gradient_gives_constant_statistics_away(batch):
    """Of the perceptron exactly, of a convolution without bias the ratio μ/σ."""
    for name in ("mlp", "cnn"):
        one = target(name=name, dtype=torch.float64)
        batches = mini_batches(one, 1, batch, torch.Generator().manual_seed(0))
        gradient = {key: g[0] for key, g in batches.gradients.items()}
        found = recovered_statistics(one.model, gradient, one.public[0][:2])
        assert found.keys() == one.given.keys()
        for layer, (mu_C, var_C) in one.given.items():
            sigma_C, told = (var_C + 1e-5).sqrt(), found[layer]
            clear_C = ~told.ratio_C.isnan()
            assert clear_C.double().mean() > 0.3
            torch.testing.assert_close(
                told.ratio_C[clear_C], (mu_C / sigma_C)[clear_C], rtol=1e-6, atol=1e-6
            )
            if name == "cnn":
                assert told.sigma_C.isnan().all()
            else:
                torch.testing.assert_close(told.sigma_C[clear_C], sigma_C[clear_C])


def test_a_layers_front_is_what_feeds_it():
    """By identity of the tensor, not by name or place."""
    assert feeding(model(), digits().test_x[:2]) == {"1": "0"}
    net = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 10))
    assert feeding(net, digits().test_x[:2]) == {}


def test_the_first_layer_shows_its_inputs_whatever_the_statistics():
    """One image always; several where ReLUs are off, but where one's are off, a pair may mix."""
    one = target()
    assert first_linear(one.model, one.public[0]) == "0"
    assert first_linear(target(name="cnn").model, shaped(digits().test_x, "cnn")) is None
    for batch in (1, 2, 4):
        rng = torch.Generator().manual_seed(1)
        seen = mini_batches(one, 1, batch, rng)
        weight, bias = seen.gradients["0.weight"][0], seen.gradients["0.bias"][0]
        found = inputs_of(weight, bias, batch, rng).numpy().reshape(-1, 8, 8)
        originals = seen.x_NB[0].double().numpy().reshape(-1, 8, 8)
        assert (psnr(originals, matched(originals, found)) > 50).sum() >= min(batch, 2)


def test_the_mini_batchs_own_statistics_hide_the_mean_image():
    """Right behind the first linear layer, a shift of all images changes no gradient."""
    d, net = digits(torch.float64), model(dtype=torch.float64)
    x, y, shift = d.train_x[:8], d.train_y[:8], d.test_x[0]
    one, _ = batch_gradient(net, parameters(net), x, y, Assumed(), LOSS)
    other, _ = batch_gradient(net, parameters(net), x + shift, y, Assumed(), LOSS)
    for key in one:
        torch.testing.assert_close(one[key], other[key], rtol=1e-8, atol=1e-12)


def test_single_images_need_exact_statistics_only_of_who_does_not_adapt():
    """20 dB with them, 8 dB less with a fresh layer's; and the adaptive attackers lose nothing."""
    by = {name: one.score_NB.mean() for name, one in single_images().by.items()}
    assert by[Attacker.EXACT] >= 20
    assert by[Attacker.EXACT] >= by[Attacker.NONE] + 8
    assert by[Attacker.DERIVED] >= by[Attacker.EXACT] - 3
    assert by[Attacker.FIRST_LAYER] == BEST_PSNR
    found = protection(single_images())
    assert not found.protects
    assert judged(found) is Verdict.LEAKS


def test_matching_starts_from_the_seed_alone():
    """The same images for the same seed, wherever torch's own generator stands."""
    torch.manual_seed(1)
    one = attacked(target(), 8, 1, Search(5, 1), seed=0)
    torch.manual_seed(2)
    other = attacked(target(), 8, 1, Search(5, 1), seed=0)
    for name in one.by:
        assert (one.by[name].samples == other.by[name].samples).all()


def test_eight_images_in_one_batch_are_reported_as_they_are():
    """Whatever it comes to, with an interval, and batch normalisation of their own."""
    found = attacked(target(NormalisedBatch.BATCH), 4, 8, Search(60, 1), seed=0)
    assert found.by[Attacker.EXACT].score_NB.shape == (4, 8)
    assert Attacker.DERIVED not in found.by
    assert Attacker.FIRST_LAYER not in found.by
    comparison = protection(found)
    assert comparison.difference.low < comparison.difference.value < comparison.difference.high


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_gradient_that_says_nothing_leaves_the_baseline(scale):
    """Zero or noise: no better than the class's mean public image."""
    one, rng = target(), torch.Generator().manual_seed(0)
    batches = mini_batches(one, 8, 1, rng)
    noise = {k: scale * torch.randn(g.shape, generator=rng) for k, g in batches.gradients.items()}
    prior = Prior.of(*one.public, 10, IMAGES.ranges())
    seen = SeenGradient(one.model, noise, batches.y_NB, torch.Size([64]), prior)
    found = match(seen, fixed(one.model, batches.exact, 8), BRIEF, rng).reshape(8, 8, 8)
    originals = batches.x_NB.reshape(8, 8, 8)
    baseline = prior.guess(batches.y_NB).reshape(8, 8, 8)
    gain = psnr(originals.numpy(), found.numpy()) - psnr(originals.numpy(), baseline.numpy())
    assert gain.mean() < 0.5
    if not scale:
        assert gain.mean() > -1.5


def judged(found):
    """The verdict on a run that seals the statistics alone."""
    return decided(STATISTICS_SEALED, found)[0]


def test_the_verdict_follows_the_intervals():
    """Against a baseline of 10 dB: who gains, and whether knowing the statistics adds to it."""

    def found(exact, joint, none=5.0):
        rng = np.random.default_rng(0)

        def around(level):
            return level + 0.1 * rng.standard_normal((8, 1))

        levels = {Attacker.EXACT: exact, Attacker.NONE: none, Attacker.JOINT: joint}
        return compared(
            np.full((8, 1), 10.0),
            {name: around(level) for name, level in levels.items()},
            IMAGES,
        )

    assert judged(found(30, 30.0)) is Verdict.LEAKS
    assert judged(found(30, 40.0)) is Verdict.LEAKS
    assert not found(30, 40.0).protects
    assert judged(found(30, 20.0)) is Verdict.WEAK
    assert found(30, 20.0).protects
    assert judged(found(30, 9.0)) is Verdict.HOLDS
    assert judged(found(9, 9.0)) is Verdict.OPEN
    assert found(30, 20.0, none=25).best is Attacker.NONE


def test_one_lucky_attacker_does_not_hide_a_sure_one():
    """The best on average may be so by two images of eight; another's small gain is certain."""
    rng = np.random.default_rng(0)
    by = {
        Attacker.EXACT: 15 + 0.1 * rng.standard_normal((8, 1)),
        Attacker.DERIVED: 15 + 0.1 * rng.standard_normal((8, 1)),
        Attacker.FIRST_LAYER: np.array([[60.0, 60, 5, 5, 5, 5, 5, 5]]).T,
    }
    found = compared(np.full((8, 1), 10.0), by, IMAGES)
    assert found.best is Attacker.FIRST_LAYER
    assert found.adaptive_gain.low > 0
    assert judged(found) is Verdict.LEAKS


def rows(n_values, loss, length=None):
    """Rows of twelve readings of unlike scales, and targets that depend on them."""
    rng = torch.Generator().manual_seed(4)
    scale = 10.0 ** torch.linspace(-2, 2, 12)
    x = 3 * scale + scale * torch.randn(260, 12, generator=rng)
    y = (x / scale - 3) @ torch.randn(12, n_values, generator=rng)
    y = (y > 0).float() if loss is functional.binary_cross_entropy_with_logits else y
    x = x if length is None else x.view(260, length, -1)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(12, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, n_values)
    )
    net(x[200:])
    parts = [(x[part], y[part]) for part in (slice(0, 60), slice(60, 200))]
    return Target("rows", net, *parts, NormalisedBatch.GIVEN, loss=loss)


@pytest.mark.parametrize("length", [None, 3])
@pytest.mark.parametrize(
    ("n_values", "loss"),
    [(4, functional.binary_cross_entropy_with_logits), (1, functional.mse_loss)],
)
def test_rows_and_series_come_back_within_a_hundredth_of_a_deviation(n_values, loss, length):
    """Of any loss, and beside a guess by targets that are numbers, which beats the mean alone."""
    found = attacked(rows(n_values, loss, length), 8, 1, Search(20, 1), seed=0)
    assert found.kind.errors(found.originals, found.by[Attacker.FIRST_LAYER].samples).max() < 0.01
    assert found.baseline.score_NB.mean() < found.nothing.score_NB.mean()
    assert 0.6 < found.nothing.score_NB.mean() < 1
    assert found.baseline.ssim_NB is None


def test_a_model_without_bn_has_no_statistics_to_hide_and_is_attacked():
    """A linear one gives its row by the first layer; the section speaks of no statistics."""
    given = rows(2, functional.mse_loss)
    net = nn.Linear(12, 2)
    linear = Target(
        "rows", net, given.client, given.public, NormalisedBatch.GIVEN, {}, None, LOSS_2
    )
    section = inversion_section([linear], 0, InversionEffort(8, 2, Search(20, 1)))
    assert section.verdict is Verdict.LEAKS
    assert "could rebuild its rows" in section.words
    assert "recovered 8 of 8" in section.words
    assert not section.trials
    assert "without them" not in section.words
    assert [row[0] for row in section.tables[0].rows][2:] == [
        "exact",
        "first layer (best adaptive)",
    ]


def test_a_sections_words_are_of_rows_where_rows_were_attacked():
    """With errors in σ, smaller being nearer, by the same rules as of images."""
    target = rows(2, functional.mse_loss)
    section = inversion_section([target], 0, InversionEffort(8, 2, Search(20, 1)))
    assert section.verdict is Verdict.LEAKS
    assert "image" not in section.words
    assert "rows" in section.words
    assert not section.pictures
    assert not section.pictures_of_records
    by = {number.name.split(": ")[1]: number for number in section.numbers[:9]}
    assert by["error, first layer"].value < 0.01
    assert by["error, first layer"].unit == "σ"
    assert by["best adaptive less exact"].value == pytest.approx(
        by["error, first layer"].value - by["error, exact"].value, abs=0.2
    )


def test_what_would_take_too_long_is_left_out_and_named(monkeypatch):
    """Of a model too large for mini-batches of eight, single rows alone; of volumes, nothing."""
    given = rows(2, functional.mse_loss)
    about = given.public, NormalisedBatch.GIVEN, {}, None, LOSS_2
    linear = Target("rows", nn.Linear(12, 2), given.client, *about)
    effort = InversionEffort(8, 2, Search(2, 1))
    monkeypatch.setattr(limits, "MOST_OPERATIONS", limits.OF_A_STEP * (2 * 12 * 2) * 7)
    section = inversion_section([linear], 0, effort)
    assert [table.title for table in section.tables] == ["Rebuilt rows: rows, mini-batches of 1"]
    assert section.notes[-1].endswith("says nothing for them: rows, mini-batches of 8")
    monkeypatch.setattr(limits, "MOST_OPERATIONS", 1)
    with pytest.raises(
        DataError, match=r"too large .* rows, mini-batches of 1; rows, mini-batches of 8"
    ):
        inversion_section([linear], 0, effort)
    volumes = torch.zeros(8, 1, 48, 60, 48), torch.zeros(8, dtype=torch.long)
    with pytest.raises(DataError, match="138,240 values, and these attacks are of 12,288"):
        inversion_section([Target("volumes", nn.Flatten(), volumes, *about)], 0, effort)


def test_the_section_is_the_same_every_time():
    """Numbers, tables and pictures, of batches of one and of eight."""
    effort = InversionEffort(8, 2, Search(3, 1))
    one, other = (inversion_section([target(n=16)], 7, effort) for _ in range(2))
    assert Findings("r", "quick", 7, sections=[one]).to_json() == (
        Findings("r", "quick", 7, sections=[other]).to_json()
    )
    assert [p.png for p in one.pictures] == [p.png for p in other.pictures]
    assert one.pictures_of_records
    assert not any("original" in p.title.lower() + p.description.lower() for p in one.pictures)
    assert [len(table.rows) for table in one.tables] == [8, 8]
    assert all(number.low <= number.value <= number.high for number in one.numbers)
    likeness = [number for number in one.numbers if "SSIM" in number.name]
    assert likeness
    assert all(-1 <= number.low <= number.high <= 1 for number in likeness)
    assert "protection" in one.words


def test_what_cannot_be_attacked_is_refused():
    """With a word on what to do."""
    d, good = digits(), target()
    images, public = (d.train_x, d.train_y), (d.test_x, d.test_y)
    with pytest.raises(DataError, match="8 samples at least"):
        Target("x", good.model, (images[0][:7], images[1][:7]), public, NormalisedBatch.GIVEN)
    with pytest.raises(DataError, match="POOLED"):
        Target("x", good.model, images, public, NormalisedBatch.POOLED)
    with pytest.raises(DataError, match="no model"):
        inversion_section([], 0)
    batches = mini_batches(good, 1, 1, torch.Generator().manual_seed(0))
    broken = {k: torch.full_like(g, torch.nan) for k, g in batches.gradients.items()}
    with pytest.raises(DataError, match="not finite"):
        SeenGradient(
            good.model,
            broken,
            batches.y_NB,
            torch.Size([64]),
            Prior.of(*public, 10, IMAGES.ranges()),
        )


def test_the_audited_model_is_left_as_it_was():
    """Its mode, its running statistics and its weights."""
    one = target()
    one.model.train()
    before = {k: v.clone() for k, v in one.model.state_dict().items()}
    attacked(one, 8, 1, Search(2, 1), seed=0)
    assert one.model.training
    assert all((v == before[k]).all() for k, v in one.model.state_dict().items())


@pytest.mark.slow
def test_a_convolutional_network_gives_single_images_away():
    """With exact statistics, and with those of public images."""
    found = attacked(target(name="cnn"), 8, 1, Search(100, 2), seed=0)
    by = {name: one.score_NB.mean() for name, one in found.by.items()}
    assert by[Attacker.EXACT] >= max(20, by[Attacker.NONE] + 8)
    assert by[Attacker.PUBLIC] >= found.baseline.score_NB.mean() + 5
