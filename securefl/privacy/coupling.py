"""Independence check: a model in which one record of a batch acts on another gets no privacy.

DP-SGD bounds a record's influence by clipping the gradient of that record's term (Abadi et al., CCS
2016, Algorithm 1). Where the record also moves other terms, as through batch normalisation, the
clip bounds nothing. Validators look at layers' classes; this looks at what the model does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from securefl.algorithms.algorithm import Loss, trained_parameters
from securefl.errors import ConfigError, CouplingFound, DataError
from securefl.norms.find import BatchNorm
from securefl.privacy.probe import Call, Pass, Records, described_layer, observed, twin

BATCH_SIZES = (2, 3, 5)
SHIFT = 3.0
"""Standard deviations of the data by which a changed record moves, besides being shuffled."""
JITTER = 0.1
"""Relative move of parameters in all batches but the first: a zero may hide what trains later."""
TOLERANCE_POWER = 2 / 3
"""Exponent of ε: rounding moves a value by ε of its size; more than ε^(2/3) is no rounding."""


def require_uncoupled(
    model: nn.Module,
    x: Shaped[Tensor, "B ..."],
    y: Tensor,
    loss: Loss,
    rng: torch.Generator | None = None,
) -> None:
    """Probe a model, as it will be trained, for coupling between the records of a batch.

    In random batches of two, three and five each record is changed in turn, in that of five one is
    left out, and in one of all of `x` one is changed. No other record's output, nor the gradient of
    its term of the loss (where the first is changed, or one left out), may move, nor any buffer or
    parameter, nor what a later batch gives; and the loss of a batch must be the mean of its
    records' terms. The same holds in evaluation mode,
    in which statistics and profiles are released. The probe is as good as its inputs: what couples
    for rare values alone, now and then, in batches of more than `x` alone, or after some steps is
    not found.

    Args:
        model: in training mode, and within whatever will be around its training steps. It is
            copied, and neither changed nor are torch's global generators.
        x: two records at least, some of them different; five are better. Made-up records of the
            data's shape serve as well as real ones.
        y: their labels, one entry a record along the first axis.
        loss: of outputs and labels, as training takes it.
        rng: draws the batches, on the CPU; from a fixed seed where absent.

    Raises:
        CouplingFound: with the name of the first layer that mixes records, and the remedy.
        ConfigError: the model is not in training mode.
        DataError: fewer than two different records, a model that cannot be copied, or whose output
            is no finite tensor with an entry for each record.
    """
    _check(model, x, y)
    trained_parameters(model)  # raises where there is nothing to train
    rng = rng or torch.Generator().manual_seed(0)
    # TF32 rounds a thousand times more coarsely, and otherwise for another batch size.
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        for n, size in enumerate(size for size in BATCH_SIZES if size <= len(x)):
            probe = _Probe.drawn(_jittered(model, rng) if n else model, x, y, size, loss, rng)
            for record in range(size):
                probe.require_no_trace_of_values(record, rng, n_gradients=0 if record else size)
            if size == BATCH_SIZES[-1]:
                probe.require_no_trace_of_presence(_drawn(size, rng))
            probe.require_separate_terms()
        for here in (model, twin(model).eval()):
            probe = _Probe.drawn(here, x, y, len(x), loss, rng)
            probe.require_no_trace_of_values(_drawn(len(x), rng), rng, n_gradients=0)


@final
@dataclass(frozen=True, slots=True)
class _Probe:
    """One batch, and the checks that it must pass."""

    model: nn.Module
    batch: Records
    loss: Loss
    seed: int

    @classmethod
    def drawn(
        cls, model: nn.Module, x: Tensor, y: Tensor, size: int, loss: Loss, rng: torch.Generator
    ) -> "_Probe":
        """Draw a batch of so many random records."""
        records = torch.randperm(len(x), generator=rng)[:size].to(x.device)
        return cls(model, Records(x, y).only(records), loss, _drawn(2**31, rng))

    def require_no_trace_of_values(
        self, changed: int, rng: torch.Generator, n_gradients: int
    ) -> None:
        """Require that neither the other records nor a later batch know what this record was.

        Gradients, which cost most, are compared of so many of them.
        """
        other = Records(
            _with_other_row(self.batch.x, changed, rng), _with_other_row(self.batch.y, changed, rng)
        )
        before, after = (
            observed(twin(self.model), x, self.loss, self.seed) for x in (self.batch, other)
        )
        kept = [i for i in range(len(self.batch)) if i != changed]
        self._require_same(before, after, kept, "with one record changed", n_gradients)
        then, otherwise = (
            # The same batch again through both twins: what differs now was left in buffers.
            observed(one.model, self.batch, self.loss, self.seed)
            for one in (before, after)
        )
        every = range(len(self.batch))
        later = "after a batch with one record changed"
        self._require_same(then, otherwise, every, later, n_gradients)

    def require_no_trace_of_presence(self, left_out: int) -> None:
        """Require that the other records do not know whether this one is there."""
        model = twin(self.model)
        for layer in model.modules():
            if isinstance(layer, _DropoutNd):
                layer.eval()  # its masks depend on the size of what it draws for
        if _draws(model, self.batch, self.loss):
            return  # of a random layer of another kind no two batch sizes can be compared
        # It comes last, so that the others have the same places in both batches.
        kept = [i for i in range(len(self.batch)) if i != left_out]
        others = torch.tensor(kept, device=self.batch.x.device)
        all_of_them = torch.tensor([*kept, left_out], device=self.batch.x.device)
        pair = (self.batch.only(all_of_them), self.batch.only(others))
        whole, rest = (observed(twin(model), x, self.loss, self.seed) for x in pair)
        self._require_same(whole, rest, range(len(kept)), "with one record left out", len(kept))

    def require_separate_terms(self) -> None:
        """Require that the loss keeps records apart and is the mean that gradients are taken of."""
        found = observed(twin(self.model), self.batch, self.loss, self.seed)
        total = self.loss(found.output, self.batch.y).detach()
        terms = torch.stack([found.term(i).detach() for i in range(len(self.batch))])
        if not _same(total, terms.mean(), terms):
            raise CouplingFound(
                f"the loss mixes the records of a batch, or adds them up: for {len(terms)} records "
                f"it is {total.item():.4g}, where the mean of the losses of each alone is "
                f"{terms.mean().item():.4g}; use one that is a mean over records (class weights "
                "that are divided by their sum over the batch make none)",
                "loss",
            )

    def _require_same(
        self, a: Pass, b: Pass, kept: Iterable[int], change: str, n_gradients: int
    ) -> None:
        """Raises CouplingFound where anything of the kept records, or a buffer, is not the same."""
        kept = list(kept)
        moved = _moved_tensors(a, b)
        if moved:
            is_buffer = moved[0] in dict(a.model.named_buffers())
            what = f"{'buffer' if is_buffer else 'parameter'} {moved[0]!r} moved"
        elif not _same(a.output[kept], b.output[kept]):
            what = "the output of others moved"
        else:
            what = _moved_gradient(a, b, kept[:n_gradients])
        if what:
            name = _culprit(a, b, kept, {buffer.rpartition(".")[0] for buffer in moved})
            raise CouplingFound(
                f"{described_layer(self.model, name)} mixes the records of a batch: {change}, "
                f"{what}. Clipping a record's gradient would not bound what it does; "
                f"{_remedy(self.model.get_submodule(name))}",
                name or "model",
            )


def _check(model: nn.Module, x: Tensor, y: Tensor) -> None:
    if not model.training:
        raise ConfigError(
            "the model is not in training mode, where batch normalisation couples records; call "
            "model.train(), and freeze what shall not learn"
        )
    if len(x) != len(y):
        raise DataError(f"{len(x)} records and {len(y)} labels: must be as many")
    if len(x) < BATCH_SIZES[0] or bool((x == x[:1]).all()):
        raise DataError("the probe needs two different records at least; five are better")


def _drawn(below: int, rng: torch.Generator) -> int:
    return int(torch.randint(below, (), generator=rng))


def _jittered(model: nn.Module, rng: torch.Generator) -> nn.Module:
    """Return a twin elsewhere in parameter space, where training may get to."""
    model = twin(model)
    with torch.no_grad():
        for p in trained_parameters(model).values():
            scale = JITTER * (p.abs().mean().item() + JITTER)
            p.add_(scale * torch.randn(p.shape, generator=rng).to(p))
    return model


def _with_other_row(values: Tensor, row: int, rng: torch.Generator) -> Tensor:
    """Return the values with another record in one place.

    It has values of the whole batch in random order; floats move, too.
    """
    picked = torch.randint(values.numel(), values[row].shape, generator=rng)
    other = values.flatten()[picked.to(values.device)]
    if values.is_floating_point():
        scale = values.std() if values.std() > 0 else torch.ones_like(values.std())
        other = other + SHIFT * scale * torch.randn(other.shape, generator=rng).to(values)
    changed = values.clone()
    changed[row] = other
    return changed


def _draws(model: nn.Module, batch: Records, loss: Loss) -> bool:
    """Return whether the output depends on the seed."""
    a, b = (observed(twin(model), batch, loss, seed).output for seed in (0, 1))
    return not _same(a, b)


def _same(a: Tensor, b: Tensor, *beside: Tensor) -> bool:
    """Return whether two tensors agree but for rounding, relative to the largest value of all."""
    if a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    if not a.numel():
        return True
    tolerance = float(torch.finfo(a.dtype).eps ** TOLERANCE_POWER)
    return _largest(a - b) <= tolerance * max(map(_largest, (a, b, *beside)))


def _largest(tensor: Tensor) -> float:
    return tensor.detach().abs().max().item()


def _moved_tensors(a: Pass, b: Pass) -> list[str]:
    before, after = a.left(), b.left()
    return [name for name in before if name not in after or not _same(before[name], after[name])]


def _moved_gradient(a: Pass, b: Pass, kept: Iterable[int]) -> str:
    """Say which parameter's gradient moved; empty where none did."""
    for record in kept:
        before, after = a.gradient(record), b.gradient(record)
        # By the largest of all: a gradient may be zero but for rounding.
        size = torch.tensor([_largest(g) for found in (before, after) for g in found.values()])
        for name in before:
            if not _same(before[name], after[name], size):
                return f"the gradient of others' loss with respect to {name!r} moved"
    return ""


