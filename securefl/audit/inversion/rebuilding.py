"""Samples that each attacker rebuilds, with and without the statistics of BN.

Axes: N mini-batches, B samples of each, M units of the first layer, D features of an input.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

from securefl.audit.inversion.assumptions import (
    derived,
    fixed,
    freed,
    fresh,
    measured,
)
from securefl.audit.inversion.first_layer import first_linear, inputs_of
from securefl.audit.inversion.gradient_matching import Prior, Search, SeenGradient, match
from securefl.audit.inversion.hidden_statistics import Attacker, HiddenStatistics, compared
from securefl.audit.inversion.sample_kind import Ranges, SampleKind, Scores, Values, inside, matched
from securefl.audit.inversion.target import (
    Beliefs,
    MiniBatches,
    NormalisedBatch,
    Statistics,
    Target,
    mini_batches,
    running,
)
from securefl.audit.inversion.unit_inputs import Share, inputs_shown, known_first_layer
from securefl.norms.find import batch_norm_layers


@final
@dataclass(frozen=True, slots=True, eq=False)
class Rebuilt:
    """Samples that one attacker made of N mini-batches, each beside its original."""

    samples: Values
    """Samples, shape (N B, …): images of (height, width) or (channels, height, width), or rows."""
    score_NB: Scores
    """Measure of the kind of samples."""
    ssim_NB: Scores | None
    """Structural similarity; None where samples are no images."""

    @property
    def is_image(self) -> bool:
        """True where samples can be drawn."""
        return self.ssim_NB is not None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Attacked:
    """Attacks on one target at one size of mini-batches."""

    target: Target
    batch: int
    kind: SampleKind
    originals: Values
    nothing: Rebuilt
    """Attack of nobody: the mean public sample, whatever the label."""
    baseline: Rebuilt
    """Attack of nobody who knows the label: the mean public sample of its class, or the line
    through public samples where targets are numbers."""
    by: Mapping[Attacker, Rebuilt]


def attacked(target: Target, n: int, batch: int, search: Search, seed: int) -> Attacked:
    """Make all attacks on n mini-batches; the same seed gives the same samples.

    All have the same model, gradients, labels, public samples, starts and steps.
    """
    resting = copy.deepcopy(target.model).cpu().eval()  # dropout is nobody's to know
    target, kind = replace(target, model=resting), target.kind()
    rng = torch.Generator().manual_seed(seed)
    batches = mini_batches(target, n, batch, rng)
    seen = _seen(target, kind, batches)
    originals = as_compared(batches.x_NB, kind)

    def scored(x_NB: Tensor) -> Rebuilt:
        return rebuilt(kind, originals, as_compared(x_NB, kind), len(batches.x_NB))

    found = {}
    for attacker in attackers(target, batches):
        start = torch.Generator().manual_seed(seed + 1)
        found[attacker] = scored(_rebuilt(attacker, target, batches, seen, search, start))
    guess_NBD = seen.prior.guess(batches.y_NB)
    nothing = scored(seen.prior.guess.mean_D.expand_as(guess_NBD))
    return Attacked(target, batch, kind, originals, nothing, scored(guess_NBD), found)


def protection(attacked: Attacked) -> HiddenStatistics:
    """Compare who knows the statistics with all who do not; intervals as in `units`."""
    by = {name: one.score_NB for name, one in attacked.by.items()}
    found = compared(attacked.baseline.score_NB, by, attacked.kind)
    return replace(found, there=bool(batch_norm_layers(attacked.target.model)))


def attackers(target: Target, batches: MiniBatches) -> list[Attacker]:
    """Return the attackers that there are: some need a bias, a linear layer, or constants.

    Without BN all that match gradients are one. The running statistics are no case of their own
    where they are the exact ones, or fresh.
    """
    found = [Attacker.EXACT]
    if batch_norm_layers(target.model):
        found += [Attacker.NONE, Attacker.PUBLIC, Attacker.JOINT]
    batch = batches.y_NB.shape[1]
    known, others = running(target.model), (batches.exact, fresh(target.model))
    if known and not any(_same(known, other) for other in others):
        found.insert(1, Attacker.POPULATION)
    if target.normalised is NormalisedBatch.GIVEN and Attacker.NONE in found:
        found.append(Attacker.DERIVED)
    rank_one = batch == 1 and target.normalised is not NormalisedBatch.BATCH
    rank_one = rank_one or target.normalised is NormalisedBatch.GIVEN
    if rank_one and first_linear(target.model, batches.x_NB[0]) is not None:
        found.append(Attacker.FIRST_LAYER)
    return found


def _same(known: Statistics, other: Statistics) -> bool:
    return all(
        torch.allclose(mine.expand_as(theirs), theirs)
        for name in known
        for mine, theirs in zip(known[name], other[name], strict=True)
    )


def _seen(target: Target, kind: SampleKind, batches: MiniBatches) -> SeenGradient:
    return SeenGradient(
        target.model,
        batches.gradients,
        batches.y_NB,
        target.client[0].shape[1:],
        prior_of(target, kind),
        target.loss,
        batches.totals,
    )


def prior_of(target: Target, kind: SampleKind) -> Prior:
    """Return what public samples tell of the client's before a gradient is seen."""
    x, y = target.public
    n_classes = int(max(y.max(), target.client[1].max())) + 1
    return Prior.of(x, y, n_classes, kind.ranges())


