"""A match key releases so many scores in its life, whatever happens to its process or file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from filelock import FileLock
from key_folders import rewritten
from securefl.crypto.match_secret import MatchSecretKey
from securefl.exchange.match_ckks import CkksMatcher, CkksProfileSealer
from securefl.exchange.match_forms import LINEAR
from securefl.exchange.match_open import CkksScoreOpener, MatchKeys

from securefl.errors import KeyFileError, KeyWornOut
from securefl.exchange.profile import Profile
from securefl_keys import key_files, releases
from securefl_keys.releases import FileCount, ReleasesFile, lock_of

KEY_ID = "ab" * 32
MOST = 4096
SPENDS_ONE_BY_ONE = """
import sys; from pathlib import Path
from securefl.errors import KeyWornOut; from securefl_keys.releases import FileCount
path, key_id, n, at_most = sys.argv[1:]
count, spent = FileCount(Path(path), key_id), 0
try:
    for _ in range(int(n)): count.spend(1, int(at_most)); spent += 1
except KeyWornOut: pass
print(spent)
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / f"{KEY_ID}.json"
    path.write_text(ReleasesFile.stating(KEY_ID, 0))
    return path


def count_at(path):
    return FileCount(path, KEY_ID)


def test_a_count_outlives_its_process(path):
    """Who opens the file next goes on where the last one stopped."""
    count_at(path).spend(5, MOST)
    count_at(path).spend(2, MOST)
    assert count_at(path).n_released == 7
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_more_is_spent_than_there_is(path):
    """What is refused is not counted; the last release is."""
    count = count_at(path)
    count.spend(MOST - 1, MOST)
    with pytest.raises(KeyWornOut, match="securefl keys rotate"):
        count.spend(2, MOST)
    count.spend(1, MOST)
    assert count.n_released == MOST
    with pytest.raises(KeyWornOut):
        count_at(path).spend(1, MOST)
    with pytest.raises(ValueError, match="only grows"):
        count.spend(-1, MOST)


def test_processes_that_spend_at_once_spend_no_more_together(path):
    """Of three that ask for 20 each with 30 left, 30 are granted in all."""
    path.write_text(ReleasesFile.stating(KEY_ID, MOST - 30))
    command = [
        sys.executable,
        "-c",
        SPENDS_ONE_BY_ONE,
        str(path),
        KEY_ID,
        "20",
        str(MOST),
    ]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert sum(int(process.communicate()[0]) for process in running) == 30
    assert count_at(path).n_released == MOST


def test_threads_that_spend_at_once_lose_no_count(path):
    """Each with a counter of its own, all of one file."""
    start = threading.Barrier(4)

    def spend():
        count = count_at(path)
        start.wait()
        for _ in range(10):
            count.spend(1, MOST)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(spend) for _ in range(4)]:
            done.result()
    assert count_at(path).n_released == 40


def test_nobody_spends_while_another_process_counts(path, monkeypatch):
    """One that never lets go is told of, and nothing is spent."""
    monkeypatch.setattr(releases, "LOCK_TIMEOUT_S", 0.05)
    count = count_at(path)
    with FileLock(lock_of(path)), pytest.raises(KeyFileError, match="another process"):
        count.spend(1, MOST)
    assert count.n_released == 0


def test_a_deleted_count_is_no_fresh_one(path):
    """Neither for the process at work nor for the next; the way out is a new key, not a copy."""
    count = count_at(path)
    path.unlink()
    for use in (lambda: count.spend(1, MOST), lambda: count.n_released, lambda: count_at(path)):
        with pytest.raises(KeyFileError, match=f"{path}: missing.*make a new key"):
            use()
    assert not path.exists()


