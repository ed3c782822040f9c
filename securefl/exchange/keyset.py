"""The parts of a key of sums together, as only a simulation and an authority's folder have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from securefl.crypto.params import SUMS, CkksParameters
from securefl.crypto.public import AddingContext, PublicKey
from securefl.crypto.secret import SecretKey
from securefl.errors import KeyWornOut
from securefl.exchange.base import Opener
from securefl.exchange.ckks_open import CkksOpener
from securefl.exchange.gaussian import seeded
from securefl.exchange.policy import Flooding, Policy, most_releases
from securefl.exchange.releases import MemoryCount, ReleaseCount, require_ephemeral


class OpeningKeys(Protocol):
    """What a run needs of the key of its sums, whoever opens with it."""

    @property
    def public(self) -> PublicKey:
        """The clients'."""

    @property
    def adding(self) -> AddingContext:
        """The server's."""

    @property
    def n_released(self) -> int:
        """Values that were opened with it."""

    @property
    def policy(self) -> Policy | None:
        """Of the consortium whose key it is; None where there is none."""

    @property
    def seed(self) -> int | None:
        """Of the noise on what is released, in a simulation alone."""

    @property
    def successor(self) -> Callable[[], OpeningKeys]:
        """Makes the key of the next epoch."""

    def opener(self, flooding: Flooding | None, max_clients: int) -> Opener:
        """The authority's capability; its noise is sized for so many clients."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """One key, what it has released, and what a consortium allows with it."""

    secret: SecretKey = field(repr=False)
    public: PublicKey
    adding: AddingContext
    count: ReleaseCount
    successor: Callable[[], KeySet]
    """Makes the key of the next epoch, once this one has released what its noise hides."""
    policy: Policy | None = None
    """Of the consortium whose key it is; None where there is none."""
    seed: int | None = None
    """Of the noise on what is released, in a simulation alone; None: nobody can repeat it."""

    def __post_init__(self) -> None:
        require_ephemeral(self.count, self.seed)

    @property
    def n_released(self) -> int:
        """Values that it has released."""
        return self.count.n_released

    def opener(self, flooding: Flooding | None, max_clients: int) -> CkksOpener:
        """The authority's capability; its noise is sized for so many clients."""
        draw = None if self.seed is None else seeded(self.seed, self.public.epoch)
        return CkksOpener(self.secret, self.count, flooding, max_clients, draw)

    @classmethod
    def ephemeral(
        cls, parameters: CkksParameters = SUMS, epoch: int = 1, seed: int | None = None
    ) -> KeySet:
        """A fresh key that lives in memory and ends with the process."""
        secret = SecretKey.generate(parameters, epoch)
        return cls(
            secret,
            secret.public_key,
            secret.adding_context(),
            MemoryCount(),
            lambda: cls.ephemeral(parameters, epoch + 1, seed),
            seed=seed,
        )


def for_round(keys: OpeningKeys, needed: int, flooding: Flooding | None) -> OpeningKeys:
    """These keys, or the next where they may not release so many values more.

    Raises:
        KeyWornOut: no keys may.
    """
    most = most_releases(flooding)
    if needed > most:
        raise KeyWornOut(
            f"a round opens {needed} values, and the policy's flooding hides {most} under one "
            "key: sign a policy with more releases"
        )
    return keys.successor() if keys.n_released + needed > most else keys
