"""Patients' rows out of gradients: Breast Cancer Wisconsin, of one client and of sums of several.

python docs/rows_from_gradients.py docs/results/inversion-rows.md

writes the tables between the two comments of the page. The data come with scikit-learn.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from audit_table import markdown, written
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

import securefl
from securefl.audit.inversion.gradient_matching import Search
from securefl.audit.inversion.hidden_statistics import Attacker
from securefl.audit.inversion.opened_total import OpenedRound, RoundShape
from securefl.audit.inversion.rebuilding import Attacked, Rebuilt, attacked
from securefl.audit.inversion.sample_kind import ReadingKind
from securefl.audit.inversion.sum_attacks import SumAttacker, SumEffort, attacked_sums
from securefl.audit.inversion.target import NormalisedBatch, Target

BEGIN = "<!-- by docs/rows_from_gradients.py -->\n"
CLIENTS, N_TRAIN, WIDTH, LR = 10, 400, 64, 0.1
SHAPES = ((1, 1), (5, 1), (1, 8), (5, 8))
"""Local steps, and samples in a mini-batch, of sums."""
NEAR = 0.01
"""Error in standard deviations below which a reading counts as rebuilt."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Numbers of mini-batches and sums, and rounds of the run whose model is attacked."""

    rounds: int
    singles: int
    batches: int
    sums: int
    search: Search
    most_matched: int


FULL = Effort(rounds=20, singles=20, batches=6, sums=12, search=Search(300, 1), most_matched=15)
SHORT = Effort(rounds=2, singles=8, batches=2, sums=6, search=Search(5, 1), most_matched=3)


def patients() -> tuple[Tensor, Tensor]:
    """Return 569 rows of 30 readings, each with mean 0 and deviation 1, and benign or malignant."""
    data = load_breast_cancer()
    x = (data.data - data.data.mean(0)) / data.data.std(0)
    order = np.random.default_rng(0).permutation(len(x))
    return torch.from_numpy(x[order]).float(), torch.from_numpy(data.target[order])


@cache
def trained(rounds: int) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """Train an MLP 30-64-2 by FixBN at ten clients of forty patients."""
    x, y = patients()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(30, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
    clients = [(x[i:N_TRAIN:CLIENTS], y[i:N_TRAIN:CLIENTS]) for i in range(CLIENTS)]
    settings = ["algorithm.name=fixbn", "exchange.encrypt=none", f"train.lr={LR}"]
    config = securefl.load_config(None, [*settings, f"run.rounds={rounds}"])
    task = securefl.Task(net, clients, (x[N_TRAIN:], y[N_TRAIN:]))
    return securefl.run(config, task).model, clients


def opened(effort: Effort, normalised: NormalisedBatch) -> OpenedRound:
    """Return a round after the training; its target has all clients' patients."""
    (x, y), (model, clients) = patients(), trained(effort.rounds)
    parts = (x[:N_TRAIN], y[:N_TRAIN]), (x[N_TRAIN:], y[N_TRAIN:])
    others = clients[1] if normalised is NormalisedBatch.POOLED else None
    target = Target("breast cancer", model, *parts, normalised, others=others)
    return OpenedRound(target, clients, RoundShape(CLIENTS, 1, 1), LR)


def errors(found: Attacked, row: Rebuilt) -> np.ndarray:
    """Return the errors of all readings, in standard deviations of their columns."""
    return ReadingKind.of(found.target.public[0]).errors(found.originals, row.samples)


def of_gradients(effort: Effort, sizes: Sequence[int] = (1, 8, 32)) -> Iterator[Sequence[str]]:
    """Yield a line for each attack on gradients of single clients' mini-batches."""
    ways = {"constants": NormalisedBatch.GIVEN, "all clients' batches": NormalisedBatch.POOLED}
    for name, normalised in ways.items():
        target = opened(effort, normalised).target
        for batch in sizes:
            n = effort.singles if batch == 1 else effort.batches
            found = attacked(target, n, batch, effort.search, seed=0)
            rows = {"no information": found.nothing, "guess from the label": found.baseline}
            wanted = (Attacker.EXACT, Attacker.JOINT, Attacker.FIRST_LAYER)
            rows |= {who.value: found.by[who] for who in wanted if who in found.by}
            for who, row in rows.items():
                off = errors(found, row)
                yield (
                    *(
                        name,
                        str(batch),
                        who,
                        found.kind.shown(found.kind.interval(row.score_NB.mean(1))),
                    ),
                    *(_said(np.median(off)), _said(off.max()), f"{(off <= NEAR).mean():.0%}"),
                )


def of_sums(effort: Effort, shapes: Sequence[tuple[int, int]] = SHAPES) -> Iterator[Sequence[str]]:
    """Yield a line for each attack on sums of 3, 5 and 10 clients' updates."""
    tried = SumEffort(effort.sums, effort.most_matched, replace(effort.search, restarts=1))
    ways = {"constants": NormalisedBatch.GIVEN, "all clients' batches": NormalisedBatch.POOLED}
    for name, normalised in ways.items():
        round_ = opened(effort, normalised)
        for steps, batch in shapes:
            for clients in (3, 5, 10):
                found = attacked_sums(
                    round_, RoundShape(clients, steps, batch), tried.sums, tried, 0
                )
                attacks: dict[str, Rebuilt] = {
                    "guess from the labels": found.baseline,
                    **{who.value: row for who, row in found.by.items()},
                }
                for who, row in attacks.items():
                    gain = (
                        found.gains().get(SumAttacker(who)) if row is not found.baseline else None
                    )
                    yield (
                        *(name, str(clients), str(steps), str(batch), f"{found.n_samples}", who),
                        found.kind.shown(found.average(row)),
                        found.kind.shown(gain) if gain else "",
                        f"{found.recovered(row):.0%}",
                    )


def _said(value: float) -> str:
    return f"{value:.2g}"


def tables(effort: Effort) -> str:
    """Return both tables."""
    singles = markdown(
        [
            "BN by",
            "batch",
            "attack",
            "error of a row, σ",
            "median reading",
            "largest",
            "within 1 %",
        ],
        list(of_gradients(effort)),
    )
    sums = markdown(
        [
            *("BN by", "clients", "steps", "batch", "rows in it", "attack"),
            *("error of a row, σ", "gain over the guess, σ", "recovered"),
        ],
        list(of_sums(effort)),
    )
    return f"{singles}\n{sums}"


def main() -> None:
    """Write the tables into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="a Markdown file with the two comments")
    page = parser.parse_args().page
    page.write_text(written(page.read_text(), tables(FULL), BEGIN))


if __name__ == "__main__":
    main()
