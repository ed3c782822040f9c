"""Models to start with, each with the normalisation of your choice."""

from __future__ import annotations

from securefl.models.alexnet import alexnet
from securefl.models.build import build_model
from securefl.models.cnn import cnn
from securefl.models.fixup import fixup_resnet20
from securefl.models.layers import (
    Norm,
    batch_norm_1d,
    batch_norm_2d,
    group_norm,
    instance_norm,
    layer_norm,
)
from securefl.models.mlp import mlp
from securefl.models.resnet import resnet20

__all__ = [
    "Norm",
    "alexnet",
    "batch_norm_1d",
    "batch_norm_2d",
    "build_model",
    "cnn",
    "fixup_resnet20",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "mlp",
    "resnet20",
]
