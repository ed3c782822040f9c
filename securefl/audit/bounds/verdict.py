"""Verdict on ε: what is claimed at most, against what canaries show at least."""

import math
from dataclasses import dataclass
from typing import cast, final

from securefl.audit.bounds.canary_bounds import ClientTest
from securefl.audit.bounds.record_bounds import RecordBounds
from securefl.audit.rules import MORE_NOISE, Rule, Verdict, always, unmeasured
from securefl.audit.thresholds import EPSILON_WORDS, MOST_CANARIES
from securefl.privacy.events import Level
from securefl.privacy.wording import WHAT


def meaning_of(shown: float) -> str:
    """Return in words what a lower bound `shown` on ε says of a record.

    An ε allows a guess whether a record was trained on, made with even odds, to be right with a
    probability of 1 / (1 + e^-ε) (Kairouz et al., ICML 2015, at δ = 0).
    """
    words = next(words for most, words in EPSILON_WORDS if shown <= most)
    share = 100 / (1 + math.exp(-shown))
    right = f"up to {share:.4g} %" if share < 99.99 else "more than 99.99 %"
    return f"{words} (of an ε of just that, {right} of guesses at even odds may be right)"


def _both(least: float, most: float) -> tuple[str, str]:
    """Return two numbers with as many digits as tell them apart, three at least."""
    digits = next(n for n in range(3, 18) if n == 17 or f"{least:.{n}g}" != f"{most:.{n}g}")
    return f"{least:.{digits}g}", f"{most:.{digits}g}"


@final
@dataclass(frozen=True, slots=True)
class CanaryBounds:
    """Bounds of a run from both sides: what the rules go by."""

    level: str
    """Value of privacy.level."""
    claimed: float
    """Largest ε by the accountant; infinite where nothing is promised."""
    records: RecordBounds | None
    clients: ClientTest | None

    @property
    def shown(self) -> float:
        """ε that canary records show at least."""
        return self.records.epsilon if self.records else 0.0

    @property
    def numbers(self) -> tuple[float, ...]:
        """Numbers that decide."""
        of = self.clients
        measured = (of.claimed, of.shown, of.noise.low, of.noise.high) if of else ()
        return self.claimed, self.shown, *measured

    @property
    def whom(self) -> str:
        """Subject of the promise, in words."""
        return WHAT[Level(self.level)]

    @property
    def out_of_reach(self) -> bool:
        """True where no canary could have refuted the claim."""
        tried = self.records
        return not self.clients and (tried is None or tried.ceiling <= self.claimed)


def _wrong_noise(clients: ClientTest) -> str:
    # Noise of another size in all fails the test of each tensor, too: only one that is right as a
    # whole is known to be uneven.
    as_promised = clients.noise.low <= clients.promised <= clients.noise.high
    unevenly = ", unevenly" if clients.uneven and as_promised else ""
    return (
        f"The claim is refuted: a round's noise measures {clients.noise.value:.3g} clip norms "
        f"where {clients.promised:.3g} are promised{unevenly}, "
        f"and canary clients show an ε of at least {clients.shown:.3g} where the round is said to "
        f"spend {clients.claimed:.3g}."
    )


def _refuted(found: CanaryBounds) -> str:
    claimed, shown = _both(found.claimed, found.shown)
    return (
        f"The claim is refuted: ε is said to be at most {claimed}, and canary records show at "
        f"least {shown}."
    )


def _too_few_canaries(found: CanaryBounds) -> str:
    said = f"ε is said to be at most {found.claimed:.3g} for {found.whom}."
    if found.records is None:
        return f"{said} No canary records were tried, so nothing could have refuted it."
    ceiling, shown = f"{found.records.ceiling:.3g}", f"{found.shown:.3g}"
    return (
        f"{said} So many canary records can show {ceiling} at most, and showed {shown}: they could "
        "not have refuted it."
    )


def _more_canaries(found: CanaryBounds) -> str:
    if found.records and found.records.any.canaries >= MOST_CANARIES:
        return (
            f"{MOST_CANARIES:,} canary records are the most that an audit plants: the claim rests "
            "on the accountant alone. A smaller ε (a larger privacy.sigma) is safer, not better "
            "tested."
        )
    return "Audit with --full: more canary records could refute more."


def _stood(found: CanaryBounds) -> str:
    least = f"canary records show at least {found.shown:.3g}"
    if clients := found.clients:
        least = (
            f"canary clients show at least {clients.shown:.3g} of the {clients.claimed:.3g} of one "
            "round"
        )
    return (
        f"ε is at most {found.claimed:.3g} for {found.whom}. It was attacked, and stood: {least}."
    )


RULES: tuple[Rule[CanaryBounds], ...] = (
    unmeasured(lambda found: found.numbers),
    Rule(
        Verdict.LEAKS,
        # A record is a part of a client: what hides clients hides it, too.
        lambda found: found.shown > found.claimed,
        "canary records show a larger ε than is claimed",
        _refuted,
        do=(
            "Withdraw the claim. Something was released that the settings do not count: see who "
            "saw what, and report it (SECURITY.md)."
        ),
    ),
    Rule(
        Verdict.LEAKS,
        lambda found: bool(found.clients and found.clients.refuted),
        "canary clients show a larger ε than a round is said to spend, or the noise of a round is "
        "not what is promised",
        lambda found: _wrong_noise(cast("ClientTest", found.clients)),
        do=(
            "Withdraw the claim. A client or the program adds other noise than the settings say: "
            "report it (SECURITY.md)."
        ),
    ),
    Rule(
        Verdict.OPEN,
        lambda found: math.isinf(found.claimed) and bool(found.records),
        "no ε is claimed; it says what canary records show",
        lambda found: (
            "No ε is claimed, so nothing bounds what the model tells of a record. "
            f"Canary records show an ε of at least {found.shown:.3g}: "
            f"{meaning_of(found.shown)}."
        ),
        do=MORE_NOISE,
    ),
    Rule(
        Verdict.OPEN,
        lambda found: math.isinf(found.claimed),
        "no ε is claimed, and no canary records were tried",
        lambda _: (
            "No ε is claimed, so nothing bounds what the model tells of a record. No canary "
            "records were tried."
        ),
        do=MORE_NOISE,
    ),
    Rule(
        Verdict.WEAK,
        lambda found: found.out_of_reach,
        "so many canary records could not have refuted the claim",
        _too_few_canaries,
        do=_more_canaries,
    ),
    Rule(Verdict.HOLDS, always, "the claim was attacked, and stood", _stood),
)
