"""What models that were seen during a run say of its records: φ, model by model."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from torch import nn

from securefl.algorithms.algorithm import Loss
from securefl.audit.membership.attackers import SeenModels
from securefl.audit.membership.candidates import Candidates
from securefl.audit.membership.confidences import Phi, confidences
from securefl.build.exchange import sealed_kinds
from securefl.evaluation.named_data import Trained
from securefl.settings.tables import Config
from securefl.task import client_names
from securefl.types import Kind, NamedTensors


def observed(
    config: Config,
    trained: Trained,
    models: Sequence[NamedTensors],
    updates: Sequence[Mapping[str, NamedTensors]],
    pool: Candidates,
) -> SeenModels:
    """By everybody: the final model and those of all rounds; by the server: clients' updates.

    Single updates count where they travel in the clear. A client's own BN statistics are those that
    it sent, or the round's where these were sealed.
    """
    look = _Look(trained.model, trained.task.loss, pool)
    names = client_names(config, trained.task)
    clients = None
    united = config.algorithm.name == "centralised"
    if Kind.PARAMETERS not in sealed_kinds(config) and not united:
        clients = np.stack([
            np.stack([look.at(after, _own(config, before, sent.get(name))) for name in names])
            for (before, after), sent in zip(pairwise(models), updates, strict=True)
            if sent
        ])  # fmt: skip
    rounds = np.stack([look.at(after, {}) for after in models[1:]])
    return SeenModels(confidences(trained.model, pool, trained.task.loss), rounds, clients)


class _Look:
    """One model that takes the values of many."""

    def __init__(self, model: nn.Module, loss: Loss, pool: Candidates) -> None:
        self._model, self._loss, self._pool = copy.deepcopy(model), loss, pool

    def at(self, tensors: NamedTensors, update: NamedTensors | None) -> Phi:
        """φ by the global tensors with a client's over them; NaN of a client that sent none."""
        if update is None:
            return np.full(len(self._pool), np.nan)
        self._model.load_state_dict({**tensors, **update}, strict=False)
        return confidences(self._model, self._pool, self._loss)


def _own(config: Config, before: NamedTensors, sent: NamedTensors | None) -> NamedTensors | None:
    """A client's model: what it sent, or with noise of clients' own how far it moved."""
    if sent is None or config.privacy.level != "client":
        return sent
    return {name: before[name] + moved for name, moved in sent.items()}
