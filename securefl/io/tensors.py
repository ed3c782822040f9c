"""Tensors in the form in which safetensors writes them."""

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from securefl.errors import RunFolderError
from securefl.io.files import require_tensors


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a file of safetensors; RunFolderError where it is damaged, or none."""
    try:
        require_tensors(path)
        return safetensors.torch.load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path}: damaged, or no tensors ({error})") from error


def unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, of which no two share memory; copies only where need be."""
    found, used = dict[str, Tensor](), set[int]()
    for name, value in tensors.items():
        ready = value.detach().cpu().contiguous()
        place = ready.untyped_storage().data_ptr()
        found[name] = ready.clone() if place in used else ready
        used.add(place)
    return found
