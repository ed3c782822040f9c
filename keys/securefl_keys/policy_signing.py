"""The consortium's next policy."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from securefl.exchange.policy import Policy
from securefl_keys import layout
from securefl_keys.journal import finish_rotation
from securefl_keys.key_files import replace
from securefl_keys.policy import PolicyFile, load_policy, stated
from securefl_keys.signed_file import now
from securefl_keys.signer import changing, open_signer


def sign_policy(
    directory: Path, policy: Policy, passphrase: str, at: datetime | None = None
) -> PolicyFile:
    """Sign the consortium's next policy, and the roster anew: its version is the age of a bundle.

    So whoever has the new policy takes no older one, and officers get it as they get revocations.

    Raises:
        ConfigError: it leaves the bounds of `PolicyTable`.
        WrongPassphrase: of the certificate authority's key.
        KeyFileError: a file is missing, damaged or cannot be written.
    """
    fields, at = stated(policy), at or now()
    finish_rotation(directory)
    with changing(directory):
        signer, old = open_signer(directory, passphrase, at), load_policy(directory, at)
        text = old.signed_anew(signer.ca, signer.key, at, version=old.version + 1, **fields)
        replace(directory / layout.POLICY, text, mode=0o644)  # first: nobody takes it up yet
        members = signer.roster.file
        roster = members.signed_anew(signer.ca, signer.key, at, version=members.version + 1)
        replace(directory / layout.ROSTER, roster, mode=0o644)
    return PolicyFile.verified(text, signer.ca)
