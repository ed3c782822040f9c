"""A signed policy holds from then on: nobody who has it goes back to an older one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from key_folders import cheap
from processes import PASSPHRASE, passphrase_of
from with_officers import Officers

import securefl
import securefl_keys.rotation
from securefl.errors import KeyFileError
from securefl.exchange.policy import OpeningRule
from securefl_cli.roles import officer_process
from securefl_keys import layout
from securefl_keys.authority_keys import FolderKeeper
from securefl_keys.bundle import VerifiedBundle
from securefl_keys.policy import DEFAULT

STRICT = replace(
    DEFAULT, min_contributions=5, openings_per_run=10, rules=(OpeningRule("update/*"),)
)


class Consortium:
    """A consortium with officers, whose policy was made stricter, and bundles of both."""

    def __init__(self, folder):
        with cheap():
            self.officers = Officers(folder)
            self.keeper = FolderKeeper(self.officers.site.keys, PASSPHRASE)
            self.before = self.keeper.now()
            self.officers.site.sign(STRICT)
            self.officers.site.export("after")
        self.bundle = VerifiedBundle.load(
            self.officers.site.folder / "after" / "officer", "officer"
        )

    def olga(self, said):
        """An officer's process that begins with the new bundle."""
        settings = ["exchange.officers=3", "exchange.encrypt=model", "algorithm.name=fedavg"]
        config = securefl.load_config(self.officers.site.job, settings)
        folder = self.officers.folder_of("olga")
        return officer_process(config, folder, self.bundle, passphrase_of("olga"), said.append)


@pytest.fixture
def consortium(tmp_path):
    return Consortium(tmp_path)


def policy_of(process):
    return process._keeper.now().policy


def test_a_new_policy_makes_bundles_newer(consortium):
    """So officers are sent it, as they are sent revocations."""
    now = consortium.keeper.now()
    assert now.age > consortium.before.age
    assert now.policy == STRICT != consortium.before.policy


def test_a_server_cannot_put_an_older_policy_back(consortium):
    """It has the bundle of before, which was good when it was sent."""
    said = []
    process = consortium.olga(said)
    process._take_up(consortium.before.bundles["officer"].encode())
    assert policy_of(process) == STRICT
    assert "Refused a bundle" in str(said[-1])
    assert "older than" in str(said[-1])


def test_an_officer_that_starts_again_goes_by_the_newest_policy(consortium):
    """A kept bundle of before does not hold against the one that it is started with."""
    kept = consortium.officers.folder_of("olga") / layout.OFFICER_BUNDLE
    kept.write_text(consortium.before.bundles["officer"])
    assert policy_of(consortium.olga([])) == STRICT


def test_a_signing_that_breaks_off_is_done_by_the_next(consortium, monkeypatch):
    """The policy is written first: in no moment is a bundle newer and its policy is not."""
    put, written = securefl_keys.rotation.replace, []

    def full(path, *about, **more):
        written.append(path.name)
        if path.name == layout.ROSTER.name:
            raise OSError("No space left on device")
        put(path, *about, **more)

    age = consortium.keeper.now().age
    with monkeypatch.context() as patch, cheap():
        patch.setattr(securefl_keys.rotation, "replace", full)
        with pytest.raises(KeyFileError, match="No space left"):
            consortium.officers.site.sign(DEFAULT)
    assert written == [layout.POLICY.name, layout.ROSTER.name]
    assert consortium.keeper.now().age == age
    with cheap():
        consortium.officers.site.sign(DEFAULT)
    assert consortium.keeper.now().age > age
