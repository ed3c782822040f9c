"""Pictures of docs/gallery.md: python docs/gallery.py NAME [NAME ...], or all with no name.

Each is made anew by runs of seconds or by a notebook's cells. It is written into docs/gallery, or
with --out DIR elsewhere, as a PNG of few colours.
"""

from __future__ import annotations

import argparse
import io
import os
import runpy
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

import securefl
from securefl.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from securefl.data.digits import load_digits
from securefl.data.federation import load_federation
from securefl.report.plots import (
    BLUE,
    GREEN,
    GREY,
    VERMILLION,
    bare,
    by_client_figure,
    cost_figure,
    draw_scores,
    png,
    scores_figure,
    traffic_figure,
)
from securefl.report.views import Shows, views
from securefl.runs.folder_reader import RunRecord, read_run

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "docs" / "gallery"
SIZE = (5.2, 3.2)
"""Inches of a figure; read at 390 CSS pixels, its letters are those of the text."""
WIDTH, COLOURS_KEPT = 780, 64

Draws = Callable[[], Figure | bytes]


@cache
def run(*settings: str) -> securefl.Result:
    """Return a run with these settings, of five clients in the clear where they do not say else."""
    return securefl.run(securefl.load_config(settings=["exchange.encrypt=none", *settings]))


@cache
def recorded(*settings: str) -> RunRecord:
    """Return a run's record, read back from a folder that is gone afterwards."""
    config = securefl.load_config(settings=["exchange.encrypt=none", *settings])
    with tempfile.TemporaryDirectory() as folder:
        securefl.run(config, out=Path(folder) / "run")
        return read_run(Path(folder) / "run")


@cache
def notebook(name: str) -> tuple[list[bytes], dict[str, Any]]:
    """Return the figures that a notebook draws, and the values of its names, after running it."""
    notebooks = runpy.run_path(str(ROOT / "docs/notebooks.py"))
    content = notebooks["read"](notebooks["NOTEBOOKS"] / f"{name}.ipynb")
    values = notebooks["run_cells"](content)
    return notebooks["figures"](content), values


def of_notebook(name: str, number: int) -> bytes:
    """Return a figure of a notebook, by its number from 0."""
    return notebook(name)[0][number]


def of_audit(section: str) -> bytes:
    """Return the first picture of a section of the notebook's audit of the run in the clear."""
    found: bytes = notebook("audit")[1]["sections"]["plain"][section].pictures[0].png
    return found


def labels() -> Figure:
    """Draw how many samples of each class a client has, under four partitions."""
    figure = Figure(figsize=(SIZE[0], 4.2), layout="constrained")
    partitions = "iid", "classes:2", "dirichlet:0.5", "label-quantity:5"
    for axes, partition in zip(figure.subplots(2, 2, sharex=True).flat, partitions, strict=True):
        config = securefl.load_config(settings=[f"data.partition={partition}"])
        clients = load_federation(config.data, 0, torch.float32).clients
        for client, (_, y) in enumerate(clients, 1):
            for label, n in Counter(y.tolist()).items():
                axes.scatter(client, label, s=n / 2, color=BLUE)
        axes.set(title=partition, yticks=range(0, 10, 3), xticks=range(1, 6))
    figure.supxlabel("client", fontsize=10)
    figure.supylabel("digit; the area is the number of samples", fontsize=10)
    return figure


def _corrupted(name: str, severity: int) -> np.ndarray:
    """Return one digit with a corruption; as it is where the name is empty."""
    digit = load_digits().test_x[:1].reshape(1, 1, 8, 8).numpy()
    found = corrupt(digit, name, severity, np.random.default_rng(0)) if name else digit
    return found.reshape(8, 8)


