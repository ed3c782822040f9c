"""A consortium made once for several test files: three clients, a server, bundles for each role."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from securefl_keys import rotation, signer
from securefl_keys.certificate_form import Role
from securefl_keys.certificates import ConsortiumAuthority
from securefl_keys.consortium import init_folder
from securefl_keys.export import export_all
from securefl_keys.identity import make_identities
from securefl_keys.membership import JoinApproval, approve
from securefl_keys.roster import VerifiedRoster, load_roster
from securefl_keys.rotation import rotate

PASSPHRASE = "correct horse battery staple"
CLIENTS = ("alice", "bob", "Zoë K")
SERVER = "hub"
BUNDLES = ("client", "server", "authority")
"""Roles that somebody has."""


@dataclass(frozen=True)
class Made:
    """Place of the files: `keys`, the members' folders by name, `bundles`."""

    root: Path
    ca: ConsortiumAuthority

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    def bundle(self, role: str) -> Path:
        return self.root / "bundles" / role


def joined(keys: Path, folder: Path, name: str, passphrase: str, role: Role = "client") -> Path:
    """Return the folder of a new member: its request was approved."""
    (request,) = make_identities(folder, [name], role, passphrase)
    approve(keys, [JoinApproval(request, folder / name / "identity.crt")], PASSPHRASE)
    return folder / name


def revoke(keys: Path, name: str) -> VerifiedRoster:
    """Return the roster without this member, in the next epoch."""
    rotate(keys, PASSPHRASE, revoking=name)
    return load_roster(keys)


def make_consortium(root: Path) -> Made:
    """Make every folder of a whole ceremony. The KDF's cost is `sealed_file.KDF_COST`."""
    ca = init_folder(root / "keys", PASSPHRASE, consortium="Nord").consortium
    for name in CLIENTS:
        joined(root / "keys", root, name, f"of {name}")
    joined(root / "keys", root, SERVER, f"of {SERVER}", "server")
    export_all(root / "keys", root / "bundles", PASSPHRASE)
    return Made(root, ca)


class CrashError(Exception):
    """Stands for a machine that stops."""


def cut_off_rotation(keys: Path) -> None:
    """Leave a key folder whose next keys are ready, and none of them in place."""

    def crash(directory: Path) -> None:
        if (directory / signer.NEXT).exists():
            raise CrashError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rotation, "finish_locked", crash)
        with pytest.raises(CrashError):
            rotation.rotate(keys, PASSPHRASE)
