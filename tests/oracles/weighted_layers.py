"""Layers whose weights can be standardised, each with the shape of an input."""

from torch import nn

WEIGHTED_LAYERS = [
    (nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9)),
    (nn.Conv2d(4, 6, 3, padding=2, dilation=2, padding_mode="circular"), (2, 4, 7, 7)),
    (nn.Conv3d(2, 3, 2, bias=False), (2, 2, 4, 4, 4)),
    (nn.Linear(5, 6), (2, 5)),
]
