"""Sum of a batch's gradients, each record's clipped: the sum that DP-SGD adds its noise to.

Abadi et al., CCS 2016, Algorithm 1. Per layer: McMahan et al., ICLR 2018. Ghost: Li et al., ICLR
2022. Axes: B records, T trained tensors. Opacus takes seconds to load: who clips loads it.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from securefl.algorithms.algorithm import Loss, trained_parameters
from securefl.errors import ConfigError
from securefl.norms.frozen import at_rest_twin

TOLERANCE = 0.01
"""Relative difference of Opacus' norm of a record from autograd's that rounding may make."""


class Clipping(StrEnum):
    """Part of a record's gradient that is bounded, and the way."""

    FLAT = "flat"
    """Norm over all tensors, bounded by C."""
    PER_LAYER = "per-layer"
    """Norm of each tensor, bounded by C / √(number of tensors)."""
    GHOST = "ghost"
    """Norm as of `FLAT`, in two backward passes: for norms, and for the sum that they weight."""


def clipping_of(clipping: str) -> Clipping:
    """Return the rule of the setting `privacy.clipping`; an adaptive C clips flat."""
    return Clipping.FLAT if clipping == "adaptive" else Clipping(clipping)


@final
@dataclass(frozen=True, slots=True)
class ClippedSum:
    """Sum over records of their clipped gradients."""

    sums: dict[str, Tensor]
    """Sums by parameter name, without a graph."""
    n_within: int
    """Number of records with nothing to clip. Not private: it tells of single records."""


