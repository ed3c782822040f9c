"""Simulated devices: time and energy of a round (Wu et al., FedProf, Eqs. (9)-(16)).

The paper states neither the units nor the logarithm. As in Shannon's formula the logarithm has
base 2 and the signal-to-noise ratio is a ratio, so decibels are converted; sizes are in bits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from securefl.data.samples import Samples
from securefl.errors import ConfigError, DataError
from securefl.federation.broadcast import Broadcast
from securefl.federation.server import Server
from securefl.federation.training import Training
from securefl.settings.devices import DeviceSpecification
from securefl.types import Plan, State

if TYPE_CHECKING:
    from securefl.federation.questions import Question


@dataclass(frozen=True, slots=True)
class Device:
    """One client's device."""

    clock_ghz: float
    """s_k"""
    bandwidth_mhz: float
    """bw_k, the downlink's bandwidth."""


def draw_devices(
    table: DeviceSpecification, n_clients: int, rng: torch.Generator
) -> tuple[Device, ...]:
    """Draw a device for each client, clock and bandwidth from normal distributions.

    A value that is not above 0 is drawn again, so the distributions are normal ones truncated
    at 0. The paper does not say how it avoids a bandwidth below 0, which N(1, 0.3²) has for one
    client in 2300.

    Raises:
        ConfigError: no client.
    """
    if n_clients < 1:
        raise ConfigError(f"{n_clients} clients: must be at least 1")
    return tuple(
        Device(
            _above_zero(table.clock_ghz, table.clock_ghz_deviation, rng),
            _above_zero(table.bandwidth_mhz, table.bandwidth_mhz_deviation, rng),
        )
        for _ in range(n_clients)
    )


def _above_zero(mean: float, deviation: float, rng: torch.Generator) -> float:
    while True:  # half of all draws are above the mean, which is above 0
        drawn = mean + deviation * float(torch.randn((), dtype=torch.float64, generator=rng))
        if drawn > 0:
            return drawn


_JOULES_PER_WH = 3600.0


@dataclass(frozen=True, slots=True)
class Load:
    """One client's workload in a round; bytes are those on the wire, encryption included.

    Raises:
        ConfigError: a number below 0.
    """

    n_samples: int
    """|D_k|"""
    epochs: float
    """E; local steps count as the share of an epoch that they are."""
    download_bytes: int
    upload_bytes: int
    """Without the profile. The paper's msize is either, as its up- and download are alike."""
    profile_bytes: int | None = None
    """RPsize; none where the client makes no profile."""

    def __post_init__(self) -> None:
        numbers = {
            "n_samples": self.n_samples,
            "epochs": self.epochs,
            "download_bytes": self.download_bytes,
            "upload_bytes": self.upload_bytes,
            "profile_bytes": self.profile_bytes or 0,
        }
        for name, number in numbers.items():
            if not 0 <= number < math.inf:
                raise ConfigError(f"{name} = {number}: must be a finite number from 0 on")


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds and joules of one client's round, by what they are spent on."""

    communication_s: float
    training_s: float
    profiling_s: float
    """The passes over the data that make the profile, T_RPgen."""
    profile_upload_s: float
    """T_RPup"""
    communication_j: float
    training_j: float
    profiling_j: float
    """Energy to make and send the profile."""

    @property
    def time_s(self) -> float:
        """Duration of the round for this client, the term of Eq. (9)'s maximum."""
        return self.communication_s + self.training_s + self.profiling_s + self.profile_upload_s

    @property
    def energy_wh(self) -> float:
        """E_k, Eq. (10), in watt-hours."""
        return (self.communication_j + self.training_j + self.profiling_j) / _JOULES_PER_WH


def downlink_bits_per_s(table: DeviceSpecification, device: Device) -> float:
    """Return bw_k log2(1 + SNR); the uplink has half of it."""
    return device.bandwidth_mhz * 1e6 * math.log2(1 + 10 ** (table.snr_db / 10))


def cost(table: DeviceSpecification, device: Device, load: Load) -> Cost:
    """Return time and energy of one client's round."""
    down = downlink_bits_per_s(table, device)
    up = down / 2
    cycles_per_epoch = load.n_samples * table.bits_per_sample * table.cycles_per_bit
    epoch_s = cycles_per_epoch / (device.clock_ghz * 1e9)
    compute_w = table.compute_w * device.clock_ghz**3

    communication_s = 8 * load.download_bytes / down + 8 * load.upload_bytes / up  # Eq. (11)
    training_s = load.epochs * epoch_s  # Eq. (12)
    profiled = load.profile_bytes is not None
    profiling_s = epoch_s if profiled else 0.0  # Eq. (13), T_train / E
    profile_upload_s = 8 * (load.profile_bytes or 0) / up  # Eq. (13)
    return Cost(
        communication_s,
        training_s,
        profiling_s,
        profile_upload_s,
        communication_j=table.transmit_w * communication_s,  # Eq. (14)
        training_j=compute_w * training_s,  # Eq. (15)
        profiling_j=table.transmit_w * profile_upload_s + compute_w * profiling_s,  # Eq. (16)
    )


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """Outcome of a round; clients are in the order in which they were selected."""

    arrived: tuple[str, ...]
    """Clients whose contribution counts."""
    stragglers: tuple[str, ...]
    """Clients that missed the deadline."""
    lost: tuple[str, ...]
    """Clients that dropped out."""
    time_s: float
    energy_wh: float
    """Energy of all the selected; a client that drops out counts with a whole round."""


def round_outcome(
    costs: Mapping[str, Cost], lost: Collection[str] = (), deadline_s: float | None = None
) -> RoundOutcome:
    """Return the outcome of a round of the clients in `costs`.

    It lasts as long as its slowest client, Eq. (9). With a deadline it ends there at the latest,
    and lasts until then where a client is missing, since the server goes on waiting. Without a
    deadline the server does not wait for a client that drops out.

    Raises:
        ConfigError: a deadline that is not above 0.
        DataError: a client is lost that was not selected.
    """
    if deadline_s is not None and not deadline_s > 0:
        raise ConfigError(f"deadline_s = {deadline_s}: must be above 0; leave it out to wait")
    if strangers := sorted(set(lost) - costs.keys()):
        raise DataError(f"{', '.join(strangers)}: lost, but not among the selected clients")
    present = [client for client in costs if client not in lost]
    late = [c for c in present if deadline_s is not None and costs[c].time_s > deadline_s]
    arrived = tuple(client for client in present if client not in late)
    time_s = max((costs[client].time_s for client in arrived), default=0.0)
    if deadline_s is not None and len(arrived) < len(costs):
        time_s = deadline_s
    energy_wh = sum(cost.energy_wh for cost in costs.values())
    gone = tuple(client for client in costs if client in lost)
    return RoundOutcome(arrived, tuple(late), gone, time_s, energy_wh)


def dropouts(clients: Sequence[str], probability: float, rng: torch.Generator) -> tuple[str, ...]:
    """Draw the clients that drop out of a round, each with this probability.

    One number is drawn for each client, so dropouts of different rounds are independent.

    Raises:
        ConfigError: not a probability.
    """
    if not 0 <= probability <= 1:
        raise ConfigError(f"dropout probability {probability}: must be in 0..1")
    drawn = torch.rand(len(clients), dtype=torch.float64, generator=rng).tolist()
    return tuple(c for c, number in zip(clients, drawn, strict=True) if number < probability)


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
