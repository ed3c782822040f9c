"""One sum over clients under the shared CKKS key that SecureFL had before one-time keys.

It runs in a checkout of that time alone, so that nothing of it can be imported by name here.
"""

from __future__ import annotations

from importlib import import_module

from measure import SumServer, Values


class SharedKeyWay:
    """A sum under one public key, opened with flooding as the default policy of that time."""

    def __init__(self, n_values: int, n_clients: int) -> None:
        ckks, policy = (
            import_module("securefl.exchange.ckks"),
            import_module("securefl.exchange.policy").Policy(),
        )
        keys = import_module("securefl.exchange.keyset").KeySet.ephemeral()
        self._n_values = n_values
        self._sealer, self._adder = ckks.CkksSealer(keys.public), ckks.CkksAdder(keys.adding)
        self._opener = keys.opener(policy.flooding, n_clients)
        self._bits = policy.rule_for("update").precision_bits

    def seal(self, client: int, values: Values, weight: float) -> list[bytes]:
        """Return one payload."""
        del client
        return [self._sealer.seal(values, weight)]

    def start(self) -> SumServer:
        """Return an empty sum."""
        return SumServer(self._adder.start(self._n_values))

    def open(self, total: bytes) -> Values:
        """Return the opened values."""
        opened: Values = self._opener.open(total, self._n_values, self._bits).values
        return opened
