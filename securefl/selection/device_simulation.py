"""Simulated devices of a run's clients, and the cost of a round on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from securefl.config.devices import DeviceSpecification
from securefl.data.samples import Samples
from securefl.federation.broadcast import Broadcast
from securefl.federation.questions import Question
from securefl.federation.server import Server
from securefl.federation.training import Training
from securefl.selection.devices import Cost, Device, Load, cost, draw_devices
from securefl.types import Plan, State


@dataclass(frozen=True, slots=True)
class ClientWorkloads:
    """Each client's workload in a round, from the messages that the round's plan announces.

    Sizes are those that the ledger will hold, to the byte, except for sums of gradients that a
    model turns out not to need, and for cards, which a client sends once a run. Epochs count the
    batches that a client trains on.
    """

    server: Server
    broadcast: Broadcast
    training: Training
    data: Mapping[str, Samples]
    public_samples: float = 0.0
    """Expected number that a client also trains on: FNR-FL hides who is refined."""

    def of(
        self, state: State, plan: Plan | None, client: str, asked: Sequence[Question] = ()
    ) -> Load:
        """Return the workload of a round with an answer to each of the questions asked.

        Without a plan there is no training, and the model is sent where a question needs it.
        """
        server, data = self.server, self.data[client]
        upload = download = 0
        if plan:
            sums = (*plan.sums, *plan.update)
            upload = sum(server.n_bytes(state.round + 1, spec, client) for spec in sums)
            download = sum(server.total_bytes(spec) for spec in plan.sums)
        if plan or any(question.reads_data for question in asked):
            download += self.broadcast.n_bytes(state, client)
        download += sum(question.asked_bytes for question in asked)
        passes, said = (
            [q.n_bytes(state, client) for q in asked if q.reads_data is reads]
            for reads in (True, False)
        )
        trained = self.training.steps(data) * min(self.training.batch_size, len(data))
        return Load(
            len(data),
            (trained + self.public_samples) / len(data) if plan else 0.0,
            download,
            upload + sum(said),
            sum(passes) if passes else None,
        )


@dataclass(frozen=True, slots=True)
class SimulatedDevices:
    """A device for each client."""

    specification: DeviceSpecification
    devices: Mapping[str, Device]

    @classmethod
    def drawn(
        cls, specification: DeviceSpecification, clients: Sequence[str], rng: torch.Generator
    ) -> SimulatedDevices:
        """Draw devices one by one, in the order of the clients."""
        devices = draw_devices(specification, len(clients), rng)
        return cls(specification, dict(zip(clients, devices, strict=True)))

    def cost(self, client: str, load: Load) -> Cost:
        """Return time and energy of one client's round."""
        return cost(self.specification, self.devices[client], load)
