"""A client's own files are there before it relies on them, and refused where they are not its."""

import errno
import json
from dataclasses import replace

import pytest
import torch
from mutations import try_all
from torch import nn

from securefl.errors import PeerError, RunFolderError
from securefl.io.tensors import read_tensors
from securefl.network.store import MODELS, RUNS, SESSIONS, FileStore
from securefl.types import ClientState, Kind, State

JOB, SESSION, LATER = "ab" * 32, "cd" * 32, "ef" * 32
MODEL = nn.ModuleDict({"bn": nn.BatchNorm1d(2), "c": nn.Linear(2, 1)})
LIKE = State(0, {Kind.PARAMETERS: {"weight": torch.zeros(2)}})
KEPT = ClientState(
    own={"bn.weight": torch.tensor([1.0, 2.0])}, solver={"c/bn.weight": torch.ones(2)}
)


@pytest.fixture
def store(tmp_path):
    """Alice's, in her first session."""
    return FileStore(tmp_path, "alice", JOB, SESSION, MODEL, True, LIKE)


def claims_of(store):
    return store.folder / SESSIONS / f"{store.run}.json"


def kept(store, since):
    return store.of_rounds({store.client: since})[store.client]


def same(found, wanted):
    """Whether two states hold the same tensors."""
    return all(
        part.keys() == other.keys() and all(torch.equal(part[n], other[n]) for n in part)
        for part, other in ((found.own, wanted.own), (found.solver, wanted.solver))
    )


def files_of(store):
    return {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()}


def round_done(store, number, client_state=KEPT, since=None):
    """As a site does it."""
    store.of_rounds({store.client: number - 1 if since is None else since})
    store.claim("update", number)
    store.stage(number, {store.client: client_state})


def test_a_round_is_claimed_once_also_by_a_process_that_comes_later(store):
    """In its session; in a later one it is another run's."""
    store.claim("update", 3)
    for again in (store, replace(store)):
        for number in (3, 2, 1):
            with pytest.raises(PeerError, match=f"asks for the update of round {number} again"):
                again.claim("update", number)
    replace(store).claim("update", 4)
    store.claim("selection/loss", 4)
    with pytest.raises(PeerError, match="asks for the selection/loss of round 4 again"):
        store.claim("selection/loss", 4)
    replace(store, run=LATER).claim("update", 1)


def test_a_server_that_names_another_job_or_says_that_all_is_over_gets_no_round_again(store):
    """It chooses both; the session is in every seed of the client's draws."""
    store.claim("update", 3)
    store.forget()
    for again in (store, replace(store, job="01" * 32)):
        with pytest.raises(PeerError, match="asks for the update of round 3 again"):
            again.claim("update", 3)


def test_what_is_kept_goes_on_from_the_round_that_counted_last(store):
    """Also where later ones did not count, and in a later session."""
    round_done(store, 1, since=0)
    round_done(store, 2, ClientState(own={"bn.weight": torch.zeros(2)}), since=1)
    assert same(kept(store, 1), KEPT)
    round_done(store, 3, ClientState(), since=1)
    assert same(kept(replace(store, run=LATER), 1), KEPT)
    assert same(kept(store, 0), ClientState())


def test_a_round_that_is_repeated_takes_the_place_of_what_it_was(store):
    """A server that asks for it again has noted nothing of it."""
    round_done(store, 1, since=0)
    again = replace(store, run=LATER)
    round_done(again, 1, ClientState(own={"bn.weight": torch.zeros(2)}), since=0)
    assert same(kept(again, 1), ClientState(own={"bn.weight": torch.zeros(2)}))


def test_nothing_is_left_that_no_round_can_go_on_from(store):
    """Of rounds before, and of a process that was killed while it wrote."""
    for number in range(1, 6):
        round_done(store, number)
        (store.path / ".4.safetensors.0011.partial").write_bytes(b"half a fi")
    round_done(store, 6)
    assert {path.name for path in store.path.iterdir()} == {
        "5.safetensors",
        "6.safetensors",
    }
    store.forget()
    assert list((store.folder / RUNS).iterdir()) == []


