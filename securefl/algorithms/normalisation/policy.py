"""A normalisation policy says, round by round, what happens to a model's BN layers.

It is a function of the state, and a round's answer is a value of seven fields. What travels, what
stays and how the layers behave in training follow from these.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from securefl.algorithms.algorithm import Work, copied
from securefl.errors import DataError
from securefl.exchange.moments import moment_messages
from securefl.exchange.sums import Exchange
from securefl.norms.find import (
    BatchNorm,
    affine,
    batch_norm_layers,
    batch_normalising,
    statistics,
)
from securefl.norms.frozen import frozen_batch_norm
from securefl.norms.outside import in_layers_alone
from securefl.norms.pooled import pooled_batch_norm
from securefl.norms.static import measure_statistics
from securefl.types import Freeze, Gradients, Kind, MessageSpec, Moments, NamedTensors, State

REFERENCE = "fedtan/reference/"
START = "control/start/"
"""Prefix of a statistic before the first round, which a state carries of those that are control
variates: Σ p_i S_i over all clients, of whom those that have never been in a round have this."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """A first local step with the moments of all clients' batches (FedTAN)."""

    moments: Moments
    gradients: Gradients
    references: NamedTensors = field(default_factory=dict)
    """Last pooled mean by layer, which fused moments are about."""

    def of(self, layer: str) -> Moments:
        """Return how a layer's moments travel: in two passes where no pooled mean is known yet."""
        return self.moments if layer in self.references else Moments.TWO_PASS


def references(state: State) -> dict[str, Tensor]:
    """Return by layer the last pooled mean that a state carries; none before the first round."""
    if not state.round:
        return {}
    carried = state.tensors.get(Kind.STATISTICS, {})
    return {n.removeprefix(REFERENCE): v for n, v in carried.items() if n.startswith(REFERENCE)}


@runtime_checkable
class Measurement(Protocol):
    """Statistics that all clients find together at a round's start, by sums over clients."""

    def messages(self, model: nn.Module) -> tuple[MessageSpec, ...]:
        """Return the sums that it asks for."""

    def measure(self, work: Work, exchange: Exchange) -> None:
        """Write the statistics, the same at every client, into the model's BN layers."""


Followed: TypeAlias = Callable[[], tuple[NamedTensors, NamedTensors]]
"""Ends a client's local steps: what it sends with its statistics, and what it keeps."""


@runtime_checkable
class Following(Protocol):
    """A client's own part in BN through its local steps, with something to send or to keep."""

    @property
    def holds(self) -> bool:
        """True where no training moves the statistics of the model itself."""

    def start(self, model: nn.Module) -> dict[str, Tensor]:
        """Return what a state carries of it, as before the first round."""

    def steps(self, model: nn.Module, kept: NamedTensors) -> AbstractContextManager[Followed]:
        """Surround all local steps of a client that has `kept` so much of its last round."""


