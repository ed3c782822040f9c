"""AlexNet with a norm after each hidden layer, as UniFed takes it for CIFAR-10-C.

Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014), in the sizes
of torchvision; Jiang et al., UniFed, section 4.1.1. Theirs starts from ImageNet's weights, this one
from random ones. There is no dropout: the norms regularise.
"""

from torch import nn

from securefl.models.layers import Norm

SIDE = 256  # that UniFed resizes every image to


def alexnet(
    norm: Norm, flat_norm: Norm, in_channels: int = 3, n_classes: int = 10, width: int = 64
) -> nn.Sequential:
    """Build five convolutions, two linear layers, a linear classifier; images of any size.

    Images are resized to 256 × 256 within the model, so that data stay as small as they are.

    Args:
        norm: behind the convolutions.
        flat_norm: behind the linear layers.
        in_channels: of the images.
        n_classes: how many scores the model gives.
        width: the first convolution's channels; the others have 3, 6, 4 and 4 times as many, the
            linear layers 64 times.
    """
    sizes = [width, 3 * width, 6 * width, 4 * width, 4 * width]
    n_hidden = 64 * width
    return nn.Sequential(
        nn.Upsample(size=(SIDE, SIDE), mode="bilinear"),
        *_conv(norm, in_channels, sizes[0], kernel=11, stride=4, padding=2),
        nn.MaxPool2d(3, stride=2),
        *_conv(norm, sizes[0], sizes[1], kernel=5, padding=2),
        nn.MaxPool2d(3, stride=2),
        *_conv(norm, sizes[1], sizes[2]),
        *_conv(norm, sizes[2], sizes[3]),
        *_conv(norm, sizes[3], sizes[4]),
        nn.MaxPool2d(3, stride=2),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
        *_linear(flat_norm, 36 * sizes[4], n_hidden),
        *_linear(flat_norm, n_hidden, n_hidden),
        nn.Linear(n_hidden, n_classes),
    )


def _conv(
    norm: Norm, n_in: int, n_out: int, kernel: int = 3, stride: int = 1, padding: int = 1
) -> tuple[nn.Module, ...]:
    conv = nn.Conv2d(n_in, n_out, kernel, stride=stride, padding=padding, bias=False)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    return conv, norm(n_out), nn.ReLU()


def _linear(norm: Norm, n_in: int, n_out: int) -> tuple[nn.Module, ...]:
    return nn.Linear(n_in, n_out), norm(n_out), nn.ReLU()
