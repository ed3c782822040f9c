"""Distance of two honest sealed runs of one seed, by rounds: the largest difference of a weight.

python benchmarks/sealed_twice.py

The demo's digits and model, five clients, FedAvg and FedTAN; all that clients send is sealed.
"""

import argparse
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

import securefl


def weights(algorithm: str, rounds: int) -> Tensor:
    """Return the weights after so many rounds, in one row."""
    settings = [f"algorithm.name={algorithm}", f"run.rounds={rounds}"]
    model = securefl.run(securefl.load_config(None, settings)).model
    return torch.cat([value.double().flatten() for value in model.state_dict().values()])


def main(argv: Sequence[str] | None = None) -> None:
    """Print a row for each algorithm and number of rounds, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 5, 20], metavar="N")
    args = parser.parse_args(argv)
    sys.stdout.write("| algorithm | rounds | largest difference | largest weight |\n")
    sys.stdout.write("| --- | --: | --: | --: |\n")
    for algorithm in ("fedavg", "fedtan"):
        for rounds in args.rounds:
            first, second = (weights(algorithm, rounds) for _ in range(2))
            apart, largest = float((first - second).abs().max()), float(first.abs().max())
            sys.stdout.write(f"| {algorithm} | {rounds} | {apart:.0e} | {largest:.2g} |\n")


if __name__ == "__main__":
    main()
