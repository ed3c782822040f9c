"""Layers that the models are made of: one convolution, a shortcut, and the norms of channels."""

from collections.abc import Callable
from typing import TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from securefl.norms.grouped import grouped_norm


def conv3x3(n_in: int, n_out: int, stride: int = 1) -> nn.Conv2d:
    """Return a padded 3 × 3 convolution with Kaiming weights, and no bias: a norm follows it."""
    conv = nn.Conv2d(n_in, n_out, kernel_size=3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    return conv


Norm: TypeAlias = Callable[[int], nn.Module]
"""Function that makes the normalisation layer for so many channels."""


def batch_norm_1d(n_channels: int) -> nn.Module:
    """Return batch normalisation of `(batch, channels)`."""
    return nn.BatchNorm1d(n_channels)


def batch_norm_2d(n_channels: int) -> nn.Module:
    """Return batch normalisation of `(batch, channels, height, width)`."""
    return nn.BatchNorm2d(n_channels)


def batch_norm_3d(n_channels: int) -> nn.Module:
    """Return batch normalisation of `(batch, channels, depth, height, width)`."""
    return nn.BatchNorm3d(n_channels)


def group_norm(groups: int = 2) -> Norm:
    """Return group normalisation, which needs no statistics of other samples; any number of axes.

    The norm raises ValueError for a number of channels that `groups` does not divide.
    """
    return lambda n_channels: grouped_norm(groups, n_channels)


def layer_norm(n_channels: int) -> nn.Module:
    """Return layer normalisation: a sample over channels and positions; any number of axes."""
    return grouped_norm(1, n_channels)


def instance_norm(n_channels: int) -> nn.Module:
    """Return instance normalisation: each channel over its positions; for feature maps."""
    return grouped_norm(n_channels, n_channels)


def no_norm(n_channels: int) -> nn.Module:
    """Return the identity, in the place of a norm."""
    del n_channels
    return nn.Identity()


@final
class Joined(nn.Module):
    """Channels of two inputs, one's behind the other's."""

    def __init__(self) -> None:
        super().__init__()
        self.n_groups = 1
        """Number of groups of channels; each has its own of both inputs."""

    def forward(
        self, x: Float[Tensor, "B C1 *sides"], y: Float[Tensor, "B C2 *sides"]
    ) -> Float[Tensor, "B C3 *sides"]:
        """Return x and y as one, with as many channels as both."""
        if self.n_groups == 1:
            return torch.cat([x, y], dim=1)
        # Models of several clients stand side by side in the channels, and stay so.
        grouped = [of.unflatten(1, (self.n_groups, -1)) for of in (x, y)]
        return torch.cat(grouped, dim=2).flatten(1, 2)


@final
class Shortcut(nn.Module):
    """Parameter-free shortcut, option A: every `stride`-th pixel, and channels of zeros."""

    def __init__(self, n_zero_channels: int, stride: int) -> None:
        super().__init__()
        self.n_zero_channels = n_zero_channels
        self.stride = stride
        self.n_groups = 1
        """Number of groups of channels; each gets its own zeros."""

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B Cout Hout Wout"]:
        """Return the subsampled image, its new channels behind the old ones."""
        pixels = x[:, :, :: self.stride, :: self.stride]
        if self.n_groups == 1:
            return functional.pad(pixels, (0, 0, 0, 0, 0, self.n_zero_channels))
        # Models of several clients stand side by side in the channels: each group gets its zeros
        # behind it.
        grouped = pixels.unflatten(1, (self.n_groups, -1))
        return functional.pad(grouped, (0, 0, 0, 0, 0, self.n_zero_channels)).flatten(1, 2)
