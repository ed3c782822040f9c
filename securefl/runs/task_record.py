"""Record of a user's own task in its run's folder: model, loss, and form of the data."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from securefl.data.samples import ClientData, samples
from securefl.errors import ConfigError, RunFolderError
from securefl.io.files import read_bounded
from securefl.io.json import parsed
from securefl.losses.kinds import loss_name
from securefl.runs.folder_files import TASK, read_soundly
from securefl.settings.tables import Config
from securefl.task import Task, client_names

MAX_BYTES = 2**26
"""Most bytes of a record; a client takes some 250."""


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """The model that a run began with."""

    name: str
    """Class of the model, with its module."""
    n_parameters: int
    sha256: str
    """Digest of the state: names, types, shapes and values."""


@dataclass(frozen=True, slots=True)
class DataRecord:
    """One party's samples."""

    n_samples: int
    x: str
    """Type and shape of one sample."""
    y: str
    sha256: str | None
    """Digest of all values; None for a Dataset, which need not give the same ones twice."""


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task without its tensors."""

    model: ModelRecord
    loss: str
    metric: str
    """Name of the metric; empty where it followed from the loss."""
    algorithm: str
    """Class of the user's own algorithm; empty where the settings name one."""
    clients: Mapping[str, DataRecord]
    test: DataRecord
    client_tests: tuple[DataRecord, ...]
    external: Mapping[str, DataRecord]
    public: DataRecord | None

    def to_json(self) -> bytes:
        """Return the content of the file in a run's folder."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class SiteRecord:
    """Samples that a site began a run with; it stays at the site."""

    train: DataRecord
    test: DataRecord

    @classmethod
    def of(cls, train: ClientData, test: ClientData) -> "SiteRecord":
        """Describe a site's samples."""
        return cls(_data(train), _data(test))

    def to_json(self) -> bytes:
        """Return the content of the file in the site's folder."""
        return _SITE.dump_json(self, indent=1)

    def require_same(self, path: Path, name: str) -> None:
        """Hold these samples against those in a record.

        Raises:
            ConfigError: they are others.
            RunFolderError: the record is damaged.
        """
        with read_soundly(path):
            then = parsed(_SITE, read_bounded(path, MAX_BYTES), RunFolderError)
        for which, one, other in (
            ("train", then.train, self.train),
            ("test", then.test, self.test),
        ):
            if one != other:
                raise ConfigError(
                    f"{name}: its samples that {which} are others than it began the run with: "
                    f"{_told(one)} in {path}, and now {_told(other)}; give the file that it had"
                )


_RECORD = TypeAdapter(TaskRecord)
_SITE = TypeAdapter(SiteRecord)


def site_record(job: str) -> Path:
    """Return the place of a site's record of a job, below the folder of its identity."""
    return Path("data", f"{job}.json")


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


def read_task_record(folder: Path) -> TaskRecord | None:
    """Read the record of a run's own task; None where there is none.

    Raises:
        RunFolderError: it is damaged.
    """
    path = folder / TASK
    if not path.is_file():
        return None
    with read_soundly(path):
        return parsed(_RECORD, read_bounded(path, MAX_BYTES), RunFolderError)


def require_same_task(folder: Path, task: Task, config: Config, *, weights: bool = False) -> None:
    """Refuse another task than the run's; a folder without a record of it accepts any.

    Classes count without their module, which is another in the script that defines them. Of a
    Dataset, which has no digest, the number and the form of its samples count.

    Args:
        folder: the run's.
        task: the one that is said to be the run's.
        config: the run's settings, which may name the clients.
        weights: the values of its first model count, too.

    Raises:
        ConfigError: a part differs; the message names it.
        RunFolderError: the record is damaged.
    """
    try:
        same = config.with_choices(task.choices) == config
    except ConfigError:
        same = False
    if not same:
        raise ConfigError(
            f"{folder}: the task's choices are other than this run's, "
            f"{', '.join(map(repr, config.choices)):.500}: give those that the run began with, or "
            "none"
        )
    recorded = read_task_record(folder)
    if recorded is None:
        return
    given = task_record(task, client_names(config, task))
    parts = next(_differing(recorded, given, weights=weights), None)
    if parts is not None:
        name, then, now = parts
        raise ConfigError(
            f"{folder}: the task is another than this run's, by {name}: {_told(then)} in {TASK}, "
            f"and now {_told(now)}; give the task that the run began with, or start a new run"
        )


def _differing(
    recorded: TaskRecord, given: TaskRecord, *, weights: bool
) -> Iterator[tuple[str, object, object]]:
    """Yield the parts that differ: name, recorded part, given part."""
    then, now = (_parts(of, weights=weights) for of in (recorded, given))
    for name in {**then, **now}:
        one, other = then.get(name), now.get(name)
        if (
            isinstance(one, DataRecord)
            and isinstance(other, DataRecord)
            and not (one.sha256 and other.sha256)
        ):
            one, other = replace(one, sha256=None), replace(other, sha256=None)
        if one != other:
            yield name, one, other


def _parts(of: TaskRecord, *, weights: bool) -> dict[str, object]:
    """Return the parts of a task that must be equal, by their names in messages."""
    model = replace(of.model, name=_bare(of.model.name))
    return {
        "the model": model if weights else replace(model, sha256=""),
        "the loss": of.loss,
        "the metric": of.metric,
        "the algorithm": _bare(of.algorithm),
        **{f"client {name}": data for name, data in of.clients.items()},
        "the order of clients": tuple(of.clients),
        "the test data": of.test,
        **{f"the test data of client {i}": d for i, d in enumerate(of.client_tests, 1)},
        **{f"the external client {name}": data for name, data in of.external.items()},
        "the public samples": of.public,
    }


def _told(part: object) -> str:
    match part:
        case ModelRecord(name, n, digest):
            return f"{name}, {n} parameters" + (f", sha256 {digest:.12}" if digest else "")
        case DataRecord(n, x, y, digest):
            values = f", sha256 {digest:.12}" if digest else ""
            return f"{n} samples, x {x}, y {y}{values}"
        case tuple():
            return f"{', '.join(map(str, part)):.200}"
    return str(part) if part else "none"


def _bare(of_class: str) -> str:
    """Return the name of a class without its module."""
    return of_class.rpartition(".")[2]


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
