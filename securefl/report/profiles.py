"""What a run with selection tells of its clients: their scores, and selections by quality."""

from __future__ import annotations

from dataclasses import dataclass

from securefl.report.census import (
    by_quality,
    clients,
    most_selected_first,
    selected_share,
    times_selected,
)
from securefl.runs.folder_reader import RunRecord
from securefl.selection.base import Standing
from securefl.selection.fedprof import Alpha, FedProf


@dataclass(frozen=True, slots=True)
class ClientLine:
    """One client."""

    client: str
    quality: str | None
    """None where nobody knows it."""
    times_selected: int
    measured_in: int | None
    """The last round with a measurement; None where there was none."""
    measured: float | None
    """The last one: the divergence of its profile, or with AFL its mean loss."""
    score: float | None
    """FedProf's λ for it, by the α of the settings; the last one recorded with `theorem1`."""


@dataclass(frozen=True, slots=True)
class QualityLine:
    """All clients of one quality."""

    quality: str | None
    n_clients: int
    client_share: float
    """Of all clients, 0..1."""
    selected_share: float
    """Of all selections, 0..1."""


def client_lines(record: RunRecord) -> list[ClientLine]:
    """All clients by quality, and those of one quality by how often they were selected."""
    counts = times_selected(record)
    measured: dict[str, float] = {}
    measured_in: dict[str, int] = {}
    for each in record.participants:
        measured |= each.measured
        measured_in |= dict.fromkeys(each.measured, each.round)
    scores = _scores(record, measured)
    return [
        ClientLine(
            client,
            quality,
            counts[client],
            measured_in.get(client),
            measured.get(client),
            scores.get(client),
        )
        for quality, names in most_selected_first(record).items()
        for client in names
    ]


def quality_lines(record: RunRecord) -> list[QualityLine]:
    """The shares of each quality."""
    names = clients(record)
    return [
        QualityLine(quality, len(group), len(group) / len(names), selected_share(record, {quality}))
        for quality, group in by_quality(names, record).items()
    ]


def _scores(record: RunRecord, divergence: dict[str, float]) -> dict[str, float]:
    table = record.config.selection
    if table.name != "fedprof":
        return {}
    if table.alpha == "theorem1":
        recorded: dict[str, float] = {}
        for each in record.participants:
            recorded |= each.scores
        return recorded
    standing = Standing(tuple(divergence), divergence=divergence)
    return FedProf(Alpha(table.alpha, table.alpha_by_client)).scores(standing)
