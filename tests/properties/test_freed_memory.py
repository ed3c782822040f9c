"""What a step has freed, the next one gets without asking the system page by page."""

import subprocess
import sys
from functools import partial
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from torch import nn

from securefl.simulation import malloc as freed_memory
from securefl.simulation.malloc import keep_freed_memory
from securefl.simulation.processes import worker
from securefl.simulation.workspace import Workspace
from securefl_cli.main import main

STEPS = """
import resource, torch
from securefl.simulation.malloc import keep_freed_memory

def step():
    return [torch.ones(n * 2**20, dtype=torch.uint8) for n in (3, 5, 9, 14, 20)]

keep_freed_memory()
for _ in range(15):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(15):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def in_a_notebook():
    Workspace(nn.Linear(2, 2))


def in_a_command():
    CliRunner().invoke(main, ["keys", "show", "/nowhere"])


def in_a_worker():
    ours, theirs = Pipe()
    ours.close()
    worker.work(theirs, partial(worker.WorkerEnd, None))


@pytest.mark.parametrize(("use", "told"), [(in_a_notebook, 0), (in_a_command, 2), (in_a_worker, 2)])
def test_the_library_leaves_malloc_to_the_program_that_uses_it(monkeypatch, use, told):
    """Workers and commands are processes of our own, and choose for themselves."""
    settings = []
    library = SimpleNamespace(mallopt=lambda *setting: settings.append(setting))
    monkeypatch.setattr(freed_memory.sys, "platform", "linux")
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    keep_freed_memory.cache_clear()
    use()
    assert len(settings) == told


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc that is told")
def test_steps_that_allocate_alike_fault_no_pages_in():
    """A step of 51 MiB has 13 thousand pages; of a third of all processes each step had most."""
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100
