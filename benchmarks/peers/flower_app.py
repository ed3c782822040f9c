"""Clients of Flower. Ray's actors import it, and so hold model and data from round to round.

In its quickstart a client makes its model and a DataLoader each time; here both are held, and
batches are slices, which is faster.
"""

from __future__ import annotations

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from jobs import JOBS, LR
from models import made
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take one client's local steps."""
    job = JOBS[message.content["config"]["job"]]
    model, x_KN, y_KN = held(message.content["config"]["job"])
    client = context.node_config["partition-id"]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for index in torch.randperm(job.n_samples).split(job.batch):
        optimizer.zero_grad()
        cross_entropy(model(x_KN[client, index]), y_KN[client, index]).backward()
        optimizer.step()
    reply = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": job.n_samples}),
    }
    return Message(content=RecordDict(reply), reply_to=message)


@cache
def held(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a job's model and all clients' samples, once a process."""
    x, y = map(torch.from_numpy, JOBS[name].samples())
    return made(JOBS[name].model).train(), x, y
