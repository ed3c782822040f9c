"""Selection in a run: clients' scores and selections by quality, and who could read profiles.

All of it is taken from the ledger, which has every message, and not from the settings.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from securefl.federation.ledger import AUTHORITY, SERVER, Entry
from securefl.report.census import (
    by_quality,
    clients,
    most_selected_first,
    selected_share,
    times_selected,
)
from securefl.runs.folder_reader import RunRecord
from securefl.selection.selector import Selector, Standing
from securefl.types import PROFILE, Kind


@dataclass(frozen=True, slots=True)
class ClientLine:
    """Row of one client."""

    client: str
    quality: str | None
    """Quality; None where nobody knows it."""
    times_selected: int
    measured_in: int | None
    """Last round with a measurement; None where there was none."""
    measured: float | None
    """Last measurement: the divergence of its profile, or with AFL its mean loss."""
    score: float | None
    """Last λ of FedProf for it, by the α of the settings, recorded with `theorem1`."""


@dataclass(frozen=True, slots=True)
class QualityLine:
    """Row of all clients of one quality."""

    quality: str | None
    n_clients: int
    client_share: float
    """Share of all clients, 0..1."""
    selected_share: float
    """Share of all selections, 0..1."""


def client_lines(record: RunRecord) -> list[ClientLine]:
    """Return all clients by quality, and those of one quality by how often they were selected."""
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
    """Return the shares of each quality."""
    names = clients(record)
    return [
        QualityLine(quality, len(group), len(group) / len(names), selected_share(record, {quality}))
        for quality, group in by_quality(names, record).items()
    ]


def _scores(record: RunRecord, divergence: dict[str, float]) -> dict[str, float]:
    table = record.config.selection
    if not isinstance(table, Selector) or PROFILE not in table.asks:
        return {}
    if not table.asks_for_profiles:
        recorded: dict[str, float] = {}
        for each in record.participants:
            recorded |= each.scores
        return recorded
    standing = Standing(tuple(divergence), divergence=divergence)
    return table.scores(standing)


SCORE, UNIT = "profile/score", "profile/unit"
IN_THE_CLEAR = {
    "profile": "each profile whole",
    "selection/loss": "the mean loss of each client that it asked",
    "selection/size": "each client's number of samples",
}
"""Words for what a message in the clear shows the server, by the message's name."""


def who_read_what(ledger: Sequence[Entry], n_officers: int = 1) -> list[str]:
    """Return sentences on the server, the authority, the clients, and on released scores.

    Several officers are in the authority's place in the ledger, and read no score.
    Without profiles: that there are none, and what else the server was told to select by.
    """
    sent = [e for e in ledger if e.kind in {Kind.PROFILES, Kind.SELECTION}]
    profiles = [e for e in sent if e.kind is Kind.PROFILES]
    server = _server([e for e in sent if e.receiver == SERVER])
    if not profiles:
        return ["No profile was sent.", server] if sent else ["No profile was sent."]
    lines = [server]
    openers = _officers if n_officers > 1 else _authority
    lines.append(openers({e.name for e in profiles if e.receiver == AUTHORITY}))
    lines.append(_clients({e.name for e in sent if e.receiver not in {SERVER, AUTHORITY}}))
    released = [e for e in profiles if e.sender == AUTHORITY and e.name == SCORE]
    if released:
        who = "opened by officers" if n_officers > 1 else "released by the authority"
        lines.append(f"Scores {who}: {sum(e.n_values for e in released)}.")
    return lines


def _server(received: Sequence[Entry]) -> str:
    """Say what single clients sent the server in the clear, and the scores that it was given."""
    clear = {e.name for e in received if e.sender != AUTHORITY and e.form == "plaintext"}
    scored = any(e.sender == AUTHORITY and e.name == SCORE for e in received)
    read = [IN_THE_CLEAR.get(name, name) for name in sorted(clear)]
    if scored and not read:
        return "The server could read nothing of a profile but its score."
    return f"The server could read {_listed([*read, *(['the scores'] if scored else [])])}."


def _authority(names: Collection[str]) -> str:
    if not names:
        return "The authority was sent nothing of profiles."
    if set(names) == {SCORE}:
        return (
            "The authority could read scores alone, one for each client and round, before they "
            "were rounded; never a profile."
        )
    return f"The authority could read {_listed(sorted(names))}."


def _officers(names: Collection[str]) -> str:
    if not names:
        return "The officers were sent nothing of profiles."
    if set(names) == {SCORE}:
        return "No officer could read a score or a profile."
    return f"The officers could read {_listed(sorted(names))}."


def _clients(names: Collection[str]) -> str:
    if not names:
        return "Each client could read nothing of others."
    if set(names) == {UNIT}:
        return (
            "Each client could read nothing of others; it was told the unit that profiles are "
            "measured in."
        )
    return f"Each client was sent {_listed(sorted(names))}."


def _listed(parts: Sequence[str]) -> str:
    """Join the parts as people say them; nothing where there is none."""
    *most, last = parts or ["nothing"]
    return f"{', '.join(most)} and {last}" if most else last
