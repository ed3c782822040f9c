"""Checkpoints of a run: the global state and all clients' states, in one safetensors file."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from securefl.algorithms.algorithm import averaged_tensors
from securefl.errors import RunFolderError
from securefl.io.files import require_tensors
from securefl.io.json import parsed
from securefl.io.tensors import unshared
from securefl.norms.mixed import factors_like
from securefl.types import ClientState, Kind, NamedTensors, State

META = "securefl"
"""Key of the file's metadata: one JSON text, since several entries would have no fixed order."""
_ABOUT = TypeAdapter(dict[str, Any])
MAX_ROUNDS = 10**7
"""Most rounds that the settings allow."""
PARTS = tuple(field.name for field in fields(ClientState))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A run between two rounds; the file holds its own digest, which shows damage.

    Tensors are named state/KIND/NAME, private/server/NAME, and PART/CLIENT/NAME for the parts of a
    client's state; numbers are tensors numbers/NAME/KEY.
    """

    state: State
    client_states: Mapping[str, ClientState]
    numbers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Other numbers that the run depends on, by name and key."""

    def to_bytes(self) -> bytes:
        """Return the file's content."""
        groups = {f"state/{kind}": named for kind, named in self.state.tensors.items()}
        groups["private/server"] = self.state.private
        for client, client_state in self.client_states.items():
            groups |= {f"{part}/{client}": getattr(client_state, part) for part in PARTS}
        for name, numbers in self.numbers.items():
            groups[f"numbers/{name}"] = {
                key: torch.tensor(number, dtype=torch.float64) for key, number in numbers.items()
            }
        tensors = unshared(
            {f"{group}/{n}": value for group, named in groups.items() for n, value in named.items()}
        )
        about = {"round": self.state.round, "sha256": _digest(self.state.round, tensors)}
        return bytes(safetensors.torch.save(tensors, {META: json.dumps(about)}))

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """Read a file of `to_bytes`, to the last bit.

        Raises:
            RunFolderError: the file is damaged.
        """
        groups: dict[str, dict[str, dict[str, Tensor]]] = {}
        try:
            require_tensors(path)
            with safe_open(path, framework="pt") as file:
                about = parsed(_ABOUT, file.metadata()[META], RunFolderError)
                named = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            round_number = about["round"]
            if type(round_number) is not int or not 0 <= round_number <= MAX_ROUNDS:
                raise ValueError("its round is no number of rounds")  # noqa: TRY301
            if _digest(round_number, named) != about["sha256"]:
                raise ValueError("its content is not what was written")  # noqa: TRY301
            for key, value in named.items():
                group, owner, name = key.split("/", 2)
                groups.setdefault(group, {}).setdefault(owner, {})[name] = value
            tensors = {Kind(kind): named for kind, named in groups.pop("state", {}).items()}
            private = groups.pop("private", {}).get("server", {})
            numbers = {
                name: {key: _number(value) for key, value in named.items()}
                for name, named in groups.pop("numbers", {}).items()
            }
            clients = {client for owners in groups.values() for client in owners}
            client_states = {
                client: ClientState(
                    **{part: owners.get(client, {}) for part, owners in groups.items()}
                )
                for client in clients
            }
        except (
            RunFolderError,
            SafetensorError,
            OSError,
            ValueError,
            LookupError,
            TypeError,
        ) as error:
            raise RunFolderError(
                f"{path}: damaged checkpoint ({error}); put a copy of it back if you have one, or "
                "start the run anew in another folder"
            ) from error
        return cls(State(round_number, tensors, private), client_states, numbers)

    def beside(self, other: State) -> "Checkpoint":
        """Move the tensors, which a file has on the CPU, to the devices of a like state.

        Clients' states move to the model's device.
        """
        model = next(iter(other.tensors[Kind.PARAMETERS].values())).device
        state = State(
            self.state.round,
            {kind: _beside(self.state.tensors[kind], of) for kind, of in other.tensors.items()},
            _beside(self.state.private, other.private),
        )
        client_states = {
            client: ClientState(
                **{p: {n: v.to(model) for n, v in getattr(kept, p).items()} for p in PARTS}
            )
            for client, kept in self.client_states.items()
        }
        return replace(self, state=state, client_states=client_states)


def _beside(named: NamedTensors, others: NamedTensors) -> dict[str, Tensor]:
    """Return the tensors in the order of the others, which is that of values in messages."""
    return {name: named[name].to(other.device) for name, other in others.items()}


def _number(value: Tensor) -> float:
    if value.shape != () or value.dtype is not torch.float64 or not value.isfinite():
        raise ValueError("a number that is none")
    return float(value)


def check_client_state(client: str, client_state: ClientState, model: nn.Module) -> None:
    """Check the state of a client that a file gives against the model of its run.

    Raises:
        RunFolderError: a tensor of another name, shape or type than training would leave, or with
            values that are not finite.
    """
    known = {n: v for named in averaged_tensors(model).values() for n, v in named.items()}
    known |= factors_like(model)  # parameters that layers may have in training alone
    for part in PARTS:
        for name, value in getattr(client_state, part).items():
            # A solver keeps several tensors of a parameter under prefixes of its own.
            like = known.get(name, known.get(name.partition("/")[2]))
            fits = like is not None and (value.shape, value.dtype) == (like.shape, like.dtype)
            if part == "policy" or (like is None and value.dim() == 0):
                fits = value.is_floating_point()
            if not (fits and torch.isfinite(value).all()):
                raise RunFolderError(
                    f"the checkpoint's {part}/{client}/{name} is not of this run's model, or not "
                    "finite: put a copy of the checkpoint back if you have one, or start the run "
                    "anew in another folder"
                )


def _digest(round_number: object, tensors: Mapping[str, Tensor]) -> str:
    """Return a digest, which shows damage but not forgery: it can be rewritten with the file."""
    found = hashlib.sha256(json.dumps(round_number).encode())
    for name, value in sorted(tensors.items()):
        found.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
