"""A trained model in layers of torch alone."""

import copy

from torch import nn

from securefl.norms.weight_standardization import fold_weights


def plain_torch(model: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode on the CPU, with the same outputs.

    Layers that standardise their weights become torch's own, which hold the standardised ones; BN
    layers are torch's throughout. Names and shapes of tensors stay.
    """
    plain = copy.deepcopy(model).cpu().eval()
    fold_weights(plain.modules())
    return plain.requires_grad_(requires_grad=False)
