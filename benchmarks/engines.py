"""Speed of simulated clients: rounds of each engine, beside what research code does.

All ways of a job take turns in one run, in an order that changes, after a rehearsal; figures are
medians. An engine that the settings refuse for a job is left out, and a line says so. Nothing is
read: data are random, and four test samples keep evaluation out of the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from engine_fedtan import fedtan_step_part
from engine_jobs import CNN, LENET5, MLP, RESNET20
from engine_overhead import overhead_part
from engine_page import Part, circumstances, write_page
from engine_phases import phases_part
from engine_population import population_part
from engine_ray import ray_part
from engine_scaling import clients_part, cores_part
from engine_sealing import sealing_part
from engine_short import short_part
from engine_values import values_part
from engine_ways import Settings, arguments, command, rates_part
from engine_widths import widths_part
from measure import write_json
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from securefl.simulation.malloc import keep_freed_memory

ENCRYPTED = replace(RESNET20, n_clients=20, algorithm="fedtan", encrypt="statistics")
ALL_SEALED = replace(ENCRYPTED, encrypt="model")
SMALL_BATCHES = replace(ENCRYPTED, batch_size=32, n_samples=160)
PARTS: Mapping[str, Callable[[Settings], Part]] = {
    "mlp": partial(rates_part, MLP),
    "cnn": partial(rates_part, CNN),
    "resnet20": partial(rates_part, RESNET20),
    "lenet5": partial(rates_part, LENET5),
    "population": population_part,
    "overhead": overhead_part,
    "fedtan-step": fedtan_step_part,
    "phases": partial(phases_part, MLP),
    "fedtan-encrypted": partial(phases_part, ENCRYPTED),
    "fedtan-encrypted-all": partial(phases_part, ALL_SEALED),
    "fedtan-sealing": partial(sealing_part, ENCRYPTED),
    "fedtan-encrypted-fused": partial(phases_part, replace(ENCRYPTED, moments="fused")),
    "fedtan-encrypted-32": partial(phases_part, SMALL_BATCHES),
    "clients": clients_part,
    "values": values_part,
    "cores": cores_part,
    "widths": widths_part,
    "short": short_part,
    "ray": ray_part,
}
EXAMPLES = """examples:
  python benchmarks/engines.py --out docs/results/engines.md
  python benchmarks/engines.py --jobs mlp resnet20 --repeats 9 --json found.json
  python benchmarks/engines.py --small --repeats 1       tries everything, measures nothing

--out replaces the sections of these jobs in the page, and leaves the others as they are."""


def main(argv: Sequence[str] | None = None) -> dict[str, Part]:
    """Measure, print, and write what the arguments ask for."""
    keep_freed_memory()  # as the command line does
    args = arguments(__doc__, EXAMPLES, PARTS).parse_args(argv)
    before, found, commands = circumstances(), dict[str, Part](), dict[str, str]()
    print(before)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(args.jobs))

        def note(what: str) -> None:
            progress.update(bar, description=what)

        for name in dict.fromkeys(args.jobs):
            found[name] = PARTS[name](Settings(args.repeats, args.small, note))
            commands[name] = command("engines.py", name, args)
            progress.advance(bar)
            if args.out:  # at once: what was measured stays, whatever comes
                write_page(args.out, {name: found[name]}, commands, before)
    for part in found.values():
        part.show()
    if args.json:
        write_json(args.json, [result for part in found.values() for result in part.results])
    return found


if __name__ == "__main__":
    main()
