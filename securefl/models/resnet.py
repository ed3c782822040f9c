"""ResNet-20 for CIFAR-10: He et al., Deep Residual Learning, CVPR 2016, section 4.2."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, final

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from securefl.models.layers import Norm, Shortcut, conv3x3

N_BLOCKS = 3  # per stage; 6 · 3 + 2 = 20 layers with weights

Block: TypeAlias = Callable[[int, int, int], nn.Module]
"""Function that makes a residual block of two convolutions from channels in and out, and stride."""


def resnet20(
    norm: Norm, in_channels: int = 3, n_classes: int = 10, width: int = 16
) -> nn.Sequential:
    """Build a stem, three stages of three residual blocks, a linear classifier; 19 norm layers."""
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            stem=conv3x3(in_channels, width),
            norm=norm(width),
            relu=nn.ReLU(),
            **stages(partial(BasicBlock, norm), width),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            classifier=nn.Linear(4 * width, n_classes),
        )
    )


def stages(block: Block, width: int) -> dict[str, nn.Module]:
    """Build the three stages by name; the second and third double channels and halve the image."""
    return {
        "stage1": _stage(block, width, width, stride=1),
        "stage2": _stage(block, width, 2 * width, stride=2),
        "stage3": _stage(block, 2 * width, 4 * width, stride=2),
    }


def _stage(block: Block, n_in: int, n_out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        block(n_in, n_out, stride),
        *(block(n_out, n_out, 1) for _ in range(N_BLOCKS - 1)),
    )


@final
class BasicBlock(nn.Module):
    """Block of two normalised convolutions, added to what came in."""

    def __init__(self, norm: Norm, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(n_in, n_out, stride)
        self.norm1 = norm(n_out)
        self.conv2 = conv3x3(n_out, n_out)
        self.norm2 = norm(n_out)
        self.shortcut = Shortcut(n_out - n_in, stride)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B Cout Hout Wout"]:
        """Return the block's output, after its second ReLU."""
        hidden = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(hidden)) + self.shortcut(x))
