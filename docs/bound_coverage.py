"""Coverage of the audit's bounds on ε, of mechanisms whose ε is known, and of DP-SGD on digits.

python docs/bound_coverage.py docs/results/bounds.md

writes its tables into the page, between its two comments: half an hour beside other work.
Of a known mechanism 300 canaries have a score each, which is what the mechanism tells of the
canary's coin. A bound covers where it is not above the mechanism's ε at δ; one above it is a false
alarm.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from audit_table import markdown, written
from numpy.typing import NDArray
from scipy.stats import binom, binomtest  # type: ignore[import-untyped, unused-ignore]

from securefl.audit.bounds.canaries import (
    Canaries,
    alignment,
    drawn_canaries,
    thinned,
    with_canaries,
    with_room,
)
from securefl.audit.bounds.canary_bounds import one_run_bound, refuted_epsilon
from securefl.audit.bounds.crafted import crafted, with_other_noise
from securefl.audit.bounds.gaussian_dp import gaussian_epsilon
from securefl.audit.bounds.record_bounds import Method, Noise, record_bounds
from securefl.audit.bounds.report_section import client_test
from securefl.audit.bounds.score_bound import score_bound
from securefl.audit.replay import replayed
from securefl.audit.thresholds import CONFIDENCE
from securefl.privacy.accountants import epsilon
from securefl.privacy.events import SampledGaussian
from securefl.settings.load import load_config
from securefl.settings.tables import Config
from securefl.task import Task, configured_task
from securefl.types import NamedTensors

BEGIN = "<!-- by docs/bound_coverage.py -->\n"
DELTA, CANARIES, REPETITIONS, SEEDS = 1e-5, 300, 2000, 4
MANY = 20_000
"""Repetitions of the bound by scores alone."""
ASKED, LEAST, TIGHT = 200, 0.93, 0.9
"""Repetitions of a batch, the share of them that a bound is to cover at least, and the share in
which a new bound is to be as tight as the one before."""
STEINKE = "guesses, Steinke et al."
"""Name of the bound that led before: one theorem on guesses, at the whole 95 %."""
LEADING = "the leading one"

Coins = NDArray[np.bool_]
Scores = NDArray[np.float64]
Tell = Callable[[np.random.Generator, Coins], Scores]
"""Scores that a mechanism makes of canaries' coins."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """Mechanism whose ε is known."""

    name: str
    epsilon: float
    noise: Noise
    tell: Tell


def _gaussian(mu: float) -> Mechanism:
    def tell(rng: np.random.Generator, coins: Coins) -> Scores:
        return rng.normal(size=len(coins)) + mu * coins

    return Mechanism(f"Gaussian, μ = {mu:g}", gaussian_epsilon(mu, DELTA), Noise.GAUSSIAN, tell)


def _response(epsilon: float) -> Mechanism:
    right = 1 / (1 + math.exp(-epsilon))

    def tell(rng: np.random.Generator, coins: Coins) -> Scores:
        told = np.where(rng.random(len(coins)) < right, coins, ~coins)
        return told + 1e-3 * rng.normal(size=len(coins))  # so that no two scores are equal

    exact = math.log((right - DELTA) / (1 - right))  # δ = right - e^ε (1 - right)
    return Mechanism("randomised response", exact, Noise.UNKNOWN, tell)


def _laplace(epsilon: float) -> Mechanism:
    def tell(rng: np.random.Generator, coins: Coins) -> Scores:
        return rng.laplace(scale=1 / epsilon, size=len(coins)) + coins

    exact = epsilon + 2 * math.log(1 - DELTA)  # δ = 1 - e^((ε - Δ/b) / 2), Balle & Wang 2018
    return Mechanism("Laplace", exact, Noise.UNKNOWN, tell)


MUS = (0.0, 0.5, 1.0, 2.0)
MECHANISMS = (*map(_gaussian, MUS), _response(1.0), _laplace(1.0))


