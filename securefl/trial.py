"""Trial of samples in a model and its loss, before the first round, client by client.

What torch would say in the middle of a round names no client, and on a GPU no cause.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from securefl.algorithms.algorithm import Loss
from securefl.algorithms.rng_isolation import seeded_layers
from securefl.data.samples import Samples, TensorSamples
from securefl.errors import ConfigError, DataError
from securefl.losses.kinds import (
    ignored_label,
    loss_name,
    takes_classes,
    takes_floats,
    takes_survival,
)
from securefl.metrics.metric import described, zeros_and_ones

Copied = TypeVar("Copied")
N_TRIED = 4
"""Number of samples of each client that the model is tried on, where they have another form."""


def tried(
    model: nn.Module, loss: Loss, data: Mapping[str, Samples]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the model's outputs for a few samples of each owner, in evaluation mode, and targets.

    Args:
        model: not changed.
        loss: mean over a batch, of (model output, y).
        data: by owner, as a message is to name it.

    Raises:
        DataError: samples that the model or the loss does not take, or labels of no class.
        ConfigError: a model or a loss that cannot be copied.
    """
    # Copies: a model or a loss may count its calls.
    model, loss = _copy("model", model).eval(), _copy("loss", loss)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    outputs: dict[tuple[object, ...], Tensor] = {}
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for owner, samples in data.items():
        x, y = (values.to(device) for values in _few(samples))
        form = (x.dtype, x.shape, y.dtype, y.shape)
        if new := form not in outputs:
            with torch.no_grad(), seeded_layers(device, 0):
                outputs[form] = _output(model, x, owner)
        labels = samples.y if isinstance(samples, TensorSamples) else y
        if _has_labels(loss, labels):
            _check_labels(owner, labels, _n_classes(outputs[form]), ignored_label(loss))
        if takes_survival(loss):
            _check_events(owner, labels)
        if new:
            _check_loss(owner, outputs[form], y, loss)
        found[owner] = outputs[form], y
    return found


def require_plain(model: object) -> None:
    """Raise ConfigError where this is no model that can be copied and looked into."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model = {model!r:.80}: must be a torch module; give an instance")
    for name, layer in model.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            raise ConfigError(
                f"model: {name or 'it'} is a script of torch.jit, whose layers cannot be looked "
                "into; give the module that it was made of"
            )
        tensors = (*layer.parameters(recurse=False), *layer.buffers(recurse=False))
        if any(map(nn.parameter.is_lazy, tensors)):
            raise ConfigError(
                f'model: layer "{name}", {type(layer).__name__}, has no size yet; call the model '
                "once with a few samples, model(x[:2]), before you hand it over"
            )


def _copy(what: str, value: Copied) -> Copied:
    try:
        return copy.deepcopy(value)
    except Exception as error:  # objects say in ways of their own that they are not copied
        raise ConfigError(
            f"{what}: it cannot be copied ({error}), and clients have copies of it: keep out of it "
            "what there is one of, such as an open file or a lock"
        ) from error


def _few(samples: Samples) -> tuple[Tensor, Tensor]:
    if isinstance(samples, TensorSamples):
        return samples.x[:N_TRIED], samples.y[:N_TRIED]
    return samples.take(torch.arange(min(N_TRIED, len(samples))))


def _output(model: nn.Module, x: Tensor, owner: str) -> Tensor:
    with _noting_layers(model) as entered:
        try:
            output = model(x)
        except Exception as error:  # a user's forward may raise anything
            where = f"layer {entered[-1]}" if entered else "its forward"
            raise DataError(
                f"{owner}: the model does not take samples x of shape {tuple(x.shape[1:])}, "
                f"{str(x.dtype).removeprefix('torch.')}: {where} ({_first_line(error)}); give "
                "samples of the shape and type that it takes, or change the model"
            ) from error
    if not isinstance(output, Tensor):
        raise DataError(
            f"the model gives {described(output)} in evaluation mode, and must give one tensor"
        )
    return output


@contextmanager
def _noting_layers(model: nn.Module) -> Iterator[list[str]]:
    """Yield the layers that the model has begun, in words, each with the input that it got."""
    entered: list[str] = []

    def note(name: str, layer: nn.Module, args: tuple[object, ...]) -> None:
        given = ", ".join(map(described, args))
        entered.append(f'"{name}", {layer!r:.200}, was given {given}')

    hooks = [
        layer.register_forward_pre_hook(lambda layer, args, name=name: note(name, layer, args))
        for name, layer in model.named_modules()
        if name and not any(layer.children())
    ]
    try:
        yield entered
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True, slots=True)
class _Labelled:
    """Samples that are fetched when they are needed, and their labels checked then."""

    samples: Samples
    owner: str
    n_classes: int
    ignored: int

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return a batch: see `Samples.take`."""
        x, y = self.samples.take(index)
        _check_labels(self.owner, y, self.n_classes, self.ignored, index)
        return x, y