def test_a_clients_own_part_of_the_model_outlives_the_run(store):
    """That of the last round that counted; in a later session that of the last round at all."""
    last = ClientState(own={"bn.weight": torch.zeros(2)}, solver={"c/bn.weight": torch.ones(2)})
    round_done(store, 1, since=0)
    round_done(store, 2, last)
    store.keep(2, ["alice"])
    path = store.forget()
    assert path == store.folder / MODELS / f"{JOB}.safetensors"
    assert path.stat().st_mode & 0o777 == 0o600
    found = read_tensors(path)
    assert list(found) == ["bn.weight"]
    assert torch.equal(found["bn.weight"], torch.zeros(2))
    assert list((store.folder / RUNS).iterdir()) == []
    round_done(store, 3, since=0)
    assert torch.equal(read_tensors(replace(store).forget())["bn.weight"], KEPT.own["bn.weight"])


def test_a_client_with_the_global_model_keeps_nothing_of_it(store):
    round_done(store, 1, ClientState(solver={"c/bn.weight": torch.ones(2)}), since=0)
    store.keep(1, ["alice"])
    assert store.forget() is None
    assert not (store.folder / MODELS).exists()


def test_nobody_else_may_read_what_a_client_keeps(store):
    round_done(store, 1, since=0)
    assert store.path.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in store.path.iterdir()} == {0o600}


def test_what_is_lost_is_not_begun_anew_in_silence(store):
    round_done(store, 1, since=0)
    (store.path / "1.safetensors").unlink()
    with pytest.raises(RunFolderError, match=r"holds nothing of round 1.*put the folder back"):
        kept(store, 1)


@pytest.mark.parametrize("client_state", [KEPT, ClientState()], ids=["something", "nothing"])
def test_a_file_of_another_client_is_refused(store, client_state):
    """Also where neither keeps anything."""
    bob = replace(store, client="bob")
    round_done(bob, 1, client_state, since=0)
    with pytest.raises(RunFolderError, match=r"is of another client.*put alice's own back"):
        kept(store, 1)


def test_a_file_of_another_round_is_refused(store):
    round_done(store, 1, since=0)
    (store.path / "1.safetensors").rename(store.path / "2.safetensors")
    with pytest.raises(RunFolderError, match="of another round"):
        kept(store, 2)


def test_no_damaged_file_is_gone_on_from(store):
    round_done(store, 1, since=0)
    path = store.path / "1.safetensors"
    content = path.read_bytes()

    def read(changed):
        path.write_bytes(changed)
        return kept(store, 1)

    for _, found in try_all(content, read, RunFolderError, n=300):
        assert same(found, KEPT)


DAMAGED = [b"", b"{", b"[]", b'{"update": "3"}', b'{"update": 0}', b'{"update": 1.5}', b"\xff"]
DAMAGED += [b'{"update": 99999999999}', b"[" * 5000, b" " * 10**6]


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: repr(content[:20]))
def test_where_nobody_knows_what_was_taken_part_in_nothing_more_is(store, content):
    store.claim("update", 3)
    claims_of(store).write_bytes(content)
    with pytest.raises(RunFolderError, match="a round could be taken part in twice"):
        store.claim("update", 4)
    replace(store, run=LATER).claim("update", 4)


WRITES = {
    "claim": lambda store: store.claim("update", 2),
    "stage": lambda store: store.stage(2, {"alice": KEPT}),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_full_disk_ends_the_round_in_words_and_leaves_what_was(store, monkeypatch, write):
    round_done(store, 1, since=0)
    before = files_of(store)

    def no_space(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", no_space)
        with pytest.raises(RunFolderError, match=r"be written \(No space left.*free some space"):
            write(store)
    assert files_of(store) == before
    round_done(store, 2)
    assert same(kept(store, 2), KEPT)


def test_a_claim_is_on_the_disk_before_it_is_relied_on(store, monkeypatch):
    """Its name, too."""
    settled = []
    monkeypatch.setattr("securefl.io.files.settle", settled.append)
    store.claim("update", 1)
    assert store.folder / SESSIONS in settled
    assert json.loads(claims_of(store).read_text()) == {"update": 1}
