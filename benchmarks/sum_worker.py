"""Worker of one_time_sum.py: makes a sum for each line that it reads, and writes its cost.

    python benchmarks/sum_worker.py VALUES CLIENTS

It measures the SecureFL that is on the path: one-time keys, or the shared key of before.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec

import numpy as np
from measure import Way, cpu_sum, sample_weights


def way_of(n_values: int, n_clients: int) -> Way:
    """Return the way that this SecureFL seals sums."""
    if find_spec("securefl.exchange.one_time"):
        way: Way = import_module("sealed_way").SealedWay(n_values, n_clients)
    else:
        way = import_module("shared_key_way").SharedKeyWay(n_values, n_clients)
    return way


def main() -> None:
    """Work until there is no line any more."""
    n_values, n_clients = map(int, sys.argv[1:])
    rng = np.random.default_rng(n_clients)
    weight_K = sample_weights(n_clients, rng)
    values_KV = rng.normal(size=(n_clients, n_values))
    way = way_of(n_values, n_clients)
    for _ in sys.stdin:
        cost = cpu_sum(way, values_KV, weight_K)
        print(json.dumps(asdict(cost)), flush=True)


if __name__ == "__main__":
    main()