@dataclass(frozen=True, slots=True)
class RoundNorm:
    """One round's batch normalisation. With no field set it is FedAvg's: averaged like weights."""

    pooling: Pooling | None = None
    freeze: Freeze | None = None
    local: frozenset[str] = frozenset()
    """Names of the tensors that stay each client's own."""
    static: bool = False
    """Statistics are measured on the round's first model and do not follow training."""
    following: Following | None = None
    measurement: Measurement | None = None
    """Where statistics come from that then stay for the round."""
    layers_alone: bool = False
    """True where BN layers are changed, in some round, in a way that reaches no functional call."""

    def sums(self, model: nn.Module) -> tuple[MessageSpec, ...]:
        """Return what clients ask for in the middle of their round."""
        if self.measurement:
            return self.measurement.messages(model)
        if self.pooling is None:
            return ()
        return tuple(
            spec
            for name, layer in batch_normalising(model).items()
            for spec in moment_messages(
                name, layer.num_features, self.pooling.of(name), self.pooling.gradients
            )
        )

    def carried(self, model: nn.Module) -> dict[str, Tensor]:
        """Return what a state carries beside the model's statistics, as before the first round."""
        if self.following:
            return self.following.start(model)
        if self.pooling and self.pooling.moments is Moments.FUSED:
            like = next(model.parameters())
            layers = batch_normalising(model).items()
            return {REFERENCE + name: like.new_zeros(layer.num_features) for name, layer in layers}
        return {}

    def stays(self, state: State, model: nn.Module) -> set[str]:
        """Return names that do not travel: local tensors, and what all have.

        The latter is frozen, or carried by the state beside the model for other rounds than this.
        """
        buffers = dict(model.named_buffers()).keys()
        frozen = state.tensors.get(Kind.STATISTICS, {}).keys() - buffers
        if frozen:
            frozen -= {name for name in self.carried(model) if not name.startswith(START)}
        sent = self.measurement or self.following
        if self.freeze in (Freeze.STATISTICS, Freeze.BOTH) and not sent:
            frozen |= statistics(model).keys()
        if self.freeze in (Freeze.AFFINE, Freeze.BOTH):
            frozen |= affine(model).keys()
        return frozen | self.local

    @contextmanager
    def training(self, work: Work) -> Iterator[None]:
        """Surround all local steps."""
        if self.static:
            n_batches = len(work.data) // len((first := next(work.batches))[0])
            others = islice(work.batches, n_batches - 1)
            measure_statistics(work.model, (x for x, _ in chain([first], others)))
        with self.more_training(work.model):
            yield

    def local_steps(self, model: nn.Module, kept: NamedTensors) -> AbstractContextManager[Followed]:
        """Surround all local steps by the client's own part in them."""
        return self.following.steps(model, kept) if self.following else nullcontext(_nothing)

    @contextmanager
    def more_training(self, model: nn.Module) -> Iterator[None]:
        """Surround steps on other samples: what is frozen or measured stays."""
        if self.freeze:
            with frozen_batch_norm(model, self.freeze):
                yield
        elif self.static or (self.following and self.following.holds):
            measured = copied(statistics(model))
            yield
            with torch.no_grad():
                for name, buffer in statistics(model).items():
                    buffer.copy_(measured[name])
        else:
            yield

    def first_step(
        self, model: nn.Module, exchange: Exchange, means: dict[str, Tensor]
    ) -> AbstractContextManager[None]:
        """Surround the first forward and backward pass, and put its pooled means into `means`."""
        if self.pooling is None and not self.layers_alone:
            return nullcontext()
        return self._first_step(model, exchange, means)

    @contextmanager
    def _first_step(
        self, model: nn.Module, exchange: Exchange, means: dict[str, Tensor]
    ) -> Iterator[None]:
        pooling = self.pooling
        with ExitStack() as stack:
            if self.layers_alone:
                stack.enter_context(in_layers_alone(model))
            if pooling is None:
                yield
                return
            pooled = pooled_batch_norm(model, exchange, pooling.references, pooling.gradients)
            seen = stack.enter_context(pooled)
            yield
        means.update({REFERENCE + name: mean_C for name, mean_C in seen.items()})


def _nothing() -> tuple[NamedTensors, NamedTensors]:
    return {}, {}


Policy: TypeAlias = Callable[[State, nn.Module], RoundNorm]
"""The round that follows a state; raises DataError where the model has no layer for it."""


def required_normalising(model: nn.Module, policy: str) -> dict[str, BatchNorm]:
    """Return the model's BN layers that normalise by the batch in training.

    Raises:
        DataError: it has none, so that `policy` would do nothing.
    """
    required_layers(model, policy)
    layers = batch_normalising(model)
    if not layers:
        raise DataError(
            f"{policy} needs BN layers that normalise by the batch, and this model's own train() "
            'keeps all of them in evaluation mode: use algorithm.name = "fedavg", or leave some in '
            "training mode"
        )
    return layers


def required_tracking(model: nn.Module, policy: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the running means and variances of the `required_normalising` layers.

    Raises:
        DataError: a layer keeps none, or `required_normalising` says so.
    """
    found = {}
    for name, layer in required_normalising(model, policy).items():
        if layer.running_mean is None or layer.running_var is None:
            raise DataError(
                f"{policy} needs global statistics, and BN layer {name!r} keeps no running ones: "
                "make it with track_running_stats=True"
            )
        found[name] = layer.running_mean, layer.running_var
    return found


def required_layers(model: nn.Module, policy: str) -> dict[str, BatchNorm]:
    """Return the model's BN layers.

    Raises:
        DataError: it has none, so that `policy` would do nothing.
    """
    layers = batch_norm_layers(model)
    if not layers:
        raise DataError(
            f"{policy} needs batch normalisation and this model has none: set "
            'algorithm.name = "fedavg" with exchange.encrypt = "model" or "none", or give '
            'the model BN layers (of the settings\' own models, model.norm = "batch")'
        )
    return layers
