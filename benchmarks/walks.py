"""Modules that one round enters, counted with a profiler: four clients, one after the other.

And the share of import statements in the lines of code, without docstrings and comments.

    python benchmarks/walks.py

A plain round is one of FedAvg in the clear, from its clients to the next state. A sealed statistic
is one sum of FedTAN's first step, from the layer that asks for it to the layer that has its total.
A setting is FixBN's name, from `--set` to a round of it: modules of which a function has as a
variable, or returns, the name, the choice of that name, its policy, or what this says of a round.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import click
import torch

import securefl
from securefl.algorithms.normalisation.fixbn import FixBN, FrozenBN, Window
from securefl.algorithms.normalisation.policy import RoundNorm
from securefl.build.simulation import simulated
from securefl.federation.clients_round import ClientsRound
from securefl.runs.loop import Rounds

ROOT = Path(securefl.__file__).parent
N_CLIENTS = 4
AIM = 0.11
"""Share of import statements that is aimed at."""
N_FOLDERS = 8
"""Folders that are printed: those that are furthest beyond it."""
KINDS = (FrozenBN, FixBN, Window, RoundNorm)


class Walk:
    """Modules in the order in which they are entered, and how often the file changes.

    Args:
        held: function that tells values, of which modules hold one that are alone counted, in the
            order in which they are left; None for all that are entered.
    """

    def __init__(self, held: Callable[[Any], bool] | None = None) -> None:
        self._held = held
        self.modules: dict[str, None] = {}
        self.n_changes = 0
        self._last = ""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        """Note an event: see `sys.setprofile`."""
        path = Path(frame.f_code.co_filename)
        if event != ("return" if self._held else "call") or not path.is_relative_to(ROOT):
            return
        if self._held and not any(map(self._held, (arg, *frame.f_locals.values()))):
            return
        name = path.relative_to(ROOT).with_suffix("").as_posix()
        self.modules[name] = None
        self.n_changes += name != self._last
        self._last = name

    def of(self, work: Callable[[], object]) -> Walk:
        """Follow some work, in all threads that it starts."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            work()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return self


def federation(*settings: str) -> Rounds:
    """Return the rounds of four clients, before the first."""
    chosen = [
        f"data.clients={N_CLIENTS}",
        "data.partition=classes:5",
        "run.engine=sequential",
        "run.rounds=2",
        *settings,
    ]
    return simulated(securefl.load_config(None, chosen))


def plain_round() -> Walk:
    """Follow one round of FedAvg in the clear, after a first that has loaded everything."""
    rounds = federation("algorithm.name=fedavg", "exchange.encrypt=none")
    rounds.step()
    times = dict.fromkeys(rounds.parts.participation.clients, 1)
    state = rounds.state
    walk = Walk().of(lambda: rounds.after(rounds.round_of(times, state)))
    rounds.close()
    return walk


def sealed_statistic() -> Walk:
    """Follow one sealed sum of FedTAN's first step."""
    rounds, walk, ask = federation("algorithm.name=fedtan"), Walk(), ClientsRound.sum
    n_sums = 0

    def followed(self: ClientsRound, asks: Any) -> Any:
        nonlocal n_sums
        n_sums += 1
        if n_sums != 2:
            return ask(self, asks)
        answer: list[Any] = []
        walk.of(lambda: answer.append(ask(self, asks)))
        return answer[0]

    ClientsRound.sum = followed  # type: ignore[method-assign]
    try:
        rounds.step()
    finally:
        ClientsRound.sum = ask  # type: ignore[method-assign]
        rounds.close()
    return walk


def setting() -> Walk:
    """Follow FixBN's name and what becomes of it, with the window rule, for one round."""

    def held(value: Any) -> bool:
        return value == "fixbn" if isinstance(value, str) else isinstance(value, KINDS)

    def work() -> None:
        name, switch = "algorithm.name=fixbn", "algorithm.switch=window"
        rounds = federation(name, switch, "exchange.encrypt=none", "run.rounds=40")
        rounds.step()
        rounds.close()

    return Walk(held).of(work)


def imports() -> dict[str, tuple[int, int]]:
    """Return the numbers of import statements and of lines of code by folder."""
    found: dict[str, tuple[int, int]] = {}
    for package in (ROOT, *(ROOT.parent / name for name in ("cli", "keys"))):
        for path in package.rglob("*.py"):
            text, inside = path.read_text(), path.relative_to(package).parts
            nodes = [*ast.walk(ast.parse(text))]
            written = {
                n for n, line in enumerate(text.splitlines(), 1) if line.split("#")[0].strip()
            }
            for node in nodes:
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    written -= {*range(node.lineno, (node.end_lineno or 0) + 1)}
            folder = inside[0] if package == ROOT and len(inside) > 1 else package.name
            n_statements, n_lines = found.get(folder, (0, 0))
            n_statements += sum(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes)
            found[folder] = n_statements, n_lines + len(written)
    return found


@click.command(help=__doc__)
def main() -> None:
    """Print the walks."""
    torch.set_num_threads(1)
    for title, walk in (
        ("A plain FedAvg round", plain_round()),
        ("One sealed statistic", sealed_statistic()),
    ):
        print(f"{title} of {N_CLIENTS} clients: {len(walk.modules)} modules, ", end="")
        print(f"{walk.n_changes} changes of file")
        print("    " + " ".join(walk.modules))
    walk = setting()
    print(f'algorithm.name = "fixbn": {len(walk.modules)} modules hold it')
    print("    " + " ".join(walk.modules))
    by_folder = imports()
    n_statements, n_lines = map(sum, zip(*by_folder.values(), strict=True))
    share = 100 * n_statements / n_lines
    print(f"{n_statements} import statements in {n_lines} lines of code: {share:.1f} %")
    beyond = {folder: n - AIM * n_lines for folder, (n, n_lines) in by_folder.items()}
    for folder in sorted(beyond, key=beyond.__getitem__, reverse=True)[:N_FOLDERS]:
        n, of = by_folder[folder]
        print(f"    {folder}: {n} in {of}, {100 * n / of:.1f} %, {beyond[folder]:.0f} beyond 11 %")


if __name__ == "__main__":
    main()
