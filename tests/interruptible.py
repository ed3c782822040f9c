"""Starts the command line so that Ctrl-C reaches it, wherever the tests run."""

from __future__ import annotations

import sys

SCRIPT = (
    # A shell's background job, and all that it starts, ignores SIGINT.
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from securefl_cli.main import main; main()"
)
SECUREFL = [sys.executable, "-c", SCRIPT]
