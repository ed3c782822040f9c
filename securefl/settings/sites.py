"""The table `[sites]`: rounds that lack clients, and the clients' scores."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from securefl.settings.table import Table


class SitesTable(Table):
    """The table `[sites]`: what becomes of a round whose clients are late, and who reads scores."""

    quorum: Annotated[int, Field(ge=1, le=10**6, strict=True)] | None = None
    """Clients that are there when a round begins, at least; as many as no total may have fewer of
    (exchange.min_clients) where absent."""
    wait_s: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False, strict=True)] = 60.0
    """Seconds that a round waits for its quorum, between separate processes."""
    late: Literal["go-on", "pass", "wait"] = "go-on"
    """Fate of a round whose clients are late. While its quorum is there, it goes on without
    them and names them, by any of the three; after its first sealed total it passes, since the
    next one could show them. With "go-on", a round that lacks its quorum after
    wait_s, or loses so many clients that no total may be opened, ends the run, which the same
    commands resume. With "pass", it passes: the model stays as it is, and the next round waits.
    With "wait", a round waits for its quorum as long as it takes (with run.reproducible, for all),
    and one that loses so many on its way passes. In a simulation nobody comes back while a round
    waits: "wait" is as "pass"."""
    scores: Literal["mean", "each"] = "mean"
    """Scores that the server reads where clients score their own models, between separate
    processes: their mean, opened as a sum where any sum is sealed; or each client's, in the clear,
    so that the worst is named."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_short(cls, found: Any) -> Any:
        if isinstance(found, dict) and "short" in found:
            new = "pass" if found["short"] == "pass" else "go-on"
            raise ValueError(f'sites.short: its name is sites.late now: write late = "{new}"')
        return found