def _images(pictures: dict[str, np.ndarray], height: float) -> Figure:
    """Draw pictures under their names, five in a row."""
    figure = Figure(figsize=(SIZE[0], height), layout="constrained")
    places = figure.subplots(len(pictures) // 5, 5).flat
    for axes, (title, image) in zip(places, pictures.items(), strict=True):
        axes.axis("off")
        axes.imshow(image, cmap="gray_r", vmin=0, vmax=1)
        axes.set_title(title.replace("_", "\n"), fontsize=9)
    return figure


def corruptions() -> Figure:
    """Draw one digit under each corruption, at severity 4."""
    return _images({name or "clean": _corrupted(name, 4) for name in ("", *CORRUPTIONS)}, 4.6)


def severities() -> Figure:
    """Draw one digit in all severities of three corruptions."""
    names = "gaussian_noise", "fog", "zoom_blur"
    return _images(
        {f"{name} {at}": _corrupted(name, at) for name in names for at in SEVERITIES}, 3.6
    )


FEDTAN = "algorithm.name=fedtan"
SEALED = {"nothing": "none", "statistics": "statistics", "all": "model"}
"""Sealed messages, by their name on a picture."""


def trust() -> Figure:
    """Draw what each party reads, by what is sealed."""
    parties = {"server": "server", "authority": "authority", "client-1": "a client"}
    parties["outside reader"] = "outsider"
    colours = {Shows.ONE_CLIENT: VERMILLION, Shows.TOTAL: GREEN, Shows.MODEL: BLUE}
    words = {
        Shows.ONE_CLIENT: "one client's values",
        Shows.TOTAL: "totals",
        Shows.MODEL: "the model",
    }
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    for column, sealed in enumerate(SEALED.values()):
        ledger = run("run.rounds=1", FEDTAN, f"exchange.encrypt={sealed}").ledger.entries
        seen = {view.party: {field.shows for field in view.fields} for view in views(ledger)}
        for row, party in enumerate(parties):
            shown = [what for what in colours if what in seen.get(party, set())]
            for i, what in enumerate(shown or [None]):
                colour, word = (colours[what], words[what]) if what else (GREY, "nothing")
                place = row + (i - (len(shown or [1]) - 1) / 2) * 0.3
                axes.text(column, place, word, ha="center", va="center", color=colour, fontsize=9)
    axes.set_xticks(range(len(SEALED)), [f"{name}\nsealed" for name in SEALED])
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(parties)), parties.values())
    axes.set(xlim=(-0.5, len(SEALED) - 0.5), ylim=(len(parties) - 0.5, -0.5))
    axes.hlines(np.arange(0.5, len(parties) - 1), -0.5, len(SEALED) - 0.5, colors="0.85")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return figure


def traffic() -> Figure:
    """Draw bytes by kind and form of a run with sealed statistics."""
    return traffic_figure(
        run("run.rounds=20", FEDTAN, "exchange.encrypt=statistics").ledger.entries
    )


def time_by_phase() -> Figure:
    """Draw milliseconds a round by phase, by what is sealed."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    run("run.rounds=2", FEDTAN, "exchange.encrypt=model")  # what loads once is loaded
    phases = {"clients, messages": BLUE, "opening": VERMILLION, "scoring": GREEN}
    for row, sealed in enumerate(SEALED.values()):
        rounds, left = run("run.rounds=30", FEDTAN, f"exchange.encrypt={sealed}").metrics, 0.0
        for phase, colour in phases.items():
            took = 1000 * float(np.median([of.phases.get(phase, 0.0) for of in rounds]))
            axes.barh(row, took, left=left, color=colour, label=phase if row == 0 else None)
            left += took
    axes.set_yticks(range(len(SEALED)), [f"{name}\nsealed" for name in SEALED])
    axes.set(xlabel="ms a round, median of 30")
    axes.invert_yaxis()
    axes.legend(frameon=False)
    bare(axes)
    return figure


def _scores(runs: Mapping[str, Sequence[str]]) -> Figure:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    draw_scores(axes, {name: run(*settings).metrics for name, settings in runs.items()})
    return figure


def momentum() -> Figure:
    """Draw accuracy with momentum that is reset, a client's own, or averaged."""
    common = "run.rounds=60", "algorithm.name=fedavg", "model.norm=group", "train.momentum=0.9"
    ways = "reset", "local", "global"
    at_rate = (*common, "train.lr=0.05")
    runs = {way: (*at_rate, f"train.momentum_across_rounds={way}") for way in ways}
    return _scores(runs)


def server_optimisers() -> Figure:
    """Draw accuracy by server optimiser."""
    common = "run.rounds=40", "algorithm.name=fedavg", "model.norm=group", "train.lr=0.1"
    names = "average", "momentum", "fedadam", "fedadagrad"
    return _scores({name: (*common, f"server.name={name}") for name in names})


def skew() -> Figure:
    """Draw accuracy by strength of the label skew, for three ways with BN."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axes, alphas = figure.subplots(), (0.1, 0.3, 1, 3, 10)
    ways = {
        "FedTAN": (FEDTAN,),
        "FedAvg, GN": ("algorithm.name=fedavg", "model.norm=group"),
        "FedAvg, BN": ("algorithm.name=fedavg",),
    }
    for (name, way), colour in zip(ways.items(), (BLUE, GREEN, VERMILLION), strict=True):
        runs = [run("run.rounds=40", f"data.partition=dirichlet:{a}", *way) for a in alphas]
        last = [100 * np.mean([of.score for of in each.metrics[-5:]]) for each in runs]
        axes.plot(alphas, last, "o-", label=name, color=colour)
    axes.set(xscale="log", ylabel="test accuracy (%)", xlabel="α: left strong skew, right none")
    axes.set_xticks(alphas, [f"{alpha:g}" for alpha in alphas])
    axes.minorticks_off()
    axes.legend(frameon=False, loc="lower right")
    bare(axes)
    return figure


CAMERAS = (
    *("run.rounds=25", "data.partition=iid", "data.severity=5"),
    "data.corruptions=['gaussian_noise', 'fog', 'contrast', 'zoom_blur']",
)


def clients() -> Figure:
    """Draw the scores of the worst, the median and the best client by round, with FedBN."""
    return by_client_figure(run(*CAMERAS, "algorithm.name=fedbn").metrics)


POOR = (
    *("run.rounds=30", "data.clients=20", "data.partition=iid", "data.public=180"),
    "data.quality={irrelevant=0.2, blurred=0.2, salt-and-pepper=0.2}",
    *("algorithm.name=fedavg", "algorithm.local_epochs=2", "train.lr=0.1", "train.batch_size=16"),
    *("selection.fraction=0.25", "devices.preset=emnist"),
)
FEDPROF = (*POOR, "selection.name=fedprof", "selection.alpha=10")


def fedprof_scores() -> Figure:
    """Draw each client's score by round, of clients of four qualities."""
    return scores_figure(recorded(*FEDPROF)) or Figure()


