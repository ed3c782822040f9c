"""A consortium of three officers, two of them beside the authority, as parts of one event loop."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass

from key_folders import cheap
from over_loopback import Consortium, Job, OnTask
from processes import PASSPHRASE, passphrase_of

from securefl.exchange.card_keys import Quorum
from securefl.exchange.officer import KeySet
from securefl.network.authority import AuthorityLog, AuthorityProcess
from securefl.network.bundle_keeper import BundleKeeper
from securefl.settings.digests import settings_digest, study_digest
from securefl_keys.authority_keys import load_authority
from securefl_keys.officer_card import load_officer, make_card
from securefl_keys.roster import load_roster
from securefl_keys.rotation import rotate, set_officers

OTHERS = ("olga", "otto")
"""The officers beside the authority."""
OFFICERS = ("authority", *OTHERS)
QUORUM = Quorum(2, 3)
SEALED = (
    "exchange.encrypt=model",
    "exchange.officers=3",
    "algorithm.name=fedtan",
)


def seat_officers(site):
    """Have two officers join a site's consortium; 2 of 3 open its sums from then on."""
    site.join(*OTHERS, role="officer")
    with cheap():
        set_officers(site.keys, PASSPHRASE, cards_of(site), QUORUM.needed)
    shutil.rmtree(site.folder / "bundles")  # which list no officer yet
    site.export("bundles")


def cards_of(site):
    """Return the two officers' card keys of the next epoch."""
    epoch, folder = load_roster(site.keys).file.epoch + 1, site.folder
    return [
        make_card(folder / name, epoch, passphrase_of(name), folder / f"{name}-{epoch}.json")
        for name in OTHERS
    ]


class Officers(Consortium):
    """Five clients, a server, an authority and two officers, for all tests of a module."""

    def __init__(self, folder):
        super().__init__(folder)
        seat_officers(self.site)

    def folder_of(self, name):
        return self.site.folder / name

    def rotate(self, revoking=None):
        with cheap():
            rotate(self.site.keys, PASSPHRASE, revoking=revoking, cards=cards_of(self.site))

    def load(self, name, bundle):
        """Return an officer's secret of the bundle's epoch, its number, and the quorum."""
        return load_officer(self.folder_of(name), bundle, passphrase_of(name))

    def key_set(self):
        """Return all officers' keys, for a simulation."""
        others = [self.load(name, self.bundle("officer"))[0] for name in OTHERS]
        return KeySet((load_authority(self.site.keys, PASSPHRASE), *others), QUORUM)


@dataclass
class OfficersJob(Job):
    """One job of such a consortium."""

    def officer_folder(self, name):
        return self.folder / f"log-of-{name}"


class WithOfficers(OnTask):
    """A loop with two officers beside the authority, each a task that may be cancelled."""

    def __init__(self, site, kinds=None, **waiting):
        super().__init__(site, **waiting)
        self.kinds = kinds or {}
        """Another class for an officer's process, by its name."""
        self.absent = set()
        """Officers that are not started."""
        self.tasks, self.heard = {}, {}

    def officer(self, name):
        """Return an officer's process; its lines are in `heard`."""
        site, config = self.site, self.config
        keeper = BundleKeeper(
            site.bundle("officer"), lambda bundle: site.consortium.load(name, bundle)
        )
        log = AuthorityLog(site.officer_folder(name), settings_digest(config), study_digest(config))
        kind = self.kinds.get(name, AuthorityProcess)
        said = self.heard.setdefault(name, [])
        return kind(keeper, config, log, said.append, keeper.take_up)

    def start(self, name):
        """Have an officer call the server."""
        process, own = self.officer(name), self.site.identity(name, "officer")
        self.tasks[name] = asyncio.create_task(process.run(own, self.at))

    async def kill(self, name):
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks[name], return_exceptions=True)

    def run(self, meanwhile=None):
        async def started(loop):
            for name in OTHERS:
                if name not in self.absent:
                    self.start(name)
            if meanwhile:
                await meanwhile(loop)

        return super().run(started)
