"""File formats of an exported model, each with its encoder; loads torch when one is used."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from securefl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Format:
    """File format of a model."""

    suffix: str
    """Ending of the file's name."""
    encode: Callable[[nn.Module, Tensor], bytes]
    """Function of the model and a batch of inputs that returns the file's content."""


def _safetensors(model: nn.Module, _: Tensor) -> bytes:
    import safetensors.torch

    from securefl.io.tensors import unshared

    return bytes(safetensors.torch.save(unshared(model.state_dict()), {"format": "pt"}))


def _state_dict(model: nn.Module, _: Tensor) -> bytes:
    import torch

    from securefl.io.tensors import unshared

    torch.save(unshared(model.state_dict()), file := io.BytesIO())
    return file.getvalue()


def _torch_export(model: nn.Module, inputs: Tensor) -> bytes:
    import torch

    sizes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(model, (inputs,), dynamic_shapes=sizes)
    torch.export.save(program, file := io.BytesIO())
    return file.getvalue()


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keep torch from warning of its own parts, and of packages that no model of ours needs."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            yield
    finally:
        logger.setLevel(level)


def _onnx(model: nn.Module, inputs: Tensor) -> bytes:
    if not (find_spec("onnx") and find_spec("onnxscript")):
        raise ConfigError("the format onnx needs two packages: pip install 'securefl[onnx]'")
    import torch

    with _quiet_exporter():
        program = torch.onnx.export(
            model,
            (inputs,),
            dynamo=True,
            verbose=False,
            input_names=["x"],
            output_names=["y"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    if program is None:  # of the older exporter alone
        raise RuntimeError("no program")
    return bytes(program.model_proto.SerializeToString())


FORMATS = {
    "safetensors": Format(".safetensors", _safetensors),
    "state-dict": Format(".pt", _state_dict),
    "torch-export": Format(".pt2", _torch_export),
    "onnx": Format(".onnx", _onnx),
}
"""Formats by name. The first two hold tensors by the names of the model's layers, for its class;
the last two hold the model as a whole, for any number of samples."""
