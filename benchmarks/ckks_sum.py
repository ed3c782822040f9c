"""One encrypted sum of a ResNet-20's BN statistics: SecureFL's packed sum against the usual way.

The usual way is that of TenSEAL's tutorials and of much published code: a vector for each tensor,
N = 8192 with [60, 40, 40] and scale 2^40, relinearisation and Galois keys with the context, and a
server that multiplies each client's vectors by its plaintext share and adds them. Nothing of it is
signed, so it is the middle column that compares like with like; the last is what a run does.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import tenseal as ts
import torch
from measure import (
    Cost,
    Machine,
    Way,
    bytes_text,
    ms_text,
    one_sum,
    ratio_text,
    sample_weights,
    show,
    typical,
    write_json,
)
from sealed_way import RUN, SealedWay

from securefl.crypto.one_time import ring
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.policy import Policy
from securefl.exchange.sums import OpenedSum, Values
from securefl.federation import server as roles
from securefl.federation.authority import Authority
from securefl.federation.client import Client
from securefl.federation.message import Roster
from securefl.federation.opening import Opening
from securefl.models.build import build_model
from securefl.norms.find import statistics
from securefl.types import Kind, MessageSpec

WAYS = ("usual", "packed", "signed")
POLICY = Policy()
"""Default policy: what is opened is rounded."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Costs of the same sum in three ways."""

    n_clients: int
    n_values: int
    costs: Mapping[str, Cost]
    """Costs by way: usual; packed (SecureFL's ciphertexts); signed (these as signed messages)."""
    key_bytes: Mapping[str, int]
    """Bytes of the keys that are sent once: evaluation keys to the server, or a client's card."""


class Usual:
    """Usual way: a vector per tensor; the server knows each client's weight."""

    def __init__(self, sizes: Sequence[int], weight_total: float) -> None:
        # TenSEAL makes the relinearisation keys unasked.
        self._secret = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40])
        self._secret.global_scale = 2.0**40
        self._secret.generate_galois_keys()
        self.context_bytes = self._secret.serialize(save_secret_key=False)
        self._public = ts.context_from(self.context_bytes)
        self._cuts = np.cumsum(sizes)[:-1]
        self._weight_total = weight_total

    def seal(self, client: int, values: Values, weight: float) -> list[bytes]:
        """Encrypt and serialise each tensor."""
        del client, weight
        parts = np.split(values, self._cuts)
        return [ts.ckks_vector(self._public, part.tolist()).serialize() for part in parts]

    def start(self) -> UsualServer:
        """Return no sum yet."""
        return UsualServer(self._public, self._weight_total)

    def open(self, total: Sequence[bytes]) -> Values:
        """Decrypt each tensor."""
        return np.concatenate([ts.ckks_vector_from(self._secret, t).decrypt() for t in total])


class UsualServer:
    """Server that multiplies and adds, one client's vectors in memory at a time."""

    def __init__(self, context: ts.Context, weight_total: float) -> None:
        self._context = context
        self._weight_total = weight_total
        self._sums: list[ts.CKKSVector] = []

    def add(self, message: Sequence[bytes], weight: float) -> None:
        """Add p_k x_k, tensor by tensor."""
        share = weight / self._weight_total
        terms = [ts.ckks_vector_from(self._context, part) * share for part in message]
        if self._sums:
            terms = [a + b for a, b in zip(self._sums, terms, strict=True)]
        self._sums = terms

    def total(self) -> list[bytes]:
        """Return each tensor's sum."""
        return [vector.serialize() for vector in self._sums]