def test_a_count_put_back_is_noticed_while_the_process_lives(path):
    """An older copy of the file opens nothing for who has seen a newer one."""
    before = path.read_text()
    count = count_at(path)
    count.spend(3, MOST)
    path.write_text(before)
    with pytest.raises(KeyFileError, match="counts 0 releases, and has counted 3 before"):
        count.spend(1, MOST)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_released", "0"),
        ("n_released", "-1"),
        ("n_released", str(2**62 + 1)),
        ("n_released", '"5"'),
        ("n_released", "5.0"),
        ("n_released", "1" + "0" * 5000),
        ("key_id", f'"{"cd" * 32}"'),
        ("key_id", f'"{KEY_ID[:-1]}"'),
        ("format", '"securefl-releases/3"'),
        ("purpose", '"sums"'),
        ("sha256", f'"{"0" * 64}"'),
        ("more", "1"),
    ],
    ids=lambda text: text[:12],
)
def test_a_changed_count_is_refused(path, field, value):
    """No field can be another one, and no refusal repeats what is in the file at length."""
    count_at(path).spend(5, MOST)
    text = json.dumps(json.loads(path.read_text()) | {field: None})
    path.write_text(text.replace(f'"{field}": null', f'"{field}": {value}'))
    with pytest.raises(KeyFileError, match="make a new key") as refusal:
        count_at(path)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 10_000, b" " * (5 << 20)])
def test_what_is_no_count_is_refused(path, content):
    """Rubbish is neither zero nor a crash."""
    path.write_bytes(content)
    with pytest.raises(KeyFileError, match="make a new key"):
        count_at(path)


def test_a_count_of_another_key_is_refused(path):
    """A fresh count of a fresh key does not refill an old one."""
    with pytest.raises(KeyFileError, match=r"counts for key abab.*not for cdcd"):
        FileCount(path, "cd" * 32)


def test_a_count_of_sums_is_none(path):
    """Older releases counted those too: it refills no match key, though its digest is right."""
    path.write_text(rewritten(path, purpose="sums"))
    with pytest.raises(KeyFileError, match="no count of releases"):
        count_at(path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_count_that_cannot_be_written_grants_nothing(path, monkeypatch, call):
    """A full disk leaves the old count, whole, and nothing beside it."""
    count = count_at(path)
    count.spend(4, MOST)

    def full(*_):
        raise OSError(28, "No space left")

    monkeypatch.setattr(*((os, call) if call == "fsync" else (key_files.Path, call)), full)
    with pytest.raises(KeyFileError, match=r"cannot be written \(No space left\), so nothing is"):
        count.spend(1, MOST)
    monkeypatch.undo()
    assert count_at(path).n_released == 4
    assert {file.name for file in path.parent.iterdir()} <= {path.name, lock_of(path).name}


def test_what_a_killed_process_left_half_written_is_in_nobodys_way(path):
    """Its partial file is no count, and goes with the next one that is written."""
    partial = path.with_name(f".{path.name}.{16 * '0'}.partial")
    partial.write_text('{"format"')
    count_at(path).spend(1, MOST)
    assert not partial.exists()
    assert count_at(path).n_released == 1


def test_a_process_killed_before_it_releases_has_spent(path):
    """Between the count and the release there may be a crash: the count is first."""
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from securefl.crypto.match_secret import MatchSecretKey\n"
        "from securefl.exchange.match_forms import LINEAR\n"
        "from securefl.exchange.match_open import CkksScoreOpener\n"
        "from securefl_keys.releases import FileCount\n"
        "MatchSecretKey.score = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "count = FileCount(Path(sys.argv[1]), sys.argv[2])\n"
        "opener = CkksScoreOpener(LINEAR, MatchSecretKey.generate(), count)\n"
        "print(opener.open([b'score'] * 3))\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, str(path), KEY_ID], capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stdout == b""
    assert count_at(path).n_released == 3


def test_without_its_count_a_key_opens_nothing(path, monkeypatch):
    """The opener spends of the file before it decrypts."""
    keys = MatchKeys.ephemeral(LINEAR)
    path.write_text(ReleasesFile.stating(keys.secret.key_id, 0))
    opener = CkksScoreOpener(LINEAR, keys.secret, FileCount(path, keys.secret.key_id))
    ones = torch.ones(4).double()
    profile = Profile(ones, ones, 0)
    payload = CkksProfileSealer(LINEAR, keys.public).seal(profile)
    score = CkksMatcher(LINEAR, keys.scoring).match(payload, profile)
    opened, none = opener.open([score, b"rubbish"])
    assert none is None
    np.testing.assert_allclose(opened, 0, atol=1e-4)
    assert opener.count.n_released == 2
    path.unlink()
    monkeypatch.setattr(MatchSecretKey, "score", lambda *_: pytest.fail("decrypted"))
    with pytest.raises(KeyFileError):
        opener.open([score])
