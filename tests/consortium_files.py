"""A consortium made once for several test files: three clients, and a bundle for each role."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from securefl_keys.bundle import ROLES
from securefl_keys.certificates import ConsortiumAuthority
from securefl_keys.consortium import approve
from securefl_keys.export import export
from securefl_keys.folder import init_folder
from securefl_keys.identity import make_identity

PASSPHRASE = "correct horse battery staple"
CLIENTS = ("alice", "bob", "Zoë K")


@dataclass(frozen=True)
class Made:
    """Where it lies: `keys`, the clients' folders by name, `for-client`, `for-server`, …"""

    root: Path
    ca: ConsortiumAuthority

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    def bundle(self, role: str) -> Path:
        return self.root / f"for-{role}"


def make_consortium(root: Path) -> Made:
    """Every folder of a whole ceremony. Takes the KDF's cost from `sealed_file.KDF_COST`."""
    ca = init_folder(root / "keys", PASSPHRASE, consortium="Nord").consortium
    for name in CLIENTS:
        request = make_identity(root / name, name, f"of {name}")
        approve(root / "keys", request, root / name / "identity.crt", PASSPHRASE)
    for role in ROLES:
        export(root / "keys", role, root / f"for-{role}", PASSPHRASE)
    return Made(root, ca)
