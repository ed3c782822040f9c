"""FNR-FL's own steps in plain torch: class norms, who is weakest, the refinement."""

from __future__ import annotations

from statistics import fmean

import torch
from by_hand import LR
from torch.nn import functional

from securefl.algorithms.public_training import PublicData
from securefl.data.samples import samples


def public(n_classes=3, dtype=torch.float64):
    """Twenty samples; one of the four classes has none."""
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(20, 12, generator=rng, dtype=torch.float64) * 1.5 + 0.7
    y = torch.randint(n_classes, (20,), generator=rng)
    return PublicData(samples((x.to(dtype), y), "public"), batch_size=7, epochs=2, seed=9)


def features(model, x):
    return model[:-1](x)


def norm_table(model, data):
    """F_i[l] of the classes that there are, by a loop over samples (Algorithm 1)."""
    x, y = data
    model.eval()
    with torch.no_grad():
        norms = [float(features(model, x[i : i + 1]).norm()) for i in range(len(y))]
    by_class = {}
    for norm, label in zip(norms, y.tolist(), strict=True):
        by_class.setdefault(label, []).append(norm)
    return {label: sum(of) / len(of) for label, of in by_class.items()}


def standing(model, data):
    x, y = data
    with torch.no_grad():
        output = model.eval()(x)
    confidence = functional.softmax(output, 1)[range(len(y)), y].mean()
    return float((output.argmax(1) == y).double().mean()), float(confidence)


def descend(model, loss, extra=None):
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for name, w in model.named_parameters():
            w.sub_(LR * (w.grad + (extra(name, w) if extra else 0)))


def refine(model, reference, stock, done, strength):
    """Epochs on the public set with J by a loop over the batch's labels."""
    model.train()
    for x, y in stock.batches(done, torch.device("cpu")):
        h = features(model, x)
        j = 0.0
        for label in y.unique().tolist():
            own = h[y == label].norm(dim=1).mean()
            j = j + (y == label).double().mean() * (own - reference[label]) ** 2
        descend(model, functional.cross_entropy(model[-1](h), y) + strength * j)


def weakest_and_reference(models, stock, n_refined=1):
    """Which clients are refined, and the others' mean class norms.

    Confidences count in steps of 1/1024; of those that this leaves equal, none where not all.
    """
    data = (stock.samples.x, stock.samples.y)
    standings = [(accuracy, int(c * 1024)) for accuracy, c in (standing(m, data) for m in models)]
    not_above = [sum(other <= one for other in standings) for one in standings]
    weakest = [i for i, n in enumerate(not_above) if n <= n_refined]
    tables = [norm_table(model, data) for model in models]
    others = [table for i, table in enumerate(tables) if i not in weakest]
    return weakest, {label: fmean(table[label] for table in others) for label in others[0]}
