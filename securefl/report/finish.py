"""Pictures and the page on privacy that a run leaves in its folder at its end."""

from collections.abc import Callable

from securefl.metrics.by_name import SHARES
from securefl.privacy.history import History
from securefl.report.protection import protection_page
from securefl.runs.folder_reader import ACCURACY, SCORE, TRAFFIC, RunRecord, read_run
from securefl.runs.folder_writer import RunFolder
from securefl.settings.tables import Config

SELECTIONS, SCORES, COST = "selections.png", "scores.png", "cost.png"
PICTURES = frozenset((SELECTIONS, SCORES, COST, TRAFFIC, ACCURACY, SCORE))


def pictures(record: RunRecord) -> dict[str, bytes]:
    """Draw PNG files by name: score, traffic, and what else the run has something to show for.

    Traffic, which every run has, comes last, so that whoever finds it finds all.
    """
    # Matplotlib takes a second to import, which no start of a run waits for.
    from securefl.report.plots import (
        cost_figure,
        png,
        score_plot,
        scores_figure,
        selections_figure,
        traffic_figure,
    )

    name, selects = record.config.name, record.config.selection.selects
    figures = {
        SELECTIONS: selections_figure(record) if selects and record.participants else None,
        SCORES: scores_figure(record),
        COST: cost_figure({name: record.metrics}),
    }
    found = {file: png(figure) for file, figure in figures.items() if figure}
    scored_by = {m.metric for m in record.metrics}
    found[ACCURACY if scored_by <= SHARES else SCORE] = score_plot({name: record.metrics})
    found[TRAFFIC] = png(traffic_figure(record.ledger))
    return found


AtEnd = Callable[[RunFolder, History], None]


def at_end(config: Config) -> AtEnd:
    """Return the function that writes pictures and page."""

    def leave(folder: RunFolder, history: History) -> None:
        if config.privacy.private:
            folder.note_protection(protection_page(config, history))
        for name, picture in pictures(read_run(folder.path)).items():
            folder.note_picture(name, picture)

    return leave
