"""Makes tests/vectors/v4/officers: python tests/vectors/consortium_v4.py, from the root, once.

What is frozen are the files; new ones have other keys, so the constants that it prints go into
`test_officers_files_v1.py`. Alice and the server hub join, olga and otto as officers, of whom two
of three are needed in epoch 2, olga the second. Kept are the bundle of officers, olga's folder
with its card secret and public card key, the authority's sealed secret and the certificate
authority's. The passphrase of the consortium is `correct horse battery staple`, a member's is
`of NAME`.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from securefl.exchange.sums import Sender
from securefl_keys import layout
from securefl_keys.certificate_form import Role
from securefl_keys.consortium import init_folder
from securefl_keys.export import export
from securefl_keys.identity import make_identities
from securefl_keys.membership import JoinApproval, approve
from securefl_keys.officer_card import make_card
from securefl_keys.roster import card_keys_in
from securefl_keys.rotation import set_officers

PASSPHRASE = "correct horse battery staple"
OUT = Path(__file__).parent / "v4/officers"
SESSION = "ab" * 32
ALICE = Sender("alice", bytes(range(32)))
MEMBERS: dict[str, Role] = {
    "alice": "client",
    "hub": "server",
    "olga": "officer",
    "otto": "officer",
}
OFFICERS = ("authority", "olga", "otto")


def make(root: Path) -> None:
    """A whole ceremony in a folder that is thrown away; what is kept is copied to OUT."""
    keys = root / "keys"
    ca = init_folder(keys, PASSPHRASE, consortium="Nord").consortium
    for name, role in MEMBERS.items():
        (request,) = make_identities(root, [name], role, f"of {name}")
        approve(keys, [JoinApproval(request, root / name / "identity.crt")], PASSPHRASE)
    cards = [
        make_card(root / name, 2, f"of {name}", root / f"{name}.json") for name in OFFICERS[1:]
    ]
    set_officers(keys, PASSPHRASE, cards, needed=2)
    OUT.mkdir(parents=True)
    export(keys, "officer", OUT / "bundle", PASSPHRASE)
    shutil.copytree(root / "olga", OUT / "olga")
    shutil.copy(root / "olga.json", OUT / "olga.json")
    for path in (layout.AUTHORITY_KEY, layout.CA_KEY):
        shutil.copy(keys / path, OUT / path.name)
    card_keys = card_keys_in(keys, layout.CLIENT_KEY)
    (OUT / "cards.bin").write_bytes(card_keys.cards(SESSION, ALICE))
    print(f'AUTHORITY = "{ca.fingerprint}"')  # noqa: T201
    print(f'KEY_ID = "{card_keys.key_id}"')  # noqa: T201


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        make(Path(root))
