"""Request to a worker, with what it has to know first, and its message of a failure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefl.crypto.cards import CardKey
from securefl.errors import ConfigError
from securefl.exchange.card_keys import CardKeys, Quorum
from securefl.exchange.one_time import OneTimeSealer, UnderCards
from securefl.exchange.one_time_match import OneTimeProfileSealer
from securefl.exchange.plain import PlainChannel
from securefl.exchange.profile_match import PlainMatch, ProfileSealer
from securefl.exchange.sums import Sealer
from securefl.federation.client import Client
from securefl.federation.query import Profiling
from securefl.simulation.clients import Clients
from securefl.types import ClientState, Floats, Kind

if TYPE_CHECKING:
    from securefl.federation.site import Request

_Plain = TypeVar("_Plain", PlainChannel, PlainMatch)


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
    """True for blind totals: see `Client.blind`."""
    identity: bytes = field(repr=False)

    @classmethod
    def of(cls, client: Client) -> "Member":
        """Copy a client's name, weights and signing key."""
        weights = client.weight, client.equal_weight
        return cls(client.name, *weights, client.blind, client.identity_secret())

    def client(self) -> Client:
        """Build the client that signs, and seals once it has keys."""
        key = Ed25519PrivateKey.from_private_bytes(self.identity)
        return Client(
            self.name, self.weight, {}, self.equal_weight, blind=self.blind, signing_key=key
        )


@dataclass(frozen=True, slots=True)
class _CardKeys:
    """Card keys in their file form, with the officers' quorum."""

    files: tuple[str, ...]
    quorum: Quorum

    @classmethod
    def of(cls, keys: CardKeys) -> "_CardKeys":
        """Return these keys as they travel."""
        return cls(tuple(key.to_json() for key in keys.keys), keys.quorum)

    def keys(self) -> CardKeys:
        """Parse them."""
        return CardKeys(tuple(map(CardKey.from_json, self.files)), self.quorum)


@dataclass(frozen=True, slots=True)
class SealingKeys:
    """Card keys that clients seal under, in their file form."""

    cards: _CardKeys | None
    """Keys that clients make cards for; None where nothing is sealed."""
    sums: Mapping[Kind, PlainChannel | None]
    """Plain channels of sums by kind; None where they are sealed."""
    profiles: PlainMatch | None
    """Plain channel of profiles; None where they are sealed, or not asked for."""

    @classmethod
    def of(cls, client: Client) -> "SealingKeys":
        """Collect the keys of this client, which all others share."""
        return cls(
            _CardKeys.of(client.card_keys) if client.card_keys else None,
            {kind: _plain(sealer, PlainChannel) for kind, sealer in client.sealers.items()},
            _plain(client.profile_sealer, PlainMatch),
        )

    def give(self, clients: Iterable[Client]) -> None:
        """Give the clients of a worker these keys."""
        sums: dict[Kind, Sealer] = {kind: of for kind, of in self.sums.items() if of}
        keys = self.cards.keys() if self.cards else None
        profiles: ProfileSealer | None = self.profiles
        if keys:
            sums |= dict.fromkeys(self.sums.keys() - sums.keys(), OneTimeSealer(keys))
            profiles = profiles or OneTimeProfileSealer(keys)
        for client in clients:
            client.sealers, client.profile_sealer, client.card_keys = sums, profiles, keys


def _plain(sealer: object, plain: type[_Plain]) -> _Plain | None:
    """Return a sealer in the clear; None in place of one under card keys, which travel alone."""
    if sealer is None or isinstance(sealer, UnderCards):
        return None
    if isinstance(sealer, plain):
        return sealer
    raise ConfigError(
        f"workers: there is no way to give a {type(sealer).__name__} to another process; use "
        'run.engine = "sequential"'
    )


@dataclass(frozen=True, slots=True)
class Setup:
    """A worker's clients, before its first round."""

    clients: Clients
    members: tuple[Member, ...]
    keys: SealingKeys
    client_states: Mapping[str, ClientState]
    """States of the clients so far."""
    profiling: Profiling | None
    precision: Floats


@dataclass(frozen=True, slots=True)
class Told:
    """A request to a worker, and what it has to know first."""

    request: "Request"
    setup: Setup | None
    """Its clients; None where it has them."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Error that was raised in a worker."""

    error: Exception
