"""A consortium of three officers, two of them beside the authority, as parts of one event loop."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, field, replace
from functools import cached_property

from over_loopback import NAMES, Consortium, Job, OnTask
from processes import PASSPHRASE, SERVER

from securefl.crypto.card_secret import CardSecret
from securefl.errors import KeyFileError
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.keyset import KeySet
from securefl.exchange.officer import Officer
from securefl.exchange.quorum import Quorum
from securefl.federation.message import Roster
from securefl.network.authority import AuthorityProcess, Log
from securefl.network.officer import BundleKeeper
from securefl.network.settings import settings_digest, study_digest
from securefl_keys.keeper import FolderKeeper

OTHERS = ("olga", "otto")
"""The officers beside the authority."""
OFFICERS = ("authority", *OTHERS)
QUORUM = Quorum(2, 3)
SEALED = (
    "exchange.encrypt=model",
    "exchange.officers=3",
    "algorithm.name=fedtan",
)


class Secrets:
    """The officers' card secrets, by epoch."""

    def __init__(self):
        self._of = {}

    def of(self, epoch):
        if epoch not in self._of:
            self._of[epoch] = tuple(CardSecret.generate(epoch) for _ in OFFICERS)
        return self._of[epoch]

    def keys(self, epoch):
        return CardKeys(tuple(secret.public for secret in self.of(epoch)), QUORUM)


@dataclass(frozen=True)
class Officered:
    """What a bundle says, and that two of its members are officers."""

    sound: object
    secrets: Secrets = field(repr=False)

    def holder(self, certificate, role):
        return self._named(self.sound.holder, certificate, role)

    def transport_holder(self, certificate, role):
        return self._named(self.sound.transport_holder, certificate, role)

    def _named(self, holder, certificate, role):
        if role not in {"client", "officer"}:
            return holder(certificate, role)
        name = holder(certificate, "client")
        if (name in OTHERS) != (role == "officer"):
            raise KeyFileError(f"{name}: is no {role}")
        return name

    def clients(self):
        roster = self.sound.clients()
        return Roster({name: roster.key_of(name) for name in roster.names - {*OTHERS}})

    def officers(self):
        return OFFICERS

    @property
    def age(self):
        return self.sound.age

    @property
    def card_keys(self):
        return self.secrets.keys(self.age[0])

    @property
    def policy(self):
        return self.sound.bundle.policy().policy()

    def newer(self, files):
        return Officered(self.sound.newer(files), self.secrets)

    def __getattr__(self, name):
        return getattr(self.sound, name)


class FirstOfficer:
    """The authority's keeper, whose key is one of three."""

    def __init__(self, keeper, secrets):
        self._keeper, self._secrets, self._officer = keeper, secrets, None

    def now(self, *scores):
        standing = self._keeper.now(*scores)
        keys = self._secrets.keys(standing.age[0])
        if self._officer is None or self._officer.key_id != keys.key_id:
            self._officer = Officer(keys, self._secrets.of(keys.epoch)[0], 0)
        return replace(
            standing,
            opener=self._officer,
            trust=Officered(standing.trust, self._secrets),
            bundles={**standing.bundles, "officer": standing.bundles["client"]},
        )


class Officers(Consortium):
    """Five clients, a server, an authority and two officers, for all tests of a module."""

    def __init__(self, folder):
        super().__init__(folder)
        self.site.join(*OTHERS)
        shutil.rmtree(folder / "bundles")  # which list no officer yet
        self.site.export("bundles")
        self.secrets = Secrets()

    def bundle(self, role):
        return Officered(super().bundle(role), self.secrets)


@dataclass
class OfficersJob(Job):
    """One job of such a consortium."""

    def officer_folder(self, name):
        return self.folder / f"log-of-{name}"

    def key_set(self):
        """The officers' keys, for a simulation."""
        epoch = self.consortium.bundle("server").age[0]
        return KeySet(self.consortium.secrets.of(epoch), QUORUM)

    @cached_property
    def alone(self):
        """The same job with one authority."""
        settings = [s for s in self.settings if not s.startswith("exchange.officers")]
        return Job(self.consortium, self.folder / "one", settings, self.task)


class WithOfficers(OnTask):
    """A loop with two officers beside the authority, each a task that may be cancelled."""

    def __init__(self, site, kinds=None, **waiting):
        super().__init__(site, **waiting)
        self.secrets = site.consortium.secrets
        self.keeper = FirstOfficer(FolderKeeper(site.keys, PASSPHRASE), self.secrets)
        self.kinds = kinds or {}
        """Another class for an officer's process, by its name."""
        self.absent = set()
        """Officers that are not started."""
        self.tasks, self.heard = {}, {}

    def officer(self, name):
        """An officer's process; its lines are in `heard`."""
        site, config, number = self.site, self.config, OFFICERS.index(name)
        keeper = BundleKeeper(
            site.bundle("client"),
            lambda bundle: (self.secrets.of(bundle.age[0])[number], number, QUORUM),
        )
        log = Log(site.officer_folder(name), settings_digest(config), study_digest(config))
        kind = self.kinds.get(name, AuthorityProcess)
        said = self.heard.setdefault(name, [])
        return kind(keeper, config, log, said.append, keeper.take_up)

    def start(self, name):
        """Have an officer call the server."""
        process, own = self.officer(name), self.site.identity(name)
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


__all__ = ["NAMES", "SERVER", "WithOfficers"]
