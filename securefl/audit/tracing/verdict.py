"""What tracing comes to, in plain words."""

from __future__ import annotations

from securefl.audit.findings import Verdict
from securefl.audit.roc import Interval
from securefl.audit.tracing.bench import Sent, Shown

NOTICED, PLAIN = 0.6, 0.75
"""Where an AUC's whole interval is above, records are told apart somewhat, or plainly."""

Said = tuple[Verdict, str]

_GUESSING = "of cases (50 % is guessing)"
_UNREAD: dict[Shown, Said] = {
    Shown.NOT_SENT: (
        Verdict.OPEN,
        (
            "No client of this run sends statistics or profiles, so nobody can trace a record in "
            "them. The figures say what they would show."
        ),
    ),
    Shown.HIDDEN: (
        Verdict.HOLDS,
        (
            "Profiles travel encrypted, and only scores of them are opened: nobody reads the "
            "statistics that a record could be traced in."
        ),
    ),
}


def judged(sent: Sent, run: Interval | None, difference: Interval, noisy: Interval) -> Said:
    """A verdict on a run.

    Args:
        sent: what anybody sees of its statistics.
        run: how well records are traced in just that; None where noise of clients is on it.
        difference: how well in the difference of two totals of it.
        noisy: how well in one with the clients' noise.
    """
    if sent.worst in _UNREAD:
        return _UNREAD[sent.worst]
    if run is None:
        return _with_noise(noisy)
    apart = f"says in {run.value:.0%} {_GUESSING} which of two records was in"
    if sent.worst is Shown.EACH:
        alarm = max(level(run), Verdict.WEAK, key=_ALARMS.index)
        return alarm, f"The server reads each client's statistics, and {apart}."
    found = level(run), f"Who reads a total of all clients {apart}."
    if sent.sigma is not None or level(difference) is Verdict.HOLDS:
        return found
    return max(found[0], Verdict.WEAK, key=_ALARMS.index), (
        f"{found[1]} But two totals that differ by one client, while the model stays, show that "
        f"client as if it were in the clear ({difference.value:.0%}): the least number of clients "
        "does not stop that. Noise does."
    )


_ALARMS = (Verdict.HOLDS, Verdict.WEAK, Verdict.LEAKS)


def level(auc: Interval) -> Verdict:
    """Of one figure by itself."""
    return _ALARMS[(auc.low > NOTICED) + (auc.low > PLAIN)]


def _with_noise(noisy: Interval) -> Said:
    return level(noisy), (
        "Each client adds noise to what it sends. Even from the difference of two totals, a reader "
        f"says in {noisy.value:.0%} {_GUESSING} which of two records was in."
    )
