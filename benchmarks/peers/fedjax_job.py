"""FedJAX's rounds of a job: .peers/fedjax/bin/python fedjax_job.py JOB ROUNDS.

Its own `federated_averaging`, with its default backend, jit, and its in-memory data. Its other one,
pmap, was tried with two host devices: three times slower on the MLP, twice on the CNN, and no
faster on LeNet. Of XLA's two runtimes for the CPU each job has the faster one: without thunks the
convolutions take half the time, and the MLP more.
"""

from __future__ import annotations

import os

from jobs import LR, STEPS, Job, Laps, asked

JOB, ROUNDS = asked()
if JOB.model != "mlp":
    os.environ["XLA_FLAGS"] = "--xla_cpu_use_thunk_runtime=false"

import fedjax
import haiku as hk
import jax
import numpy as np
import optax
from fedjax.algorithms.fed_avg import federated_averaging
from fedjax_models import MODELS


def federation(job: Job) -> fedjax.InMemoryFederatedData:
    """Return all clients' samples, channels last."""
    x, y = job.samples()
    if len(job.shape) == 3:
        x = np.ascontiguousarray(np.moveaxis(x, 2, -1))
    clients = {str(i): {"x": x[i], "y": y[i]} for i in range(job.n_clients)}
    return fedjax.InMemoryFederatedData(clients)


def main() -> None:
    """Run the rounds; each ends when its numbers are there."""
    laps = Laps("fedjax", "jax", "dm-haiku", "numpy")
    model = hk.without_apply_rng(hk.transform(MODELS[JOB.model]))

    def loss(params: hk.Params, batch: dict[str, jax.Array]) -> jax.Array:
        scores = model.apply(params, batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"]).mean()

    def gradient(params: hk.Params, batch: dict[str, jax.Array], rng: jax.Array) -> hk.Params:
        del rng
        return jax.grad(loss)(params, batch)

    sgd = fedjax.optimizers.sgd
    batches = fedjax.ShuffleRepeatBatchHParams(JOB.batch, num_epochs=None, num_steps=STEPS)
    algorithm = federated_averaging(gradient, sgd(LR), sgd(1.0), batches)
    data = federation(JOB)
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, JOB.cohort, seed=0)
    _, first = next(iter(data.clients()))
    params = model.init(jax.random.PRNGKey(0), first.all_examples()["x"][: JOB.batch])
    state = algorithm.init(params)
    laps.start()
    for _ in range(ROUNDS):
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        laps.end()


if __name__ == "__main__":
    main()
