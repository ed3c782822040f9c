"""Words for an ε, for people who do not compute it."""

import math

from securefl.privacy.accountants import Accountant
from securefl.privacy.events import Level
from securefl.privacy.history import History

WHAT = {
    Level.RECORD: "one record of one client",
    Level.CLIENT: "all that one client contributes",
}


def epsilon_words(history: History, level: Level, delta: float) -> str:
    """Return one sentence: ε by PLD and by RDP and for whom, or why it is infinite.

    Raises:
        ConfigError: δ is out of range.
    """
    by_pld = history.epsilon(level, delta)
    if math.isinf(by_pld):
        stages = ", ".join(history.stages_without_privacy(level))
        return (
            f"ε is infinite for {WHAT[level]}: {stages} had no noise, so nothing is guaranteed, "
            "whatever the other stages add."
        )
    by_rdp = history.epsilon(level, delta, Accountant.RDP)
    return f"ε = {by_pld:.3g} (PLD; RDP {by_rdp:.3g}) at δ = {delta:g} for {WHAT[level]}."


def record_protection(records_each: int) -> str:
    """Say what a run with record-level DP-SGD protects, from whom, on which terms, and what not."""
    return f"""\
Protected: {WHAT[Level.RECORD]}: whether it is in the client's data, and so all that is in it.
From: everyone who sees what a client sends or the trained model: the server, the authority, other
clients and outside readers. A client adds its noise before anything leaves it.
Provided that: samples are Poisson; each record's gradient is clipped; each client holds at least
{records_each:,} records; no record is in two clients' data, or twice in one's; and whatever else is
computed from the records (statistics, profiles, choices of settings) is released with noise and
counted, or not at all.
Not protected: what a client's records have in common, which needs noise at client level."""
