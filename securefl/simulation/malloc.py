"""Retention of freed memory for the next step, where the C library would return it.

A step frees megabytes of activations and the next one allocates as many. Memory that glibc has
returned in between comes back page by page, and each page is a fault.

The setting is a whole process's. Workers and the command line choose it; a program that uses this
library keeps its own.
"""

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""
_KEPT_BYTES = 2**28
_LARGEST_KEPT_BYTES = 2**25
"""Largest single tensor; larger ones are always returned at once."""


@cache
def keep_freed_memory() -> None:
    """Keep freed memory for the rest of this process; no effect where the C library cannot."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        # Free memory on top of the heap is kept, and tensors up to 32 MiB come from the heap.
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
