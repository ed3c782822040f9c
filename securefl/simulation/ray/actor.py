"""Worker inside an actor. Values cross as frames of bytes, so that Ray pickles no tensor."""

import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.simulation.processes.ipc import framed, unframed
from securefl.simulation.processes.messages import Failed
from securefl.simulation.processes.worker import WorkerEnd, all_parts, portable

_GLANCE_S = 0.5


class WorkerActor:
    """Class of an actor with some of a run's clients, the same ones in every round."""

    def __init__(self, settings: NDArray[np.uint8], path: Sequence[str]) -> None:
        """Take over torch's settings, from a frame, and where modules are looked for."""
        threading.Thread(target=_end_with_node, args=(os.getppid(),), daemon=True).start()
        sys.path += [folder for folder in path if folder not in sys.path]
        self._end = WorkerEnd(unframed(settings))

    def ready(self) -> None:
        """Return once the actor has a place and has begun."""

    def take(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
        """Return the reply to a value, or its failure; None where there is nothing to reply."""
        reply: Any
        try:
            with all_parts():
                value = unframed(frame)
            reply = self._end.take(value)
        except Exception as error:
            reply = Failed(portable(error))
        return None if reply is None else framed(reply)


def _end_with_node(node: int) -> None:
    """End this process with Ray's own of the machine, also where a client waits for a total."""
    while os.getppid() == node:
        time.sleep(_GLANCE_S)
    os._exit(1)