@dataclass(frozen=True, slots=True)
class Found:
    """Bounds of one repetition, by name."""

    epsilons: dict[str, float]
    gaussian: bool
    """True where the test takes the scores for Gaussian."""
    leads: str


def found(scores: Scores, coins: Coins, noise: Noise) -> Found:
    """Return all bounds of these scores."""
    bounds = record_bounds(scores, coins, DELTA, noise)
    by = {STEINKE: one_run_bound(scores, coins, DELTA, refuted=refuted_epsilon).epsilon}
    by |= {str(method): bounds.epsilon_of(method) for method in Method}
    return Found(by | {LEADING: bounds.epsilon}, bounds.scores.gaussian, str(bounds.leading))


def repeated(
    mechanism: Mechanism, times: int, canaries: int = CANARIES, seed: int = 0
) -> list[Found]:
    """Return what so many repetitions find, each with coins and noise of its own."""
    rng = np.random.default_rng(seed)
    every = []
    for _ in range(times):
        coins = rng.random(canaries) < 0.5
        every.append(found(mechanism.tell(rng, coins), coins, mechanism.noise))
    return every


def coverage(every: Sequence[Found], name: str, epsilon: float) -> float:
    """Return the share of repetitions in which the bound is not above ε."""
    return float(np.mean([each.epsilons[name] <= epsilon for each in every]))


def valid(name: str, noise: Noise) -> bool:
    """Return whether the bound holds for such a mechanism, by what it assumes."""
    return noise is Noise.GAUSSIAN or name in {STEINKE, str(Method.ANY), LEADING}


def level(name: str, noise: Noise) -> float:
    """Return the confidence of a bound: where three may lead, each has half of what may fail."""
    alone = noise is Noise.UNKNOWN or name in {STEINKE, LEADING}
    return CONFIDENCE if alone else (1 + CONFIDENCE) / 2


NAMES = (STEINKE, *map(str, Method), LEADING)


def known(times: int = REPETITIONS) -> str:
    """Return tables of mechanisms: of each bound its mean and coverage, and what is asked of it."""
    found = [repeated(mechanism, times, seed=i) for i, mechanism in enumerate(MECHANISMS)]
    return f"{_means(found)}\n{_how_sure(found)}"


def _how_sure(found: Sequence[Sequence[Found]]) -> str:
    """Return a table of what is asked of each bound that holds, by all repetitions and batches."""
    lines, counts = list[list[str]](), dict[float, list[int]]()
    for mechanism, every in zip(MECHANISMS, found, strict=True):
        for name in NAMES:
            if not valid(name, mechanism.noise):
                continue
            too_high = [each.epsilons[name] > mechanism.epsilon for each in every]
            batches = [sum(too_high[i : i + ASKED]) for i in range(0, len(too_high), ASKED)]
            as_tight = np.mean([each.epsilons[name] >= each.epsilons[STEINKE] for each in every])
            asked = (1 - LEAST, 1 - CONFIDENCE)
            fine = [sum(n <= round(share * ASKED) for n in batches) for share in asked]
            may = 1 - level(name, mechanism.noise)
            counts.setdefault(round(may, 6), []).extend(batches)
            lines.append(
                [
                    f"{mechanism.name}: {name}",
                    f"{may:.1%}",
                    _share(sum(too_high), len(too_high)),
                    _share(batches[0], ASKED),
                    *(f"{_yes(n == len(batches))}: {n} of {len(batches)}" for n in fine),
                    _yes(sum(too_high) <= (1 - CONFIDENCE) * len(too_high)),
                    "-" if name == STEINKE else f"{_yes(as_tight >= TIGHT)}: {as_tight:.1%}",
                ]
            )
    columns = [
        *("bound", "may be above ε", "is above ε", f"in the first {ASKED}"),
        f"each {ASKED} covers in {LEAST:.0%}",
        f"each {ASKED} has {1 - CONFIDENCE:.0%} false alarms at most",
        f"all have {1 - CONFIDENCE:.0%} at most",
        f"as tight as {STEINKE.split(', ')[1]} in {TIGHT:.0%}",
    ]
    return f"{markdown(columns, lines)}\n{_chance(counts)}"


