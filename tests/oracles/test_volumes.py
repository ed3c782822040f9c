"""A U-Net of volumes: its loss by hand, FedTAN as centralised, and clients side by side."""

from __future__ import annotations

import copy

import pytest
import torch
from side_by_side import require_same
from torch import nn
from torch.nn import functional

import securefl
from securefl.data.samples import minibatches, samples
from securefl.errors import ConfigError, DataError
from securefl.federation.training import round_generator
from securefl.models.build import build_model
from securefl.settings.load import load_config

SIZES = (3, 5, 2)
LR, SEED = 0.05, 3


def built(norm="batch", width=2, seed=0):
    sizes = {"in_channels": 1, "n_features": 0, "n_classes": 2}
    return build_model("unet", norm, **sizes, width=width, seed=seed).double()


def task(norm="batch", width=2, sides=(5, 8, 4)):
    """Unequal clients whose volumes have other means and scales; masks of a threshold."""
    rng = torch.Generator().manual_seed(0)

    def client(i, n):
        x = torch.randn(n, 1, *sides, generator=rng, dtype=torch.float64)
        return x * (1 + i) + i, (x[:, 0] > 0.5).long()

    clients = [client(i, n) for i, n in enumerate(SIZES)]
    return securefl.Task(built(norm, width), clients, client(1, 4), securefl.dice_loss)


def config(*settings):
    return load_config(
        None,
        [
            "run.rounds=1",
            f"run.seed={SEED}",
            "algorithm.local_steps=1",
            "algorithm.weights=batch",
            "train.batch_size=4",
            f"train.lr={LR}",
            "train.momentum=0.0",
            "exchange.encrypt=none",
            *settings,
        ],
    )


def loss_by_hand(outputs, targets):
    """Sample by sample and class by class, with exponentials and logarithms."""
    total = outputs.new_zeros(())
    for z, t in zip(outputs, targets, strict=True):
        p = z.exp() / z.exp().sum(0)
        entropy = -sum(p[c][t == c].log().sum() for c in range(len(p))) / t.numel()
        dice = [
            (2 * p[c][t == c].sum() + 1) / (p[c].sum() + (t == c).sum() + 1)
            for c in range(1, len(p))
        ]
        total = total + entropy + 1 - sum(dice) / len(dice)
    return total / len(outputs)


@pytest.mark.shapes
def test_dice_loss_is_cross_entropy_and_soft_dice():
    """Value and gradient, of three classes, with a sample that lacks a segment."""
    rng = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 3, 2, 3, 4, generator=rng, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(3, (3, 2, 3, 4), generator=rng)
    targets[1] = 0
    found, expected = (of(outputs, targets) for of in (securefl.dice_loss, loss_by_hand))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    grads = [torch.autograd.grad(loss, outputs)[0] for loss in (found, expected)]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-13)
    sure = 50.0 * functional.one_hot(targets, 3).movedim(-1, 1).double()
    assert float(securefl.dice_loss(sure, targets)) < 1e-12
    for wrong in (outputs[:, :1], outputs[:2], outputs.flatten(1)):
        with pytest.raises(DataError, match=r"give \(batch, classes, \.\.\.\), of two classes"):
            securefl.dice_loss(wrong.detach(), targets)


@pytest.mark.shapes
@pytest.mark.parametrize("norm", ["batch", "group", "layer", "instance", "group-ws", "scaled-ws"])
def test_the_unet_gives_scores_of_each_voxel_whatever_the_sides(norm):
    """Ten convolutions with their norms, a classifier of voxels, and a gradient everywhere."""
    model = built(norm).float()
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv3d)]
    assert [m.out_channels for m in convolutions] == [2, 2, 4, 4, 8, 8, 4, 4, 2, 2, 2]
    for sides in ((8, 8, 8), (9, 11, 14)):
        scores = model(torch.rand(2, 1, *sides))
        assert scores.shape == (2, 2, *sides)
    scores.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert bool(torch.isfinite(scores).all())
    with pytest.raises(ConfigError, match="this model has none"):
        built("fixup")


@pytest.mark.parametrize("moments", ["two-pass", "fused"])
def test_fedtans_first_step_of_a_unet_is_centralised(moments):
    """BN of volumes is pooled over voxels too; within 1e-10 of torch's own on the union."""
    job = task()
    model = copy.deepcopy(job.model).train()
    drawn = [
        next(
            minibatches(
                samples(data, "a client"), 4, round_generator(SEED, 0, i), torch.device("cpu")
            )
        )
        for i, data in enumerate(job.clients)
    ]
    x, y = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    loss_by_hand(model(x), y).backward()
    result = securefl.run(config(f"algorithm.moments={moments}"), job)
    for found, before in zip(result.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, before - LR * before.grad, rtol=0, atol=1e-10)
    named = dict(result.model.named_buffers())
    for name, buffer in model.named_buffers():
        if "running" in name:
            torch.testing.assert_close(named[name], buffer, rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", ["batch", "group-ws"])
def test_unets_go_side_by_side(norm):
    """What is joined stays each client's own, and batches are padded to one size."""
    require_same(["algorithm.name=fedavg"], task(norm))


def test_an_encrypted_round_of_volumes_is_scored_by_dice():
    """Sealed statistics and model; the metric follows from the loss."""
    job = task(sides=(4, 4, 4))
    plain = securefl.run(config(), job)
    sealed = securefl.run(config("exchange.encrypt=model"), job)
    assert sealed.metric == "dice"
    for one, other in zip(sealed.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
