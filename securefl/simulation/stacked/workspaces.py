"""Wide models of a run, kept from round to round by number of clients."""

from __future__ import annotations

import torch
from torch import nn

from securefl.simulation.stacked.model import wide
from securefl.simulation.workspace import Workspace

BLOCK_BYTES = 2**25
"""Most bytes of parameters in a block on a CPU; larger blocks are no faster."""
PER_PARAMETER = 16
"""Divisor of a GPU's free memory that leaves the share for parameters; the rest is for gradients,
momentum and activations."""
MOST_WORKSPACES = 4
"""Number of workspaces that are kept."""


class Workspaces:
    """Workspaces of one model for blocks of clients."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._workspaces: dict[int, Workspace] = {}
        parameters = list(model.parameters())
        most_bytes, device = BLOCK_BYTES, parameters[0].device
        if device.type == "cuda":
            most_bytes = torch.cuda.mem_get_info(device)[0] // PER_PARAMETER
        size = sum(p.numel() * p.element_size() for p in parameters)
        self.most = max(1, most_bytes // size)
        """Most clients in a block."""

    def of(self, n_clients: int) -> Workspace:
        """Return the workspace for a block of `n_clients`, kept from before; call `load` first."""
        if n_clients not in self._workspaces:
            for oldest in list(self._workspaces)[: 1 - MOST_WORKSPACES]:
                del self._workspaces[oldest]
            self._workspaces[n_clients] = Workspace(wide(self._model, n_clients), n_clients)
        return self._workspaces[n_clients]
