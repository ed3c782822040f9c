"""Perceptron of FedTAN's MNIST experiments (Wang et al., table 5)."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from securefl.models.layers import Norm


def mlp(norm: Norm, sizes: Sequence[int] = (64, 30, 10)) -> nn.Sequential:
    """Build linear, norm and ReLU for each hidden size, then the linear classifier.

    `sizes` are features, hidden sizes, classes; with no hidden size it is a linear model.
    """
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes[:-1]):
        layers += [nn.Linear(n_in, n_out), norm(n_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))
