"""Loss of Cox's proportional hazards model: risks from times that may be cut short."""

import torch
from torch import Tensor

from securefl.errors import DataError
from securefl.metrics.metric import described


def cox_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the negative log partial likelihood of a batch, divided by its samples.

        ℓ = - 1/n Σ_{i: event} (η_i - log Σ_{j: t_j ≥ t_i} exp η_j)

    (Cox 1972; of events at one time each has the same risk set, as Breslow 1974 has it.) A batch
    without an event gives 0, and gradients of zero.

    The risk set of an event is of its own batch. So it is no mean over samples: a loss of batches
    is not that of all samples, nor is the mean of clients' losses the loss of their union. Over
    clients that train on all their samples at once, weighted by their number, it is the partial
    likelihood of a stratified Cox model: one effect of each reading, and a baseline hazard of each
    client's own. A test set's loss is of its batches, in their order.

    Args:
        outputs: log risks η, larger for more risk, (n,) or (n, 1).
        targets: the time, and 1 for an event or 0 for the end of observation.

    Raises:
        DataError: outputs or targets of another form.

    Examples:
        >>> targets = torch.tensor([[1.0, 1.0], [2.0, 1.0], [3.0, 0.0]])  # (time, event)
        >>> good, bad = torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0.0, 1.0, 2.0])
        >>> (securefl.cox_loss(good, targets) < securefl.cox_loss(bad, targets)).item()
        True
    """
    n = len(targets)
    if targets.shape != (n, 2) or outputs.shape not in {(n,), (n, 1)}:
        raise DataError(
            f"cox_loss of outputs {described(outputs)} and targets {described(targets)}: give one "
            "output a sample, (n,) or (n, 1), and targets (n, 2), (time, event)"
        )
    # Of half precision a sum of exponentials would be left with three digits.
    risk_N = outputs.reshape(n).to(torch.promote_types(outputs.dtype, torch.float32))
    time_N, event_N = targets.T
    earlier_NN = time_N < time_N[:, None]  # those whom event i no longer finds under observation
    # Each row has its own sample at least, so that no sum is empty: not even a derivative is NaN.
    at_risk_N = risk_N.expand(n, n).masked_fill(earlier_NN, -torch.inf).logsumexp(dim=1)
    loss: Tensor = (event_N.to(risk_N.dtype) * (at_risk_N - risk_N)).mean()
    return loss
