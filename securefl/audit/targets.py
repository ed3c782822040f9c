"""Targets in a run, by its settings: models that were seen, gradients, and statistics."""

from __future__ import annotations

import copy
from collections.abc import Container, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from securefl.algorithms.algorithm import Loss
from securefl.audit.inversion.hidden_statistics import Hidden
from securefl.audit.inversion.opened_total import OpenedRound, RoundShape
from securefl.audit.inversion.target import NormalisedBatch, Target, pooled
from securefl.audit.membership.attackers import SeenModels
from securefl.audit.membership.candidates import Candidates, Phi, confidences
from securefl.audit.tracing.verdict import SentStatistics, Visibility
from securefl.build.exchange import sealed_kinds
from securefl.data.samples import samples, whole
from securefl.data.split import Labelled
from securefl.errors import DataError
from securefl.evaluation.evaluate import Trained
from securefl.federation.ledger import AUTHORITY, SERVER, Entry
from securefl.norms.find import batch_norm_layers, statistics
from securefl.settings.axes import Normalises
from securefl.settings.tables import Config
from securefl.task import Task, client_names
from securefl.types import Kind, NamedTensors


def observed(
    config: Config,
    trained: Trained,
    models: Sequence[NamedTensors],
    updates: Sequence[Mapping[str, NamedTensors]],
    pool: Candidates,
) -> SeenModels:
    """Return φ by what all saw, the global models, and by what the server saw, clients' updates.

    Single updates count where they travel in the clear. A client's own BN statistics are those that
    it sent, or the round's where these were sealed, or where it sent a move of the mean over all
    clients, which is no statistic of a model.
    """
    look = _Look(trained.model, trained.task.loss, pool)
    names = client_names(config, trained.task)
    clients = None
    moves = statistics(trained.model).keys() if config.algorithm.corrected else set[str]()
    united = config.algorithm.joins_data
    if Kind.PARAMETERS not in sealed_kinds(config) and not united:
        clients = np.stack([
            np.stack([look.at(after, _own(config, before, of.get(name), moves)) for name in names])
            for (before, after), of in zip(pairwise(models), updates, strict=True)
            if of
        ])  # fmt: skip
    rounds = np.stack([look.at(after, {}) for after in models[1:]])
    return SeenModels(confidences(trained.model, pool, trained.task.loss), rounds, clients)


class _Look:
    """Model that takes the values of many."""

    def __init__(self, model: nn.Module, loss: Loss, pool: Candidates) -> None:
        self._model, self._loss, self._pool = copy.deepcopy(model), loss, pool

    def at(self, tensors: NamedTensors, update: NamedTensors | None) -> Phi:
        """Return φ by global tensors with a client's over them; NaN where it sent none."""
        if update is None:
            return np.full(len(self._pool), np.nan)
        self._model.load_state_dict({**tensors, **update}, strict=False)
        return confidences(self._model, self._pool, self._loss)


def _own(
    config: Config, before: NamedTensors, sent: NamedTensors | None, moves: Container[str]
) -> NamedTensors | None:
    """Return a client's model: what it sent, or with client-level noise how far it moved."""
    if sent is None:
        return None
    own = {name: value for name, value in sent.items() if name not in moves}
    if not config.privacy.of_clients:
        return own
    return {name: before[name] + moved for name, moved in own.items()}


def hidden_from_server(ledger: Sequence[Entry]) -> Hidden:
    """Return what the server could not read of single clients; DataError without a ledger."""
    if not ledger:
        raise DataError("the run has no ledger, so nobody knows what was hidden")
    if _form(ledger, Kind.PARAMETERS) is not Visibility.EACH:
        return Hidden.UPDATES
    in_clear = _form(ledger, Kind.STATISTICS) is Visibility.EACH
    return Hidden.NOTHING if in_clear else Hidden.STATISTICS


