"""Models of the jobs in plain torch: SecureFL's, for environments that do not have it.

A test holds each against SecureFL's, tensor by tensor. LeNet-5 is here alone, and SecureFL trains
this one: LeCun et al. 1998, with ReLU and maximum pooling, as it is written today.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from jobs import N_CLASSES
from torch import Tensor, nn
from torch.nn import functional

N_HIDDEN, WIDTH = 30, 16


def mlp() -> nn.Module:
    """Build 784-30-10, with batch normalisation."""
    return nn.Sequential(
        nn.Linear(784, N_HIDDEN),
        nn.BatchNorm1d(N_HIDDEN),
        nn.ReLU(),
        nn.Linear(N_HIDDEN, N_CLASSES),
    )


def cnn() -> nn.Module:
    """Build four normalised convolutions, two poolings."""
    widths = [3, WIDTH, WIDTH, 2 * WIDTH, 2 * WIDTH]
    layers: list[nn.Module] = []
    for index, (n_in, n_out) in enumerate(pairwise(widths)):
        layers += [_conv3x3(n_in, n_out), nn.BatchNorm2d(n_out), nn.ReLU()]
        if index % 2:
            layers.append(nn.MaxPool2d(2))
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *pooled, nn.Linear(widths[-1], N_CLASSES))


def lenet() -> nn.Module:
    """Build LeNet-5, for 28 × 28."""
    return nn.Sequential(
        nn.Conv2d(1, 6, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, N_CLASSES),
    )


def resnet20() -> nn.Module:
    """Build He et al. 2016's, with shortcuts of type A."""
    widths = [WIDTH] * 4 + [2 * WIDTH] * 3 + [4 * WIDTH] * 3
    return nn.Sequential(
        _conv3x3(3, WIDTH),
        nn.BatchNorm2d(WIDTH),
        nn.ReLU(),
        *(_Block(n_in, n_out) for n_in, n_out in pairwise(widths)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], N_CLASSES),
    )


MODELS = {"mlp": mlp, "cnn": cnn, "lenet": lenet, "resnet20": resnet20}


def made(name: str) -> nn.Module:
    """Build the model with its initial values, always the same."""
    torch.manual_seed(0)
    return MODELS[name]()


class _Block(nn.Module):
    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.n_zero_channels = n_out - n_in
        self.stride = 2 if self.n_zero_channels else 1
        self.conv1 = _conv3x3(n_in, n_out, self.stride)
        self.norm1 = nn.BatchNorm2d(n_out)
        self.conv2 = _conv3x3(n_out, n_out)
        self.norm2 = nn.BatchNorm2d(n_out)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.norm1(self.conv1(x)))
        pixels = x[:, :, :: self.stride, :: self.stride]
        shortcut = functional.pad(pixels, (0, 0, 0, 0, 0, self.n_zero_channels))
        return functional.relu(self.norm2(self.conv2(hidden)) + shortcut)


def _conv3x3(n_in: int, n_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, kernel_size=3, stride=stride, padding=1, bias=False)
