"""Normalisation of each sample by itself: group, layer and instance norm are one layer.

Wu and He, Group Normalization, ECCV 2018: the channels of a sample are cut into groups, and each
group is normalised over its channels and positions. One group of all channels is layer
normalisation (Ba et al. 2016), a group for each channel is instance normalisation (Ulyanov et al.
2016).
"""

from typing import final

from torch import Tensor, nn

from securefl.errors import DataError


def grouped_norm(
    groups: int, n_channels: int, *, eps: float = 1e-5, affine: bool = True
) -> nn.GroupNorm:
    """Return group normalisation of `(batch, channels)` with any number of further axes.

    Raises ValueError where `groups` does not divide the channels.
    """
    kind = InstanceNorm if groups == n_channels else nn.GroupNorm
    return kind(groups, n_channels, eps, affine)


@final
class InstanceNorm(nn.GroupNorm):
    """Instance norm: as many groups as channels, for feature maps of any number of axes.

    Raises DataError for one value a channel, such as flat samples: the output would be the same
    whatever the input.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 -- torch's name
        """Normalise each channel of each sample over its positions."""
        if input.shape[2:].numel() == 1:
            raise DataError(
                f"{self} got an input of shape {tuple(input.shape)}: one value a channel, which "
                "instance normalisation makes zero; normalise several channels together (group, "
                "layer), or have larger feature maps"
            )
        return super().forward(input)
