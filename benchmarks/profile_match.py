"""Match of 50 clients' encrypted profiles with a baseline: SecureFL's way against the usual way.

The usual way is that of TenSEAL's tutorials: N = 8192 with [60, 40, 40, 60] and scale 2^40, one
context with relinearisation and Galois keys, a vector each for means, variances and logarithms, a
square on the ciphertext and rotations for the sum over slots. The authority reads there what the
server has computed, and has a key that opens every profile. Both ways take turns, client by client,
so that what else runs on the machine hits both.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np
import tenseal as ts
import torch
from measure import Machine, bytes_text, ms_text, ratio_text, show, timed, write_json

from securefl.exchange.officer import KeySet
from securefl.exchange.one_time_match import OneTimeMatcher, OneTimeProfileSealer
from securefl.exchange.profile_match import Profile, divergence
from securefl.exchange.sums import MessageId, Sender
from securefl.types import PROFILE

RUN = "ab" * 32


class Way(Protocol):
    """One way of matching."""

    @property
    def key_bytes(self) -> int:
        """Bytes that travel once: the key that a client gets, and its card."""

    def seal(self, profile: Profile) -> bytes:
        """Return what a client sends."""

    def match(self, payload: bytes, baseline: Profile) -> bytes:
        """Return what the server sends to the authority."""

    def open(self, score: bytes) -> float:
        """Return what the authority releases."""


class Usual:
    """Eq. (58) as a tutorial would have it."""

    def __init__(self) -> None:
        self._secret = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40, 60])
        self._secret.global_scale = 2.0**40
        self._secret.generate_galois_keys()
        context = self._secret.serialize(save_secret_key=False)
        self._public = ts.context_from(context)
        self.key_bytes = len(context)

    def seal(self, profile: Profile) -> bytes:
        """Encrypt three, one after the other, equally long but for compression."""
        values = profile.mean_Q, profile.variance_Q, profile.variance_Q.log()
        parts = [ts.ckks_vector(self._public, v.tolist()).serialize() for v in values]
        return b"".join(len(part).to_bytes(4, "little") + part for part in parts)

    def match(self, payload: bytes, baseline: Profile) -> bytes:
        """Return Σ ½ [(σ² + (μ - μ_B)²) / σ_B² - log σ²] / q, and the baseline's own terms."""
        mean, variance, log = (ts.ckks_vector_from(self._public, p) for p in _parts(payload))
        weight_Q = 0.5 / (len(baseline) * baseline.variance_Q)
        distance = mean - baseline.mean_Q.tolist()
        score = (distance * distance * weight_Q.tolist()).sum()
        score += (variance * weight_Q.tolist()).sum()
        score -= (log * (0.5 / len(baseline))).sum()
        score += [0.5 * float(baseline.variance_Q.log().mean()) - 0.5]
        return bytes(score.serialize())

    def open(self, score: bytes) -> float:
        """Return the decrypted score."""
        return float(ts.ckks_vector_from(self._secret, score).decrypt()[0])


def _parts(payload: bytes) -> list[bytes]:
    parts = []
    while payload:
        size = int.from_bytes(payload[:4], "little")
        parts.append(payload[4 : 4 + size])
        payload = payload[4 + size :]
    return parts


class Ours:
    """SecureFL's way, under one-time keys; each profile is of a round of its own."""

    def __init__(self) -> None:
        keys = KeySet.ephemeral()
        self._sealer, self._matcher = OneTimeProfileSealer(keys.public), OneTimeMatcher(keys.public)
        self._opener, self._sender = keys.opener(), Sender("client", b"k" * 32)
        card = keys.public.cards(RUN, self._sender)
        self._opener.take_cards(RUN, "client", card)
        self.key_bytes = len(keys.public.keys[0].to_json()) + len(card)
        self._about, self._nonce = MessageId(RUN, 0, PROFILE, 0), ""

    def seal(self, profile: Profile) -> bytes:
        """Return the sealer's payload."""
        self._about = MessageId(RUN, self._about.round + 1, PROFILE, 2 * len(profile))
        payload, self._nonce = self._sealer.seal(profile, self._about, self._sender)
        return payload

    def match(self, payload: bytes, baseline: Profile) -> bytes:
        """Return the matcher's score."""
        return self._matcher.match(payload, baseline)

    def open(self, score: bytes) -> float:
        """Return the opener's score."""
        opened = self._opener.score(score, self._about, "client", self._nonce)
        assert opened is not None
        return opened


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a match: medians over clients."""

    key_bytes: int
    """Bytes that travel once."""
    client_bytes: int
    score_bytes: int
    client_s: float
    server_s: float
    authority_s: float
    max_error: float

    @property
    def bytes_with_keys(self) -> int:
        """Bytes of a client's first message, its key and its card."""
        return self.key_bytes + self.client_bytes


