"""Jobs that a GPU is timed on: federations as large as a GPU is for."""

from __future__ import annotations

from dataclasses import replace

import engine_jobs

MLP = engine_jobs.MLP
CNN = replace(engine_jobs.CNN, n_clients=100)
RESNET20 = replace(engine_jobs.RESNET20, n_clients=20)
LENET5 = engine_jobs.LENET5