def _culprit(a: Pass, b: Pass, kept: list[int], with_moved_buffers: set[str]) -> str:
    """Return the first submodule to complete that changes others' records, given them unchanged.

    The empty name, of the model, where the calls of none show it.
    """

    def unmoved(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
        pairs = zip(one, other, strict=False)
        return all(_same(_rows(s, a, kept), _rows(t, b, kept)) for s, t in pairs)

    def mixes(one: Call, other: Call) -> bool:
        clean = unmoved(one.inputs, other.inputs)
        return clean and (one.name in with_moved_buffers or not unmoved(one.outputs, other.outputs))

    calls = zip(a.calls, b.calls, strict=False)
    return next((one.name for one, other in calls if mixes(one, other)), "")


def _rows(tensor: Tensor, of: Pass, kept: list[int]) -> Tensor:
    """Return the kept records' part; nothing where the first axis is not (part of) the batch."""
    n = len(of.batch)
    if not tensor.dim() or len(tensor) % n:
        return tensor.new_zeros(0)
    return tensor.reshape(n, -1)[kept]


def _remedy(layer: nn.Module) -> str:
    if isinstance(layer, BatchNorm):
        return (
            'put another norm in its place (securefl.convert_norm(model, "group"), or model.norm = '
            '"group"), or standardise by statistics at rest, as FixBN does once it has frozen BN '
            "(securefl.norms.frozen.at_rest)"
        )
    if getattr(layer, "track_running_stats", False):
        return "make it with track_running_stats=False"
    return "put a layer in its place that treats each record by itself, group normalisation for one"
