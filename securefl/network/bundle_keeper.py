"""Keys, roster and policy of an officer: its bundle, which changes while its process runs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from securefl.crypto.card_secret import CardSecret
from securefl.exchange.card_keys import Quorum
from securefl.exchange.officer import Officer
from securefl.network.trust import MemberStanding, OfficerBundle


@dataclass(slots=True)
class BundleKeeper:
    """`Keeper` by a bundle of the role officer; it rotates nothing and passes nothing on."""

    bundle: OfficerBundle
    load: Callable[[OfficerBundle], tuple[CardSecret, int, Quorum]]
    """Function that loads the secret of a bundle's epoch, and its number; raises KeyFileError."""
    keep: Callable[[str], None] = lambda _files: None
    """Function that writes a bundle down, for a process that starts again, as older secrets are
    gone then; raises KeyFileError."""
    _standing: MemberStanding | None = None
    _of: OfficerBundle | None = None
    """Bundle that the standing is by."""
    _lock: Lock = field(default_factory=Lock)

    def now(self) -> MemberStanding:
        """Return the standing, see `Keeper.now`; one epoch's officer is one object, with the cards.

        Raises:
            KeyFileError: the folder has no secret of the bundle's epoch.
        """
        with self._lock:
            bundle, before = self.bundle, self._standing
            if before and self._of is bundle:
                return before
            keys = bundle.card_keys
            if before and before.opener.key_id == keys.key_id:
                officer = before.opener
            else:
                secret, number, _ = self.load(bundle)
                officer = Officer(keys, secret, number)
            self._of, self._standing = (
                bundle,
                MemberStanding(
                    age=bundle.age,
                    opener=officer,
                    trust=bundle,
                    policy=bundle.policy,
                    bundles={},
                ),
            )
            return self._standing

    def take_up(self, files: str) -> None:
        """Have a newer bundle hold, from the next round on; raises as `Bundle.newer`."""
        with self._lock:
            after = self.bundle.newer(files)
            if after.age > self.bundle.age:
                self.keep(files)
            self.bundle = after