@dataclass(frozen=True, slots=True)
class Comparison:
    """Costs of the same match in both ways."""

    n_clients: int
    q: int
    usual: Cost
    one_time: Cost


def random_profile(q: int, rng: np.random.Generator) -> Profile:
    """Draw means within ±3, variances from 0.1 to 10."""
    mean_Q, variance_Q = rng.uniform(-3, 3, q), 10 ** rng.uniform(-1, 1, q)
    return Profile(torch.from_numpy(mean_Q), torch.from_numpy(variance_Q), 0)


def compare(n_clients: int, q: int) -> Comparison:
    """Measure both ways in turn for each client."""
    rng = np.random.default_rng(q)
    baseline = random_profile(q, rng)
    ways: dict[str, Way] = {"usual": Usual(), "one_time": Ours()}
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(n_clients):
        profile = random_profile(q, rng)
        for name, way in ways.items():
            costs[name].append(_one_match(way, profile, baseline))
    return Comparison(n_clients, q, **{name: _typical(each) for name, each in costs.items()})


def _one_match(way: Way, profile: Profile, baseline: Profile) -> Cost:
    payload, client_s = timed(way.seal, profile)
    score, server_s = timed(way.match, payload, baseline)
    opened, authority_s = timed(way.open, score)
    error = abs(opened - divergence(profile, baseline))
    return Cost(way.key_bytes, len(payload), len(score), client_s, server_s, authority_s, error)


def _typical(costs: Sequence[Cost]) -> Cost:
    return Cost(
        key_bytes=costs[0].key_bytes,
        client_bytes=int(median(c.client_bytes for c in costs)),
        score_bytes=int(median(c.score_bytes for c in costs)),
        client_s=median(c.client_s for c in costs),
        server_s=median(c.server_s for c in costs),
        authority_s=median(c.authority_s for c in costs),
        max_error=max(c.max_error for c in costs),
    )


def show_comparison(result: Comparison) -> None:
    """Print a row for each cost, with the usual way's ratio to that under one-time keys."""
    costs = result.usual, result.one_time

    def row(name: str, figures: Sequence[float], texts: Sequence[str]) -> list[str]:
        return [name, *texts, ratio_text(figures[0], figures[1])]

    sizes = {
        "bytes per client": [c.client_bytes for c in costs],
        "key and card, once": [c.key_bytes for c in costs],
        "both": [c.bytes_with_keys for c in costs],
        "bytes to the authority": [c.score_bytes for c in costs],
    }
    times = {
        "client: encrypt": [c.client_s for c in costs],
        "server: match": [c.server_s for c in costs],
        "authority: open": [c.authority_s for c in costs],
    }
    rows = [row(name, n, [bytes_text(x) for x in n]) for name, n in sizes.items()]
    rows += [row(name, s, [ms_text(x) for x in s]) for name, s in times.items()]
    errors = [c.max_error for c in costs]
    rows.append(row("largest error", errors, [f"{x:.1e}" for x in errors]))
    show(
        f"Match of profiles of {result.q} elements, {result.n_clients} clients",
        ("", "usual", "one-time", "ratio"),
        rows,
    )


def main(argv: Sequence[str] | None = None) -> Comparison:
    """Measure, print, and write what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--elements", type=int, default=512, help="q, at most 2048")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    print(Machine.here())
    result = compare(args.clients, args.elements)
    show_comparison(result)
    if args.json:
        write_json(args.json, [result])
    return result


if __name__ == "__main__":
    main()
