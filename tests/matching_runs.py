"""Runs of a blink that select by profiles, and clients that send something else than theirs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from securefl.exchange.match_ckks import CkksProfileSealer, packed
from securefl.exchange.match_forms import FORMS
from securefl.exchange.match_open import MatchKeys
from securefl.exchange.releases import MemoryCount
from torch import nn

import securefl
from securefl import Config, Task
from securefl.exchange.base import Sealed
from securefl.exchange.matching import HEADER_BYTES, PROFILE
from securefl.exchange.profile import Profile
from securefl.federation.client import Client
from securefl.federation.message import Expected, encode_message, header_for, split_message
from securefl.runs.folder_reader import SELECTIONS, read_rows
from securefl.selection.round_participants import RoundParticipants

MODES = ("plain", "linear", "full", "plain-variance")
ENCRYPTED = MODES[1:]
Q = 6
SEND_PROFILE = Client.send_profile


def names(*numbers):
    return tuple(f"client-{number}" for number in numbers)


def make_config(mode="linear", rounds=3, fraction=0.6, encrypt="profiles", **selection):
    """FedAvg with clients by profile."""
    table = {"name": "fedprof", "fraction": fraction, "alpha": 1.0} | selection
    if mode != "plain":
        table["match"] = mode
    return Config.model_validate(
        {
            "run": {"rounds": rounds},
            "algorithm": {"name": "fedavg", "local_steps": 1},
            "train": {"batch_size": 8, "lr": 0.1},
            "exchange": {"encrypt": "none" if mode == "plain" else encrypt},
            "selection": table,
        }
    )


def make_task(n_clients=5, **changes):
    """A dense layer of six outputs, which is profiled; 16 random samples a client."""
    rng = torch.Generator().manual_seed(1)
    sets = [
        (torch.randn(16, 4, generator=rng) + 0.1 * i, torch.randint(3, (16,), generator=rng))
        for i in range(n_clients + 2)
    ]
    public, test, *clients = sets
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, Q), nn.BatchNorm1d(Q), nn.ReLU(), nn.Linear(Q, 3))
    return Task(**{"model": model, "clients": clients, "test": test, "public": public} | changes)


def uncounted(keys):
    """The same key as if it had released nothing; keys take long to make."""
    return replace(keys, count=MemoryCount())


def run_in(folder, config, task, keys=None, **options):
    """The run's result and its participants."""
    result = securefl.run(config, task, out=folder, match_keys=keys, **options)
    return result, participants(folder)


def participants(folder):
    return read_rows(folder / SELECTIONS, RoundParticipants)


@dataclass
class Sending:
    """What an honest client was about to send, and the means to send something else."""

    client: Client
    run: str
    round: int
    profile: Profile
    foreign: MatchKeys | None = None
    other: Client | None = None
    """Whose identity key a thief has."""

    def message(self, **changes):
        """The honest message, or one of another run, round or profile."""
        asked = {"run": self.run, "round_number": self.round, "profile": self.profile}
        return SEND_PROFILE(self.client, **asked | changes)

    @property
    def payload(self):
        return split_message(self.message(), 10**7)[1]

    def signed(self, payload, identity=None, **changes):
        """Any payload under a header of one's choice."""
        sealer = self.client.profile_sealer
        n_values = 2 * len(self.profile)
        expected = Expected.over(sealer, (self.run, self.round), PROFILE, n_values)
        header = header_for(expected, self.client.name, Sealed(payload)).model_copy(update=changes)
        return encode_message(header, payload, identity or self.client.signing_key)

    def with_clear(self, place, value):
        """The honest payload with another number among those in the clear, signed."""
        payload, start = self.payload, HEADER_BYTES + 8 * place
        return self.signed(payload[:start] + struct.pack("<d", value) + payload[start + 8 :])

    def with_version(self, version):
        payload, start = self.payload, HEADER_BYTES - 8
        return self.signed(payload[:start] + struct.pack("<Q", version) + payload[HEADER_BYTES:])

    def with_ciphertext(self, make):
        """The honest payload with other ring elements, signed."""
        payload = self.payload
        sealer = self.client.profile_sealer
        start = HEADER_BYTES + 8 * sealer.match_form.n_clear(len(self.profile))
        return self.signed(payload[:start] + make(sealer.public_key.frame, payload[start:]))

    def sealing(self, values):
        """A ciphertext of any values of the sealer's form, signed."""
        sealer = self.client.profile_sealer
        slots = packed(values, sealer.match_form.parameters)
        return self.with_ciphertext(lambda _frame, _honest: sealer.public_key.encrypt(slots))

    def under(self, keys, **says):
        """Sealed under another key."""
        sealer = CkksProfileSealer(self.client.profile_sealer.match_form, keys.public)
        payload = sealer.seal(self.profile)
        return self.signed(payload, **{"key_id": sealer.key_id} | says)


Change = Callable[[Sending], bytes]


def random_in_ring(frame, honest):
    """Residues below each prime, as a ciphertext has them; packed as the frame packs them."""
    rng = np.random.default_rng(3)
    shape = (frame.n_polynomials, len(frame.moduli), frame.poly_degree)
    moduli = np.array(frame.moduli, np.uint64)[None, :, None]
    n = len(honest) // len(frame.to_wire(np.zeros(shape, np.uint64)))
    return b"".join(
        frame.to_wire(rng.integers(0, 2**63, shape, np.uint64) % moduli) for _ in range(n)
    )


def install(monkeypatch, changes, foreign=None, rounds=range(100)):
    """From now on these clients send what their `Change` makes of a message, in these rounds."""
    others = []

    def send_profile(self, run, round_number, profile):
        others.append(self)
        if self.name not in changes or round_number not in rounds:
            return SEND_PROFILE(self, run, round_number, profile)
        other = next(o for o in others if o.name == "client-1")
        return changes[self.name](Sending(self, run, round_number, profile, foreign, other))

    monkeypatch.setattr(Client, "send_profile", send_profile)


def ephemeral(mode):
    return None if mode == "plain" else MatchKeys.ephemeral(FORMS[mode])
