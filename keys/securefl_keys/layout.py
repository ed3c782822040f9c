"""The key folder: one directory per role, each with exactly the key material that the role needs.

DIR/authority/secret.key         opens clients' cards, among officers the first one's; sealed with
                                 the passphrase, mode 0600
DIR/authority/public.key         makes cards; the same text for each role
DIR/authority/log/               what a process has opened, answered and refused with the keys
DIR/server/public.key
DIR/clients/public.key

A consortium's certificate authority adds:

DIR/authority/ca.key             of the certificate authority; sealed, mode 0600
DIR/authority/identity.key       by which the authority is known; sealed, mode 0600
DIR/authority/identity.crt       its certificates: of that key, and of its transport key
DIR/consortium/ca.crt            the certificate authority's certificate
DIR/consortium/roster.json       clients', servers' and officers' certificates, signed by it
DIR/consortium/policy.json       what the authority may open, signed by it
DIR/consortium/officers.json     the officers' names and card keys, where there are any; signed

An exported bundle has `consortium/manifest.json` besides, a copy of the authority's certificates as
`consortium/authority.crt`, and of the rest what its role may hold: `consortium` and one card key,
which lies in `authority` for authority and officers.

A member has a folder of its own, with files that it makes itself:

NAME/identity.key                by which the member is known; sealed, mode 0600
NAME/identity.csr                its request, which goes to the authority
NAME/identity.crt                its certificates, which come back

An officer's has, beside these:

NAME/card-2.key                  opens its cards of epoch 2; sealed, mode 0600
NAME/log/                        what it has answered and refused
NAME/bundle.json                 the newest bundle that the server has passed on, where there is one
"""

from pathlib import Path

AUTHORITY_KEY = Path("authority/secret.key")
AUTHORITY_PUBLIC_KEY = Path("authority/public.key")
SERVER_KEY = Path("server/public.key")
CLIENT_KEY = Path("clients/public.key")
REPLACED = {
    AUTHORITY_PUBLIC_KEY: Path("authority/parameters.json"),
    SERVER_KEY: Path("server/parameters.json"),
}
"""Files of older releases in the place of these, under another name."""

MATCH_KEY = Path("authority/match.key")
MATCH_PARAMETERS = Path("server/match.json")
MATCH_PUBLIC_KEY = Path("clients/match-public.key")
RELEASES = Path("authority/releases")
"""Files of older releases, these four, which had a key for profile matches: of no use now."""

LOG = Path("authority/log")
"""Log of openings and refusals of the process that holds the authority's keys."""

IDENTITY_KEY = Path("identity.key")
IDENTITY_REQUEST = Path("identity.csr")
IDENTITY_CERTIFICATE = Path("identity.crt")

OFFICER_BUNDLE = Path("bundle.json")
"""The newest bundle that the server has passed on to an officer, beside its identity."""
OFFICER_LOG = Path("log")
"""Log of an officer's answers and refusals, in the folder of its identity."""


def card_secret_of(epoch: int) -> Path:
    """Return the place of an officer's card secret of that epoch in its identity folder."""
    return Path(f"card-{epoch}.key")


AUTHORITY = Path("authority")
CA_KEY = AUTHORITY / "ca.key"
AUTHORITY_IDENTITY = AUTHORITY / IDENTITY_KEY
AUTHORITY_CERTIFICATE = AUTHORITY / IDENTITY_CERTIFICATE
CA_CERTIFICATE = Path("consortium/ca.crt")
ROSTER = Path("consortium/roster.json")
POLICY = Path("consortium/policy.json")
OFFICERS = Path("consortium/officers.json")
"""List of officers, where there are more than the authority."""
CONSORTIUM_FILES = (
    CA_KEY,
    AUTHORITY_IDENTITY,
    AUTHORITY_CERTIFICATE,
    CA_CERTIFICATE,
    ROSTER,
    POLICY,
)
"""Files that a folder without a consortium lacks."""
KEPT_BY_AUTHORITY = (AUTHORITY_KEY, CA_KEY, AUTHORITY_IDENTITY, AUTHORITY_CERTIFICATE)
"""Files that no bundle has."""
MANIFEST = Path("consortium/manifest.json")
BUNDLED_CERTIFICATE = Path("consortium/authority.crt")
"""Copy of the authority's certificates in a bundle; an older release's has none."""
