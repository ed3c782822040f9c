"""FNR-FL's assessments of clients side by side: one pass over the public samples for all of them.

Axes: K clients, B samples of a batch, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from securefl.algorithms.class_norms import Assessment, ClassNorms, assess
from securefl.algorithms.features import last_linear, observed_features
from securefl.data.samples import BATCH, Samples, TensorSamples, in_order
from securefl.errors import DataError
from securefl.norms.full import full
from securefl.simulation.stacked.model import side_by_side
from securefl.simulation.stacked.trial import two_clients

_TOLERANCE = 1e-9
SAMPLE_BYTES = 2**24
"""Of public samples in one pass, each as often as there are clients; more is no faster."""


def assess_each(
    model: nn.Module, public: Samples, n_classes: int, n_clients: int
) -> list[Assessment]:
    """`assess` of each client; the wide model is left in evaluation mode."""
    model.eval()
    device = next(model.parameters()).device
    sum_CK, count_C = torch.zeros(n_classes, n_clients).double(), torch.zeros(n_classes).double()
    n_correct_K, confidence_K = torch.zeros(n_clients).long(), torch.zeros(n_clients).double()
    exact = torch.autocast(device.type, enabled=False)  # whatever local steps are in
    with torch.no_grad(), exact, observed_features(model) as seen:
        for batch in in_order(public, _at_a_time(public, n_clients)):
            x, y = (tensor.to(device) for tensor in batch)
            seen.clear()
            output_BKC = model(side_by_side([x] * n_clients)).unflatten(1, (n_clients, -1))
            sum_CK += class_sums(seen[-1].unflatten(1, (n_clients, -1)), y, n_classes).cpu()
            count_C += y.bincount(minlength=n_classes).cpu()
            n_correct_K += (output_BKC.argmax(dim=2) == y[:, None]).sum(dim=0).cpu()
            true_BK1 = y[:, None, None].expand(-1, n_clients, 1)
            confidence_K += output_BKC.softmax(dim=2).gather(2, true_BK1).sum(dim=(0, 2)).cpu()
    return [
        Assessment(ClassNorms(sum_C, count_C), n_correct, confidence / len(public))
        for sum_C, n_correct, confidence in zip(
            sum_CK.unbind(dim=1), n_correct_K.tolist(), confidence_K.tolist(), strict=True
        )
    ]


def class_sums(
    features_BKF: Float[Tensor, "B K F"], y: Int64[Tensor, " B"], n_classes: int
) -> Float[Tensor, "C K"]:
    """Each client's `class_norms`, without the counts."""
    norm_BK = torch.linalg.vector_norm(full(features_BKF), dim=2)
    zeros_CK: Tensor = norm_BK.new_zeros(n_classes, norm_BK.shape[1])
    return zeros_CK.index_add(0, y, norm_BK)


def _at_a_time(public: Samples, n_clients: int) -> int:
    x, _ = public.take(torch.arange(1))
    return min(BATCH, max(1, SAMPLE_BYTES // (n_clients * x.numel() * x.element_size())))


def require_assessed_apart(model: nn.Module, public: Samples) -> None:
    """Raise DataError unless two clients are assessed side by side as each is alone.

    Args:
        model: one that trains side by side; not changed.
        public: labelled with classes of the model.
    """
    both, alone = two_clients(model, torch.Generator().manual_seed(0))
    x, y = (tensor.cpu() for tensor in public.take(torch.arange(min(4, len(public)))))
    few, n_classes = TensorSamples(x.double(), y), last_linear(model).out_features
    try:
        with torch.random.fork_rng([]):
            together = assess_each(both, few, n_classes, len(alone))
            apart = [assess(one, few, n_classes) for one in alone]
            by_sample = [assess(alone[0], of, n_classes) for of in _each(few)]
    except Exception as error:  # a user's forward may raise anything
        raise DataError(f"its evaluation does not run side by side ({error})") from error
    for one, other in zip(together, apart, strict=True):
        if not torch.allclose(_numbers(one), _numbers(other), rtol=_TOLERANCE, atol=_TOLERANCE):
            raise DataError("it mixes channels beyond its layers where it is evaluated")

    sums = torch.stack([_numbers(found) for found in by_sample]).sum(dim=0)
    sums[-1] /= len(few)
    if not torch.allclose(sums, _numbers(apart[0]), rtol=_TOLERANCE, atol=_TOLERANCE):
        raise DataError("its evaluation looks at several samples at once")


def _each(samples: TensorSamples) -> Iterator[TensorSamples]:
    return (TensorSamples(*samples.take(torch.tensor([i]))) for i in range(len(samples)))


def _numbers(found: Assessment) -> Tensor:
    rest = torch.tensor([found.n_correct, found.confidence], dtype=torch.float64)
    return torch.cat([found.norms.sum_C, found.norms.count_C, rest])
