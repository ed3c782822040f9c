"""What a committee of officers costs beside one authority: its key, and opening one ciphertext.

A step's figures are of one officer, or of the combiner; nobody waits for anybody. All officers are
in this one process, and one authority decrypts the same sum under a key of its own.
"""

from __future__ import annotations

import argparse
import os
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from measure import Answer, Arguments, Machine, bytes_text, ms_text, show, timed, write_json

from securefl.crypto.committee import OfficerKey
from securefl.crypto.committee_flood import Flood
from securefl.crypto.committee_public import (
    CONTRIBUTION_BYTES,
    CollectiveKey,
    Combiner,
    commitment,
    common_polynomial,
)
from securefl.crypto.params import SUMS
from securefl.crypto.public import AddingContext, PublicKey
from securefl.exchange.base import Values
from securefl.exchange.keyset import KeySet
from securefl.exchange.policy import Flooding

N_CLIENTS = 5


@dataclass(frozen=True, slots=True)
class Costs:
    """Of a committee under the sums' parameters."""

    n_officers: int
    step_s: Mapping[str, float]
    """Medians over all that took the step."""
    step_bytes: Mapping[str, int]
    """What a step leaves to send, where it does."""
    max_error: float
    """Of what was opened, the officers' noise included."""
    tolerance: float
    """No slot should err by more."""


class Clock:
    """Seconds of each step, as often as it was taken, and the bytes that it leaves."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.sizes: dict[str, int] = {}

    def __call__(
        self,
        step: str,
        work: Callable[Arguments, Answer],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Answer:
        """The step's answer."""
        answer, seconds = timed(work, *args, **kwargs)
        self.seconds[step].append(seconds)
        if isinstance(answer, bytes):
            self.sizes[step] = len(answer)
        return answer


def compare(n_officers: int, repeats: int) -> Costs:
    """Whole ceremonies with one opening each, and one authority's decryption after it."""
    clock, errors, rng = Clock(), list[float](), np.random.default_rng(n_officers)
    usual = Flooding()
    flood = Flood(SUMS, n_officers, N_CLIENTS, usual.statistical_bits, usual.releases)
    alone = KeySet.ephemeral()
    for _ in range(repeats):
        values = rng.normal(size=SUMS.poly_degree // 2)
        keys, collective = ceremony(clock, n_officers)
        total = total_of(collective.public, collective.adding, values)
        opened = opening(clock, keys, flood, total)
        errors.append(float(np.abs(opened - N_CLIENTS * values).max()))
        total = total_of(alone.public, alone.adding, values)
        clock("one authority decrypts", alone.secret.decrypt, total)
    medians = {step: median(seconds) for step, seconds in clock.seconds.items()}
    return Costs(n_officers, medians, clock.sizes, max(errors), flood.tolerance)


def ceremony(clock: Clock, n_officers: int) -> tuple[list[OfficerKey], CollectiveKey]:
    """Each officer's key, and what one of them makes of all shares."""
    keys = [clock("an officer's key", OfficerKey.generate) for _ in range(n_officers)]
    common = common_polynomial([os.urandom(CONTRIBUTION_BYTES) for _ in keys])
    shares = [clock("public share", key.public_share, common) for key in keys]
    stated = [commitment(share) for share in shares]
    assembling = "assembling the public key"
    collective = clock(assembling, CollectiveKey.assembled, common, stated, shares)
    clock.sizes[assembling] = len(collective.public.to_json())
    return keys, collective


def opening(clock: Clock, keys: Sequence[OfficerKey], flood: Flood, total: bytes) -> Values:
    """Each officer's share, and what the combiner reads from all."""
    noise = random.SystemRandom()
    shares = [clock("opening share", key.opening_share, total, flood, noise) for key in keys]
    return clock("combining", Combiner(len(keys)).slots, total, shares).real


def total_of(public: PublicKey, adding: AddingContext, values: Values) -> bytes:
    """The sum of as many encryptions of the same values as there are clients."""
    total = adding.sum()
    for _ in range(N_CLIENTS):
        total = total.plus(public.encrypt(values))
    return total.coefficients()


def show_costs(costs: Costs) -> None:
    """A row for each step."""
    rows = [
        [
            step,
            ms_text(seconds),
            bytes_text(costs.step_bytes[step]) if step in costs.step_bytes else "",
        ]
        for step, seconds in costs.step_s.items()
    ]
    rows.append(["largest error", f"{costs.max_error:.1e}", ""])
    show(
        f"{costs.n_officers} officers, a ciphertext of {N_CLIENTS} clients",
        ("", "time", "bytes"),
        rows,
    )


def main(argv: Sequence[str] | None = None) -> Costs:
    """Measure, print, and write what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--officers", type=int, default=3, help="2 or more")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    print(Machine.here())
    costs = compare(args.officers, args.repeats)
    show_costs(costs)
    if args.json:
        write_json(args.json, [costs])
    return costs


if __name__ == "__main__":
    main()