def inversion_target(config: Config, name: str, model: nn.Module, task: Task) -> Target:
    """Return the target of gradient inversion: the client with most samples, under this model.

    Raises:
        DataError: what it has cannot be attacked.
    """
    clients = [whole(data, "a client") for data in task.clients]
    attacked = max(range(len(clients)), key=lambda i: len(clients[i][1]))
    others = [client for i, client in enumerate(clients) if i != attacked]
    about = name, model, clients[attacked], public_rows(config, task)
    size, loss = config.train.batch_size, task.loss
    if not batch_norm_layers(model):
        return Target(*about, NormalisedBatch.GIVEN, given={}, loss=loss)
    match config.algorithm.normalises:
        case Normalises.BY_POOLED if others:
            return Target(*about, NormalisedBatch.POOLED, others=_first(others, size), loss=loss)
        case Normalises.BY_POOLED_CONSTANTS if others:
            given, _ = pooled(model, loss, *(_first([client], size) for client in clients))
            return Target(*about, NormalisedBatch.GIVEN, given=given, loss=loss)
        case Normalises.BY_CONSTANTS:
            return Target(*about, NormalisedBatch.GIVEN, loss=loss)
        case Normalises.BY_MIXTURE:
            raise DataError(
                "each client mixes the statistics of its batch and the global ones by factors of "
                "its own that never travel, and this attack has no assumption of them: gradient "
                "inversion was not tried"
            )
        case _:
            return Target(*about, NormalisedBatch.BATCH, loss=loss)


def public_rows(config: Config, task: Task) -> Labelled:
    """Return samples like the clients' that no client trains on, such as an attacker has.

    They are the common test set's. Where sites bring their own data, that one is a placeholder,
    and they are all sites' own test sets.
    """
    if config.samples is None or not task.client_tests:
        return whole(task.test, "the test data")
    tests = [whole(data, "the test data of a site") for data in task.client_tests]
    return torch.cat([x for x, _ in tests]), torch.cat([y for _, y in tests])


def opened_round(config: Config, target: Target, task: Task) -> OpenedRound:
    """Return what makes the sums that a round of this run opens, at the target's model."""
    clients = [whole(data, "a client") for data in task.clients]
    table, batch = config.algorithm, config.train.batch_size
    steps = table.local_steps
    if table.local_epochs is not None:
        longest = max(len(y) // min(batch, len(y)) for _, y in clients)
        steps = table.local_epochs * longest
    shape = RoundShape(config.selection.n_selected(len(clients)), steps, batch)
    return OpenedRound(target, clients, shape, config.train.lr)


def sent_statistics(config: Config, ledger: Sequence[Entry], task: Task) -> SentStatistics:
    """Return which statistics of clients the ledger has, and in which form, for tracing."""
    table, sealed = config.privacy, sealed_kinds(config)
    sizes = [len(samples(data, "a client")) for data in task.clients]
    steps = 1 if config.algorithm.pools else config.algorithm.local_steps
    profiles = _form(ledger, Kind.PROFILES)
    n_records = min(sizes)
    if profiles is Visibility.NOT_SENT and not config.algorithm.measures:
        n_records = min(n_records, config.train.batch_size * steps)
    noisy = table.of_records and (config.algorithm.releases_statistics or Kind.PROFILES in sealed)
    return SentStatistics(
        _form(ledger, Kind.STATISTICS),
        Visibility.HIDDEN if profiles is Visibility.TOTALS else profiles,
        n_clients=max(1, len({e.sender for e in ledger} - {SERVER, AUTHORITY})),
        n_records=n_records,
        least=config.exchange.min_clients,
        layer=config.selection.profiled_layer,
        sigma=table.statistics_sigma if noisy else None,
        clip=table.statistics_clip,
        client_sigma=table.sigma if table.of_clients else None,
    )


def _form(ledger: Sequence[Entry], kind: Kind) -> Visibility:
    forms = {e.form for e in ledger if e.kind is kind and e.sender not in {SERVER, AUTHORITY}}
    if not forms:
        return Visibility.NOT_SENT
    return Visibility.EACH if "plaintext" in forms else Visibility.TOTALS


def _first(clients: Sequence[Labelled], size: int) -> tuple[Tensor, Tensor]:
    """Return the first mini-batch of each client, together."""
    return torch.cat([x[:size] for x, _ in clients]), torch.cat([y[:size] for _, y in clients])
