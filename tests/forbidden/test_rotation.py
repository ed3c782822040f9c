"""Epochs: new keys in the place of the old, in one step, and no job lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from consortium_files import CLIENTS, PASSPHRASE, CrashError, cut_off_rotation, joined
from key_folders import load_client

import securefl
from securefl.crypto.params import SUMS
from securefl.errors import (
    CertificateRevoked,
    KeyFileError,
    KeyMismatch,
    MessageRefused,
    SenderRevoked,
    UnknownClient,
    WrongPassphrase,
)
from securefl.exchange.policy import OpeningRule, Policy
from securefl.exchange.sums import Sender
from securefl_keys import layout, rotation
from securefl_keys.authority_keys import FolderKeeper, load_all
from securefl_keys.bundle import VerifiedBundle
from securefl_keys.consortium import init_folder
from securefl_keys.export import export
from securefl_keys.identity import load_identities
from securefl_keys.policy import load_policy
from securefl_keys.roster import load_roster
from securefl_keys.rotation import rotate, sign_policy
from securefl_keys.verification import describe, verify

pytestmark = pytest.mark.usefixtures("cheap_guesses", "quick")
RUN = "ab" * 32


def key_ids(folder):
    """Key ids that are in force there, by file."""
    return {
        str(entry.path): entry.facts.key_id for entry in describe(folder) if entry.pair == "cards"
    }


def sound(folder):
    """Nothing is wrong with it, and its secrets are of its public keys."""
    assert verify(folder).problems == ()
    assert load_all(folder, PASSPHRASE).public.key_id == load_client(folder).key_id
    return True


def test_all_keys_change_and_only_they(keys):
    """Another pair of the next epoch; one more in each rotation."""
    for epoch in (2, 3):
        ids = key_ids(keys)
        made = rotate(keys, PASSPHRASE)
        after = load_all(keys, PASSPHRASE)
        assert made.card.epoch == after.public.epoch == epoch
        assert not set(ids.values()) & set(key_ids(keys).values())
        assert sound(keys)


def test_the_old_secret_is_gone(keys):
    """No file holds what it was sealed in."""
    sealed = json.loads((keys / layout.AUTHORITY_KEY).read_text())["ciphertext"]
    rotate(keys, PASSPHRASE)
    for path in keys.rglob("*"):
        if path.is_file():
            assert sealed not in path.read_text()


def test_roster_and_policy_go_along(consortium):
    """Signed for the new epoch, the roster as the next version; members and rules as they were."""
    roster, policy = load_roster(consortium.keys), load_policy(consortium.keys)
    rotate(consortium.keys, PASSPHRASE)
    after = load_roster(consortium.keys)
    assert (after.file.epoch, after.file.version) == (2, roster.file.version + 1)
    assert after.file.certificates == roster.file.certificates
    assert load_policy(consortium.keys).epoch == 2
    assert load_policy(consortium.keys).policy() == policy.policy()
    assert sound(consortium.keys)


def test_revoking_rotates(consortium):
    """In one step: the member is out, and what it knew opens nothing any more."""
    old = load_client(consortium.keys)
    rotate(consortium.keys, PASSPHRASE, revoking="bob")
    roster = load_roster(consortium.keys)
    assert "bob" not in roster.members
    (entry,) = roster.file.revoked
    assert (entry.name, entry.role, entry.epoch) == ("bob", "client", 1)
    assert load_client(consortium.keys).key_id != old.key_id
    assert sound(consortium.keys)
    with pytest.raises(CertificateRevoked):
        rotate(consortium.keys, PASSPHRASE, revoking="bob")
    with pytest.raises(UnknownClient):
        rotate(consortium.keys, PASSPHRASE, revoking="mallory")
    assert load_roster(consortium.keys).file.epoch == 2


def test_nobody_can_be_revoked_where_nobody_is_listed(keys):
    """A folder without a consortium says so, and keeps its keys."""
    ids = key_ids(keys)
    with pytest.raises(KeyFileError, match="no consortium"):
        rotate(keys, PASSPHRASE, revoking="alice")
    assert key_ids(keys) == ids


def test_another_passphrase_changes_nothing(consortium):
    """Byte for byte."""
    before = {p: p.read_bytes() for p in consortium.keys.rglob("*") if p.is_file()}
    with pytest.raises(WrongPassphrase):
        rotate(consortium.keys, "another")
    after = {
        p: p.read_bytes() for p in consortium.keys.rglob("*") if p.is_file() and p.stat().st_size
    }
    assert after == {p: content for p, content in before.items() if content}


def test_a_full_disk_leaves_the_old_keys(consortium, monkeypatch):
    """Wherever the writing stops."""
    ids, write = key_ids(consortium.keys), rotation.write_all

    def write_some(directory, secret, public):
        write(directory, secret, {})
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rotation, "write_all", write_some)
    with pytest.raises(KeyFileError, match=r"No space left.*old keys are still in force"):
        rotate(consortium.keys, PASSPHRASE)
    assert key_ids(consortium.keys) == ids
    assert sound(consortium.keys)


@pytest.mark.parametrize("n_moved", range(6))
def test_a_rotation_that_was_cut_off_is_finished(consortium, monkeypatch, n_moved):
    """After so many of the new files are in place: whoever opens the folder next finds all."""
    moved, replace = [], Path.replace

    def replace_some(self, target):
        if ".next" in self.parts:
            if len(moved) == n_moved:
                raise CrashError
            moved.append(self.name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replace_some)
    with pytest.raises(CrashError):
        rotate(consortium.keys, PASSPHRASE, revoking="alice")
    monkeypatch.undo()
    assert load_all(consortium.keys, PASSPHRASE).public.epoch == 2
    assert "alice" not in load_roster(consortium.keys).members
    assert not (consortium.keys / ".next").exists()
    assert sound(consortium.keys)


@pytest.mark.parametrize("path", [layout.ROSTER, layout.POLICY], ids=str)
def test_a_file_of_an_older_epoch_is_found(consortium, path):
    """Genuine, and from before a revocation: nothing is opened, signed or exported with it."""
    older = (consortium.keys / path).read_bytes()
    rotate(consortium.keys, PASSPHRASE, revoking="bob")
    (consortium.keys / path).write_bytes(older)
    (consortium.keys / path).chmod(0o600)
    assert any(
        "of epoch 1, and others are of 2" in text for text in verify(consortium.keys).problems
    )
    for use in (
        lambda: load_all(consortium.keys, PASSPHRASE),
        lambda: export(consortium.keys, "client", consortium.root / "new", PASSPHRASE),
        lambda: joined(consortium.keys, consortium.root, "dora", "of dora"),
        lambda: rotate(consortium.keys, PASSPHRASE),
    ):
        with pytest.raises(KeyFileError):
            use()
    assert not (consortium.root / "new").exists()


def test_an_authority_that_runs_does_not_go_back(consortium):
    """All files of an epoch before, put back whole, the secret keys included."""
    before = shutil.copytree(consortium.keys, consortium.root / "backup")
    keeper = FolderKeeper(consortium.keys, PASSPHRASE)
    rotate(consortium.keys, PASSPHRASE, revoking="bob")
    assert keeper.now().age[0] == 2
    shutil.rmtree(consortium.keys)
    shutil.copytree(before, consortium.keys)
    with pytest.raises(KeyFileError, match=r"was in\s+force already"):
        keeper.now()


def taken(keeper):
    """Clients of a run whose cards the authority has."""
    lacking = keeper.now().opener.without_card(RUN, CLIENTS)
    return [name for name in CLIENTS if name not in lacking]


def test_cards_are_kept_as_long_as_their_key_is_in_force(consortium):
    """Through another roster and another policy; nobody's card opens in the next epoch."""
    keeper = FolderKeeper(consortium.keys, PASSPHRASE)
    opener, old = keeper.now().opener, load_client(consortium.keys)
    opener.take_cards(RUN, "alice", old.cards(RUN, Sender("alice", bytes(32))))
    joined(consortium.keys, consortium.root, "dora", "of dora")
    assert "dora" in keeper.now().trust.clients().names
    assert taken(keeper) == ["alice"]
    sign_policy(consortium.keys, Policy(min_contributions=4), PASSPHRASE)
    assert keeper.now().policy.min_contributions == 4
    assert keeper.now().opener is opener
    assert taken(keeper) == ["alice"]
    rotate(consortium.keys, PASSPHRASE)
    assert taken(keeper) == []
    assert keeper.now().opener.epoch == 2
    with pytest.raises(MessageRefused, match="does not open"):
        keeper.now().opener.take_cards(RUN, "bob", old.cards(RUN, Sender("bob", bytes(32))))