def labelled(
    data: Mapping[str, Samples], found: Mapping[str, tuple[Tensor, Tensor]], loss: Loss
) -> dict[str, Samples]:
    """Return the samples; a Dataset's raise DataError where a batch has a label of no class.

    Args:
        data: by owner.
        found: what `tried` gave for them.
        loss: mean over a batch, of (model output, y).
    """
    return {
        owner: samples
        if isinstance(samples, TensorSamples) or not _has_labels(loss, found[owner][1])
        else _Labelled(samples, owner, _n_classes(found[owner][0]), ignored_label(loss))
        for owner, samples in data.items()
    }


def _has_labels(loss: Loss, targets: Tensor) -> bool:
    return takes_classes(loss) and not targets.is_floating_point()


def _n_classes(output: Tensor) -> int:
    return output.shape[min(1, output.dim() - 1)]


def _check_labels(
    owner: str, labels: Tensor, n_classes: int, ignored: int, index: Tensor | None = None
) -> None:
    """Check labels before a loss has them: on a GPU one of no class ends the process's use of it.

    `index` has the samples' places in a Dataset, for the message.
    """
    lowest, highest = (int(value) for value in torch.aminmax(labels))
    if lowest >= 0 and highest < n_classes:
        return
    wrong = ((labels < 0) | (labels >= n_classes)) & (labels != ignored)
    if wrong.any():
        place = "" if index is None else f"sample {int(index[int(wrong.nonzero()[0, 0])])}: "
        raise DataError(
            f"{owner}: {place}label {int(labels[wrong][0])}, and the model has {n_classes} "
            f"outputs: labels are 0..{n_classes - 1}; count them from 0, or give the model an "
            "output for each class"
        )


def _check_events(owner: str, targets: Tensor) -> None:
    if targets.dim() == 2 and targets.shape[1] == 2 and not zeros_and_ones(targets[:, 1]):
        raise DataError(
            f"{owner}: an event that is neither 1 nor 0: targets are (time, event), the time first"
        )


def _check_loss(owner: str, output: Tensor, y: Tensor, loss: Loss) -> None:
    given = f"outputs {described(output)} and targets {described(y)}"
    if takes_floats(loss) and output.shape != y.shape:
        raise DataError(
            f"{owner}: the loss {loss_name(loss)} needs a target for each output, not {given}: "
            "give targets of the outputs' shape, such as y.reshape(-1, 1) for one output"
        )
    try:
        value = loss(output, y)
    except Exception as error:  # a user's loss may raise anything
        raise DataError(
            f"{owner}: the loss {loss_name(loss)} does not take {given} ({_first_line(error)}); "
            "give targets, a model or a loss that go together"
        ) from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise DataError(
            f"{owner}: the loss {loss_name(loss)} gives {described(value)} for {given}: it must be "
            'one number, the mean over a batch; torch\'s losses give it with reduction="mean"'
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
