"""The table `[privacy]`: differential privacy, at the level of records or of clients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from securefl.settings.table import Count, Positive, Table

NoiseMultiplier = Annotated[float, Field(ge=0.01, le=1e6, strict=True)]


class PrivacyTable(Table):
    """The table `[privacy]`."""

    level: Literal["none", "record", "client"] = "none"
    """Presence that is hidden: of one record of one client, by DP-SGD (`record`); of all that a
    client contributes, by noise that clients add in shares (`client`)."""
    sigma: NoiseMultiplier = 1.0
    """σ, the noise's standard deviation over the clip norm; `securefl privacy plan` finds it."""
    clip: Positive = 1.0
    """C, the L2 norm that a record's gradient, or each kind of tensor of a client's update, is
    clipped to. Where clipping adapts, what it starts from."""
    clipping: Literal["flat", "per-layer", "adaptive", "ghost"] = "flat"
    """`per-layer`: each tensor to C / √(number of tensors). `adaptive`: C follows the quantile of
    the norms. `ghost` (record): flat, without a gradient of each record in memory."""
    quantile: Annotated[float, Field(gt=0, lt=1, strict=True)] = 0.5
    """Quantile of norms that adaptive clipping follows."""
    delta: Annotated[float, Field(ge=1e-12, le=0.1, strict=True)] = 1e-5
    """δ; below 1 / records, or 1 / clients."""
    budget: Positive | None = None
    """ε by PLD at which the run stops before it would be exceeded."""
    records: Count | None = None
    """Records of the smallest client, a public number (`record`): each is sampled with the
    probability train.batch_size / records."""
    dropouts: Annotated[int, Field(ge=0, le=10**6, strict=True)] = 0
    """Clients of a round whose shares of the noise may be missing; with more, no total is opened.
    """
    colluders: Annotated[int, Field(ge=0, le=10**6, strict=True)] = 1
    """Clients that may tell others their shares of the noise; each knows its own."""
    releases: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    """Releases of BN statistics under `fixbn` with `record`: the first before any training, others
    evenly up to algorithm.switch."""
    warm_up: Annotated[int, Field(ge=0, le=10**4, strict=True)] = 0
    """Passes over the public samples before the first round (`fixbn` with `record`), from which BN
    statistics then come: clients release none. Counts no ε."""
    statistics_sigma: NoiseMultiplier = 10.0
    """σ of each release of BN statistics and, under `fedprof`, of profiles or their scores."""
    statistics_clip: Positive = 1.5
    """To what the [mean, second moment] of a record (`record`), or FNR-FL's table of class norms
    (`client`), is clipped, as a root mean square over its values."""
    score_clip: Positive = 10.0
    """To what a profile's score is clipped (`client`)."""
    noise: Literal["secret", "seeded"] = "secret"
    """`seeded`: noise and samples follow from run.seed, so that a run can be repeated. Whoever
    knows the seed takes the noise off: for experiments alone."""
