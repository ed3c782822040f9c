"""Starts the command line so that Ctrl-C reaches it, wherever the tests run."""

from __future__ import annotations

import sys

SCRIPT = (
    # A shell's background job, and all that it starts, ignores SIGINT.
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from securefl_cli.main import main; main()"
)
BEATS = "import securefl.network.stream as f; f.BEAT_S, f.SILENT_S = 0.3, 5.0; "
"""Where silence is a matter of seconds."""
SECUREFL = [sys.executable, "-c", SCRIPT]
