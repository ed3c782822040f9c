"""Verdict on membership: whether an attack is found, and whether it is strong.

An attack is found where its AUC or its true positive rate at 1 % false positives has a probability
of less than 5 % under chance, divided by the number of all such tests (Bonferroni). It is strong
with an AUC of 0.7 or more, or where it recognises a tenth of the members at 1 % false positives
(ten times chance), by the lower end of the interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from securefl.audit.rules import Rule, Verdict, always
from securefl.audit.statistics import Interval, Roc, least_visible_area

ALARM = 0.05
STRONG_AREA, STRONG_RATE = 0.7, 0.1
FEWEST = 30


@final
@dataclass(frozen=True, slots=True, eq=False)
class MeasuredAttack:
    """Result of one attack on the records that are compared."""

    name: str
    observer: str
    """Party that can do this."""
    method: str
    roc: Roc
    area: Interval
    rate: Interval | None
    """True positive rate at 1 % false positives; None where there are too few non-members."""
    p_value: float
    """Least probability under chance of the attack's tests."""

    @property
    def strong(self) -> bool:
        """True where what it finds is more than slight."""
        return self.area.low >= STRONG_AREA or bool(self.rate and self.rate.low >= STRONG_RATE)


@final
@dataclass(frozen=True, slots=True)
class Compared:
    """Results of all attacks: what the rules go by."""

    attacks: Sequence[MeasuredAttack]
    members: int
    others: int
    probability: float
    """Probability under chance below which an attack is found."""

    @property
    def alarmed(self) -> Sequence[MeasuredAttack]:
        """Attacks that are found."""
        return [each for each in self.attacks if each.p_value < self.probability]

    @property
    def best(self) -> MeasuredAttack:
        """Attack that chance explains least."""
        return min(self.attacks, key=lambda each: (each.p_value, -each.area.value))


def _holds(found: Compared) -> str:
    visible = least_visible_area(found.members, found.others, found.probability)
    return (
        f"None of {len(found.attacks)} attacks told training records from others better than by "
        f"chance. An attack that picks the training record out of two in {visible:.0%} of the "
        f"cases (50 % is guessing) would have been noticed with these {found.members} and "
        f"{found.others} records."
    )


def _told(how: str, best: MeasuredAttack) -> str:
    words = (
        f"Who has seen enough can tell {how} which records were trained on. The attack "
        f"{best.name!r}, open to {best.observer}, picks the training record out of "
        f"two in {best.area.value:.0%} of the cases (50 % is guessing)."
    )
    if best.rate and best.rate.low > 0.01:
        words += (
            f" It recognises {best.rate.value:.1%} of the training records while it is wrong about "
            "one other record in a hundred (1 % is guessing)."
        )
    return words


RULES: tuple[Rule[Compared], ...] = (
    Rule(
        Verdict.OPEN,
        lambda found: min(found.members, found.others) < FEWEST,
        f"fewer than {FEWEST} training or test records can be compared",
        lambda found: (
            f"Only {found.members} training and {found.others} test records could be compared."
        ),
        do="Compare more records: a larger test set, or all clients.",
    ),
    Rule(
        Verdict.HOLDS,
        lambda found: not found.alarmed,
        f"no attack is found: each is likelier than {100 * ALARM:g} % under chance, over all tests "
        "together; it says which AUC would have been found",
        _holds,
    ),
    Rule(
        Verdict.LEAKS,
        lambda found: any(each.strong for each in found.alarmed),
        f"an attack that is found has an AUC of {STRONG_AREA} or more, or a TPR of "
        f"{100 * STRONG_RATE:g} % at 1 % FPR, by the lower end of its interval",
        lambda found: _told("clearly", found.best),
        do=(
            "Add noise: securefl privacy plan says by which settings, and what it costs. FedTAN "
            "takes none; fixbn and fedavg do."
        ),
    ),
    Rule(
        Verdict.WEAK,
        always,
        "an attack is found",
        lambda found: _told("slightly better than by chance", found.best),
        do=(
            "Add noise: securefl privacy plan says by which settings, and what it costs. FedTAN "
            "takes none; fixbn and fedavg do."
        ),
    ),
)
