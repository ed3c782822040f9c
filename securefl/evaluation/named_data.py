"""Named data to score a finished run's model on.

`test` is the run's own test data, `test:fog:3` the same corrupted, `external` the clients that
it left out, `external:NAME` one of them; all else is a file or a folder.
"""

import copy
import re
from collections.abc import Mapping
from math import isqrt
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from securefl.data.arrays import load_arrays
from securefl.data.corruptions import corrupt
from securefl.data.folders import load_class_folders
from securefl.data.samples import ClientData, samples
from securefl.errors import ConfigError, DataError
from securefl.settings.tables import Config
from securefl.task import Task

_OF_THE_RUN = ("test", "test:CORRUPTION:SEVERITY", "external", "external:NAME")
_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, as pillow's grey pictures


def named_data(name: str, config: Config, task: Task) -> Mapping[str, ClientData]:
    """Load a data set by its name, or those of all external clients; the same every time.

    A file's samples must have the form of the run's test data, or be the same values flat or not
    flat. Pictures are brought to the size and the channels of the run's, and shuffled.

    Args:
        name: as in this module's first lines.
        config: the run's.
        task: the run's.

    Raises:
        ConfigError: no such corruption, severity or external client.
        DataError: a file or folder is missing, damaged, or not of the form that the model takes, or
            the run's targets are numbers, which no file or folder holds.
    """
    kind, _, detail = name.partition(":")
    if kind == "test":
        return {name: _corrupted(detail, config.run.seed, task) if detail else task.test}
    if kind == "external":
        return _external(detail, task)
    return {name: _from_disk(Path(name), config.run.seed, task)}


def _corrupted(detail: str, seed: int, task: Task) -> ClientData:
    corruption, _, severity = detail.partition(":")
    if not re.fullmatch("[0-9]{1,3}", severity):
        raise ConfigError(f'"test:{detail}": write test:CORRUPTION:SEVERITY, as in test:fog:3')
    x, y = _test(task)
    rng = np.random.default_rng(seed)
    images = corrupt(_as_images(x).numpy(), corruption, int(severity), rng)
    return torch.from_numpy(images).reshape(x.shape), y


def _external(name: str, task: Task) -> Mapping[str, ClientData]:
    known = task.external
    if not known:
        raise ConfigError(
            '"external": this run left no client out; one with data.leave_out has external clients'
        )
    if name and name not in known:
        raise ConfigError(
            f'"external:{name}": no such client; this run left out {", ".join(known)}'
        )
    return {f"external:{client}": known[client] for client in ([name] if name else known)}


def _from_disk(path: Path, seed: int, task: Task) -> ClientData:
    try:
        is_folder = path.is_dir()
        found = is_folder or path.exists()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    if not found:
        raise DataError(
            f"{path}: no such file or folder; the run itself has {', '.join(_OF_THE_RUN)}"
        )
    if _test(task, 1)[1].is_floating_point():
        raise DataError(
            f"{path}: holds classes, and this run's targets are numbers; it can be tried on test"
        )
    if is_folder:
        return _pictures(path, seed, task)
    return _fitted(*load_arrays(path), path, task)


def _pictures(root: Path, seed: int, task: Task) -> ClientData:
    wanted = _as_images(_test(task, 1)[0])
    n_channels, side, width = wanted.shape[1:]
    if side != width:
        raise DataError(f"{root}: this run's images are {side} × {width}; pictures become squares")
    x, y, names = load_class_folders(root, side)
    n_classes = _n_classes(task)
    if len(names) != n_classes:
        raise DataError(
            f"{root}: {len(names)} class folders for a model of {n_classes} classes, so that a "
            "label could mean another class; add empty folders for the classes that are missing"
        )
    if n_channels == 1:
        x = torch.einsum("nchw,c->nhw", x, torch.tensor(_LUMA)).unsqueeze(1)
    # Folders come class by class, and a batch of one class has not the statistics of the client.
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
    return _fitted(x[order], y[order], root, task)


def _fitted(x: Tensor, y: Tensor, path: Path, task: Task) -> ClientData:
    """Return (x, y) in the form that the model takes."""
    like, _ = _test(task, 1)
    n_classes, wanted, found = _n_classes(task), like.shape[1:], x.shape[1:]
    if not x.is_floating_point():
        raise DataError(
            f"{path}: x holds {str(x.dtype).removeprefix('torch.')}; give floats, scaled as in "
            "training: 8-bit pixels divided by 255"
        )
    if found != wanted and (found.numel() != wanted.numel() or 1 not in {len(found), len(wanted)}):
        raise DataError(
            f"{path}: x holds samples of shape {tuple(found)}; the model takes {tuple(wanted)}"
        )
    if len(y) and int(y.max()) >= n_classes:
        raise DataError(f"{path}: label {int(y.max())}; the model's are 0..{n_classes - 1}")
    return x.to(like.dtype).reshape(-1, *wanted), y


def _test(task: Task, n: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the run's test data, or the first `n` of them."""
    test = samples(task.test, "the test data")
    return test.take(torch.arange(n or len(test)))


def _n_classes(task: Task) -> int:
    model = copy.deepcopy(task.model).eval()
    with torch.no_grad():
        return int(model(_test(task, 1)[0]).shape[1])


def _as_images(x: Tensor) -> Tensor:
    """Reshape flat squares to images (n, c, side, side): no number is one square and three."""
    if x.dim() != 2:
        return x
    for n_channels in (1, 3):
        side = isqrt(x.shape[1] // n_channels)
        if n_channels * side**2 == x.shape[1]:
            return x.reshape(-1, n_channels, side, side)
    raise DataError(f"samples of {x.shape[1]} values are no square images")
