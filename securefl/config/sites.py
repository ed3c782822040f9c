"""The table `[sites]`: rounds that lack clients, and the clients' scores."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from securefl.config.table import Table


class SitesTable(Table):
    """The table `[sites]`: what becomes of a round that lacks clients, and who reads scores."""

    quorum: Annotated[int, Field(ge=1, le=10**6, strict=True)] | None = None
    """Clients that are there when a round begins, at least; as many as no total may have fewer of
    (exchange.min_clients) where absent."""
    wait_s: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = 60.0
    """Seconds that a round waits for its quorum, between separate processes."""
    short: Literal["end", "pass"] = "end"
    """What becomes of a round that lacks its quorum, or that loses so many clients that no total
    may be opened: it ends the run, which the same commands resume, or it passes. The model then
    stays as it is, and the next round waits."""
    scores: Literal["mean", "each"] = "mean"
    """Scores that the server reads where clients score their own models, between separate
    processes: their mean, opened as a sum where any sum is sealed; or each client's, in the clear,
    so that the worst is named."""
