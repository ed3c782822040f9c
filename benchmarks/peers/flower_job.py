"""Flower's rounds of a job in its simulation: .peers/flower/bin/python flower_job.py JOB ROUNDS.

The ray backend with one core for each client, so that as many clients run at a time as there are
cores (flower.ai/docs/framework/how-to-run-simulations; its default of two cores a client would run
one at a time here). No evaluation. `run_simulation` runs the simulation that `flwr run` runs.
"""

from __future__ import annotations

import os

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import flower_app
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from jobs import Laps, asked
from models import made

JOB, ROUNDS = asked()
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds; `evaluate_fn` is called before the first and after each."""
    del context
    laps = Laps("flwr", "ray", "torch", "numpy")
    strategy = FedAvg(
        fraction_train=JOB.cohort / JOB.n_clients,
        fraction_evaluate=0.0,
        min_train_nodes=JOB.cohort,
        min_available_nodes=JOB.n_clients,
    )

    def lap(server_round: int, arrays: ArrayRecord) -> None:
        del arrays
        (laps.end if server_round else laps.start)()

    strategy.start(
        grid,
        ArrayRecord(made(JOB.model).state_dict()),
        num_rounds=ROUNDS,
        train_config=ConfigRecord({"job": JOB.model}),
        evaluate_fn=lap,
    )


if __name__ == "__main__":
    cores = len(os.sched_getaffinity(0))
    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": cores, "num_gpus": 0, "logging_level": 30},
    }
    run_simulation(app, flower_app.app, JOB.n_clients, backend_config=backend)
