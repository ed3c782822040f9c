"""Wide models of a run, kept from round to round by how many clients are side by side."""

from __future__ import annotations

import torch
from torch import nn

from securefl.simulation.clients import Place
from securefl.simulation.stacked.model import wide

WIDE_BYTES = 2**25
"""Of parameters that train side by side on a CPU; more is no faster, and takes memory."""
PER_PARAMETER = 16
"""Of a GPU's free memory, the share for parameters: the rest is for gradients, momentum and
activations."""
MOST_PLACES = 4
"""That are kept."""


class WidePlaces:
    """Where clients of one model train side by side."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._places: dict[int, Place] = {}
        parameters = list(model.parameters())
        most_bytes, device = WIDE_BYTES, parameters[0].device
        if device.type == "cuda":
            most_bytes = torch.cuda.mem_get_info(device)[0] // PER_PARAMETER
        size = sum(p.numel() * p.element_size() for p in parameters)
        self.most = max(1, most_bytes // size)
        """Clients side by side."""

    def of(self, n_clients: int) -> Place:
        """The same for as many again; what is in it is of those before."""
        if n_clients not in self._places:
            for oldest in list(self._places)[: 1 - MOST_PLACES]:
                del self._places[oldest]
            self._places[n_clients] = Place(wide(self._model, n_clients), n_clients)
        return self._places[n_clients]