class Signed:
    """Packed sum as a run does it: signed messages, checked by server and authority."""

    def __init__(self, keys: KeySet, n_values: int, weight_K: Values) -> None:
        self._spec = MessageSpec("update/statistics", Kind.STATISTICS, n_values)
        sealers = {Kind.STATISTICS: OneTimeSealer(keys.public)}
        self._clients = [
            Client(f"client-{k + 1}", weight, sealers, card_keys=keys.public)
            for k, weight in enumerate(weight_K.tolist())
        ]
        self._roster = Roster({client.name: client.identity for client in self._clients})
        self._server = roles.Server(RUN, self._roster, {Kind.STATISTICS: OneTimeAdder(keys.public)})
        self._opener = keys.opener()
        self._round = 0
        self.cards = {client.name: client.send_cards(RUN) for client in self._clients}
        authority = Authority(self._opener, self._roster, POLICY, list[Opening]().append)
        if refused := authority.take_cards(RUN, self.cards):
            raise RuntimeError(f"the authority refuses cards: {refused}")

    def seal(self, client: int, values: Values, weight: float) -> list[bytes]:
        """Return the signed message."""
        del weight
        ring().common.cache_clear()
        tensors = {"statistics": torch.from_numpy(values)}
        return [self._clients[client].contribute(RUN, self._round, self._spec, tensors)]

    def start(self) -> SignedServer:
        """Start the sum of the next round's message: for each there is one list of clients."""
        self._round += 1
        return SignedServer(self._server.start(self._round, self._spec))

    def open(self, total: roles.SumRequest) -> Values:
        """Open the total by an authority that has opened nothing before."""
        ring().common.cache_clear()
        authority = Authority(self._opener, self._roster, POLICY, list[Opening]().append)
        return cast("OpenedSum", authority.open(total)).values


@dataclass(frozen=True, slots=True)
class SignedServer:
    """Server that checks signature, hash and header before it adds."""

    sums: roles.ServerSum

    def add(self, message: Sequence[bytes], weight: float) -> None:
        """Receive the one message."""
        del weight
        self.sums.receive(message[0])

    def total(self) -> roles.SumRequest:
        """Return what goes to the authority."""
        return self.sums.request()


def statistics_sizes() -> list[int]:
    """Return the sizes of ResNet-20's running means and variances: 38 tensors, 1376 values."""
    model = build_model("resnet20", "batch", in_channels=3, n_features=3072, n_classes=10)
    return [tensor.numel() for tensor in statistics(model).values()]


def compare(n_clients: int, repeats: int) -> Comparison:
    """Measure the three ways in turn, `repeats` times."""
    rng = np.random.default_rng(n_clients)
    sizes, weight_K = statistics_sizes(), sample_weights(n_clients, rng)
    n_values = sum(sizes)
    values_KV = rng.normal(size=(n_clients, n_values))
    usual = Usual(sizes, weight_K.sum())
    packed, signed = SealedWay(n_values, n_clients), Signed(KeySet.ephemeral(), n_values, weight_K)
    ways: dict[str, Way] = {"usual": usual, "packed": packed, "signed": signed}
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            costs[name].append(one_sum(way, values_KV, weight_K))
    cards = len(packed.cards[0]), len(signed.cards["client-1"])
    return Comparison(
        n_clients,
        n_values,
        {name: typical(of_way) for name, of_way in costs.items()},
        dict(zip(WAYS, (len(usual.context_bytes), *cards), strict=True)),
    )


def show_comparison(result: Comparison) -> None:
    """Print a row for each cost, with the ratios to the usual way."""

    def row(name: str, figures: Sequence[float], texts: Sequence[str]) -> list[str]:
        usual, packed, signed = figures
        ratios = ratio_text(usual, packed), ratio_text(usual, signed)
        return [name, texts[0], texts[1], ratios[0], texts[2], ratios[1]]

    costs = [result.costs[way] for way in WAYS]
    keys = [result.key_bytes[way] for way in WAYS]
    sizes = {
        "bytes per client": [c.client_bytes for c in costs],
        "bytes at the server": [c.server_bytes for c in costs],
        "keys or a card, once": keys,
    }
    times = {
        "client: encrypt": [c.client_s for c in costs],
        "server: weigh, add": [c.server_s for c in costs],
        "authority: open": [c.authority_s for c in costs],
    }
    rows = [row(name, n, [bytes_text(x) for x in n]) for name, n in sizes.items()]
    rows += [row(name, s, [ms_text(x) for x in s]) for name, s in times.items()]
    errors = [c.max_error for c in costs]
    rows.append(row("largest error", errors, [f"{x:.1e}" for x in errors]))
    show(
        f"Sum of {result.n_values} statistics over {result.n_clients} clients",
        ("", "usual", "packed", "ratio", "packed, signed", "ratio"),
        rows,
    )


def main(argv: Sequence[str] | None = None) -> list[Comparison]:
    """Measure, print, and write what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[50], help="at least 3 each")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    print(Machine.here())
    results = []
    for n_clients in args.clients:
        results.append(compare(n_clients, args.repeats))
        show_comparison(results[-1])
    if args.json:
        write_json(args.json, results)
    return results


if __name__ == "__main__":
    main()
