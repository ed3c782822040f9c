"""Client threads end, wherever their owner is interrupted."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from securefl.federation.pausable import Finished, Pausable, Waiting


def asking(ask):
    ask("first")
    return "done"


def test_a_client_that_was_never_moved_holds_no_thread():
    """Ctrl-C while a round's clients are made leaves none waiting, so the process can end."""
    pool = ThreadPoolExecutor(2, thread_name_prefix="a-client")
    clients = [Pausable(pool, asking) for _ in range(2)]
    assert not [t for t in threading.enumerate() if t.name.startswith("a-client")]
    for client in clients:
        client.dismiss()
        client.wait()
    pool.shutdown()


def test_a_client_that_is_dismissed_before_it_moves_does_nothing():
    """Its first move ends it."""
    ran = []
    with ThreadPoolExecutor(1) as pool:
        client = Pausable(pool, ran.append)
        client.dismiss()
        client.wait()
    assert not ran


def test_a_client_that_waits_for_a_sum_is_unwound():
    """Dismissed at its question, its thread is free for the next client."""
    with ThreadPoolExecutor(1) as pool:
        first = Pausable(pool, asking)
        assert first.resume() == Waiting("first")
        first.dismiss()
        first.wait()
        assert Pausable(pool, lambda _ask: 5).resume() == Finished(5)