def test_what_a_killed_process_has_left_is_swept_up(consortium):
    """It was never in force."""
    left = consortium.keys / "..next.0123456789abcdef"
    shutil.copytree(consortium.keys / "authority", left / "authority")
    assert load_all(consortium.keys, PASSPHRASE).public.epoch == 1
    assert not left.exists()
    assert sound(consortium.keys)


def test_what_was_sealed_before_is_refused_by_its_key(consortium, federate):
    """By the server and by the authority, also where somebody writes the new epoch on it."""
    old = federate(load_all(consortium.keys, PASSPHRASE))
    rotate(consortium.keys, PASSPHRASE)
    new = federate(load_all(consortium.keys, PASSPHRASE))
    new.server.roster = new.authority.roster = old.roster
    message = old.message("client-1")
    with pytest.raises(KeyMismatch, match=r"epoch 1, this run's key is .* of epoch 2"):
        new.server.start(1, new.spec).receive(message)
    with pytest.raises(KeyMismatch, match="epoch 1; the authority opens"):
        new.authority.open(old.collect().request())


def test_a_revoked_client_is_named_as_such(consortium, federate):
    """By the roster that the authority checks signatures with."""
    federation = federate(load_all(consortium.keys, PASSPHRASE))
    rotate(consortium.keys, PASSPHRASE, revoking="bob")
    federation.clients["bob"] = federation.clients["client-1"]
    message = federation.signed("bob", bytes(SUMS.ciphertext_bytes))
    federation.server.roster = load_roster(consortium.keys).identities()
    with pytest.raises(SenderRevoked):
        federation.server.start(1, federation.spec).receive(message)


