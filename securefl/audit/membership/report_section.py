"""Section on membership: whether somebody can tell who trained, by what they saw.

ROC curves on logarithmic axes, where few false alarms can be seen (Carlini et al., 2022).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from securefl.audit.findings import Number, Section
from securefl.audit.membership.attackers import Attack, SeenModels, attacks
from securefl.audit.membership.attacks import Shadows
from securefl.audit.membership.candidates import Candidates, Ints
from securefl.audit.membership.verdict import ON_ANOTHER_RUN, RULES, Compared, MeasuredAttack
from securefl.audit.rules import decided
from securefl.audit.statistics import (
    FEWEST_FOR,
    Interval,
    Roc,
    p_value_of_area,
    p_value_of_rate,
)
from securefl.audit.thresholds import ALARM, STRONG_AREA, STRONG_RATE
from securefl.errors import DataError
from securefl.io.html import PageTable, Picture
from securefl.report.plots import COLOURS, STYLES, bare, png

KEY, TITLE = "membership", "Membership inference"


def membership_section(
    pool: Candidates,
    seen: SeenModels,
    shadows: Shadows | None,
    *,
    seed: int,
) -> Section:
    """Attack what was seen, on as many samples as can be compared fairly.

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
    verdict, words, do = decided(RULES, compared)
    return Section(
        KEY,
        TITLE,
        verdict,
        words + _uneven(shadows, chosen, member_S),
        [number for each in found for number in _numbers(each, seed)] + rare,
        [_table(found, compared.alarmed)],
        [_picture({each.name: each.roc for each in found}, members, others)],
        [
            *refusal,
            *_replayed(tried),
            *_notes(members, others, n_tests, shadows, pool.label),
        ],
        do=do,
    )


def _replayed(tried: Sequence[Attack]) -> list[str]:
    """Return the note on attacks that were tried on another run; nothing where none was."""
    names = ", ".join(repr(each.name) for each in tried if each.another_run)
    return [f"{names}: {ON_ANOTHER_RUN} (see Played again)."] if names else []


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
    return MeasuredAttack(
        attack.name,
        attack.observer,
        attack.method,
        roc,
        roc.auc(rng),
        rate,
        min(chances),
        attack.another_run,
    )


def _uneven(shadows: Shadows | None, chosen: Ints, member_S: NDArray[np.bool_]) -> str:
    """Return a warning where records differ even for models that have seen neither."""
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
    name, method = found.name, found.method
    numbers = [Number.of(f"AUC, {name}", found.area, method, seed)]
    if found.rate:
        numbers.append(Number.of(f"TPR at 1 % FPR, {name}", found.rate, method, seed, "%"))
    tests = "AUC and TPR at 1 % FPR, the less likely" if found.rate else "AUC"
    numbers.append(Number(f"probability under chance, {name}", found.p_value, tests))
    return numbers


def _rare(
    found: Sequence[MeasuredAttack], seed: int, rng: np.random.Generator
) -> tuple[list[Number], list[str]]:
    """Return true positive rates at 0.1 %, or why there are none."""
    try:
        rates = [(each, each.roc.tpr_at(0.001, rng)) for each in found]
    except DataError as error:
        return [], [f"Not given: {error}."]
    return [
        Number.of(f"TPR at 0.1 % FPR, {attack.name}", rate, attack.method, seed, "%")
        for attack, rate in rates
    ], []


def _table(found: Sequence[MeasuredAttack], alarmed: Sequence[MeasuredAttack]) -> PageTable:
    rows = [
        (
            each.name,
            _shown(each.area, ".3f"),
            _shown(each.rate, ".1%") if each.rate else "too few records",
            each.observer,
        )
        for each in found
    ]
    return PageTable(
        "Attacks, with 95 % intervals; in red those that beat chance",
        ("attack", "AUC (0.5 is chance)", "TPR at 1 % FPR (1 % is chance)", "open to"),
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


def _notes(
    members: int, others: int, n_tests: int, shadows: Shadows | None, label: str
) -> list[str]:
    compared = (
        f"Compared were {members} training and {others} test records, in the same ratio for each "
        f"client{label and ' and '}{label}: neither {label and label + ' nor '}client tells them "
        "apart."
    )
    rule = (
        "An attack counts as found where its AUC or its TPR at 1 % has a probability under chance "
        f"of less than {100 * ALARM:g} %, divided by the number of tests, here {n_tests}; it leaks "
        f"where, by the lower end of the interval, its AUC is {STRONG_AREA} or its TPR "
        f"{STRONG_RATE:.0%}. Of {others} test records 1 % are {others / 100:.1f}."
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
    """Return a PNG with a curve for each attack by name, and the diagonal of chance.

    It begins where one non-member is a false alarm: nothing is known to the left of it.
    """
    figure = Figure(figsize=(4.5, 4.2), layout="constrained")
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