def _yes(holds: bool) -> str:
    return "yes" if holds else "**no**"


def _chance(batches: Mapping[float, Sequence[int]]) -> str:
    """Return how many false alarms chance makes in a batch at each level, and how many there are.

    `batches` has the false alarms of each batch of the table, by what a bound's level allows.
    """
    lines = []
    for may, counts in batches.items():
        low, high = map(int, binom(ASKED, may).interval(0.95))
        beyond = sum(n > high for n in counts)
        lines.append(
            [
                f"{may:.1%}",
                f"{low} to {high} ({low / ASKED:.1%} to {high / ASKED:.1%})",
                f"{max(counts)}: {_share(max(counts), ASKED)}",
                f"{beyond} of {len(counts)}: {beyond / len(counts):.1%}",
                f"{binom.sf(high, ASKED, may):.1%}",
            ]
        )
    columns = (
        *("may be above ε", f"so chance has in {ASKED}, with 95 %", "most in a batch"),
        *("batches with more", "of which chance has"),
    )
    return markdown(columns, lines)


def _by_scores(times: int) -> str:
    """Return a table of the bound by scores alone, in many more repetitions."""
    lines = []
    for i, mu in enumerate(MUS):
        rng, too_high = np.random.default_rng(100 + i), 0
        for _ in range(times):
            coins = rng.random(CANARIES) < 0.5
            scores = rng.normal(size=CANARIES) + mu * coins
            confidence = level(str(Method.SCORES), Noise.GAUSSIAN)
            too_high += score_bound(scores, coins, DELTA, confidence).mu > mu
        lines.append([f"{mu:g}", f"{1 - confidence:.1%}", _share(too_high, times)])
    return markdown(["μ", "may be above it", f"is above it, of {times:,}"], lines)


def _share(times: int, of: int) -> str:
    """Return a share with its exact 95 % interval (Clopper & Pearson 1934)."""
    low, high = binomtest(times, of).proportion_ci(method="exact")
    return f"{times / of:.1%} ({low:.1%} to {high:.1%})"


def _means(found: Sequence[Sequence[Found]]) -> str:
    lines = []
    for mechanism, every in zip(MECHANISMS, found, strict=True):
        cells = []
        for name in NAMES:
            mean = np.mean([each.epsilons[name] for each in every])
            cell = f"{mean:.2f}, {coverage(every, name, mechanism.epsilon):.1%}"
            cells.append(cell if valid(name, mechanism.noise) else f"[{cell}]")
        test = f"{np.mean([each.gaussian for each in every]):.1%}"
        lines.append([mechanism.name, f"{mechanism.epsilon:.2f}", *cells, test])
    return markdown(["mechanism", "ε", *NAMES, "scores pass for Gaussian"], lines)


SIGMAS, RECORDS = (13.341, 5.068, 2.4, 1.0), 280


def private(sigma: float, seed: int) -> Config:
    """Return the settings of DP-SGD on digits with GN, sixty steps of about 128 records."""
    return load_config(
        None,
        [
            *("algorithm.name=fedavg", "model.norm=group", "exchange.encrypt=none"),
            *("algorithm.weights=uniform", "algorithm.local_steps=1", "run.rounds=60"),
            *("train.batch_size=128", "train.lr=0.5", "privacy.level=record"),
            *(f"privacy.records={RECORDS}", "privacy.clip=2.0", "privacy.noise=seeded"),
            *(f"privacy.delta={DELTA}", f"privacy.sigma={sigma}", f"run.seed={seed}"),
        ],
    )


def of_run(config: Config, canaries: int = CANARIES) -> tuple[Found, Found]:
    """Train with drawn canary records, and with crafted ones; return the bounds of both."""
    task = configured_task(config)
    drawn = drawn_canaries(task.test, canaries, config.run.seed)
    before = _replayed(config, task)
    made = crafted(drawn, task.test, task.model, task.loss, before, config.privacy.clip)
    again = with_other_noise(config)
    return _planted(again, task, drawn), _planted(again, task, made)


