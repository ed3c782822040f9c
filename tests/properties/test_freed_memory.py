"""What a step has freed, the next one gets without asking the system page by page."""

import subprocess
import sys

import pytest

STEPS = """
import resource, torch
from securefl.engines.freed_memory import keep_freed_memory

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


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc that is told")
def test_steps_that_allocate_alike_fault_no_pages_in():
    """A step of 51 MiB has 13 thousand pages; of a third of all processes each step had most."""
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100