@final
class ClippedGradients:
    """Sums of clipped gradients of one model, whose BN layers are at rest for it.

    A sum is in the parameters' own values of the moment. Between calls nothing is left on the
    model, and its `.grad` is never touched. The model must have passed `require_uncoupled` with its
    BN at rest, and its parameters, which of them train, and its mode are those of when this was
    made.
    """

    def __init__(self, model: nn.Module, loss: Loss, clipping: Clipping) -> None:
        """Wrap a twin of the model; `loss` is a mean over records.

        Raises:
            ConfigError: a trained layer is in evaluation mode, or has buffers.
            DataError: nothing trains, or a BN layer cannot be at rest.
        """
        from securefl.privacy.gradients import GradientSampler, NormSampler

        self._parameters = trained_parameters(model)
        self._loss = loss
        self._clipping = clipping
        self._is_checked = False
        # The twin shares the parameters, so its gradients are the model's, and hooks stay off the
        # model.
        twin = at_rest_twin(model)
        _check_mode(twin)
        for module in twin.modules():
            if getattr(module, "inplace", False):  # which torch forbids behind Opacus' hooks
                module.inplace = False  # type: ignore[assignment]
        # With "sum", Opacus does not multiply gradients by the batch size; `sum_of` differentiates
        # a sum.
        sampler = NormSampler if clipping is Clipping.GHOST else GradientSampler
        try:
            self._sampled = sampler(twin, loss_reduction="sum", strict=True)
        except NotImplementedError as error:
            raise ConfigError(f"Opacus has no gradients of single records here: {error}") from error
        finally:
            _forget(self._parameters.values())

    def sum_of(
        self, x: Shaped[Tensor, "B ..."], y: Shaped[Tensor, "B ..."], clip_norm: float
    ) -> ClippedSum:
        """Return the clipped sum of any batch, the empty one as well.

        But for rounding, a record adds at most `clip_norm` (L2, over all tensors). One whose
        gradient is not finite, or so large that the factor to clip it by is not a normal number,
        adds nothing.

        Raises:
            ConfigError: Opacus' norms are not those of the gradients: a parameter is used outside
                of its layer's forward, say, or, for GHOST, more than once. Looked at until a batch
                has a gradient, and in each batch for GHOST.
        """
        if not len(x):
            return ClippedSum({name: torch.zeros_like(p) for name, p in self._named()}, 0)
        with self._sampling():
            output = self._forward(x)
            terms = self._terms(output, y)
            self._gradients(terms.sum(), keep_graph=self._is_checking)
            self._sampled.disable_hooks()
            norms_BT = self._norms(len(x))
            factors_BT = self._factors(norms_BT, clip_norm)
            usable_B = (factors_BT >= torch.finfo(output.dtype).tiny).all(dim=1)
            if usable_B.all():
                self._check_norms(output, y, norms_BT)
                sums = self._weighted(terms, factors_BT)
                return ClippedSum(sums, int((factors_BT == 1).all(dim=1).sum()))
        # Once more without the others: no factor makes a number of NaN.
        return self.sum_of(x[usable_B], y[usable_B], clip_norm)

    @property
    def _is_checking(self) -> bool:
        """True where a batch's norms are checked: for GHOST always, as other values make its sum.

        That takes the pass's graph, and so does GHOST's second pass.
        """
        return self._clipping is Clipping.GHOST or not self._is_checked

    def _named(self) -> Iterable[tuple[str, nn.Parameter]]:
        return self._parameters.items()

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        """Let Opacus write on parameters and layers within; leave nothing there afterwards."""
        for _, p in self._named():
            vars(p).update(grad_sample=None, _forward_counter=0)
        self._sampled.enable_hooks()
        try:
            with _full_precision():
                yield
        finally:
            self._sampled.disable_hooks()
            _forget(self._parameters.values())
            for module in self._sampled.modules():
                # Left where the loss fails or misses a layer; the next batch would count it.
                for name in ("activations", "max_batch_len"):
                    vars(module).pop(name, None)

    def _forward(self, x: Tensor) -> Tensor:
        tied = ConfigError(
            'privacy.clipping = "ghost": the model uses a parameter more than once in a pass, of '
            'which ghost clipping has no norms; set privacy.clipping = "flat"'
        )
        try:
            output: Tensor = self._sampled(x)
        except NotImplementedError as error:
            if "Parameter tying" not in str(error):
                raise
            raise tied from error
        uses = [vars(p)["_forward_counter"] for _, p in self._named()]
        if self._clipping is Clipping.GHOST and max(uses) > 1:
            raise tied
        return output

    def _terms(self, output: Tensor, y: Tensor) -> Tensor:
        """Return each record's loss by itself: the mean of a batch may leave some records out."""
        pairs = zip(output.split(1), y.split(1), strict=True)
        return torch.stack([self._loss(*pair) for pair in pairs])

    def _gradients(self, of: Tensor, *, keep_graph: bool) -> dict[str, Tensor]:
        """Return gradients by autograd; zeros where `of` does not depend on a parameter."""
        from securefl.privacy.gradients import no_warning_of_the_first_layer

        with no_warning_of_the_first_layer():
            found = torch.autograd.grad(
                of, list(self._parameters.values()), retain_graph=keep_graph, allow_unused=True
            )
        pairs = zip(self._named(), found, strict=True)
        return {name: torch.zeros_like(p) if g is None else g for (name, p), g in pairs}

    def _norms(self, n: int) -> Float[Tensor, "B T"]:
        """Return each record's and tensor's norm from the pass; no square overflows in float64."""
        columns = []
        for name, p in self._named():
            found = vars(p).get("_norm_sample", vars(p)["grad_sample"])
            if found is None:
                found = p.new_zeros(n)
            if len(found) != n:
                raise _not_of_records(name)
            flat = found.reshape(n, -1)
            columns.append(torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64))
        return torch.stack(columns, dim=1)

    def _factors(self, norms_BT: Tensor, clip_norm: float) -> Float[Tensor, "B T"]:
        """Return the factors min(1, C / ‖g‖)."""
        if self._clipping is Clipping.PER_LAYER:
            clip_norm /= math.sqrt(norms_BT.shape[1])
        else:
            # One norm for all of a record's tensors, repeated, so that both ways divide
            # elementwise.
            norms_BT = norms_BT.norm(dim=1, keepdim=True).expand_as(norms_BT)
        return (clip_norm / norms_BT).clamp(max=1)

    def _check_norms(self, output: Tensor, y: Tensor, norms_BT: Tensor) -> None:
        """Check the first record's norms against those of autograd, from the same graph."""
        if not self._is_checking:
            return
        true = self._gradients(self._loss(output[:1], y[:1]), keep_graph=True)
        true_T = torch.stack([g.double().norm() for g in true.values()])
        wrong_T = (norms_BT[0] - true_T).abs() > TOLERANCE * true_T.norm()
        for name, is_wrong in zip(true, wrong_T.tolist(), strict=True):
            if is_wrong:
                raise _not_of_records(name)
        self._is_checked = bool(true_T.any())

    def _weighted(self, terms: Tensor, factors_BT: Tensor) -> dict[str, Tensor]:
        """Return Σ factor · gradient, over the records."""
        if self._clipping is Clipping.GHOST:
            factors_B = factors_BT[:, 0].to(terms.dtype)
            return self._gradients((factors_B * terms).sum(), keep_graph=False)
        sums = {}
        for (name, p), factors_B in zip(self._named(), factors_BT.T, strict=True):
            found = vars(p)["grad_sample"]
            sums[name] = (
                torch.zeros_like(p)
                if found is None
                else torch.tensordot(factors_B.to(found.dtype), found, dims=1)
            )
        return sums


def _full_precision() -> AbstractContextManager[None]:
    """Forbid convolutions to round to TF32, where ghost would have norms of other gradients."""
    now = torch.backends.cudnn
    return now.flags(
        now.enabled, now.benchmark, now.benchmark_limit, now.deterministic, allow_tf32=False
    )


def _check_mode(twin: nn.Module) -> None:
    for name, module in twin.named_modules():
        trains = any(p.requires_grad for p in module.parameters(recurse=False))
        if trains and not module.training:
            raise ConfigError(
                f"layer {name or 'model'!r} trains but is in evaluation mode, where Opacus takes "
                "no gradients: call model.train(), or freeze its parameters"
            )


def _forget(parameters: Iterable[nn.Parameter]) -> None:
    """Take off what Opacus has written on them."""
    from opacus.grad_sample.gsm_base import OPACUS_PARAM_MONKEYPATCH_ATTRS

    for p in parameters:
        for name in OPACUS_PARAM_MONKEYPATCH_ATTRS:
            vars(p).pop(name, None)


def _not_of_records(name: str) -> ConfigError:
    return ConfigError(
        f"what Opacus gives for parameter {name!r} is not the gradient of single records: each "
        "parameter must be used by the forward of its own layer, on inputs with one entry a record "
        "along the first axis, and all that the layer gives in a pass must reach the loss; Opacus "
        "also knows no padding_mode but zeros"
    )
