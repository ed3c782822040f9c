"""Worker inside an actor. Messages cross as frames of bytes, so that Ray pickles no tensor."""

import os
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from securefl.simulation.processes.ipc import framed, unframed, unpacked
from securefl.simulation.processes.machines import MessageHandler
from securefl.simulation.processes.worker import replied

_GLANCE_S = 0.5


class WorkerActor:
    """Class of an actor with some of a run's clients, the same ones in every round."""

    def __init__(self, make: NDArray[np.uint8], path: Sequence[str]) -> None:
        """Make the worker's end by what is in a frame; modules are looked for in `path`, too."""
        threading.Thread(target=_end_with_node, args=(os.getppid(),), daemon=True).start()
        sys.path += [folder for folder in path if folder not in sys.path]
        self._end: MessageHandler = unpacked(unframed(make))()

    def ready(self) -> None:
        """Return once the actor has a place and has begun."""

    def handle(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the reply to a message."""
        return framed(replied(self._end, unframed(frame)))


def _end_with_node(node: int) -> None:
    """End this process with Ray's own of the machine, also where a client waits for a total."""
    while os.getppid() == node:
        time.sleep(_GLANCE_S)
    os._exit(1)
