"""The section on membership: whether somebody can tell who trained, by what they saw.

An attack is found where its AUC or its true positive rate at 1 % false positives has a probability
of less than 5 % under chance, divided by the number of all such tests (Bonferroni). It is strong
with an AUC of 0.7 or more, or where it recognises a tenth of the members at 1 % false positives
(ten times chance), by the lower end of the interval.

ROC curves on logarithmic axes, where few false alarms can be seen (Carlini et al., 2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from securefl.audit.findings import FindingsTable, Number, Picture, Section, Verdict
from securefl.audit.membership.attackers import Attack, SeenModels, attacks
from securefl.audit.membership.attacks import Shadows
from securefl.audit.membership.candidates import Candidates, Ints
from securefl.audit.rules import Rule, always, decided
from securefl.audit.statistics import (
    FEWEST_FOR,
    Interval,
    Roc,
    least_visible_area,
    p_value_of_area,
    p_value_of_rate,
)
from securefl.errors import DataError
from securefl.report.plots import COLOURS, STYLES, bare, png

ALARM = 0.05
STRONG_AREA, STRONG_RATE = 0.7, 0.1
FEWEST = 30
KEY, TITLE = "membership", "Membership inference"


@final
@dataclass(frozen=True, slots=True, eq=False)
class MeasuredAttack:
    """What one attack came to on the records that are compared."""

    attack: Attack
    roc: Roc
    area: Interval
    rate: Interval | None
    """At 1 % false positives; None where there are too few non-members."""
    p_value: float
    """The least probability under chance of the attack's tests."""

    @property
    def strong(self) -> bool:
        """True where what it finds is more than slight."""
        return self.area.low >= STRONG_AREA or bool(self.rate and self.rate.low >= STRONG_RATE)


@final
@dataclass(frozen=True, slots=True)
class Compared:
    """What the rules go by."""

    attacks: Sequence[MeasuredAttack]
    members: int
    others: int
    probability: float
    """Under chance; an attack is found where its own is smaller."""

    @property
    def alarmed(self) -> Sequence[MeasuredAttack]:
        """Attacks that are found."""
        return [each for each in self.attacks if each.p_value < self.probability]

    @property
    def best(self) -> MeasuredAttack:
        """The attack that chance explains least."""
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
        f"{best.attack.name!r}, open to {best.attack.observer}, picks the training record out of "
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
    ),
    Rule(
        Verdict.WEAK,
        always,
        "an attack is found",
        lambda found: _told("slightly better than by chance", found.best),
    ),
)


def membership_section(
    pool: Candidates, seen: SeenModels, shadows: Shadows | None, *, seed: int
) -> Section:
    """What attacks make of what was seen, on as many samples as can be compared fairly.

    Args:
        pool: `candidates` of the run's task.
        seen: by whom models were seen.
        shadows: `train_shadows` of the pool; without them the loss alone is left of the usual
            attacks, and a verdict that the run holds says little.
        seed: of what is compared, and of bootstrap intervals.

    Raises:
        DataError: nothing can be compared.
    """
    rng = np.random.default_rng(seed)
    chosen = pool.compared(rng)
    member_S = pool.member_S[chosen]
    members, others = int(member_S.sum()), int((~member_S).sum())
    tried = attacks(pool, seen, shadows)
    n_tests = len(tried) * (1 + (others >= FEWEST_FOR[0.01]))
    found = [_measured(attack, chosen, member_S, rng) for attack in tried]
    rare, refusal = _rare(found, seed, rng)
    compared = Compared(found, members, others, ALARM / n_tests)
    verdict, words = decided(RULES, compared)
    return Section(
        KEY,
        TITLE,
        verdict,
        words + _uneven(shadows, chosen, member_S),
        [number for each in found for number in _numbers(each, seed)] + rare,
        [_table(found, compared.alarmed)],
        [_picture({each.attack.name: each.roc for each in found}, members, others)],
        [*refusal, *_notes(members, others, shadows)],
    )


def _measured(
    attack: Attack, chosen: Ints, member_S: NDArray[np.bool_], rng: np.random.Generator
) -> MeasuredAttack:
    score_S = attack.score_S[chosen]
    scored_S = ~np.isnan(score_S)  # not those of clients that were in no round
    roc = Roc.of(score_S[member_S & scored_S], score_S[~member_S & scored_S])
    rate, chances = None, [p_value_of_area(roc)]
    if len(roc.others) >= FEWEST_FOR[0.01]:
        rate = roc.tpr_at(0.01, rng)
        chances.append(p_value_of_rate(roc, 0.01))
    return MeasuredAttack(attack, roc, roc.auc(rng), rate, min(chances))


