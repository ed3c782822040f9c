"""Result of a run, as a notebook shows it."""

import math
from collections.abc import Mapping, Sequence

from securefl.io.html import Curve, PageTable, notebook_html
from securefl.metrics.by_name import heading, shown, shown_compared
from securefl.runs.round_metrics import RoundMetrics, best_of

MOST_CLIENTS = 10


def result_html(name: str, rounds: Sequence[RoundMetrics], counts: Mapping[str, str]) -> str:
    """Return the last round's figures, the score by round, and the first ten clients' scores.

    Args:
        name: name of the run.
        rounds: metrics of all rounds.
        counts: figures of the whole run, by what they count.
    """
    if not rounds:
        return notebook_html(name, ["No round is complete."], [])
    last, best = rounds[-1], best_of(rounds)
    figures = {
        "Rounds": f"{last.round:,}",
        heading(last.metric): shown_compared(last.metric, last.score, last.pooled),
        **({"Best": f"{shown(best.metric, best.compared)}, round {best.round:,}"} if best else {}),
        "Loss": f"{last.loss:.3g}",
        **counts,
    }
    tables = [PageTable("Figures", ("Figure", "Value"), [*figures.items()])]
    if last.clients:
        rows = [
            (n, shown(last.metric, of.score), f"{of.loss:.3g}") for n, of in last.clients.items()
        ]
        n_more = max(0, len(rows) - MOST_CLIENTS)
        more = f", {MOST_CLIENTS} of {len(rows):,}" if n_more else ""
        columns = "Client", heading(last.metric), "Loss"
        tables.append(PageTable(f"Clients{more}", columns, rows[:MOST_CLIENTS]))
    return notebook_html(name, [], tables, _curve(rounds))


def _curve(rounds: Sequence[RoundMetrics]) -> Curve | None:
    scores = [of.compared for of in rounds if math.isfinite(of.compared)]
    if len(scores) < 2:
        return None
    metric = rounds[-1].metric
    low, high = (shown(metric, end) for end in (min(scores), max(scores)))
    return Curve(scores, f"{heading(metric)} by round, from {low} to {high}")
