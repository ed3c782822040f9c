"""Speed of simulated clients on a GPU: rounds of each engine, beside research code there.

As benchmarks/engines.py, whose jobs and ways these are, in float32 and with local steps in
bfloat16, and with the most memory that each way takes. All ways of a round take turns; a turn ends
once the GPU has done its work. What would begin after so many minutes is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from engine_fedtan import fedtan_step_part
from engine_jobs import ENGINES
from engine_page import Part, circumstances, write_page
from engine_sealing import sealing_part
from engine_ways import Settings, arguments, command
from gpu_few import few_part
from gpu_graphs import graphs_part
from gpu_jobs import CNN, LENET5, MLP, RESNET20
from gpu_steps import steps_part
from gpu_ways import IN_PROCESS, Gpu, gpu_part
from measure import write_json

from securefl.simulation.malloc import keep_freed_memory

SEALERS = {"auto": ENGINES["auto"], "parallel, 8": {"engine": "parallel", "workers": 8}}
"""Engines of a sealed run: one process, and workers that seal on cores of their own."""
JOBS = {"mlp": MLP, "cnn": CNN, "resnet20": RESNET20, "lenet5": LENET5}
PARTS: Mapping[str, Callable[[Settings], Part]] = {
    **{name: partial(gpu_part, job) for name, job in JOBS.items()},
    "fedtan-step": partial(fedtan_step_part, engines=IN_PROCESS),
    "sealing": partial(sealing_part, replace(RESNET20, encrypt="model"), engines=SEALERS),
    "few": few_part,
    "graphs": graphs_part,
    **{f"{name}-steps": partial(steps_part, job) for name, job in JOBS.items()},
}
TITLE = "How fast clients are simulated on a GPU"
EXAMPLES = """examples:
  python benchmarks/gpu.py --out docs/results/gpu.md
  python benchmarks/gpu.py --jobs resnet20 --repeats 9 --json found.json
  python benchmarks/gpu.py --device cpu --small --repeats 1       tries everything, measures nothing

--out replaces the sections of these jobs in the page, and leaves the others as they are. Without a
GPU the script ends with exit code 2."""


def main(argv: Sequence[str] | None = None) -> dict[str, Part]:
    """Measure, print, and write what the arguments ask for."""
    keep_freed_memory()  # as the command line does
    parser = _parser()
    args = parser.parse_args(argv)
    if args.device != "cpu" and not torch.cuda.is_available():
        parser.error(
            f"torch {torch.__version__} sees no GPU here: run this where one is, with a torch that "
            "is built for it; --device cpu --small tries the script"
        )
    gpu = Gpu.of(args.device)
    before, found = f"{gpu}; {circumstances()}", dict[str, Part]()
    print(before)
    ends = time.monotonic() + 60 * args.minutes
    settings = Settings(args.repeats, args.small, device=args.device)
    for name in dict.fromkeys(args.jobs):
        if time.monotonic() >= ends:
            print(f"{name} is left out: {args.minutes:g} minutes are over")
            continue
        begun = time.monotonic()
        found[name] = PARTS[name](settings)
        found[name].show()
        print(f"{name} took {time.monotonic() - begun:.0f} s")
        if args.out:  # at once: what was measured stays, whatever comes
            commands = {name: command("gpu.py", name, args, f" --device {args.device}")}
            write_page(args.out, {name: found[name]}, commands, before, TITLE)
    if args.json:
        write_json(args.json, [gpu, *(r for part in found.values() for r in part.results)])
    return found


def _parser() -> argparse.ArgumentParser:
    parser = arguments(__doc__, EXAMPLES, PARTS)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu (cuda)")
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="no job begins after so many (8)"
    )
    return parser


if __name__ == "__main__":
    main()
