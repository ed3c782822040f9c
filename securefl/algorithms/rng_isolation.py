"""Random draws of layers such as Dropout, which take torch's global generators and no others."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class LayerDraws:
    """One client's, in one round; they do not depend on who else trains, or where."""

    def __init__(self, device: torch.device, rng: torch.Generator) -> None:
        """Take the client's own `rng` for the round; nothing is drawn from it."""
        self._devices = [device] if device.type == "cuda" else []
        self._seed = rng.initial_seed() ^ 1
        self._states: list[torch.Tensor] = []

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Let torch's global generators go on where this client left them, inside the context.

        The caller's are put back.
        """
        with torch.random.fork_rng(self._devices):
            if self._states:
                torch.set_rng_state(self._states[0])
                for device, state in zip(self._devices, self._states[1:], strict=True):
                    torch.cuda.set_rng_state(state, device)
            else:
                torch.default_generator.manual_seed(self._seed)
                for device in self._devices:
                    with torch.cuda.device(device):
                        torch.cuda.manual_seed(self._seed)
            try:
                yield
            finally:
                on_gpu = [torch.cuda.get_rng_state(device) for device in self._devices]
                self._states = [torch.get_rng_state(), *on_gpu]


@contextmanager
def seeded_layers(device: torch.device, seed: int) -> Iterator[None]:
    """Have torch's global generators draw by `seed` within.

    The caller's are put back.
    """
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
