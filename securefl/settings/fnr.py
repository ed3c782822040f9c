"""The table `[fnr]`: what is trained on public samples after the clients' own training."""

from __future__ import annotations

from typing import Literal

from securefl.settings.table import Count, NotNegative, Share, Table


class FnrTable(Table):
    """The table `[fnr]`."""

    name: Literal["none", "matched", "literal", "server"] = "none"
    """`matched` and `literal` refine the clients that do worst on the public samples, with FNR-FL's
    penalty on their class-average feature norms; `literal` is the paper's, which has no gradient.
    `server` has no client refined: the server trains the average on the public samples."""
    share: Share = 0.3
    """p, the share of clients that are refined."""
    strength: NotNegative = 0.1
    """λ; 0 trains them on the public samples and penalises nothing."""
    epochs: Count = 5
    """E_re, passes over the public samples."""
    batch_size: Count = 32
    """Of the public samples."""
