"""Officers that were named since have no record of what was opened: clients seal nothing for them.

One total over all clients that old officers opened, and one over all but one that new ones would
open, show that client where it draws nothing.
"""

from __future__ import annotations

import secrets
import shutil

import pytest
import torch
from over_loopback import NAMES, Consortium, Job, OnTask

from securefl.errors import ConfigError, RunFolderError, SecureFLError
from securefl.exchange.card_keys import Quorum
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.policy import Policy
from securefl.federation.authority import CheckingOfficer
from securefl.federation.client import Client, Identities
from securefl.federation.message import Expected, split_message
from securefl.federation.officers import Officers, OfficersHere
from securefl.federation.opening_history import OpeningHistory
from securefl.federation.server import SumRequest
from securefl.federation.total import Terms
from securefl.network import sealed_for
from securefl.network.sealed_for import SealedFor
from securefl.types import Kind, MessageSpec
from securefl_keys.bundle import VerifiedBundle

pytestmark = pytest.mark.usefixtures("no_hang", "quick")

OLD, NEW = ("authority", "olga", "otto"), ("authority", "petra", "quinn")
ONE, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def record(tmp_path):
    """A record that is read anew each time, as by another process."""
    return lambda settings=ONE: SealedFor(tmp_path / "own", settings)


@pytest.mark.parametrize(
    ("what", "number", "model", "settings"),
    [
        ("update", 3, ONE, ONE),  # the round is repeated
        ("update", 3, OTHER, ONE),  # the round, at a model that differs in a last bit
        ("update", 9, ONE, ONE),  # the model, after rounds that passed
        ("update", 1, ONE, OTHER),  # the model, in another study
    ],
)
def test_what_was_sealed_for_others_is_sealed_for_nobody_else(
    record, what, number, model, settings
):
    record().require(OLD, "update", 3, ONE)
    record(settings).require(OLD, what, number, model)
    with pytest.raises(
        ConfigError, match=r"for authority, olga, otto, and now .* another run\.seed"
    ):
        record(settings).require(NEW, what, number, model)
    record(settings).require(OLD, what, number, model)


def test_another_round_at_another_model_and_another_question_are_sealed(record):
    """A run goes on under new officers: what it scored at this model is no part of its training."""
    record().require(OLD, "update", 3, ONE)
    record().require(OLD, "score/mean", 3, OTHER)
    record().require(NEW, "update", 4, OTHER)
    with pytest.raises(ConfigError):
        record().require(NEW, "score/mean", 3, OTHER)


def test_nothing_is_sealed_without_a_record(record, tmp_path, monkeypatch):
    """One that is damaged, or cannot be written."""

    def full(_path, _lines):
        raise OSError(28, "No space left on device")

    kept = record()
    with monkeypatch.context() as patch:
        patch.setattr(sealed_for, "append_whole", full)
        for _ in range(2):  # the same process, asked again
            with pytest.raises(RunFolderError, match="free some space"):
                kept.require(OLD, "update", 3, ONE)
    kept.require(OLD, "update", 3, ONE)
    with pytest.raises(ConfigError):
        record().require(NEW, "update", 3, ONE)
    (tmp_path / "own" / sealed_for.FILE).write_text("[]\n")
    kept = record()
    for _ in range(2):
        with pytest.raises(RunFolderError):
            kept.require(OLD, "update", 4, OTHER)


def test_a_line_that_a_power_cut_has_cut_off_does_not_spoil_the_next(record, tmp_path):
    record().require(OLD, "update", 3, ONE)
    with (tmp_path / "own" / sealed_for.FILE).open("ab") as file:
        file.write(b'[["authority"')
    record().require(OLD, "update", 4, OTHER)
    with pytest.raises(ConfigError):
        record().require(NEW, "update", 4, OTHER)
    with pytest.raises(ConfigError):
        record().require(NEW, "update", 3, ONE)


def test_the_record_is_one_line_for_each_round(record, tmp_path):
    kept = record()
    for number in (1, 2):
        for _ in range(3):
            kept.require(OLD, "update", number, f"{number:064x}")
    assert len((tmp_path / "own" / sealed_for.FILE).read_text().splitlines()) == 2


def test_a_run_that_is_begun_anew_under_others_is_refused_by_its_clients(tmp_path, monkeypatch):
    """Though whoever opens would open it: the record there is gone."""
    consortium = Consortium(tmp_path / "consortium")
    job = Job(consortium, tmp_path / "job", ("exchange.encrypt=model", "sites.scores=mean"))
    OnTask(job).run()
    shutil.rmtree(job.folder / "run")
    shutil.rmtree(job.folder / "authority")
    OnTask(job).run()
    shutil.rmtree(job.folder / "run")
    shutil.rmtree(job.folder / "authority")
    monkeypatch.setattr(VerifiedBundle, "officers", lambda _: NEW)
    loop = OnTask(job)
    with pytest.raises(SecureFLError):
        loop.run()
    ended = [loop.ended[name] for name in NAMES]  # who is asked first ends the run for the others
    assert all(isinstance(error, SecureFLError) for error in ended)
    refusing = [str(error) for error in ended if isinstance(error, ConfigError)]
    assert refusing
    assert all("this client has sealed at this model" in why for why in refusing)
    assert not job.openings.exists()


def test_without_the_record_new_officers_show_a_client():
    """So that the above is refused for what it would show: all of them are honest."""
    names = ["alice", "bob", "carol", "dora"]
    ids, spec = Identities.ephemeral(names), MessageSpec("update/parameters", Kind.PARAMETERS, 5)
    values = {n: torch.randn(5, dtype=torch.float64) for n in names}
    histories = {name: OpeningHistory("cc" * 32) for name in {*OLD, *NEW}}

    def total(keys, officers, signers):
        public, run = keys.public, secrets.token_hex(32)
        here = [
            CheckingOfficer(key, ids.roster, Policy(), lambda _: None, histories[name])
            for key, name in zip(keys.officers(), officers, strict=True)
        ]
        panel = Officers(public, OfficersHere(here), lambda _: None, lambda _: None)
        clients = {
            name: Client(
                name,
                0.25,
                dict.fromkeys(Kind, OneTimeSealer(public)),
                card_keys=public,
                signing_key=ids.keys[name],
            )
            for name in names
        }
        panel.take_cards(run, {name: c.send_cards(run) for name, c in clients.items()})
        adder = OneTimeAdder(public)
        added, signed = adder.start(5), []
        for name in signers:
            terms = Terms().bind("bb" * 32)
            sent = clients[name].contribute(
                run, 1, spec, {"w": values[name]}, 1, terms, model="aa" * 32
            )
            header, part = split_message(sent, 10**6)
            signed.append(header)
            added = added.plus(part)
        expected = Expected.over(adder, (run, 1), spec.name, 5, "bb" * 32, "aa" * 32)
        return panel.open(SumRequest(expected, added.total(), tuple(signed)))

    old, new = (KeySet.ephemeral(Quorum(2, 3), epoch) for epoch in (1, 2))
    whole = total(old, OLD, names)
    with pytest.raises(SecureFLError):
        total(old, OLD, names[:3])
    less = total(new, NEW, names[:3])
    shown = (whole.values * whole.weight - less.values * less.weight) / 0.25
    assert torch.from_numpy(shown).allclose(values["dora"], atol=1e-6)
