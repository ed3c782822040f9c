"""Runs of a blink that select by profiles, and clients that send something else than theirs."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import securefl
from securefl import Config, Task
from securefl.crypto.ciphertext_codec import packed
from securefl.crypto.derived import SEED_BYTES
from securefl.crypto.one_time import OneTimeKey, ring
from securefl.crypto.params import MATCHES
from securefl.exchange.officer import KeySet
from securefl.exchange.profile_match import HEADER_BYTES, Profile, with_header
from securefl.exchange.sums import MessageId, Sealed, Sender
from securefl.federation.client import Client
from securefl.federation.message import Expected, encode_message, header_for, split_message
from securefl.runs.folder_files import SELECTIONS
from securefl.runs.folder_reader import read_rows
from securefl.selection.round_participants import RoundParticipants
from securefl.types import PROFILE

MODES = ("plain", "sealed")
Q = 6
SEND_PROFILE = Client.send_profile


def names(*numbers):
    return tuple(f"client-{number}" for number in numbers)


def make_config(mode="sealed", rounds=3, fraction=0.6, encrypt="profiles", **selection):
    """Return settings of FedAvg with clients by profile."""
    table = {"name": "fedprof", "fraction": fraction, "alpha": 1.0} | selection
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
    """Make a dense layer of six outputs, which is profiled; 16 random samples a client."""
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


def run_in(folder, config, task, keys=None, **options):
    """Return the run's result and its participants."""
    result = securefl.run(config, task, out=folder, keys=keys, **options)
    return result, participants(folder)


def participants(folder):
    return read_rows(folder / SELECTIONS, RoundParticipants)


def sealed_values(keys, sender, about, profile, values, drawn=None, nonce=None):
    """Seal any values in the place of a profile's x, in whole copies, under the client's key."""
    drawn, nonce = drawn or os.urandom(SEED_BYTES), nonce or os.urandom(16)
    rows = np.zeros((1, MATCHES.poly_degree))
    copies = np.tile(values, MATCHES.poly_degree // len(values))
    rows[0, : len(copies)] = copies
    secrets = keys.secrets(sender)
    key = OneTimeKey.of(secrets, about.digest("profile"), sender.name, nonce, MATCHES)
    return Sealed(with_header(profile, drawn + key.seal(rows, drawn)), nonce.hex())


@dataclass
class Sending:
    """Message that an honest client was about to send, and the means to send something else."""

    client: Client
    run: str
    round: int
    profile: Profile
    state: str
    """Digest of what it was made under."""
    foreign: KeySet | None = None
    other: Client | None = None
    """Client whose identity key a thief has."""

    def message(self, **changes):
        """Return the honest message, or one of another run, round or profile."""
        asked = {
            "run": self.run,
            "round_number": self.round,
            "profile": self.profile,
            "state": self.state,
        }
        return SEND_PROFILE(self.client, **asked | changes)

    @property
    def about(self):
        return MessageId(self.run, self.round, PROFILE, 2 * len(self.profile))

    @property
    def sealed(self):
        """Payload of the honest message, and its nonce."""
        signed, payload = split_message(self.message(), 10**7)
        return Sealed(payload, signed.header.nonce)

    def signed(self, sealed, identity=None, **changes):
        """Sign any payload under a header of one's choice."""
        sealer = self.client.profile_sealer
        n_values = 2 * len(self.profile)
        expected = Expected.over(sealer, (self.run, self.round), PROFILE, n_values, self.state)
        header = header_for(expected, self.client.name, sealed).model_copy(update=changes)
        return encode_message(header, sealed.payload, identity or self.client.signing_key)

    def changed(self, change, **changes):
        """Sign the honest payload, changed."""
        payload, nonce = self.sealed
        return self.signed(Sealed(change(payload), nonce), **changes)

    def with_clear(self, place, value):
        """Sign the honest payload with another number among those in the clear."""
        start = HEADER_BYTES + 8 * place
        return self.changed(lambda p: p[:start] + struct.pack("<d", value) + p[start + 8 :])

    def with_version(self, version):
        start = HEADER_BYTES - 8
        return self.changed(lambda p: p[:start] + struct.pack("<Q", version) + p[HEADER_BYTES:])

    def with_ciphertext(self, make):
        """Sign the honest payload with other words."""
        start = HEADER_BYTES + SEED_BYTES
        return self.changed(lambda p: p[:start] + make(p[start:]))

    def sealing(self, values):
        """Sign a ciphertext of any values."""
        keys = self.client.card_keys
        sender = self.client.sender(self.run, keys.key_id)
        return self.signed(sealed_values(keys, sender, self.about, self.profile, values))

    def by_another_secret(self):
        """Seal by a secret that is on no card."""
        sender = Sender(self.client.name, b"another".ljust(32))
        return self.signed(self.client.profile_sealer.seal(self.profile, self.about, sender))

    def under(self, keys, **says):
        """Seal for other officers, as the header says or not."""
        sealer = type(self.client.profile_sealer)(keys.public)
        sender = self.client.sender(self.run, sealer.key_id)
        sealed = sealer.seal(self.profile, self.about, sender)
        return self.signed(sealed, **{"key_id": sealer.key_id} | says)


Change = Callable[[Sending], bytes]


def any_words(content):
    """Draw words below the primes, as many as in `content`."""
    of, n = ring(MATCHES), len(content) // MATCHES.ciphertext_bytes
    words = np.random.default_rng().integers(0, of.column, (n, *of.shape), np.uint64)
    return packed(words, of.primes)


def install(monkeypatch, changes, foreign=None, rounds=range(100)):
    """Have these clients send what their `Change` makes of a message, in these rounds."""
    others = []

    def send_profile(self, run, round_number, profile, state=""):
        others.append(self)
        if self.name not in changes or round_number not in rounds:
            return SEND_PROFILE(self, run, round_number, profile, state)
        other = next(o for o in others if o.name == "client-1")
        return changes[self.name](Sending(self, run, round_number, profile, state, foreign, other))

    monkeypatch.setattr(Client, "send_profile", send_profile)