def test_a_bundle_of_an_older_epoch_is_no_news(consortium):
    """A process that has the new one does not go back."""
    export(consortium.keys, "client", consortium.root / "old", PASSPHRASE)
    rotate(consortium.keys, PASSPHRASE)
    export(consortium.keys, "client", consortium.root / "new", PASSPHRASE)
    old, new = (VerifiedBundle.load(consortium.root / name, "client") for name in ("old", "new"))
    files = {str(path): text for path, text in old.bundle.texts.items()}
    with pytest.raises(KeyFileError, match="older"):
        new.newer(json.dumps(files))
    newer = {str(path): text for path, text in new.bundle.texts.items()}
    assert old.newer(json.dumps(newer)).card_keys.epoch == 2


def test_files_of_two_epochs_are_no_bundle(consortium):
    """Each is genuine and signed."""
    export(consortium.keys, "client", consortium.root / "old", PASSPHRASE)
    rotate(consortium.keys, PASSPHRASE)
    export(consortium.keys, "client", consortium.root / "new", PASSPHRASE)
    for path in (layout.ROSTER, layout.POLICY, layout.CLIENT_KEY):
        mixed = shutil.copytree(consortium.root / "new", consortium.root / f"mixed-{path.name}")
        shutil.copy(consortium.root / "old" / path, mixed / path)
        with pytest.raises(KeyFileError):
            VerifiedBundle.load(mixed, "client")


def federation_of(consortium):
    """Settings and what a simulation takes besides, of the consortium's clients."""
    config = securefl.load_config(
        settings=[
            "run.rounds=4",
            "algorithm.local_steps=2",
            "data.clients=3",
            "data.partition=classes:4",
            f"data.names={json.dumps(list(CLIENTS), ensure_ascii=False)}",
        ]
    )
    return config, lambda: {"keys": load_all(consortium.keys, PASSPHRASE)}


def openings(folder):
    return [json.loads(line) for line in (folder / "openings.jsonl").read_text().splitlines()]


def assert_same_model(one, other):
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[name], rtol=0, atol=1e-6)


def test_a_run_that_stops_goes_on_in_the_next_epoch(consortium, tmp_path):
    """Nothing of the rounds before is lost, and the log names both keys."""
    config, held = federation_of(consortium)
    whole = securefl.run(config, **held(), out=tmp_path / "whole")

    def stop(metrics):
        if metrics.round == 2:
            raise CrashError

    with pytest.raises(CrashError):
        securefl.run(config, **held(), out=tmp_path / "halves", on_round=stop)
    rotate(consortium.keys, PASSPHRASE)
    resumed = securefl.resume(tmp_path / "halves", **held())
    assert_same_model(resumed.model, whole.model)
    log = openings(tmp_path / "halves")
    assert {row["epoch"] for row in log if row["round"] <= 2} == {1}
    assert {row["epoch"] for row in log if row["round"] > 2} == {2}
    assert [row["name"] for row in log] == [row["name"] for row in openings(tmp_path / "whole")]


def test_a_run_that_holds_the_old_keys_finishes_with_them(consortium, tmp_path):
    """Somebody else rotates the folder meanwhile."""
    config, held = federation_of(consortium)
    whole = securefl.run(config, **held())
    ran = securefl.run(
        config, **held(), on_round=lambda metrics: metrics.round == 2 and rotate_now(consortium)
    )
    assert_same_model(ran.model, whole.model)
    assert {opening.epoch for opening in ran.openings} == {1}


def rotate_now(consortium):
    rotate(consortium.keys, PASSPHRASE)


def test_a_policy_of_a_consortium_is_enforced_in_a_run(consortium):
    """Its least number of contributions, whatever the settings say."""
    config, held = federation_of(consortium)
    rules = (OpeningRule("*"),)
    sign_policy(consortium.keys, Policy(min_contributions=4, rules=rules), PASSPHRASE)
    with pytest.raises(securefl.SecureFLError, match="at least 4"):
        securefl.run(config, **held())
    sign_policy(consortium.keys, Policy(rules=(OpeningRule("update/*"),)), PASSPHRASE)
    with pytest.raises(securefl.SecureFLError, match="opens no '1/mean'"):
        securefl.run(config, **held())
    sign_policy(consortium.keys, Policy(openings_per_run=5, rules=rules), PASSPHRASE)
    with pytest.raises(securefl.SecureFLError, match="opens 5 totals in a run"):
        securefl.run(config, **held())


