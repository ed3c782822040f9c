"""A whole consortium in one folder, for demonstrations and rehearsals on one machine."""

from collections.abc import Sequence
from pathlib import Path

from securefl_keys import layout
from securefl_keys.consortium import init_folder
from securefl_keys.export import export_all
from securefl_keys.identity import make_identities
from securefl_keys.membership import JoinApproval, approve
from securefl_keys.officer_card import make_card
from securefl_keys.rotation import set_officers

KEYS, BUNDLES, PASSPHRASE = "keys", "bundles", "passphrase"
"""Names in the folder, beside a folder for each member."""


def make_consortium(
    folder: Path,
    clients: Sequence[str],
    server: str,
    passphrase: str,
    *,
    name: str,
    officers: Sequence[str] = (),
) -> None:
    """Make keys, members and bundles, and a file with the one passphrase of all of them.

    More than half of the authority and `officers` open sums.
    Real parties each make their own key on their own machine, under a passphrase of their own.

    Raises:
        ConfigError: the passphrase is empty.
        KeyFileError: a folder is there already, or cannot be written.
        RequestRefused: a name cannot be a member's.
    """
    path = folder / PASSPHRASE
    path.touch(mode=0o600)
    path.write_text(passphrase + "\n")
    init_folder(folder / KEYS, passphrase, consortium=name)
    requests = (
        *make_identities(folder, clients, "client", passphrase),
        *make_identities(folder, [server], "server", passphrase),
        *make_identities(folder, officers, "officer", passphrase),
    )
    members = (*clients, server, *officers)
    certificates = [folder / member / layout.IDENTITY_CERTIFICATE for member in members]
    approve(folder / KEYS, list(map(JoinApproval, requests, certificates)), passphrase)
    if officers:
        cards = [
            make_card(folder / officer, 2, passphrase, folder / officer / "card-2.json")
            for officer in officers
        ]
        set_officers(folder / KEYS, passphrase, cards, (1 + len(cards)) // 2 + 1)
    export_all(folder / KEYS, folder / BUNDLES, passphrase)
