"""Makes tests/vectors/v2/transport: python tests/vectors/transport_v2.py, from the root, once.

What is frozen are the files; new ones have other keys, so the constants that it prints go into
`test_transport_files_v2.py`. Requests and certificate files are of two blocks here. The passphrase
of the consortium is `correct horse battery staple`, a member's is `of NAME`.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from securefl_keys import layout
from securefl_keys.certificate_form import Role
from securefl_keys.certificates import transport_key
from securefl_keys.consortium import init_folder
from securefl_keys.identity import load_identity, make_identities
from securefl_keys.membership import JoinApproval, approve

PASSPHRASE = "correct horse battery staple"
OUT = Path(__file__).parent / "v2/transport"
MEMBERS: dict[str, Role] = {"alice": "client", "hub": "server"}


def make(root: Path) -> None:
    """A ceremony in a folder that is thrown away; what is kept is copied to OUT."""
    keys = root / "keys"
    init_folder(keys, PASSPHRASE, consortium="Nord")
    kept = {
        keys / layout.CA_CERTIFICATE: "consortium/ca.crt",
        keys / layout.ROSTER: "consortium/roster.json",
        keys / layout.AUTHORITY_IDENTITY: "authority/identity.key",
        keys / layout.AUTHORITY_CERTIFICATE: "authority/identity.crt",
    }
    folders = {"authority": keys / layout.AUTHORITY}
    for name, role in MEMBERS.items():
        (request,) = make_identities(root, [name], role, f"of {name}")
        approve(keys, [JoinApproval(request, root / name / "identity.crt")], PASSPHRASE)
        kept |= {root / name / f: f"{name}/{f}" for f in map(str, MEMBER_FILES)}
        folders[name] = root / name
        print(f'{name.upper()} = "{request.fingerprint}"')  # noqa: T201
    for source, target in kept.items():
        (OUT / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, OUT / target)
    for name, folder in folders.items():
        own = load_identity(folder, PASSPHRASE if name == "authority" else f"of {name}")
        number = transport_key(own.private_key).public_key().public_numbers()
        print(f'"{name}": 0x{number.x:064x},')  # noqa: T201


MEMBER_FILES = (layout.IDENTITY_KEY, layout.IDENTITY_REQUEST, layout.IDENTITY_CERTIFICATE)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        make(Path(root))
