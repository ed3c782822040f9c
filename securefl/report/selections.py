"""How often each client was selected, by the quality of its data (Wu et al., FedProf, Fig. 6)."""

from __future__ import annotations

from collections.abc import Collection

from matplotlib.figure import Figure

from securefl.report.census import KNOWN, most_selected_first, times_selected
from securefl.report.drawing import COLOURS, MAX_NAMES, bare
from securefl.runs.folder_reader import RunRecord

BLUE, VERMILLION, GREEN, GREY, PURPLE, SKY, ORANGE = COLOURS
PALETTE: dict[str | None, str] = dict(
    zip(KNOWN, (GREEN, VERMILLION, BLUE, ORANGE, PURPLE, SKY), strict=True)
)


def selections_figure(record: RunRecord) -> Figure:
    """A bar for each client, sorted by quality and then by count; a colour for each quality."""
    counts, groups = times_selected(record), most_selected_first(record)
    n_clients = sum(map(len, groups.values()))
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    left, colours = 0, _colours(groups)
    for quality, names in groups.items():
        places = range(left, left + len(names))
        heights = [counts[client] for client in names]
        axes.bar(places, heights, color=colours[quality], label=quality or "quality unknown")
        left += len(names)
    rounds = len(record.participants)
    axes.set(ylabel=f"times selected in {rounds} round{'s' if rounds != 1 else ''}")
    if n_clients <= MAX_NAMES:
        names = [client for group in groups.values() for client in group]
        axes.set_xticks(range(n_clients), names, rotation=90)
    else:
        axes.set(xlabel=f"{n_clients} clients", xticks=[])
    axes.margins(x=0.01)
    bare(axes)
    if record.qualities:
        figure.legend(frameon=False, loc="outside upper center", ncols=len(groups))
    return figure


def _colours(qualities: Collection[str | None]) -> dict[str | None, str]:
    """The same in every picture, but for names that a user's own task gives."""
    own = [quality for quality in qualities if quality and quality not in PALETTE]
    spare = [colour for colour in COLOURS if colour not in map(PALETTE.get, qualities)]
    given = {quality: spare[i % len(spare)] for i, quality in enumerate(own)}
    return {None: GREY} | PALETTE | given
