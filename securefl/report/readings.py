"""Who could read what of the profiles, and of what else clients are selected by.

All of it is taken from the ledger, which has every message, and not from the settings.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from securefl.federation.ledger import AUTHORITY, SERVER, Entry
from securefl.types import Kind

SCORE, UNIT = "profile/score", "profile/unit"
IN_THE_CLEAR = {
    "profile": "each profile whole",
    "selection/loss": "the mean loss of each client that it asked",
    "selection/size": "each client's number of samples",
}
"""What a message in the clear shows the server, by the message's name."""


def who_read_what(ledger: Sequence[Entry], n_officers: int = 1) -> list[str]:
    """Sentences on the server, on the authority and on the clients, and on released scores.

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
    """What single clients sent it in the clear, and the scores that it was given."""
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
    """As people say it; nothing where there is none."""
    *most, last = parts or ["nothing"]
    return f"{', '.join(most)} and {last}" if most else last