def _planted(config: Config, task: Task, canaries: Canaries) -> Found:
    planted = with_canaries(task, canaries)
    models = thinned(_replayed(with_room(config, planted), planted))
    scores = alignment(task.model, task.loss, models, canaries)
    return found(scores, canaries.included, Noise.GAUSSIAN)


def _replayed(config: Config, task: Task) -> Sequence[NamedTensors]:
    return replayed(config, task, lambda _done, _all: None).models


def claimed(config: Config) -> float:
    """Return the ε that the accountant says of such a run."""
    table = config.privacy
    rate = config.train.batch_size / RECORDS
    return epsilon([SampledGaussian(table.sigma, rate, config.run.rounds)], table.delta)


def runs(seeds: int = SEEDS) -> str:
    """Return a table of DP-SGD runs, two rows a σ, and how often the leading bound is as tight."""
    lines, least = [], []
    for sigma in SIGMAS:
        most = claimed(private(sigma, 0))
        pairs = [of_run(private(sigma, seed)) for seed in range(seeds)]
        for kind, every in zip(("drawn", "crafted"), zip(*pairs, strict=True), strict=True):
            means = [f"{np.mean([each.epsilons[name] for each in every]):.2f}" for name in NAMES]
            these = [(each.epsilons[LEADING], each.epsilons[STEINKE]) for each in every]
            tighter = sum(now > before for now, before in these)
            as_tight = sum(now >= before for now, before in these)
            alarms = sum(now > most for now, _ in these)
            counts = [str(as_tight), str(tighter), str(alarms)]
            lines.append([f"{sigma:g}, {most:.2f}, {kind}", *means, *counts])
            least += these
    columns = ["σ, ε at most, canaries", *NAMES, "as tight", "tighter", "false alarms"]
    as_tight = sum(now >= before for now, before in least)
    rows = markdown(columns, lines)
    told = f"{as_tight} of {len(least)} runs, {_share(as_tight, len(least))}"
    return f"{rows}\nAs tight as the bound before: in {told}.\n"


CLIENT_SIGMAS, COHORT = (0.5, 1.0, 3.0), 10


def of_clients(sigma: float) -> Config:
    """Return the settings of a run that is private at client level."""
    chosen = ["algorithm.name=fedavg", "model.norm=group", "privacy.level=client"]
    noise = [f"privacy.sigma={sigma}", f"privacy.delta={DELTA}", "privacy.noise=seeded"]
    return load_config(None, [*chosen, *noise, "algorithm.weights=uniform"])


def clients(times: int = ASKED) -> str:
    """Return a table of canary clients: of each test, in how many repetitions it is right."""
    lines = []
    for sigma in CLIENT_SIGMAS:
        config = of_clients(sigma)
        every = [client_test(config, COHORT, 10 * seed) for seed in range(times)]
        claim = every[0].claimed
        bounds = [[each.bound.epsilon for each in every], [each.free.epsilon for each in every]]
        right = [sum(epsilon <= claim for epsilon in of) for of in bounds]
        right.append(sum(each.noise.low <= each.promised <= each.noise.high for each in every))
        right.append(sum(not each.uneven for each in every))
        means = [f"{np.mean(of):.2f}" for of in bounds]
        shares = [_share(of, times) for of in right]
        lines.append([f"{sigma:g}", f"{claim:.2f}", *means, *shares])
    tests = ("cosines", "guesses", "the noise's size", "its evenness")
    columns = ["σ", "ε at most", "cosines", "guesses", *(f"right: {test}" for test in tests)]
    return markdown(columns, lines)


def _content() -> Iterator[str]:
    yield known()
    yield "\n"
    yield _by_scores(MANY)
    yield "\n"
    yield runs()
    yield "\n"
    yield clients()


def main() -> None:
    """Write all tables into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="a Markdown file with the two comments")
    page = parser.parse_args().page
    content = "".join(_content())
    page.write_text(written(page.read_text(), content, BEGIN))


if __name__ == "__main__":
    main()
