"""Real processes under attack by strangers and by their own doubles, in one run."""

import os
import re
import signal
import socket
import sys
from contextlib import ExitStack

import pytest
from processes import Site

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick")]
DESCRIPTORS = 400
"""That the besieged processes may have open."""
STRANGERS = 1500


@pytest.fixture
def here(tmp_path):
    """A federation whose rounds go on for as long as the test; its processes end with it."""
    site = Site(
        tmp_path / "site", algorithm="fedavg", rounds=10_000, reproducible=False, fast_beats=True
    )
    yield site
    site.stop()


def stand_at(stack, at, n):
    """So many connections that say nothing."""
    host, port = at.rsplit(":", 1)
    for _ in range(n):
        stack.enter_context(socket.create_connection((host, int(port)), timeout=30))


def goes_on(server):
    """Wait until it has done two rounds more."""
    done = int(re.findall(r"Round (\d+)/", server.text())[-1])
    server.wait_for(rf"Round {done + 2}/")


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="limits another process's descriptors")
def test_a_run_outlives_strangers_doubles_and_silence(here):
    import resource  # noqa: PLC0415 (Windows has none)

    authority = here.authority()
    server = here.server(said="")
    # Before it listens: it reads then how many it may have.
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    server.wait_for("Listening on")
    alice, bob, carol = here.clients()
    server.wait_for("Round 1/")

    # 1 500 connections without a certificate.
    assert resource.prlimit(server.pid, resource.RLIMIT_NOFILE)[0] == DESCRIPTORS
    with ExitStack() as strangers:
        stand_at(strangers, here.server_at, STRANGERS)
        goes_on(server)

    # A second process of a client, of the server and of the authority.
    double = here.client("carol")
    assert double.ended(60) == 1
    assert "another process of this name is connected" in double.text()
    other = here.server(out="double", said="cannot listen there")
    assert other.ended(60) == 2
    keeper = here.authority(said="another authority process")
    assert keeper.ended(60) == 2
    goes_on(server)

    # The server is held still: nobody waits for it, and its place is free.
    os.kill(server.pid, signal.SIGSTOP)
    for process in (alice, bob, carol, authority):
        process.wait_for("hub: silent for 5 s, the connection is lost")
    os.kill(server.pid, signal.SIGCONT)
    assert "Traceback" not in server.text()

    # Whoever is asked to stop does, and says so.
    for process in (alice, authority):
        assert process.interrupt(signal.SIGTERM) == 0, process.text()
        assert process.text().endswith("Stopped.\n")
        assert "Traceback" not in process.text()
