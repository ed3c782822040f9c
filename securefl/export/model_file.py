"""Export of a run's model into a file that is read without this library."""

import copy
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from securefl.data.samples import samples
from securefl.errors import ConfigError, DataError
from securefl.evaluation.evaluate import Trained, UntrainedStatistics, load_trained, note_on
from securefl.evaluation.own_part import own_part
from securefl.export.formats import FORMATS, Format
from securefl.io.files import require_new, settle, write_new
from securefl.norms.weight_standardization import fold_weights
from securefl.runs.loop import Result

N_TRIED = 2
"""Samples that the model is traced with: of one alone a program would take one alone."""


def export_model(
    run: "Result | Trained | Path | str",
    path: Path | str,
    format: str = "",  # noqa: A002 -- the word of the command line
    *,
    client: str = "",
) -> Path:
    """Write a run's model into a new file, to use without this library.

    It is in evaluation mode, gives the outputs that the run scored (logits of classes), and takes
    any number of samples of the run's shape, as float32 where the run's are.

    Args:
        run: what a run gave, or its folder; a run with a task of its own as `load_trained` reads
            it.
        path: the file; its ending says the format where `format` is empty.
        format: "safetensors" or "state-dict" (tensors by name, for the model's own class),
            "torch-export" or "onnx" (the whole model).
        client: whose model is meant, where clients keep parts of it; the global one where empty.

    Warns where the global BN statistics are not of training.

    Returns:
        The file.

    Raises:
        ConfigError: an unknown format or client, a file that is there already, a package that is
            missing; the run trained no global model.
        DataError: torch cannot trace the model.
        RunFolderError: no run's folder, an unfinished or a damaged one.

    Examples:
        >>> securefl.export_model(result, "model.safetensors").name
        'model.safetensors'
        >>> from safetensors.torch import load_file
        >>> sorted(load_file("model.safetensors"))[:2]
        ['0.bias', '0.weight']
    """
    path = Path(path)
    chosen = FORMATS[format] if format in FORMATS else _by_ending(path, format)
    require_new(path)
    if isinstance(run, Path | str):
        run, client = load_trained(run, own=own_part(Path(run), client) if client else None), ""
    if not client and (note := note_on(run)):
        warnings.warn(note, UntrainedStatistics, stacklevel=2)
    model = _own_model(run, client) if client else run.model
    inputs = samples(run.task.test, "the test data").take(torch.arange(N_TRIED))[0]
    content = encoded(chosen, plain_torch(model), inputs.cpu())
    try:
        write_new(path, content)
        settle(path.parent)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"{path}: cannot be written ({reason}); give another place") from error
    return path


def _by_ending(path: Path, name: str) -> Format:
    for of in FORMATS.values():
        if not name and path.suffix == of.suffix:
            return of
    known = ", ".join(f"{each} ({of.suffix})" for each, of in FORMATS.items())
    given = f"format = {name!r:.100}" if name else f"{path.name}: its ending says no format"
    raise ConfigError(f"{given}; there are {known}")


def _own_model(run: "Result | Trained", client: str) -> nn.Module:
    if not isinstance(run, Result):
        raise ConfigError("a loaded run has one model: load_trained(folder, task, own) a client's")
    if client not in (models := run.client_models):
        raise ConfigError(f"no client {client!r:.100} keeps a part of the model to itself")
    return models[client]


def encoded(chosen: Format, model: nn.Module, inputs: Tensor) -> bytes:
    """Return the content of a file of this format; DataError where torch cannot trace the model."""
    try:
        return chosen.encode(model, inputs)
    except (ConfigError, MemoryError):
        raise
    except Exception as error:
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DataError(
            f"torch cannot write this model as a whole ({first:.300}); safetensors and state-dict "
            "need no tracing"
        ) from error


def plain_torch(model: nn.Module) -> nn.Module:
    """Return a copy in layers of torch alone, in evaluation mode on the CPU, of the same outputs.

    Layers that standardise their weights become torch's own, which hold the standardised ones; BN
    layers are torch's throughout. Names and shapes of tensors stay.
    """
    plain = copy.deepcopy(model).cpu().eval()
    fold_weights(plain.modules())
    return plain.requires_grad_(requires_grad=False)
