"""Loss of segments: cross entropy and soft Dice in equal parts (Isensee et al., nnU-Net, 2021).

Tensor names end with their axes: B samples, C classes, V pixels or voxels.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from securefl.errors import DataError

SMOOTH = 1.0
"""Added above and below the line, in pixels: a sample without a segment, told to have none, has
Dice 1."""


def dice_loss(
    outputs: Float[Tensor, "B C ..."], targets: Int64[Tensor, "B ..."]
) -> Float[Tensor, ""]:
    """Return the mean over samples of cross entropy + 1 - Dice, with a logit for each class.

    Dice of a sample is the mean over its segments c of (2 Σ_V p_c t_c + 1) / (Σ_V p_c + Σ_V t_c +
    1), p the softmax of the logits, t 1 where the target is c. Class 0 is the background, and no
    segment. Sums run over one sample, so that the loss is a mean over samples, and that of all
    clients' batches the mean of theirs; nnU-Net can sum over a batch. FLamby's loss for IXI is
    1 - Dice alone, of both classes.

    Args:
        outputs: logits of two classes or more.
        targets: class of each pixel or voxel.

    Raises:
        DataError: outputs or targets of another shape.

    Examples:
        >>> mask = torch.tensor([[[0, 1], [1, 1]]])  # a picture of 2 x 2 pixels, two classes
        >>> logits = 20.0 * nn.functional.one_hot(mask).movedim(-1, 1).float()
        >>> round(securefl.dice_loss(logits, mask).item(), 4)
        0.0
        >>> round(securefl.dice_loss(-logits, mask).item(), 1)  # 20 of cross entropy, 0.8 of Dice
        20.8
    """
    n_classes = outputs.shape[1] if outputs.dim() > 2 else 0
    if n_classes < 2 or outputs.shape[:1] + outputs.shape[2:] != targets.shape:
        raise DataError(
            f"dice_loss: outputs of shape {tuple(outputs.shape)} and targets of shape "
            f"{tuple(targets.shape)}: give (batch, classes, ...), of two classes or more, and the "
            "class of each pixel, (batch, ...)"
        )
    entropy = functional.cross_entropy(outputs, targets)
    p_BCV = outputs.softmax(dim=1).flatten(2)[:, 1:]
    segments_C1 = torch.arange(1, n_classes, device=targets.device).unsqueeze(1)
    true_BCV = (targets.flatten(1).unsqueeze(1) == segments_C1).to(p_BCV.dtype)
    both_BC = (p_BCV * true_BCV).sum(dim=2)
    dice_BC = (2 * both_BC + SMOOTH) / (p_BCV.sum(dim=2) + true_BCV.sum(dim=2) + SMOOTH)
    return entropy + 1 - dice_BC.mean()
