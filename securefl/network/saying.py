"""Lines that a process says of itself: those that warn, and the session that they are of."""

from contextvars import ContextVar

SESSION: ContextVar[str] = ContextVar("session", default="")
"""Id of the session that this process takes part in; threads and tasks that begin in it have it."""


class Warned(str):
    """A line on something that an operator may have to look at."""

    __slots__ = ()