def _rebuilt(
    attacker: Attacker,
    target: Target,
    batches: MiniBatches,
    seen: SeenGradient,
    search: Search,
    rng: torch.Generator,
) -> Tensor:
    if attacker is Attacker.FIRST_LAYER:
        return _read_off(target, batches, seen, rng)
    beliefs = _beliefs(attacker, target, batches)
    by_batch = target.normalised is NormalisedBatch.BATCH
    known = batches.exact if by_batch and attacker is Attacker.EXACT else None
    return match(seen, beliefs, search, rng, known)


def _beliefs(attacker: Attacker, target: Target, batches: MiniBatches) -> Beliefs:
    model, n = target.model, len(batches.y_NB)
    own = target.normalised is NormalisedBatch.BATCH
    if own and attacker in (Attacker.EXACT, Attacker.JOINT):
        return {}
    if attacker is Attacker.EXACT:
        return fixed(model, batches.exact, n)
    if attacker in (Attacker.POPULATION, Attacker.NONE):
        return fixed(model, (running if attacker is Attacker.POPULATION else fresh)(model), n)
    public = fixed(model, measured(model, target.public[0]), n)
    if attacker is Attacker.DERIVED:
        return derived(model, batches.gradients, target.public[0][:2], public)
    return freed(public) if attacker is Attacker.JOINT else public


def _read_off(
    target: Target, batches: MiniBatches, seen: SeenGradient, rng: torch.Generator
) -> Tensor:
    """Return the guess from the labels, with what the first layer shows in the nearest places."""
    given = target.given or running(target.model)
    constants = target.normalised is NormalisedBatch.GIVEN
    layer = known_first_layer(target, given if constants else None)
    n, batch = batches.y_NB.shape[:2]
    found = seen.prior.guess(batches.y_NB).clone()
    if layer is None:
        return found
    for i in range(n):
        weight_MD, bias_M = (side[i] for side in layer.sides(batches.gradients))
        read_BD: Tensor | None
        if batch > 1 and layer.v_M is not None:
            y, ranges = batches.y_NB[i], seen.prior.ranges
            read_BD = inputs_shown(layer, weight_MD, bias_M, y, Share(1 / batch), ranges)
        else:
            read_BD = inputs_of(weight_MD, bias_M, batch, rng)
        if read_BD is not None:
            found[i] = placed(read_BD, found[i], seen.prior.ranges)
    return found


def placed(read_RD: Tensor, guess_SD: Tensor, ranges: Ranges) -> Tensor:
    """Return the guesses with samples that were read off in the places of those nearest to them.

    What is out of range is left out.
    """
    read_RD = read_RD.to(guess_SD.dtype)
    read_RD = read_RD[inside(read_RD, ranges)][: len(guess_SD)]
    far_RS = torch.cdist(read_RD / ranges.unit_D, guess_SD / ranges.unit_D)
    rows, places = linear_sum_assignment(far_RS.numpy())
    found_SD = guess_SD.clone()
    found_SD[torch.from_numpy(places)] = read_RD[torch.from_numpy(rows)]
    return found_SD


def as_compared(x_NB: Tensor, kind: SampleKind) -> Values:
    """Return samples in the shape in which they are compared."""
    array: Values = x_NB.detach().reshape(-1, *kind.shape).double().numpy()
    return array


def rebuilt(kind: SampleKind, originals: Values, found: Values, n: int) -> Rebuilt:
    """Score samples, each batch's in the order that fits best; the baseline's is by the labels."""
    unit_D = kind.ranges().unit_D.numpy()
    parts = zip(np.split(originals, n), np.split(found, n), strict=True)
    each = np.concatenate([matched(a, b, unit_D) for a, b in parts])
    alike = kind.alike(originals, each)
    return Rebuilt(
        each,
        kind.measured(originals, each).reshape(n, -1),
        None if alike is None else alike.reshape(n, -1),
    )
