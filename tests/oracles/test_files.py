"""What is written is on the disk before anything relies on it, whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Thread

import pytest

from securefl.errors import KeyFileError, RunFolderError
from securefl.federation.opening import Opening
from securefl.federation.total import Terms
from securefl.io import files
from securefl.io.files import append_whole, read_bounded, read_lines, write_new, write_whole
from securefl.network.authority import RELEASES, AuthorityLog
from securefl.privacy.history import History
from securefl.runs import folder_writer as runfolder
from securefl.runs.folder_reader import read_config
from securefl.runs.folder_writer import RunFolder
from securefl.settings.load import load_config
from securefl_keys import key_files

HANDLES = Path("/proc/self/fd")
OPENING = Opening(1, "update/parameters", 10, ("client-1",), 3)


@pytest.fixture
def disk(monkeypatch):
    """What is put on the disk, in its order: files by name, folders as `folder`, and moves."""
    seen, replace = [], files.Path.replace

    def fsync(handle):
        is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        name = (HANDLES / str(handle)).readlink().name
        seen.append("folder" if is_folder else name.lstrip(".").split(".")[0])

    def noted(path, target):
        seen.append("move")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(files.Path, "replace", noted)
    return seen


REPLACING = {
    "a file": lambda folder: lambda: write_whole(folder / "count.json", b"new"),
    "a key's": lambda folder: lambda: key_files.replace(folder / "count.json", "new", 0o600),
    "a history": lambda folder: lambda: RunFolder(folder).note_history(History()),
    "a model": lambda folder: lambda: RunFolder(folder).note_model({}),
}
ROUNDS = count(1)
APPENDING = {
    "a log": lambda folder: append_whole(folder / "openings.jsonl", b"{}\n"),
    "a run's opening": lambda folder: RunFolder(folder).note_opening(OPENING),
    "an authority's opening": lambda folder: AuthorityLog(folder, "").note(OPENING),
    "an asked total": lambda folder: AuthorityLog(folder, "").history.claim(
        ("ab", next(ROUNDS), "x")
    ),
    "a released total": lambda folder: AuthorityLog(folder, "").history.release(
        ("ab", 1, "x"), {"alice": Terms()}
    ),
}


@pytest.mark.skipif(not HANDLES.is_dir(), reason="names of open files")
@pytest.mark.parametrize("kind", REPLACING)
def test_a_replaced_file_is_on_the_disk_before_its_name_and_its_folder_after(tmp_path, disk, kind):
    """A power cut leaves the old content or the new one."""
    write = REPLACING[kind](tmp_path)
    disk.clear()
    write()
    name, *then = disk
    assert name in {"count", "privacy", "model"}
    assert then == ["move", "folder"]


@pytest.mark.skipif(not HANDLES.is_dir(), reason="names of open files")
@pytest.mark.parametrize("kind", APPENDING)
def test_a_line_is_on_the_disk_before_anything_is_released(tmp_path, disk, kind):
    """And so is the name of a new log."""
    APPENDING[kind](tmp_path)
    assert disk[0] in {"openings", "released"}
    assert disk[1:] == ["folder"]
    APPENDING[kind](tmp_path)
    assert disk[2:] == disk[:1]


def made_whole(folder):
    with key_files.appearing_whole(folder):
        pass


MAKING = {
    "an authority's log": lambda folder: AuthorityLog(folder, ""),
    "a run's folder": lambda folder: RunFolder.create(folder, load_config()),
    "a key folder": made_whole,
}


@pytest.mark.skipif(not HANDLES.is_dir(), reason="names of open files")
@pytest.mark.parametrize("kind", MAKING)
def test_each_folder_that_is_made_is_on_the_disk_in_its_parent(tmp_path, monkeypatch, kind):
    """A power cut would take what lies in it with it."""
    seen = []

    def settle(folder):
        seen.append((folder, sorted(path.name for path in folder.iterdir())))

    monkeypatch.setattr(files, "settle", settle)
    MAKING[kind](tmp_path / "a/b/c")
    assert seen[:2] == [(tmp_path, ["a"]), (tmp_path / "a", ["b"])]
    assert seen[2][0] == tmp_path / "a/b"
    assert (tmp_path / "a/b", ["c"]) in seen
    del seen[:]
    with suppress(RunFolderError):
        MAKING["an authority's log"](tmp_path / "a/b/c")
    assert seen == []


OPENING_FILES = {
    "a line": lambda path: append_whole(path, b"{}\n"),
    "a new file": lambda path: write_new(path, b"{}\n"),
    "a replaced file": lambda path: write_whole(path, b"{}\n"),
    "a file that is read": lambda path: read_bounded(Path(__file__), 10**6),
    "a log that is read": lambda path: list(read_lines(Path(__file__))),
}


@pytest.mark.parametrize("kind", OPENING_FILES)
def test_a_file_is_opened_again_where_there_were_too_many(tmp_path, monkeypatch, kind):
    """Only so often, and not where there is another reason."""
    failing, pauses, opened = [errno.EMFILE, errno.ENFILE], [], os.open

    def scarce(*args):
        if failing:
            raise OSError(failing.pop(), "not now")
        return opened(*args)

    monkeypatch.setattr(os, "open", scarce)
    monkeypatch.setattr(files.time, "sleep", pauses.append)
    OPENING_FILES[kind](tmp_path / "first")
    assert pauses == [0.1, 1.0]
    for errors, n_pauses in (([errno.EACCES], 2), ([errno.EMFILE] * 9, 5)):
        failing[:] = errors
        with pytest.raises(OSError, match="not now"):
            OPENING_FILES[kind](tmp_path / "second")
        assert len(pauses) == n_pauses
    assert not (tmp_path / "second").exists()


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("write", [write_whole, append_whole])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, write):
    """Though it says so only once everything seemed to be written."""
    path = tmp_path / "log"
    path.write_bytes(b"old\n")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write(path, b"new\n")
    assert path.read_bytes() == b"old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_read_is_bounded(tmp_path, monkeypatch):
    """By its size, by the length of a line, and to regular files."""
    path = tmp_path / "log"
    path.write_bytes(b"12345\n678")
    assert read_bounded(path, 9) == b"12345\n678"
    assert list(read_lines(path)) == [b"12345"]
    with pytest.raises(OSError, match="9 bytes; such a file has at most 8"):
        read_bounded(path, 8)
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 4)
    with pytest.raises(OSError, match="a line of more than 4 bytes"):
        list(read_lines(path))
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(OSError, match="is no regular file"):
            read_bounded(other, 100)


def test_of_two_runs_that_begin_in_one_folder_one_does(tmp_path, monkeypatch):
    """The other is told, and what lies there is the first one's."""
    write, both, ended = runfolder.write_atomically, Barrier(2), []

    def meeting(path, content, mode=0o666):
        with suppress(BrokenBarrierError):
            both.wait(0.3)  # where both come so far, both write
        write(path, content, mode)

    def begin(seed):
        try:
            ended.append(
                RunFolder.create(tmp_path / "run", load_config(None, [f"run.seed={seed}"]))
            )
            begun.append(seed)
        except RunFolderError as error:
            ended.append(error)

    begun = []
    monkeypatch.setattr(runfolder, "write_atomically", meeting)
    threads = [Thread(target=begin, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (seed,) = begun
    assert read_config(tmp_path / "run").run.seed == seed
    (told,) = (str(end) for end in ended if isinstance(end, RunFolderError))
    assert "another process is at work" in told or "is not empty" in told


def test_a_folder_that_holds_something_is_left_as_it_is(tmp_path):
    """Not even a lock is laid there."""
    (tmp_path / "mine").write_text("")
    with pytest.raises(RunFolderError, match="is not empty"):
        RunFolder.create(tmp_path, load_config())
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "line", ["5", "null", '"abc"', "{}", "[1, 2, 3]", '["ab", 1, []]', "[" * 999]
)
def test_a_line_that_is_no_total_is_refused(tmp_path, line):
    """Whatever JSON it is."""
    (tmp_path / RELEASES).write_text(line + "\n")
    with pytest.raises(RunFolderError, match="opened twice"):
        AuthorityLog(tmp_path, "")


def test_a_key_file_is_bounded(tmp_path):
    """By the same reader as all others."""
    with (tmp_path / "key").open("wb") as file:
        file.truncate(key_files.MAX_FILE_BYTES + 1)
    with pytest.raises(KeyFileError, match="such a file has at most"):
        key_files.read(tmp_path / "key")
