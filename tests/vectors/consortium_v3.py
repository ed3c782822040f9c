"""Makes tests/vectors/v3/consortium: python tests/vectors/consortium_v3.py, from the root, once.

What is frozen are the files; new ones have other keys, so the constants that it prints go into
`test_consortium_files_v3.py`. Alice, Zoë K and the server hub join, bob joined and was revoked, so
that all is of epoch 2; the policy was signed a second time. One card of alice's is kept beside the
files, of a session of its own. The passphrase of the consortium is `correct horse battery staple`,
a member's is `of NAME`.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from securefl.exchange.policy import OpeningRule, Policy
from securefl.exchange.sums import Sender
from securefl_keys import layout
from securefl_keys.certificate_form import Role
from securefl_keys.consortium import init_folder
from securefl_keys.export import export
from securefl_keys.identity import make_identities
from securefl_keys.membership import JoinApproval, approve
from securefl_keys.roster import card_keys_in
from securefl_keys.rotation import rotate, sign_policy

PASSPHRASE = "correct horse battery staple"
OUT = Path(__file__).parent / "v3/consortium"
SESSION = "ab" * 32
ALICE = Sender("alice", bytes(range(32)))
MEMBERS: dict[str, Role] = {
    "alice": "client",
    "bob": "client",
    "Zoë K": "client",
    "hub": "server",
}
POLICY = Policy(
    min_contributions=4,
    openings_per_run=1000,
    rules=(OpeningRule("layer*/mean", 20), OpeningRule("update/*", 24)),
)


def make(root: Path) -> None:
    """A whole ceremony in a folder that is thrown away; what is kept is copied to OUT."""
    keys = root / "keys"
    ca = init_folder(keys, PASSPHRASE, consortium="Nord").consortium
    for name, role in MEMBERS.items():
        (request,) = make_identities(root, [name], role, f"of {name}")
        approve(keys, [JoinApproval(request, root / name / "identity.crt")], PASSPHRASE)
    sign_policy(keys, POLICY, PASSPHRASE)
    rotate(keys, PASSPHRASE, revoking="bob")
    export(keys, "server", OUT / "bundle", PASSPHRASE)
    for path in (layout.AUTHORITY_KEY, layout.CA_KEY):
        shutil.copy(keys / path, OUT / path.name)
    card_keys = card_keys_in(OUT / "bundle", layout.SERVER_KEY)
    (OUT / "card.bin").write_bytes(card_keys.cards(SESSION, ALICE))
    print(f'AUTHORITY = "{ca.fingerprint}"')  # noqa: T201
    print(f'KEY_ID = "{card_keys.key_id}"')  # noqa: T201


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        make(Path(root))
