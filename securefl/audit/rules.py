"""Rules of verdicts: a section has them in an order, and the first that applies decides.

docs/audit.md shows the same rules as a table (docs/audit_table.py writes it).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar, final

NOT_MEASURED = "Not measured:"
"""Beginning of the sentence of a section that was not measured."""


class Verdict(StrEnum):
    """Verdict on a section."""

    HOLDS = "holds"
    """Claims were attacked, and stood."""
    WEAK = "weak"
    """Something is learnt, or a claim rests on little."""
    LEAKS = "leaks"
    """A claim is refuted, or somebody reads what nobody should."""
    OPEN = "open"
    """Nothing was claimed, or too little was there to measure."""


Measured = TypeVar("Measured")


@final
@dataclass(frozen=True, slots=True)
class Rule(Generic[Measured]):
    """Rule that gives a section one verdict."""

    verdict: Verdict
    when: Callable[[Measured], bool]
    condition: str
    """Condition `when` in words, for a reader who knows that no earlier rule applies."""
    words: Callable[[Measured], str]
    """Sentences of the report."""
    do: str | Callable[[Measured], str] = ""
    """Advice on what to do, with the setting to change; empty where there is nothing to do."""

    def advice(self, measured: Measured) -> str:
        """Return what to do about what was measured; empty for nothing."""
        return self.do if isinstance(self.do, str) else self.do(measured)


def counted(n: int, one: str) -> str:
    """Return a number with its noun, of which `one` is the singular."""
    return f"{n:,} {one}{'' if n == 1 else 's'}"


def always(_measured: object) -> bool:
    """Return True: the condition of a section's last rule."""
    return True


MORE_NOISE = (
    "Add noise, or more of it: privacy.level, then privacy.sigma and privacy.clip. It costs "
    "accuracy: docs/results/privacy.md has how much on the digits, and securefl privacy plan how "
    "much noise an ε takes."
)
"""Advice to add noise, whatever the run; in a report `noise_advice` stands in its place."""


def unmeasured(numbers: Callable[[Measured], Iterable[float]]) -> Rule[Measured]:
    """Return the first rule of a section that goes by these numbers: one of them is none (NaN).

    No comparison is true of such a number, so every later rule would take it for good news.
    """
    return Rule(
        Verdict.OPEN,
        lambda measured: any(map(math.isnan, numbers(measured))),
        "a number that decides came out as none (NaN)",
        lambda _: f"{NOT_MEASURED} a number that decides came out as none, so nothing is said.",
        do="Audit again with another --seed; if it stays so, report it (SECURITY.md).",
    )


def deciding(rules: Sequence[Rule[Measured]], measured: Measured) -> Rule[Measured]:
    """Return the first rule that applies to what was measured; every section's last one does."""
    return next(rule for rule in rules if rule.when(measured))


def decided(rules: Sequence[Rule[Measured]], measured: Measured) -> tuple[Verdict, str, str]:
    """Return the verdict on what was measured, its words, and what to do."""
    rule = deciding(rules, measured)
    return rule.verdict, rule.words(measured), rule.advice(measured)
