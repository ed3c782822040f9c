"""The parts of a key of sums together, as only a simulation and an authority's folder have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from securefl.crypto.params import SUMS, CkksParameters
from securefl.crypto.public import AddingContext, PublicKey
from securefl.crypto.secret import SecretKey
from securefl.errors import KeyWornOut
from securefl.exchange.ckks_open import CkksOpener
from securefl.exchange.policy import Flooding, Policy
from securefl.exchange.releases import MemoryCount, ReleaseCount


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

    def opener(self, flooding: Flooding | None, max_clients: int) -> CkksOpener:
        """The authority's capability; its noise is sized for so many clients."""
        return CkksOpener(self.secret, self.count, flooding, max_clients)

    def for_round(self, needed: int, flooding: Flooding | None) -> KeySet:
        """This key, or the next where this one may not release so many values more.

        Raises:
            KeyWornOut: no key may.
        """
        if flooding is None:
            return self
        if needed > flooding.releases:
            raise KeyWornOut(
                f"a round opens {needed} values, and the policy's flooding hides "
                f"{flooding.releases} under one key: sign a policy with more releases"
            )
        worn = self.count.n_released + needed > flooding.releases
        return self.successor() if worn else self

    @classmethod
    def ephemeral(cls, parameters: CkksParameters = SUMS, epoch: int = 1) -> KeySet:
        """A fresh key that lives in memory and ends with the process."""
        secret = SecretKey.generate(parameters, epoch)
        return cls(
            secret,
            secret.public_key,
            secret.adding_context(),
            MemoryCount(),
            lambda: cls.ephemeral(parameters, epoch + 1),
        )
