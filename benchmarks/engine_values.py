"""One encrypted sum over five clients, by how many values it has."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from engine_page import Grid, Part
from engine_plot import curves
from engine_ways import Settings
from measure import Cost, bytes_text, ms_text, one_sum, sample_weights, typical
from sealed_way import SealedWay

from securefl.crypto.params import SUMS

VALUES = (10**2, 10**3, 10**4, 10**5, 10**6)
N_CLIENTS = 5
ROLES = {"client: seal": "client_s", "server: add": "server_s", "authority: open": "authority_s"}


@dataclass(frozen=True, slots=True)
class Sum:
    """Sum of so many values."""

    n_values: int
    n_ciphertexts: int
    cost: Cost
    """Costs as medians over the repeats."""


def measured(n_values: int, repeats: int) -> Sum:
    """Measure under fresh keys, after a rehearsal; messages have no signatures."""
    rng = np.random.default_rng(n_values)
    weight_K = sample_weights(N_CLIENTS, rng)
    values_KV = rng.normal(size=(N_CLIENTS, n_values))
    way = SealedWay(n_values, N_CLIENTS)
    costs = [one_sum(way, values_KV, weight_K) for _ in range(repeats + 1)]
    return Sum(n_values, SUMS.n_ciphertexts(n_values), typical(costs[1:]))


def values_part(settings: Settings) -> Part:
    """Measure a row for each number of values."""
    results = []
    for n_values in VALUES[:2] if settings.small else VALUES:
        settings.note(f"encrypted sum of {n_values:,} values")
        results.append(measured(n_values, settings.repeats))
    times = {
        role: {r.n_values: asdict(r.cost)[cost] for r in results} for role, cost in ROLES.items()
    }
    rows = [
        [
            f"{r.n_values:,}",
            f"{r.n_ciphertexts:,}",
            bytes_text(r.cost.client_bytes),
            *(ms_text(line[r.n_values]) for line in times.values()),
        ]
        for r in results
    ]
    grid = Grid(("values", "ciphertexts", "bytes per client", *ROLES), rows)
    return Part(
        f"By encrypted values: one sum over {N_CLIENTS} clients",
        {"Of one client, and of server and authority for all": grid},
        results,
        picture=curves(times, "encrypted values", "seconds"),
    )
