"""The one convolution that the models are made of."""

from __future__ import annotations

from torch import nn


def conv3x3(n_in: int, n_out: int, stride: int = 1) -> nn.Conv2d:
    """A padded 3 × 3 convolution with Kaiming weights, and no bias: a norm follows it."""
    conv = nn.Conv2d(n_in, n_out, kernel_size=3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    return conv
