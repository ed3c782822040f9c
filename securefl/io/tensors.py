"""Tensors in the form in which safetensors writes them."""

from collections.abc import Mapping

from torch import Tensor


def unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, of which no two share memory; copies only where need be."""
    found, used = dict[str, Tensor](), set[int]()
    for name, value in tensors.items():
        ready = value.detach().cpu().contiguous()
        place = ready.untyped_storage().data_ptr()
        found[name] = ready.clone() if place in used else ready
        used.add(place)
    return found
