"""The authority process's key folder, whose keys and members change while it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock

from securefl.crypto.params import CkksParameters
from securefl.errors import KeyFileError
from securefl.exchange.keyset import for_round
from securefl.exchange.match_open import for_scores
from securefl.exchange.policy import most_releases
from securefl.network.trust import Standing
from securefl_keys import layout
from securefl_keys.export import bundle_texts
from securefl_keys.holders import MEMBER_ROLES
from securefl_keys.journal import hold, pending, settled
from securefl_keys.loading import load_all, load_match, load_parameters
from securefl_keys.reading import text_of
from securefl_keys.signed_file import now
from securefl_keys.signer import open_signer
from securefl_keys.sound_bundle import RosterTrust


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """For the one process that opens with these keys: two would not know of each other's totals.

    Raises:
        KeyFileError: there is one already.
    """
    busy = f"{directory}: another authority process serves these keys: stop it first"
    with ExitStack() as lock:
        hold(lock, directory / layout.LOG, busy, timeout_s=0)
        yield


class FolderKeeper:
    """The authority's key folder, which `securefl keys` may change meanwhile."""

    def __init__(self, directory: Path, passphrase: str) -> None:
        """Raises KeyFileError where the folder has no consortium or no keys."""
        self._directory = directory
        self._passphrase = passphrase
        self._seen: tuple[str, ...] = ()
        self._age = (0, 0)
        self._lock = Lock()
        self.parameters: CkksParameters = load_parameters(directory)
        """See `Keeper.parameters`."""

    def now(self, needed: int, scores: int = 0) -> Standing:
        """See `Keeper.now`."""
        with self._lock:
            self._read_again()
            if self._rotated(needed, scores):
                self._read_again()
            return self._standing

    def _rotated(self, needed: int, scores: int) -> bool:
        """Rotate the folder where one of its keys could not open all of a round; tell if so."""
        sums = for_round(self._keys, needed, self._standing.policy.flooding)
        matches = for_scores(self._matches, scores)
        return sums is not self._keys or matches is not self._matches

    def _read_again(self) -> None:
        """Open the folder anew where a file has changed: that takes Argon2's time."""
        if not pending(self._directory) and self._texts() == self._seen:
            return
        with settled(self._directory):
            self._read()

    def _texts(self) -> tuple[str, ...]:
        paths = (layout.AUTHORITY_KEY, layout.MATCH_KEY, layout.ROSTER, layout.POLICY)
        return tuple(text_of(self._directory / path) for path in paths)

    def _read(self) -> None:
        texts = self._texts()
        self._keys = keys = load_all(self._directory, self._passphrase)
        self._matches = load_match(self._directory, self._passphrase)
        signer = open_signer(self._directory, self._passphrase, now())
        policy = keys.policy
        if policy is None:
            raise KeyFileError(f"{self._directory}: has no policy")
        roster = signer.roster
        opener = keys.opener(policy.flooding, len(roster.clients()))
        bundles = {r: _files(bundle_texts(self._directory, r, signer)) for r in MEMBER_ROLES}
        age = roster.file.epoch, roster.file.version
        if age < self._age:
            raise KeyFileError(
                f"{self._directory}: of epoch and roster version {age}, and {self._age} was in "
                "force already: put the newest files back"
            )
        self._age = age
        self._standing = Standing(
            age=age,
            opener=opener,
            trust=RosterTrust(roster),
            policy=policy,
            bundles=bundles,
            matches=self._matches,
            values_left=lambda: max(0, most_releases(policy.flooding) - keys.n_released),
        )
        self._seen = texts


def _files(texts: dict[Path, str]) -> str:
    return json.dumps({path.as_posix(): text for path, text in texts.items()})
