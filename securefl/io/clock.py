"""Time on this machine, as lines of a run's files have it."""

import time


def utc_now() -> str:
    """Return the time, UTC, to the second: `2026-11-26T08:15:30Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
