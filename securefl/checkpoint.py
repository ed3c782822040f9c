"""Where a run can go on: the global state and what each client keeps, as one safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from securefl.errors import RunFolderError
from securefl.types import Kind, NamedTensors, State


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A run between two rounds. Tensors are named state/KIND/NAME and memory/CLIENT/NAME."""

    state: State
    memories: Mapping[str, NamedTensors]

    def to_bytes(self) -> bytes:
        """The file's content."""
        groups = {f"state/{kind}": named for kind, named in self.state.tensors.items()}
        groups |= {f"memory/{client}": named for client, named in self.memories.items()}
        tensors = {
            f"{group}/{name}": value.cpu().contiguous()
            for group, named in groups.items()
            for name, value in named.items()
        }
        return bytes(safetensors.torch.save(tensors, {"round": str(self.state.round)}))

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """What `to_bytes` wrote.

        Raises:
            RunFolderError: the file is damaged.
        """
        tensors: dict[Kind, dict[str, Tensor]] = {}
        memories: dict[str, dict[str, Tensor]] = {}
        try:
            with safe_open(path, framework="pt") as file:
                round_number = int(file.metadata()["round"])
                for key in file.keys():  # noqa: SIM118 -- a safe_open is no dict
                    group, owner, name = key.split("/", 2)
                    if group == "state":
                        tensors.setdefault(Kind(owner), {})[name] = file.get_tensor(key)
                    else:
                        memories.setdefault(owner, {})[name] = file.get_tensor(key)
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{path}: damaged checkpoint ({error})") from error
        return cls(State(round_number, tensors), memories)
