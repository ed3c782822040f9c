"""Plain convolutional network, small enough for a laptop."""

from torch import nn

from securefl.models.layers import Norm, conv3x3


def cnn(norm: Norm, in_channels: int = 1, n_classes: int = 10, width: int = 16) -> nn.Sequential:
    """Build four convolutions, two poolings, a linear classifier; for images from 4 × 4 on."""
    return nn.Sequential(
        *_conv_norm_relu(norm, in_channels, width),
        *_conv_norm_relu(norm, width, width),
        nn.MaxPool2d(2),
        *_conv_norm_relu(norm, width, 2 * width),
        *_conv_norm_relu(norm, 2 * width, 2 * width),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, n_classes),
    )


def _conv_norm_relu(norm: Norm, n_in: int, n_out: int) -> tuple[nn.Module, ...]:
    return conv3x3(n_in, n_out), norm(n_out), nn.ReLU()
