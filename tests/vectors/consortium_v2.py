"""Makes tests/vectors/v2/consortium: python tests/vectors/consortium_v2.py, from the root, once.

What is frozen are the files; new ones have other keys, so the constants that it prints go into
`test_consortium_files_v2.py`. Alice, Zoë K and the server hub join, bob joined and was revoked, so
that all is of epoch 2; the policy was signed a second time. The passphrase of the consortium is
`correct horse battery staple`, a member's is `of NAME`.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from securefl.exchange.policy import Flooding, OpeningRule, Policy
from securefl_keys.export import export
from securefl_keys.folder import init_folder
from securefl_keys.holders import Role
from securefl_keys.identity import make_identities
from securefl_keys.membership import Approval, approve
from securefl_keys.policy_signing import sign_policy
from securefl_keys.roster import load_roster
from securefl_keys.rotation import rotate

PASSPHRASE = "correct horse battery staple"
OUT = Path(__file__).parent / "v2/consortium"
MEMBERS: dict[str, Role] = {
    "alice": "client",
    "bob": "client",
    "Zoë K": "client",
    "hub": "server",
}
POLICY = Policy(
    min_contributions=4,
    openings_per_run=1000,
    flooding=Flooding(statistical_bits=30, releases=4096),
    rules=(OpeningRule("layer*/mean", 20), OpeningRule("update/*", 24)),
)


def make(root: Path) -> None:
    """A whole ceremony in a folder that is thrown away; what is kept is copied to OUT."""
    keys = root / "keys"
    ca = init_folder(keys, PASSPHRASE, consortium="Nord").consortium
    for name, role in MEMBERS.items():
        (request,) = make_identities(root, [name], role, f"of {name}")
        approve(keys, [Approval(request, root / name / "identity.crt")], PASSPHRASE)
    sign_policy(keys, POLICY, PASSPHRASE)
    rotate(keys, PASSPHRASE, revoking="bob")
    export(keys, "server", OUT / "bundle", PASSPHRASE)
    kept = {
        "keys/authority/ca.key": "ca.key",
        "keys/authority/identity.key": "authority.key",
        "keys/authority/identity.crt": "authority.crt",
        "bob/identity.crt": "revoked.crt",
    }
    kept |= {f"{name}/identity.{end}": f"{name}.{end}"
             for name in ("alice", "hub") for end in ("key", "csr", "crt")}  # fmt: skip
    for source, target in kept.items():
        shutil.copy(root / source, OUT / target)
    roster = load_roster(keys)
    print(f'AUTHORITY = "{ca.fingerprint}"')  # noqa: T201
    for name in ("alice", "hub"):
        print(f'{name.upper()} = "{roster.members[name].key_id}"')  # noqa: T201


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        make(Path(root))
