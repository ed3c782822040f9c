"""Costs of k of n officers in the place of one authority: cards, sealing, answers and opening.

A step's figures are of one client, of one officer, or of whoever opens; all live in this process.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from measure import Machine, bytes_text, clocked, ms_text, sample_weights, show, write_json
from sealed_way import RUN, SealedWay

from securefl.exchange.card_keys import Quorum

QUORUMS = (Quorum(), Quorum(2, 3), Quorum(3, 5))
N_VALUES = 1376
"""Statistics of ResNet-20, in one ciphertext."""
_CPU = time.process_time


@dataclass(frozen=True, slots=True)
class Costs:
    """Medians of one quorum."""

    needed: int
    officers: int
    n_clients: int
    step_s: Mapping[str, float]
    """Seconds of the processor, by step."""
    step_bytes: Mapping[str, int]
    """Bytes of what a step leaves to send, where it does."""
    max_error: float


def compare(quorum: Quorum, n_clients: int, repeats: int) -> Costs:
    """Measure whole sums."""
    rng = np.random.default_rng(n_clients)
    weight_K, values_KV = sample_weights(n_clients, rng), rng.normal(size=(n_clients, N_VALUES))
    exact, way = weight_K @ values_KV / weight_K.sum(), SealedWay(N_VALUES, n_clients, quorum)
    seconds: dict[str, list[float]] = defaultdict(list)
    errors, sizes = list[float](), {"a client's cards, once": len(way.cards[0])}
    for _ in range(repeats):
        sum_ = way.start()
        for client, weight in enumerate(weight_K.tolist()):
            sender = way.senders[client]
            _, making = clocked(_CPU, way.keys.cards, RUN, sender)
            seconds["a client's cards, once"].append(making)
            message, sealing = clocked(_CPU, way.seal, client, values_KV[client], weight)
            seconds["a client seals"].append(sealing)
            sizes["a client seals"] = len(message[0])
            sum_.add(message, weight)
        for officer in way.opener.officers:
            answer, answering = clocked(_CPU, officer.key_sums, way.about, way.nonces)
            seconds["an officer answers"].append(answering)
            sizes["an officer answers"] = sum(len(part.to_bytes()) for part in answer.values())
        opened, opening = clocked(_CPU, way.open, sum_.total())
        seconds["all answers, and opening"].append(opening)
        errors.append(float(np.abs(opened - exact).max()))
    medians = {step: median(of) for step, of in seconds.items()}
    return Costs(quorum.needed, quorum.officers, n_clients, medians, sizes, max(errors))


def show_costs(results: Sequence[Costs]) -> None:
    """Print a row for each step, and two columns for each quorum."""
    columns = [f"{c.needed} of {c.officers}" for c in results]
    rows = []
    for step in results[0].step_s:
        row = [step]
        for costs in results:
            size = bytes_text(costs.step_bytes[step]) if step in costs.step_bytes else ""
            row += [ms_text(costs.step_s[step]), size]
        rows.append(row)
    rows.append(["largest error", *(cell for c in results for cell in (f"{c.max_error:.1e}", ""))])
    titles = [cell for column in columns for cell in (column, "bytes")]
    show(f"{N_VALUES} values, {results[0].n_clients} clients", ("", *titles), rows)


def main(argv: Sequence[str] | None = None) -> list[Costs]:
    """Measure, print, and write what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    print(Machine.here())
    results = [compare(quorum, args.clients, args.repeats) for quorum in QUORUMS]
    show_costs(results)
    if args.json:
        write_json(args.json, results)
    return results


if __name__ == "__main__":
    main()
