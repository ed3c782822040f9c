"""Losses of torch and ours: which targets they take, and which label they leave out."""

from functools import partial

from torch import nn
from torch.nn import functional

from securefl.losses.cox import cox_loss
from securefl.losses.dice import dice_loss
from securefl.metrics.classes import IGNORED

_OF_SEGMENTS = (dice_loss,)
_OF_CLASSES = (
    *_OF_SEGMENTS,
    *(functional.cross_entropy, functional.nll_loss, functional.multi_margin_loss),
    *(nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss),
)
_OF_LABELS = (functional.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss)
_OF_NUMBERS = (
    *(functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss),
    *(nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss),
)
_OF_SURVIVAL = (cox_loss,)


def takes_classes(loss: object) -> bool:
    """Return whether the loss is one whose targets are numbers of classes."""
    return _kind(loss) in _OF_CLASSES


def takes_masks(loss: object) -> bool:
    """Return whether the loss is one of segments, with a class for each pixel or voxel."""
    return _kind(loss) in _OF_SEGMENTS


def takes_labels(loss: object) -> bool:
    """Return whether the loss is one of torch's of a logit for each label, 0 or 1."""
    return _kind(loss) in _OF_LABELS


def takes_numbers(loss: object) -> bool:
    """Return whether the loss is one of torch's of a number for each output."""
    return _kind(loss) in _OF_NUMBERS


def takes_floats(loss: object) -> bool:
    """Return whether the loss is one of torch's with a floating-point target for each output."""
    return _kind(loss) in (*_OF_LABELS, *_OF_NUMBERS)


def takes_survival(loss: object) -> bool:
    """Return whether the loss is of survival, of targets (time, event)."""
    return _kind(loss) in _OF_SURVIVAL


def compares_samples(loss: object) -> bool:
    """Return whether the loss is known to compare samples: no mean of losses of single ones."""
    return _kind(loss) in _OF_SURVIVAL


def ignored_label(loss: object) -> int:
    """Return the label that a loss of classes leaves out of its mean."""
    while isinstance(loss, partial):
        if "ignore_index" in loss.keywords:
            return int(loss.keywords["ignore_index"])
        loss = loss.func
    return int(getattr(loss, "ignore_index", IGNORED))


def loss_name(loss: object) -> str:
    """Return the name of a loss, for a message."""
    kind = _kind(loss)
    return str(getattr(kind, "__name__", type(loss).__name__))


def _kind(loss: object) -> object:
    """Return the function, or the class of a module."""
    while isinstance(loss, partial):
        loss = loss.func
    return type(loss) if isinstance(loss, nn.Module) else loss
