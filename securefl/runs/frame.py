"""Rounds of a run as rows of numbers: for a data frame, for trackers."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from securefl.runs.round_metrics import RoundMetrics


def row(metrics: RoundMetrics) -> dict[str, float]:
    """Return a round's numbers by name; what the round has not is left out.

    `score` is by the run's metric, and `score_over_all` the same over all clients' samples;
    `clients/NAME/score` and `clients/NAME/loss` are of clients that are scored by themselves.
    `n_clients` and `dropped` count clients, `upload_bytes` is of all of them.
    """
    found: dict[str, float | None] = {
        "round": metrics.round,
        "score": metrics.score,
        "score_over_all": metrics.pooled.value if metrics.pooled else None,
        "loss": metrics.loss,
        "lr": metrics.lr,
        "upload_bytes": metrics.upload_bytes,
        "n_clients": metrics.n_clients,
        "dropped": len(metrics.dropped),
        "seconds": metrics.seconds,
        "simulated_s": metrics.simulated_s,
        "energy_wh": metrics.energy_wh,
        "epsilon": metrics.epsilon,
    }
    for name, of in metrics.clients.items():
        found |= {f"clients/{name}/score": of.score, f"clients/{name}/loss": of.loss}
    return {name: value for name, value in found.items() if value is not None}


def frame(rounds: Sequence[RoundMetrics]) -> Any:
    """Return a pandas DataFrame with a row for each round: time, metric, and the numbers of `row`.

    Where pandas is not installed, a list of dicts.
    """
    rows = [{"at": of.at, "metric": of.metric, **row(of)} for of in rounds]
    return import_module("pandas").DataFrame(rows) if find_spec("pandas") else rows
