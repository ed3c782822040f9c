"""Keys of an authority's folder, read once, or anew as the folder changes while a process runs."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Literal

from securefl.crypto.card_secret import CardSecret
from securefl.crypto.cards import CardKey
from securefl.errors import KeyFileError
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.officer import KeySet, Officer, OneTimeOpener
from securefl.exchange.policy import Policy
from securefl.io.uncopyable import Held
from securefl.network.trust import MemberStanding
from securefl_keys import layout
from securefl_keys.bundle import CARDS, RosterTrust
from securefl_keys.certificate_form import MEMBER_ROLES
from securefl_keys.export import bundle_texts
from securefl_keys.key_files import WAY_OUT, load_secret, text_of
from securefl_keys.policy import load_policy
from securefl_keys.roster import ALONE, card_key_in, card_keys_in, load_officers
from securefl_keys.sealed_keys import open_secret
from securefl_keys.signed_file import now
from securefl_keys.signer import (
    finish_rotation,
    hold,
    open_signer,
    pending,
    require_one_epoch,
    settled,
)


def load_authority(directory: Path, passphrase: str) -> CardSecret:
    """Load the secret key that the authority holds.

    Raises:
        WrongPassphrase: another passphrase, or the file was changed.
        KeyFileError: missing, damaged, or readable by other users.
    """
    path = directory / layout.AUTHORITY_KEY
    return load_secret(path, lambda text: open_secret(text, passphrase))


@dataclass(frozen=True, slots=True)
class AuthorityKeys(Held):
    """Keys and policy that the authority's process goes by."""

    secret: CardSecret = field(repr=False)
    """Secret card key of the authority: of the first officer, or of the only one."""
    public: CardKeys
    """Card keys of all officers."""
    policy: Policy | None
    """Policy of the consortium; None where there is none."""


def load_all(directory: Path, passphrase: str) -> KeySet:
    """Load the key of cards, checked against each role's file, and the consortium's policy.

    Raises:
        WrongPassphrase: another passphrase, or the secret key's file was changed.
        KeyFileError: a file is missing or damaged, or is not of the authority's key; or there are
            officers, of whom each keeps a secret of its own.
    """
    held = load_authority_keys(directory, passphrase)
    if held.public.quorum.officers > 1:
        raise KeyFileError(
            f"{directory / layout.OFFICERS}: {held.public.quorum.needed} of "
            f"{held.public.quorum.officers} officers open sums, each in a process of its own, and "
            "no simulation has their secrets: leave --keys out, or go back to one authority with: "
            "securefl keys officers set DIR"
        )
    return KeySet((held.secret,), policy=held.policy)


def load_authority_keys(directory: Path, passphrase: str) -> AuthorityKeys:
    """Load the authority's keys, checked against each role's file and the consortium's.

    Raises:
        WrongPassphrase: another passphrase, or the secret key's file was changed.
        KeyFileError: a file is missing or damaged, or is not of the authority's key.
    """
    finish_rotation(directory)
    public = {path: card_key_in(directory, path) for path in CARDS.values()}
    secret = load_authority(directory, passphrase)
    for path, key in public.items():
        _require_same(directory / path, key, secret.public)
    policy = _policy_in_force(directory)
    return AuthorityKeys(secret, card_keys_in(directory, layout.AUTHORITY_PUBLIC_KEY), policy)


def _policy_in_force(directory: Path) -> Policy | None:
    """Return the consortium's policy, where there is one; raises KeyFileError for two epochs."""
    if (directory / layout.ROSTER).exists():
        require_one_epoch(directory, now())
    signed = (directory / layout.POLICY).exists()
    return load_policy(directory).policy() if signed else None


def _require_same(path: Path, found: CardKey, ours: CardKey) -> None:
    if found.key_id != ours.key_id:
        raise KeyFileError(
            f"{path}: of key {found.key_id[:16]}…, but the authority holds "
            f"{ours.key_id[:16]}…; {WAY_OUT}"
        )
    if found.to_json() != ours.to_json():
        raise KeyFileError(f"{path}: changed since the keys were made; {WAY_OUT}")


@contextmanager
def alone(directory: Path, role: Literal["authority", "officer"] = "authority") -> Iterator[None]:
    """Lock out any other process that opens with these keys: it would not know of our totals.

    `directory` is the key folder, or the folder of an officer's identity.

    Raises:
        KeyFileError: there is one already.
    """
    busy = f"{directory}: another authority process serves these keys: stop it first"
    log = layout.LOG
    if role == "officer":
        log = layout.OFFICER_LOG
        busy = f"{directory}: another officer process serves these keys: stop it first"
    with ExitStack() as lock:
        hold(lock, directory / log, busy, timeout_s=0)
        yield


class FolderKeeper(Held):
    """Reader of the authority's key folder, which `securefl keys` may change meanwhile."""

    def __init__(self, directory: Path, passphrase: str) -> None:
        """Read nothing before `now`."""
        self._directory = directory
        self._passphrase = passphrase
        self._seen: tuple[str, ...] = ()
        self._age = (0, 0)
        self._opener: OneTimeOpener | Officer | None = None
        """Opener under the key that is in force; it has the clients' cards."""
        self._lock = Lock()

    def now(self) -> MemberStanding:
        """Return the standing of members now: see `Keeper.now`."""
        with self._lock:
            self._read_again()
            return self._standing

    def _read_again(self) -> None:
        """Open the folder anew where a file has changed: that takes Argon2's time."""
        if not pending(self._directory) and self._texts() == self._seen:
            return
        with settled(self._directory):
            self._read()

    def _texts(self) -> tuple[str, ...]:
        paths = [layout.AUTHORITY_KEY, layout.ROSTER, layout.POLICY]
        if (self._directory / layout.OFFICERS).exists():
            paths.append(layout.OFFICERS)
        return tuple(text_of(self._directory / path) for path in paths)

    def _read(self) -> None:
        texts = self._texts()
        keys = load_authority_keys(self._directory, self._passphrase)
        signer = open_signer(self._directory, self._passphrase, now())
        policy = keys.policy
        if policy is None:
            raise KeyFileError(f"{self._directory}: has no policy")
        roster = signer.roster
        officers = load_officers(self._directory, now())
        names = officers.names if officers else ALONE
        bundles = {r: _files(bundle_texts(self._directory, r, signer)) for r in MEMBER_ROLES}
        age = roster.file.epoch, roster.file.version
        # A restored backup would bring back a revoked member, so an older folder is refused.
        if age < self._age:
            raise KeyFileError(
                f"{self._directory}: of epoch and roster version {age}, and {self._age} was in "
                "force already: put the newest files back"
            )
        self._age = age
        # The opener holds the clients' cards; it is kept while its key stays, or they would be
        # lost.
        if self._opener is None or self._opener.key_id != keys.public.key_id:
            self._opener = _opener(keys)
        self._standing = MemberStanding(
            age=age,
            opener=self._opener,
            trust=RosterTrust(roster, officer_names=names),
            policy=policy,
            bundles=bundles,
        )
        self._seen = texts


def _opener(keys: AuthorityKeys) -> OneTimeOpener | Officer:
    """Return what opens sums, or where there are several officers, what the first adds keys by."""
    if keys.public.quorum.officers > 1:
        return Officer(keys.public, keys.secret)
    return KeySet((keys.secret,)).opener()


def _files(texts: dict[Path, str]) -> str:
    return json.dumps({path.as_posix(): text for path, text in texts.items()})
