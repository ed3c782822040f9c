"""Accuracy of each method on the digits, mean and standard deviation over seeds, as Markdown.

python examples/digits_table.py --seeds 3 > table.md
"""

from __future__ import annotations

import statistics
import sys

import click

import securefl

METHODS = {
    "centralised": ("algorithm.name=centralised", "exchange.encrypt=none"),
    "FedTAN, statistics encrypted": ("algorithm.name=fedtan", "exchange.encrypt=statistics"),
    "FedTAN": ("algorithm.name=fedtan", "exchange.encrypt=none"),
    "FedTAN, fused moments": ("algorithm.moments=fused", "exchange.encrypt=none"),
    "forward only": ("algorithm.name=forward-only", "exchange.encrypt=none"),
    "FedAvg + GN": ("algorithm.name=fedavg", "model.norm=group", "exchange.encrypt=none"),
    "FedAvg + BN": ("algorithm.name=fedavg", "exchange.encrypt=none"),
}


def accuracies(method: str, seeds: range) -> list[float]:
    """Final test accuracy in % for each seed, with the settings of the demo."""
    configs = (securefl.load_config(None, [*METHODS[method], f"run.seed={s}"]) for s in seeds)
    return [100 * securefl.run(config).accuracy for config in configs]


@click.command()
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(min=2))
def main(seeds: int) -> None:
    """Print the table to stdout, progress to stderr."""
    click.echo(f"| method | accuracy (%), mean ± std of {seeds} seeds | each seed |")
    click.echo("|---|---|---|")
    for method in METHODS:
        print(f"{method} …", file=sys.stderr)  # noqa: T201
        values = accuracies(method, range(seeds))
        mean, deviation = statistics.mean(values), statistics.stdev(values)
        each = ", ".join(f"{value:.1f}" for value in values)
        click.echo(f"| {method} | {mean:.1f} ± {deviation:.1f} | {each} |")


if __name__ == "__main__":
    main()
