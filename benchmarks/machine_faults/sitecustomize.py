"""Wall clock that steps and disk that fills up, by files that say so.

Python imports this first where its folder is on the path. The file that STEPPED_CLOCK names holds
seconds, which are added to the time of day. Monotonic clocks run on, as they do where a real clock
is stepped. TLS below Python looks at the real clock. While the file that FULL_DISK names exists,
nothing gets to the disk: `os.fsync` finds no room, as it does on a disk that allocates late.
"""

import datetime
import errno
import os
import time
from pathlib import Path

_CLOCK, _FULL = (Path(os.environ[name]) for name in ("STEPPED_CLOCK", "FULL_DISK"))
_time, _time_ns, _fsync = time.time, time.time_ns, os.fsync


def _step_s() -> int:
    try:
        return int(_CLOCK.read_text() or "0")
    except FileNotFoundError:
        return 0


def _settled(handle: int) -> None:
    if _FULL.exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    _fsync(handle)


class _Real(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _DATETIME)


_DATETIME = datetime.datetime


class SteppedDatetime(_DATETIME, metaclass=_Real):
    """Dates and times, of which those of now are stepped."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "SteppedDatetime":
        """Return the stepped time."""
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def today(cls) -> "SteppedDatetime":
        """Return the stepped time."""
        return cls.now()

    @classmethod
    def utcnow(cls) -> "SteppedDatetime":
        """Return the stepped time."""
        return cls.now(datetime.UTC).replace(tzinfo=None)


time.time = lambda: _time() + _step_s()
time.time_ns = lambda: _time_ns() + _step_s() * 10**9
datetime.datetime = SteppedDatetime  # type: ignore[misc]
os.fsync = _settled  # type: ignore[assignment]