def test_clients_sign_with_their_own_identities(consortium):
    """As the roster lists them; whoever was revoked meanwhile is out."""
    config, held = federation_of(consortium)
    folders = [consortium.root / name for name in CLIENTS]
    for folder in folders:  # all under one passphrase, for a simulation
        shutil.rmtree(folder)
    identities = joined_again(consortium)
    ran = securefl.run(config, **held(), identities=identities)
    assert {signer for opening in ran.openings for signer in opening.signers} == set(CLIENTS)
    keys = dict(identities.keys)
    keys["bob"], keys["alice"] = keys["alice"], keys["bob"]
    with pytest.raises(securefl.SecureFLError, match=r"2 contributions|not signed|1 contributions"):
        securefl.run(config, **held(), identities=type(identities)(keys, identities.roster))
    with pytest.raises(securefl.SecureFLError, match=r"data\.names"):
        securefl.run(securefl.load_config(), identities=identities)


def joined_again(consortium):
    for name in CLIENTS:
        rotate(consortium.keys, PASSPHRASE, revoking=name)
        joined(consortium.keys, consortium.root, name, PASSPHRASE)
    folders = [consortium.root / name for name in CLIENTS]
    return load_identities(consortium.keys, folders, PASSPHRASE)


def test_who_is_revoked_between_two_parts_of_a_run_is_out_of_the_second(tmp_path):
    """Its contributions are refused, round for round, and the others finish."""
    names, keys = ("alice", "bob", "carol", "dora"), tmp_path / "keys"
    init_folder(keys, PASSPHRASE, consortium="Nord")
    for name in names:
        joined(keys, tmp_path, name, PASSPHRASE)
    config = securefl.load_config(
        settings=[
            "run.rounds=4",
            "algorithm.local_steps=2",
            "data.clients=4",
            "data.partition=classes:4",
            f"data.names={json.dumps(names)}",
        ]
    )

    def held():
        folders = [tmp_path / name for name in names]
        identities = load_identities(keys, folders, PASSPHRASE)
        return {"keys": load_all(keys, PASSPHRASE), "identities": identities}

    def stop(metrics):
        if metrics.round == 2:
            raise CrashError

    with pytest.raises(CrashError):
        securefl.run(config, **held(), out=tmp_path / "run", on_round=stop)
    rotate(keys, PASSPHRASE, revoking="bob")
    securefl.resume(tmp_path / "run", **held())
    signers = {(row["round"] > 2): row["signers"] for row in openings(tmp_path / "run")}
    assert signers == {False: list(names), True: ["alice", "carol", "dora"]}
    log = (tmp_path / "run/incidents.jsonl").read_text().splitlines()
    incidents = [json.loads(line) for line in log]
    assert {(row["round"], row["client"]) for row in incidents} == {(3, "bob"), (4, "bob")}
    assert all("revoked" in row["reason"] for row in incidents)


def test_a_bundle_without_its_list_is_no_key_folder(consortium):
    """Else a foreign key in it would pass for the consortium's."""
    export(consortium.keys, "client", consortium.root / "new", PASSPHRASE)
    (consortium.root / "new" / layout.MANIFEST).unlink()
    (problem,) = verify(consortium.root / "new").problems
    assert "signed list" in problem


def test_what_is_sealed_is_looked_into_with_the_passphrase_alone(consortium):
    """One character of a ciphertext."""
    path = consortium.keys / layout.AUTHORITY_KEY
    fields = json.loads(path.read_text())
    first = "B" if fields["ciphertext"][0] == "A" else "A"
    path.write_text(json.dumps(fields | {"ciphertext": first + fields["ciphertext"][1:]}, indent=1))
    assert verify(consortium.keys).problems == ()
    (problem,) = verify(consortium.keys, passphrase=PASSPHRASE).problems
    assert "does not open" in problem


@pytest.mark.parametrize(
    "use",
    [
        lambda made: export(made.keys, "client", made.root / "new", PASSPHRASE).epoch,
        lambda made: sign_policy(made.keys, Policy(), PASSPHRASE).epoch,
        lambda made: joined(made.keys, made.root, "dora", "x") and load_client(made.keys).epoch,
    ],
    ids=["export", "sign", "approve"],
)
def test_whoever_comes_after_a_crash_finds_the_next_epoch(consortium, use):
    """All that opens or signs finishes what was ready."""
    cut_off_rotation(consortium.keys)
    assert load_client(consortium.keys).epoch == 1
    assert use(consortium) == 2
