"""Pictures, the report and the page on privacy that a run leaves in its folder at its end."""

from collections.abc import Callable, Mapping
from pathlib import Path

from securefl.errors import RunFolderError
from securefl.metrics.by_name import SHARES
from securefl.privacy.history import History
from securefl.report.protection import protection_page
from securefl.runs.folder_files import ACCURACY, REPORT, SCORE, TRAFFIC
from securefl.runs.folder_reader import RunRecord, read_run
from securefl.runs.folder_writer import RunFolder, way_on, write_atomically
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


def write_report(
    record: RunRecord, out: Path | None = None, drawn: Mapping[str, bytes] | None = None
) -> Path:
    """Write the report of a run, into its folder where `out` is None; returns the file.

    `drawn` has the pictures by name, where they were just drawn.

    Raises:
        RunFolderError: no round is complete, a file is damaged, or none can be written.
    """
    # A page's templates take a while to load, which no start of a run waits for.
    from securefl.report.run_page import run_page

    if not record.metrics:
        way = way_on(record.path)
        raise RunFolderError(f"{record.path}: no round is complete; go on with {way}")
    path = out or record.path / REPORT
    write_atomically(path, run_page(record, drawn).encode())
    return path


AtEnd = Callable[[RunFolder, History], None]


def at_end(config: Config) -> AtEnd:
    """Return the function that writes pictures and pages."""

    def leave(folder: RunFolder, history: History) -> None:
        if config.privacy.private:
            folder.note_protection(protection_page(config, history))
        record = read_run(folder.path)
        drawn = pictures(record)
        for name, picture in drawn.items():
            folder.note_picture(name, picture)
        if drawn and record.metrics:  # it shows them
            write_report(record, drawn=drawn)

    return leave
