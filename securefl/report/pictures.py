"""All pictures of a run's folder."""

from __future__ import annotations

from securefl.metrics import SHARES
from securefl.report.cost import cost_figure
from securefl.report.drawing import png
from securefl.report.plots import score_plot, traffic_plot
from securefl.report.scores import scores_figure
from securefl.report.selections import selections_figure
from securefl.runs.folder_reader import ACCURACY, SCORE, TRAFFIC, RunRecord

SELECTIONS, SCORES, COST = "selections.png", "scores.png", "cost.png"
PICTURES = frozenset((SELECTIONS, SCORES, COST, TRAFFIC, ACCURACY, SCORE))


def pictures(record: RunRecord) -> dict[str, bytes]:
    """PNG files by name: the score and traffic, and what else the run has something to show for.

    Traffic, which every run has, comes last, so that whoever finds it finds all.
    """
    name, selects = record.config.name, record.config.selection.name != "all"
    figures = {
        SELECTIONS: selections_figure(record) if selects and record.participants else None,
        SCORES: scores_figure(record),
        COST: cost_figure({name: record.metrics}),
    }
    found = {file: png(figure) for file, figure in figures.items() if figure}
    scored_by = {m.metric for m in record.metrics}
    found[ACCURACY if scored_by <= SHARES else SCORE] = score_plot({name: record.metrics})
    found[TRAFFIC] = traffic_plot(record.ledger)
    return found
