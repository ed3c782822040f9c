"""Messages to a worker beside the requests of a site, and its message of a failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefl.crypto.cards import CardKey
from securefl.crypto.match_public import MatchPublicKey
from securefl.errors import ConfigError
from securefl.exchange.base import Sealer
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.match_ckks import CkksProfileSealer
from securefl.exchange.match_forms import FORMS
from securefl.exchange.match_plain import PlainMatch
from securefl.exchange.matching import ProfileSealer
from securefl.exchange.one_time import OneTimeSealer
from securefl.exchange.plain import PlainChannel
from securefl.exchange.quorum import Quorum
from securefl.federation.client import Client
from securefl.federation.profiling import Profiling
from securefl.simulation.clients import Clients
from securefl.types import Floats, Kind, Memory


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """Torch's settings in the main process."""

    n_threads: int
    dtype: torch.dtype
    deterministic: bool
    matmul_precision: str
    gpu: int | None

    def take_over(self) -> None:
        """Set torch alike in this process."""
        torch.set_num_threads(self.n_threads)
        torch.set_default_dtype(self.dtype)
        torch.use_deterministic_algorithms(self.deterministic)
        torch.set_float32_matmul_precision(self.matmul_precision)
        if self.gpu is not None:
            torch.cuda.set_device(self.gpu)


@dataclass(frozen=True, slots=True)
class Member:
    """A client's name, weights and signing key, for the worker that has it."""

    name: str
    weight: float
    equal_weight: float
    blind: bool
    """See `Client.blind`."""
    identity: bytes = field(repr=False)

    @classmethod
    def of(cls, client: Client) -> Member:
        """Copy a client's name, weights and signing key."""
        weights = client.weight, client.equal_weight
        return cls(client.name, *weights, client.blind, client.identity_secret())

    def client(self, sealers: Mapping[Kind, Sealer]) -> Client:
        """Build the client that seals and signs."""
        key = Ed25519PrivateKey.from_private_bytes(self.identity)
        weights = self.weight, sealers, self.equal_weight
        return Client(self.name, *weights, blind=self.blind, signing_key=key)


@dataclass(frozen=True, slots=True)
class Setup:
    """A worker's clients, before its first round."""

    clients: Clients
    members: tuple[Member, ...]
    memories: Mapping[str, Memory]
    """Their memories so far."""
    profiling: Profiling | None
    precision: Floats


@dataclass(frozen=True, slots=True)
class _CardKeys:
    """Card keys in their file form, with the officers' quorum."""

    files: tuple[str, ...]
    quorum: Quorum

    def sealer(self) -> OneTimeSealer:
        """Build the sealer of sums."""
        return OneTimeSealer(CardKeys(tuple(map(CardKey.from_json, self.files)), self.quorum))


@dataclass(frozen=True, slots=True)
class SealingKeys:
    """Keys that clients seal with from now on; public keys in their file form."""

    sums: Mapping[Kind, PlainChannel | _CardKeys]
    profiles: tuple[str, str] | PlainMatch | None
    """Form and key."""

    @classmethod
    def of(cls, client: Client) -> SealingKeys:
        """Collect the keys of this client, which all others share."""
        return cls(
            {kind: _sum_key(sealer) for kind, sealer in client.sealers.items()},
            _profile_key(client.profile_sealer),
        )

    def sealers(self) -> dict[Kind, Sealer]:
        """Build the sealers, by kind."""
        made = {key: key.sealer() for key in self.sums.values() if isinstance(key, _CardKeys)}
        return {k: made[key] if isinstance(key, _CardKeys) else key for k, key in self.sums.items()}

    def profile_sealer(self) -> ProfileSealer | None:
        """Build the sealer of profiles; None where they are not asked for."""
        if not isinstance(self.profiles, tuple):
            return self.profiles
        form, key = self.profiles
        return CkksProfileSealer(FORMS[form], MatchPublicKey.from_json(key))


def key_ids(client: Client) -> tuple[str, ...]:
    """Return the ids of the keys that clients seal with."""
    sealers = {sealer.key_id for sealer in client.sealers.values()}
    profile = client.profile_sealer
    return (*sorted(sealers), profile.key_id if profile else "")


def _sum_key(sealer: Sealer) -> PlainChannel | _CardKeys:
    if isinstance(sealer, OneTimeSealer):
        files = tuple(key.to_json() for key in sealer.keys.keys)
        return _CardKeys(files, sealer.keys.quorum)
    if isinstance(sealer, PlainChannel):
        return sealer
    raise _unknown(sealer)


def _profile_key(sealer: ProfileSealer | None) -> tuple[str, str] | PlainMatch | None:
    if isinstance(sealer, CkksProfileSealer):
        return sealer.match_form.name, sealer.public_key.to_json()
    if sealer is None or isinstance(sealer, PlainMatch):
        return sealer
    raise _unknown(sealer)


def _unknown(sealer: object) -> ConfigError:
    return ConfigError(
        f"workers: there is no way to give a {type(sealer).__name__} to another process; use "
        'run.engine = "sequential"'
    )


@dataclass(frozen=True, slots=True)
class Failed:
    """An error that was raised in a worker."""

    error: Exception
