"""All pictures of a run's folder."""

from __future__ import annotations

from securefl.report.cost import cost_figure
from securefl.report.drawing import png
from securefl.report.plots import accuracy_plot, traffic_plot
from securefl.report.scores import scores_figure
from securefl.report.selections import selections_figure
from securefl.runrecord import ACCURACY, TRAFFIC, RunRecord

SELECTIONS, SCORES, COST = "selections.png", "scores.png", "cost.png"
PICTURES = frozenset((SELECTIONS, SCORES, COST, TRAFFIC, ACCURACY))


def pictures(record: RunRecord) -> dict[str, bytes]:
    """PNG files by name: accuracy and traffic, and what else the run has something to show for.

    Those that every run has come last, so that whoever finds them finds all.
    """
    name, selects = record.config.name, record.config.selection.name != "all"
    figures = {
        SELECTIONS: selections_figure(record) if selects and record.turnouts else None,
        SCORES: scores_figure(record),
        COST: cost_figure({name: record.metrics}),
    }
    found = {file: png(figure) for file, figure in figures.items() if figure}
    found[TRAFFIC] = traffic_plot(record.ledger)
    found[ACCURACY] = accuracy_plot({name: record.metrics})
    return found
