"""ResNet-20 without normalisation: Zhang, Dauphin, Ma, Fixup Initialization, ICLR 2019, section 3.

Rule 1: the last layer of each residual branch, and the classifier, start at zero. Rule 2: the other
layers of a branch start with Kaiming weights times L^(-1/(2m-2)), for L branches of m layers. Rule
3: a scalar bias before each convolution, linear layer and activation, and a scalar multiplier in
each branch; as in the authors' code the stem has no bias before it. That code also gives scalars a
tenth of the learning rate; here all parameters have the same.
"""

from collections import OrderedDict
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from securefl.models.layers import Shortcut, conv3x3
from securefl.models.resnet import N_BLOCKS, stages

N_BRANCHES = 3 * N_BLOCKS  # L
N_LAYERS = 2  # m, of a branch


def fixup_resnet20(in_channels: int = 3, n_classes: int = 10, width: int = 16) -> nn.Sequential:
    """Build the ResNet-20 of `resnet20`, with 47 scalars in place of its norm layers."""
    classifier = nn.Linear(4 * width, n_classes)
    nn.init.zeros_(classifier.weight)
    nn.init.zeros_(classifier.bias)
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            stem=conv3x3(in_channels, width),
            bias=ScalarBias(),
            relu=nn.ReLU(),
            **stages(FixupBlock, width),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            feature_bias=ScalarBias(),
            classifier=classifier,
        )
    )


@final
class FixupBlock(nn.Module):
    """Block of two convolutions and five scalars, added to its input; at first it adds nothing."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.bias1a = ScalarBias()
        self.conv1 = conv3x3(n_in, n_out, stride)
        self.bias1b = ScalarBias()
        self.bias2a = ScalarBias()
        self.conv2 = conv3x3(n_out, n_out)
        self.scale = ScalarMultiplier()
        self.bias2b = ScalarBias()
        self.shortcut = Shortcut(n_out - n_in, stride)
        with torch.no_grad():
            # Rule 2; the second convolution starts at zero by rule 1.
            self.conv1.weight *= N_BRANCHES ** (-1 / (2 * N_LAYERS - 2))
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B Cout Hout Wout"]:
        """Return the block's output, after its second ReLU."""
        hidden = functional.relu(self.bias1b(self.conv1(self.bias1a(x))))
        branch = self.bias2b(self.scale(self.conv2(self.bias2a(hidden))))
        return functional.relu(branch + self.shortcut(x))


@final
class ScalarBias(nn.Module):
    """Layer that adds one learned number, at first 0."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """Return the input plus the bias."""
        return x + self.bias


@final
class ScalarMultiplier(nn.Module):
    """Layer that multiplies by one learned number, at first 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """Return the input times the multiplier."""
        return x * self.weight
