"""Small 3-D U-Net, a class for each voxel: Çiçek et al., 3D U-Net, MICCAI 2016.

Three stages as FLamby's for IXI Tiny has them, of 8, 16 and 32 channels. Here as in most U-Nets
since, each convolution is padded and has a norm behind it, and resizing has no weights.
"""

from collections import OrderedDict
from typing import final

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from securefl.models.layers import Joined, Norm


def unet(norm: Norm, in_channels: int = 1, n_classes: int = 2, width: int = 8) -> nn.Sequential:
    """Build three stages down, two up, a linear classifier of voxels; volumes from 4 × 4 × 4 on.

    A pooling halves each side, rounded down; on the way up each stage takes the sides of the one
    that it is joined with. So sides need not be divisible by 4.
    """
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            stages=Stages(norm, in_channels, width),
            classifier=nn.Conv3d(width, n_classes, kernel_size=1),
        )
    )


@final
class Stages(nn.Module):
    """Stages of a U-Net; the features of each voxel are as many as the first stage's channels."""

    def __init__(self, norm: Norm, in_channels: int, width: int) -> None:
        super().__init__()
        self.down1 = _block(norm, in_channels, width)
        self.down2 = _block(norm, width, 2 * width)
        self.bottom = _block(norm, 2 * width, 4 * width)
        self.join2, self.up2 = Joined(), _block(norm, 6 * width, 2 * width)
        self.join1, self.up1 = Joined(), _block(norm, 3 * width, width)

    def forward(self, x: Float[Tensor, "B C D H W"]) -> Float[Tensor, "B width D H W"]:
        """Return the features of each voxel."""
        fine = self.down1(x)
        middle = self.down2(functional.max_pool3d(fine, 2))
        coarse = self.bottom(functional.max_pool3d(middle, 2))
        middle = self.up2(self.join2(middle, _resized(coarse, middle)))
        features: Tensor = self.up1(self.join1(fine, _resized(middle, fine)))
        return features


def _block(norm: Norm, n_in: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(*_conv_norm_relu(norm, n_in, n_out), *_conv_norm_relu(norm, n_out, n_out))


def _conv_norm_relu(norm: Norm, n_in: int, n_out: int) -> tuple[nn.Module, ...]:
    conv = nn.Conv3d(n_in, n_out, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    return conv, norm(n_out), nn.ReLU()


def _resized(x: Tensor, like: Tensor) -> Tensor:
    return functional.interpolate(x, like.shape[2:], mode="trilinear")
