"""Rounds of a job on a GPU, each way in two precisions, and its peak of the GPU's memory."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from engine_jobs import ENGINES, Job, task_of
from engine_page import Grid, Part
from engine_ways import ABOUT, Rates, Settings, makers, rates, refusals, started

PRECISIONS = {"float32": "model", "bfloat16": "bfloat16"}
"""Precisions as the settings name them."""
IN_PROCESS = {name: run for name, run in ENGINES.items() if "workers" not in run}
"""Engines of one process: on a GPU workers wait for each other."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Device that the figures are of."""

    name: str
    memory_gib: float
    versions: str

    @classmethod
    def of(cls, device: str) -> Gpu:
        """Return the device of this name; "no GPU" for the CPU."""
        if torch.device(device).type == "cpu":
            return cls("no GPU", 0.0, "")
        known = torch.cuda.get_device_properties(device)
        versions = f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
        return cls(known.name, known.total_memory / 2**30, versions)

    def __str__(self) -> str:
        return (
            f"{self.name}, {self.memory_gib:.0f} GiB, {self.versions}"
            if self.versions
            else self.name
        )


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peaks of one job, each way alone."""

    job: str
    mib: Mapping[str, float]
    """Most MiB that tensors have taken in two rounds and before, by way."""


def gpu_part(job: Job, settings: Settings) -> Part:
    """Measure the job's tables."""
    job, grids, found = settings.sized(job), dict[str, Grid](), list[Rates | Peaks]()
    notes = [ABOUT]
    for precision, setting in PRECISIONS.items():
        same = replace(job, precision=setting)
        settings.note(str(same))
        result = rates(same, settings, IN_PROCESS)
        grids[f"One round, {precision}"] = result.grid()
        notes += refusals({f"{job.model}, {precision}": result.refused})
        found.append(result)
    if torch.device(job.device).type == "cuda":
        peaks = [_peaks(replace(job, precision=setting)) for setting in PRECISIONS.values()]
        rows = [[way, *(f"{of.mib[way]:,.0f} MiB" for of in peaks)] for way in peaks[0].mib]
        grids["Peak memory of tensors on the GPU"] = Grid(("way", *PRECISIONS), rows)
        notes.append("Peaks are of two rounds of a way alone, with its samples.")
        found += peaks
    return Part(f"FedAvg on a GPU: {job}", grids, found, notes)


def _peaks(job: Job) -> Peaks:
    found = dict[str, float]()
    for name in [*makers(job, task_of(job)), *IN_PROCESS]:
        gc.collect()
        torch.cuda.reset_peak_memory_stats(job.device)
        before = torch.cuda.memory_allocated(job.device)
        _two_rounds(name, job)
        found[name] = (torch.cuda.max_memory_allocated(job.device) - before) / 2**20
    return Peaks(str(job), found)


def _two_rounds(name: str, job: Job) -> None:
    task = task_of(job)
    chosen = {name: IN_PROCESS[name]} if name in IN_PROCESS else {}
    with started(job, task, chosen) as ours:
        way = ours.rounds[name].step if chosen else makers(job, task)[name]()
        for _ in range(2):
            way()
        job.wait()
