"""The table `[selection]`: which clients take part in a round."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from securefl.settings.table import ClosedShare, Count, NotNegative, Table

Alpha = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False, strict=True)]


class SelectionTable(Table):
    """The table `[selection]`."""

    name: Literal["all", "random", "data-share", "fedprof", "afl", "cfcfm"] = "all"
    """`fedprof` draws clients whose data look like the server's, `data-share` by their number of
    samples, `afl` by their loss; `cfcfm` takes the first to submit, which needs `[devices]`."""
    fraction: Annotated[float, Field(gt=0, le=1, strict=True)] = 0.2
    """C, the share of the clients in a round."""
    aggregation: Literal["partial", "full"] = "partial"
    """Whether a client that was not selected counts: with the current global model (`full`)."""
    replacement: Literal["without", "with"] = "without"
    """`with`: a client that is drawn twice counts twice; in the clear alone."""
    fairness: Count | None = None
    """Rounds after which a client that waits comes first."""
    alpha: Alpha | Literal["theorem1"] = 10.0
    """FedProf's penalty α; 0 selects at random, `theorem1` by data share, as its proof needs."""
    alpha_by_client: dict[str, Alpha] = Field(default_factory=dict)
    """In the place of `alpha`, by client: `{client-3 = 25.0}`."""
    layer: str | None = None
    """The layer that is profiled; where absent the first dense one, or the last block."""
    excluded: ClosedShare = 0.75
    """AFL's α1, the share of clients of lowest value that have no chance by it."""
    sharpness: NotNegative = 0.01
    """AFL's α2."""
    uniform: ClosedShare = 0.1
    """AFL's α3, the share of the selected that are drawn at random."""

    @property
    def asks_for_profiles(self) -> bool:
        """Whether clients send any; Theorem 1 draws by data share."""
        return self.name == "fedprof" and self.alpha != "theorem1"
