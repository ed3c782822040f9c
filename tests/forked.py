"""Processes forked from one that has read all modules: torch alone takes longer than most tests.

They are what `python -c CODE ARGS` would be, but for the time that it takes, and for what /proc
says of their first environment and command line.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import time
from functools import cache
from importlib import import_module

READ = (
    *("securefl_cli.main", "securefl_cli.serve", "securefl_cli.site", "securefl_cli.keys"),
    *("securefl.build.run", "securefl.network.server", "securefl.network.client"),
    *("securefl.network.authority", "securefl.network.party", "securefl_keys.authority_keys"),
    *("sklearn.datasets", "sklearn.model_selection", "prometheus_client", "torch._dynamo"),
)
"""Modules of all roles of a federation; the first optimiser of torch's loads its compiler."""


class Forked:
    """One such process, with what tests need of `subprocess.Popen`."""

    def __init__(self, code, args, output, env):
        """Start it; stdout and stderr go to the file `output`."""
        args = [str(arg) for arg in args]
        asked = {"code": code, "args": args, "output": str(output), "env": env, "cwd": os.getcwd()}  # noqa: PTH109
        self.pid = _ask(asked)
        self.returncode = None

    def poll(self):
        """Return its exit code, negative after a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = _ask({"ended": self.pid})
        return self.returncode

    def wait(self, timeout=None):
        """Return its exit code; raise TimeoutExpired where it runs longer (seconds)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:  # until then its number is no other's
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


@cache
def _parent():
    command = [sys.executable, __file__]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    # As many threads as the tests have: the last bit of torch's sums depends on it.
    process = subprocess.Popen(command, **pipes, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def end():
        process.stdin.close()
        process.stdout.close()
        process.wait()

    atexit.register(end)
    return process


def _ask(request):
    process = _parent()
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def _serve():
    """Fork on each request; return it in the child, and None at the end of all requests."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    for module in READ:
        import_module(module)
    gc.freeze()
    children = set()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if pid := request.get("ended"):
            ended, status = os.waitpid(pid, os.WNOHANG)
            children -= {ended}
            answer = os.waitstatus_to_exitcode(status) if ended else None
        elif answer := os.fork():
            children.add(answer)
        else:
            return request
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return None


def _become(request):
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(request["output"], os.O_WRONLY | os.O_APPEND)
    for ours, theirs in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(ours, theirs)
    os.close(nothing)
    os.close(output)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["-c", *request["args"]]
    exec(request["code"], {"__name__": "__main__"})


if __name__ == "__main__" and (asked := _serve()):
    _become(asked)