def _uneven(shadows: Shadows | None, chosen: Ints, member_S: NDArray[np.bool_]) -> str:
    """A warning where training and test records differ for models that have seen neither."""
    if shadows is None:
        return ""
    expected_S = shadows.mean_out_S()[chosen]
    sides = [Roc.of(expected_S[a], expected_S[~a]) for a in (member_S, ~member_S)]
    if min(p_value_of_area(roc) for roc in sides) >= 0.005:
        return ""
    return (
        " Training and test records differ even for models that trained on neither, so a part of "
        "this is no memory of records, but of how the data were divided."
    )


def _numbers(found: MeasuredAttack, seed: int) -> list[Number]:
    name, method = found.attack.name, found.attack.method
    numbers = [Number.of(f"AUC, {name}", found.area, method, seed)]
    if found.rate:
        numbers.append(Number.of(f"TPR at 1 % FPR, {name}", found.rate, method, seed, "%"))
    return numbers


def _rare(
    found: Sequence[MeasuredAttack], seed: int, rng: np.random.Generator
) -> tuple[list[Number], list[str]]:
    """True positive rates at 0.1 %, or why there are none."""
    try:
        rates = [(each.attack, each.roc.tpr_at(0.001, rng)) for each in found]
    except DataError as error:
        return [], [f"Not given: {error}."]
    return [
        Number.of(f"TPR at 0.1 % FPR, {attack.name}", rate, attack.method, seed, "%")
        for attack, rate in rates
    ], []


def _table(found: Sequence[MeasuredAttack], alarmed: Sequence[MeasuredAttack]) -> FindingsTable:
    rows = [
        (
            each.attack.name,
            each.attack.observer,
            _shown(each.area, ".3f"),
            _shown(each.rate, ".1%") if each.rate else "too few records",
        )
        for each in found
    ]
    return FindingsTable(
        "Attacks, with 95 % intervals; in red those that beat chance",
        ("attack", "open to", "AUC (0.5 is chance)", "TPR at 1 % FPR (1 % is chance)"),
        rows,
        frozenset(i for i, each in enumerate(found) if each in alarmed),
    )


def _shown(found: Interval, form: str) -> str:
    return f"{found.value:{form}} ({found.low:{form}} to {found.high:{form}})"


def _picture(rocs: Mapping[str, Roc], members: int, others: int) -> Picture:
    return Picture(
        "ROC on logarithmic axes",
        f"True against false positive rates of {', '.join(rocs)} on {members} training and "
        f"{others} test records; the diagonal is chance, the dotted line is at 1 %.",
        roc_plot(rocs),
    )


def _notes(members: int, others: int, shadows: Shadows | None) -> list[str]:
    compared = (
        f"Compared were {members} training and {others} test records, in the same ratio for each "
        "client and label: neither labels nor clients tell them apart."
    )
    rule = (
        "An attack counts as found where its AUC or its TPR at 1 % has a probability under chance "
        "of less than 5 %, divided by the number of tests; it leaks where, by the lower end of the "
        f"interval, its AUC is {STRONG_AREA} or its TPR {STRONG_RATE:.0%}."
    )
    trained = (
        "Intervals are over records. Another training of the same model may leak more or less."
    )
    notes = [compared, trained, rule]
    if shadows:
        least = int(shadows.n_out_S.min())
        notes.append(f"Of each record at least {least} shadow models had not been trained on it.")
    else:
        notes.append("No shadow models were trained, and attacks without them see little.")
    return notes


def roc_plot(attacks: Mapping[str, Roc]) -> bytes:
    """A PNG with a curve for each attack by name, and the diagonal of chance.

    It begins where one non-member is a false alarm: nothing is known to the left of it.
    """
    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    least = 1 / max(len(roc.others) for roc in attacks.values())
    for i, (name, roc) in enumerate(attacks.items()):
        false, true = roc.curve()
        (line,) = axes.step(np.maximum(false, least / 2), true, where="post", lw=1.6, label=name)
        line.set(color=COLOURS[i % len(COLOURS)], linestyle=STYLES[i % len(STYLES)])
    axes.plot([least / 2, 1], [least / 2, 1], color="black", lw=0.8, label="chance")
    axes.axvline(0.01, color="black", lw=0.6, ls=":")
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    bare(axes)
    axes.legend(frameon=False, loc="lower right", fontsize="small")
    return png(figure)
