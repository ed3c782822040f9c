"""Freed memory is kept for the next step, where the C library would give it back to the system.

A step frees megabytes of activations and the next one asks for as many. What glibc has given back
in between, it gets page by page, and each page is a fault.

The setting is a whole process's. Workers and the command line choose it; a program that uses this
library keeps its own.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of mallopt(3)."""
_KEPT_BYTES = 2**28
_LARGEST_KEPT_BYTES = 2**25
"""Of a single tensor; larger ones go back at once, as they always do."""


@cache
def keep_freed_memory() -> None:
    """For the rest of this process; nothing where the C library has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
