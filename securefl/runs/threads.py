"""Number of torch's threads, on which the last bits of its sums depend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(n_threads: int | None) -> Iterator[None]:
    """Set torch's number of threads within; unchanged where None."""
    if n_threads is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
