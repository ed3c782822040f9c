"""First layer of a model: columns of numbers by mean and deviation over all sites' samples."""

from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

MEAN, DEVIATION = "input_mean_C", "input_deviation_C"
"""Names of the layer's buffers, behind its own name."""
LEAST_SCALE = 1e-3
"""Standard deviation over all sites below which a column is constant, and keeps its unit: divided
by less, the one test sample that differs would be read as thousands."""


@final
class StandardisedInput(nn.Module):
    """Layer (x - mean) / deviation for columns of numbers; others, words and what is 1 for missing.

    A missing number, which comes as 0, is the mean: 0. Until they are measured deviations are 0,
    and samples stay as they are.
    """

    input_mean_C: Tensor
    input_deviation_C: Tensor
    _indicator_C: Tensor

    def __init__(
        self, n_channels: int, numbers: Sequence[int], indicators: Mapping[int, int], most: int
    ) -> None:
        """Build the layer before it is measured.

        Args:
            n_channels: length of a sample's first axis.
            numbers: places along it that are standardised.
            indicators: of those that may be missing, the place that is 1 where they are.
            most: samples that a client has, at most; sums over its samples travel divided by it.
        """
        super().__init__()
        self.numbers = tuple(numbers)
        self.most = most
        self.may_miss = bool(indicators)
        self.register_buffer(MEAN, torch.zeros(n_channels))
        self.register_buffer(DEVIATION, torch.zeros(n_channels))
        # As distances, which are as true where clients' channels lie side by side.
        distance_C = torch.zeros(n_channels, dtype=torch.long)
        for place, indicator in indicators.items():
            distance_C[place] = indicator - place
        self.register_buffer("_indicator_C", distance_C, persistent=False)

    def forward(self, x: Float[Tensor, "B C ..."]) -> Tensor:
        """Standardise each sample by itself."""
        deviation_C = self.input_deviation_C
        x_C = x.movedim(1, -1)
        found = (x_C - self.input_mean_C) / torch.where(deviation_C > 0, deviation_C, 1.0)
        return (found * self.present(x_C)).movedim(-1, 1) if self.may_miss else found.movedim(-1, 1)

    def present(self, x_C: Float[Tensor, "... C"]) -> Tensor:
        """Return 0 where a number is missing, and 1 elsewhere, of samples with channels last."""
        if not self.may_miss:
            return torch.ones_like(x_C)
        places_C = torch.arange(len(self._indicator_C), device=x_C.device) + self._indicator_C
        return torch.where(self._indicator_C == 0, 1.0, 1 - x_C[..., places_C])

    @torch.no_grad()
    def set(self, mean_N: Tensor, deviation_N: Tensor) -> None:
        """Take mean and deviation of each of `numbers`; one of less than `LEAST_SCALE` is no scale.

        So a column that is constant, or that no sample has, keeps its unit.
        """
        self.input_mean_C.zero_()
        self.input_deviation_C.fill_(1.0)
        places = list(self.numbers)
        constant_N = deviation_N < LEAST_SCALE
        deviation_N = deviation_N.masked_fill(constant_N, 1.0)
        self.input_mean_C[places] = mean_N.to(self.input_mean_C)
        self.input_deviation_C[places] = deviation_N.to(self.input_deviation_C)


def find_standardised(model: nn.Module) -> tuple[str, StandardisedInput] | None:
    """Return a model's standardising layer by its name; None where it has none."""
    return next(
        ((n, m) for n, m in model.named_modules() if isinstance(m, StandardisedInput)), None
    )
