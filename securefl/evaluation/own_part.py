"""A client's own part of a trained model: the tensors that lie over the global ones."""

from pathlib import Path

from torch import nn

from securefl.algorithms.algorithm import averaged_tensors
from securefl.errors import ConfigError, RunFolderError
from securefl.runs.folder_writer import RunFolder
from securefl.types import NamedTensors


def own_part(folder: Path | str, client: str) -> NamedTensors:
    """Return what a client of a simulation keeps to itself of the model, from the run's folder.

    Raises:
        ConfigError: this client keeps nothing there.
        RunFolderError: no run's folder, or a damaged one.

    Examples:
        >>> config = securefl.load_config(settings=["algorithm.name=fedbn", "run.rounds=2"])
        >>> result = securefl.run(config, task, out="runs/local")
        >>> part = securefl.own_part("runs/local", "north")
        >>> sorted(part)[:2]
        ['1.bias', '1.running_mean']
        >>> north = securefl.load_trained("runs/local", task, own=part).model
    """
    checkpoint = RunFolder(Path(folder)).checkpoint()
    client_states = {} if checkpoint is None else checkpoint.client_states
    with_own = sorted(name for name, client_state in client_states.items() if client_state.scored)
    if client not in with_own:
        raise ConfigError(
            f"{folder}: holds nothing of a client {client!r:.100} alone; "
            + (
                f"it does of {', '.join(with_own)}"
                if with_own
                else "where clients keep parts of the model, each site has its own (--own FILE), "
                "and elsewhere all have the global model"
            )
        )
    return client_states[client].scored


def require_part_of(model: nn.Module, own: NamedTensors) -> None:
    """Raise RunFolderError where a tensor is none of the model's, by name, shape or type."""
    known = {n: t for named in averaged_tensors(model).values() for n, t in named.items()}
    for name, value in own.items():
        like = known.get(name)
        if like is None or (like.shape, like.dtype) != (value.shape, value.dtype):
            raise RunFolderError(f"{name!r:.100}: a tensor of another model than this run's")
