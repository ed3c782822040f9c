"""Work in the event loop, for which the thread of the loop of rounds waits."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from securefl.errors import PeerError

STOPPED = "the server was stopped"
Result = TypeVar("Result")


@dataclass(slots=True)
class LoopWork:
    """One piece of work at a time, until it is stopped."""

    loop: asyncio.AbstractEventLoop
    _stopped: bool = False
    _under_way: asyncio.Task[Any] | None = None

    def waited(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do it, and return its result; raises PeerError where all is stopped."""
        return self.submitted(work).result()

    def submitted(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Begin it, and return its future; raises as `waited`."""
        return asyncio.run_coroutine_threadsafe(self._unless_stopped(work), self.loop)

    async def stop(self) -> None:
        """End what is waited for, and refuse whatever comes after it; in the event loop."""
        self._stopped = True
        if self._under_way:
            self._under_way.cancel()
            await asyncio.wait({self._under_way})  # until nobody reads from a connection any more

    async def _unless_stopped(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._stopped:
            work.close()
            raise PeerError(STOPPED)
        self._under_way = task = self.loop.create_task(work)
        try:
            return await task
        except asyncio.CancelledError:
            raise PeerError(STOPPED) from None
