"""Accuracy of finished runs with BN statistics that are measured once more, on their last model.

securefl reproduce heart --scale natural
python docs/measured_after.py runs/heart-natural/runs/hbn--*

HBN measures as a round begins: its last model is scored with the statistics of the one before.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from statistics import mean

from torch import nn

from securefl.data.samples import in_order, samples
from securefl.evaluation.evaluate import evaluate, load_trained
from securefl.norms.find import batch_norm_layers
from securefl.norms.measured import moments_about
from securefl.task import Task


def measured_anew(model: nn.Module, task: Task) -> nn.Module:
    """Return a copy with mean and variance over all clients' training samples."""
    anew = copy.deepcopy(model)
    layers = batch_norm_layers(anew)
    buffers = {name: dict(layer.named_buffers()) for name, layer in layers.items()}
    old = {name: of["running_mean"].clone() for name, of in buffers.items()}
    inputs = (x for of in task.clients for x, _ in in_order(samples(of, "a client")))
    for name, (shift_C, square_C) in moments_about(anew, inputs, old).items():
        buffers[name]["running_mean"].add_(shift_C)
        buffers[name]["running_var"].copy_(square_C - shift_C.square())
    return anew


def accuracy(model: nn.Module, task: Task) -> float:
    """Return the mean over clients' own tests, or that on the test all share, in %."""
    tests = list(task.client_tests or [task.test])
    return 100 * mean(evaluate(model, test, loss=task.loss).value for test in tests)


def main() -> None:
    """Print a line for each run's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    for folder in parser.parse_args().runs:
        of = load_trained(folder)
        before = accuracy(of.model, of.task)
        after = accuracy(measured_anew(of.model, of.task), of.task)
        sys.stdout.write(f"{folder.name}: {before:.2f} %, measured after {after - before:+.2f}\n")


if __name__ == "__main__":
    main()
