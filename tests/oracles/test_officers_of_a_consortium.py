"""Officers by the files that a consortium has: ceremony, run over connections, next epoch."""

from __future__ import annotations

import asyncio
import shutil

import pytest
import torch
from key_folders import cheap, load_client
from over_loopback import NAMES, Consortium, Job, OnTask, incidents_of, model_of
from processes import PASSPHRASE, passphrase_of

from securefl.errors import KeyFileError
from securefl.exchange.card_keys import Quorum
from securefl.exchange.officer import KeySet
from securefl.exchange.opener import TotalOpener
from securefl.network.authority import AuthorityLog, AuthorityProcess
from securefl.network.bundle_keeper import BundleKeeper
from securefl.runs.folder_files import OFFICERS_OPENINGS, OPENINGS
from securefl.settings.digests import settings_digest, study_digest
from securefl_cli.roles import officer_process
from securefl_keys.authority_keys import FolderKeeper, load_authority
from securefl_keys.bundle import VerifiedBundle
from securefl_keys.officer_card import load_officer, make_card
from securefl_keys.rotation import rotate, set_officers

pytestmark = pytest.mark.usefixtures("quick", "no_hang", "cheap_guesses")
OTHERS = ("olga", "otto")
OFFICERS = ("authority", *OTHERS)
QUORUM = Quorum(2, 3)
SETTINGS = ("exchange.encrypt=model", "exchange.officers=3", "algorithm.name=fedtan")


class Officered(Consortium):
    """Five clients, a server, an authority and two officers, 2 of 3 of whom open sums."""

    def __init__(self, folder):
        super().__init__(folder)
        self.site.join(*OTHERS, role="officer")
        with cheap():
            set_officers(self.site.keys, PASSPHRASE, self.cards(), needed=2)
        shutil.rmtree(folder / "bundles")
        self.site.export("bundles")

    def cards(self):
        """The officers' card keys of the next epoch."""
        epoch, folder = load_client(self.site.keys).epoch + 1, self.site.folder
        with cheap():
            return [
                make_card(folder / name, epoch, passphrase_of(name), folder / f"{name}-{epoch}")
                for name in OTHERS
            ]

    def rotate(self):
        with cheap():
            rotate(self.site.keys, PASSPHRASE, cards=self.cards())

    def secret_of(self, name, bundle):
        return load_officer(self.site.folder / name, bundle, passphrase_of(name))


class WithOfficers(OnTask):
    """A loop whose officers go by their own bundle, identity and card secret."""

    absent = frozenset[str]()

    def start(self, name):
        """Have an officer call the server."""
        consortium, config = self.site.consortium, self.config
        keeper = BundleKeeper(
            consortium.bundle("officer"), lambda bundle: consortium.secret_of(name, bundle)
        )
        log = AuthorityLog(self.site.folder / name, settings_digest(config), study_digest(config))
        process = AuthorityProcess(keeper, config, log, self.said.append, keeper.take_up)
        own = consortium.identity(name, "officer")
        return asyncio.create_task(process.run(own, self.at))

    def run(self):
        self.tasks = []

        async def started(_loop):
            self.tasks += [self.start(name) for name in OTHERS if name not in self.absent]

        return super().run(started)


@pytest.fixture
def consortium(tmp_path):
    return Officered(tmp_path)


@pytest.fixture
def job(consortium, tmp_path):
    return Job(consortium, tmp_path / "job", SETTINGS)


def test_a_run_is_that_of_a_simulation_and_survives_new_keys(job, consortium):
    """Under three card keys in two epochs: the same model to rounding, and no officer is lost."""
    loop = WithOfficers(job)
    loop.before_round({2: consortium.rotate})
    loop.run()
    assert loop.ended == dict.fromkeys(NAMES), loop.said
    run = job.folder / "run"
    assert incidents_of(run) == ""
    wanted = model_of(job.simulated(KeySet.ephemeral(QUORUM)))
    for name, value in wanted.items():
        torch.testing.assert_close(model_of(run)[name], value, rtol=0, atol=1e-5, msg=name)
    for number in range(len(OFFICERS)):
        assert (run / OFFICERS_OPENINGS[number]).read_text()
    text = (run / OPENINGS).read_text()
    now = load_client(consortium.site.keys)
    assert now.epoch == 3
    assert f'"key_id": "{now.key_id}"' in text
    assert f'"key_id": "{consortium.bundle("server").card_keys.key_id}"' in text
    authority = load_authority(consortium.site.keys, PASSPHRASE)
    assert authority.key_id == now.keys[0].key_id


def test_an_officer_that_is_away_stops_nothing(job):
    """The authority and olga are two of three."""
    loop = WithOfficers(job)
    loop.absent = frozenset({"otto"})
    loop.run()
    assert loop.ended == dict.fromkeys(NAMES), loop.said
    assert "officer otto: is away" in incidents_of(job.folder / "run")


def test_the_authority_of_several_officers_opens_nothing_alone(consortium):
    """Its process is the first officer: it adds up keys, and keeps cards as long as its key is."""
    site = consortium.site
    keeper = FolderKeeper(site.keys, PASSPHRASE)
    first = keeper.now()
    assert not isinstance(first.opener, TotalOpener)
    assert first.opener.keys.key_id == consortium.bundle("client").card_keys.key_id
    assert first.trust.officers() == OFFICERS
    assert first.bundles.keys() == {"client", "server", "officer"}
    site.join("fay")
    assert keeper.now().opener is first.opener
    consortium.rotate()
    assert keeper.now().opener.epoch == 3
    with cheap():
        set_officers(site.keys, PASSPHRASE, [])
    assert isinstance(keeper.now().opener, TotalOpener)
    assert keeper.now().trust.officers() == ("authority",)


def test_an_officer_starts_again_after_a_rotation_with_its_old_bundle(consortium, job):
    """It has kept the one that the server passed on; its older card secret is gone."""
    site, said = consortium.site, []
    folder, old = (
        site.folder / "olga",
        VerifiedBundle.load(site.folder / "bundles" / "officer", "officer"),
    )
    config = job.config

    def started():
        return officer_process(config, folder, old, passphrase_of("olga"), said.append)

    process = started()
    consortium.rotate()
    bundles = FolderKeeper(site.keys, PASSPHRASE).now().bundles
    process._take_up(bundles["officer"].encode())
    assert not said
    assert process._keeper.now().opener.epoch == old.card_keys.epoch + 1
    assert [path.name for path in folder.glob("card-*.key")] == [
        f"card-{old.card_keys.epoch + 1}.key"
    ]
    assert started()._keeper.now().opener.epoch == old.card_keys.epoch + 1
    (folder / "bundle.json").unlink()
    with pytest.raises(KeyFileError, match="missing"):
        started()