def cost() -> Figure:
    """Draw accuracy by simulated time and energy, of FedProf and of random selection."""
    runs = {"random": (*POOR, "selection.name=random"), "FedProf": FEDPROF}
    return cost_figure({name: recorded(*of).metrics for name, of in runs.items()}) or Figure()


def canaries() -> Figure:
    """Draw the ε that canaries show against the ε that the noise promises."""
    from securefl.audit.bounds.canary_bounds import one_run_bound  # noqa: PLC0415  (torch)
    from securefl.audit.bounds.gaussian_dp import gaussian_epsilon  # noqa: PLC0415

    rng, sigmas = np.random.default_rng(0), (0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
    included = rng.random(2000) < 0.5
    shown = [
        one_run_bound(included + rng.normal(0, s, len(included)), included, delta=1e-5).epsilon
        for s in sigmas
    ]
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    promised = [gaussian_epsilon(1 / s, delta=1e-5) for s in sigmas]
    axes.plot(sigmas, promised, "o-", color=BLUE, label="promised: at most")
    axes.plot(sigmas, shown, "s--", color=VERMILLION, label="shown by 2000 canaries: at least")
    axes.set(xlabel="σ of the noise", ylabel="ε at δ = 1e-5", yscale="symlog")
    axes.legend(frameon=False)
    bare(axes)
    return figure


PICTURES: dict[str, Draws] = {
    "first-run": partial(of_notebook, "first_run", 0),
    "bn-means": partial(of_notebook, "why_bn_breaks", 0),
    "bn-variances": partial(of_notebook, "why_bn_breaks", 1),
    "cures": partial(of_notebook, "cures", 0),
    "skew": skew,
    "alone-and-together": partial(of_notebook, "own_model_and_data", 0),
    "labels": labels,
    "corruptions": corruptions,
    "severities": severities,
    "cameras": partial(of_notebook, "sensor_shift", 0),
    "fedbn": partial(of_notebook, "sensor_shift", 1),
    "clients": clients,
    "momentum": momentum,
    "server-optimisers": server_optimisers,
    "selected": partial(of_notebook, "selection", 0),
    "selection-accuracy": partial(of_notebook, "selection", 1),
    "fedprof-scores": fedprof_scores,
    "cost": cost,
    "trust": trust,
    "traffic": traffic,
    "time-by-phase": time_by_phase,
    "privacy-budget": partial(of_notebook, "privacy_budget", 0),
    "canaries": canaries,
    "membership": partial(of_audit, "membership"),
    "tracing": partial(of_audit, "tracing"),
    "inversion": partial(of_notebook, "audit", 1),
}
"""Functions that make the pictures, by the picture's name."""


def small(drawn: Figure | bytes) -> bytes:
    """Return a picture as a PNG of few colours, at most `WIDTH` pixels wide."""
    if isinstance(drawn, Figure):
        width, height = drawn.get_size_inches()
        drawn.set_size_inches(SIZE[0], height if width <= SIZE[0] else min(height, SIZE[1]))
    content = png(drawn) if isinstance(drawn, Figure) else drawn
    image = Image.open(io.BytesIO(content)).convert("RGB")
    if image.width > WIDTH:
        image = image.resize((WIDTH, image.height * WIDTH // image.width), Image.Resampling.LANCZOS)
    found = io.BytesIO()
    image.quantize(COLOURS_KEPT).save(found, "PNG", optimize=True)
    return found.getvalue()


def main() -> None:
    """Make the pictures that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*PICTURES, []])
    parser.add_argument("--out", type=Path, default=GALLERY)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.names or PICTURES:
        path = given.out / f"{name}.png"
        path.write_bytes(small(PICTURES[name]()))
        sys.stdout.write(f"{os.path.relpath(path)}: {path.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main()
