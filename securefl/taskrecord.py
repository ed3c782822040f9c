"""A user's own task as its run's folder tells it: what was trained, on data of which form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from securefl.data.samples import ClientData, samples
from securefl.metrics import loss_name
from securefl.task import Task


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """The model that a run began with."""

    name: str
    """Its class, with the module that has it."""
    n_parameters: int
    sha256: str
    """Of its state: names, types, shapes and values."""


@dataclass(frozen=True, slots=True)
class DataRecord:
    """One party's samples."""

    n_samples: int
    x: str
    """Type and shape of one sample."""
    y: str
    sha256: str | None
    """Of all values; None for a Dataset, which need not give the same ones twice."""


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """All of a task."""

    model: ModelRecord
    loss: str
    metric: str
    """Empty where it followed from the loss."""
    algorithm: str
    """Its class where the user has made it; empty where the settings name it."""
    clients: Mapping[str, DataRecord]
    test: DataRecord
    client_tests: tuple[DataRecord, ...]
    external: Mapping[str, DataRecord]
    public: DataRecord | None

    def to_json(self) -> bytes:
        """The file that a run's folder has."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False).encode()


def task_record(task: Task, names: Iterable[str]) -> TaskRecord:
    """Describe a task whose clients have these names."""
    metric = task.metric or ""
    return TaskRecord(
        model=_model(task.model),
        loss=loss_name(task.loss),
        metric=metric if isinstance(metric, str) else loss_name(metric),
        algorithm="" if task.algorithm is None else _class(task.algorithm),
        clients={name: _data(of) for name, of in zip(names, task.clients, strict=True)},
        test=_data(task.test),
        client_tests=tuple(map(_data, task.client_tests)),
        external={name: _data(of) for name, of in task.external.items()},
        public=None if task.public is None else _data(task.public),
    )


def _model(model: nn.Module) -> ModelRecord:
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    return ModelRecord(_class(model), sum(p.numel() for p in model.parameters()), _digest(state))


def _data(data: ClientData) -> DataRecord:
    found = samples(data, "a task's record")
    x, y = found.take(torch.arange(1))
    digest = _digest(dict(zip("xy", data, strict=True))) if isinstance(data, tuple) else None
    return DataRecord(len(found), _form(x), _form(y), digest)


def _form(of_one: Tensor) -> str:
    return f"{str(of_one.dtype).removeprefix('torch.')} {tuple(of_one.shape[1:])}"


def _digest(named: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in named.items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _class(of: object) -> str:
    return f"{type(of).__module__}.{type(of).__qualname__}"
