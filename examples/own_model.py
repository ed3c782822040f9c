"""Your own model and data: three hospitals, one network, encrypted batch statistics."""

import torch
from torch import nn

import securefl

model = nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
x, noise = torch.randn(600, 20), 0.1 * torch.randn(600)
y = (x[:, 0] + x[:, 1] + noise > 0).long()
hospitals = [(x[i : i + 150], y[i : i + 150]) for i in (0, 150, 300)]  # or a dict by name
task = securefl.Task(model, hospitals, test=(x[450:], y[450:]))
result = securefl.run(securefl.load_config(settings=["run.rounds=20", "train.lr=0.1"]), task)
print(f"accuracy {result.accuracy:.3f}; the authority opened {len(result.openings)} totals")  # noqa: T201
