"""A key folder is made. `layout` says what lies where, `loading` reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from os.path import lexists
from pathlib import Path

from securefl.crypto.match_params import LINEAR, MatchParameters
from securefl.crypto.match_public import MatchPublicKey
from securefl.crypto.match_secret import MatchSecretKey

from securefl.crypto.card_secret import CardSecret
from securefl.crypto.cards import CardKey
from securefl.errors import KeyFileError
from securefl.exchange.policy import Policy
from securefl_keys import layout
from securefl_keys.certificates import ConsortiumAuthority
from securefl_keys.consortium import new_consortium
from securefl_keys.key_files import appearing_whole, write_new
from securefl_keys.policy import DEFAULT
from securefl_keys.releases import ReleasesFile
from securefl_keys.sealed_keys import seal_match_secret, seal_secret


@dataclass(frozen=True, slots=True)
class MadeKeys:
    """The public halves of the two pairs in a new folder, and its consortium if it has one."""

    card: CardKey
    match: MatchPublicKey
    consortium: ConsortiumAuthority | None = None


@dataclass(frozen=True, slots=True)
class NewPairs:
    """The texts of two new key pairs."""

    card: CardKey
    match: MatchPublicKey
    secret: dict[Path, str] = field(repr=False)
    """Sealed, but still for the authority alone."""
    public: dict[Path, str] = field(repr=False)


def new_pairs(passphrase: str, match: MatchParameters, epoch: int = 1) -> NewPairs:
    """Two fresh key pairs of that epoch; raises ConfigError where the passphrase is empty."""
    key, match_key = CardSecret.generate(epoch), MatchSecretKey.generate(match, epoch)
    card = key.public.to_json()
    secret = {
        layout.AUTHORITY_KEY: seal_secret(key, passphrase),
        layout.MATCH_KEY: seal_match_secret(match_key, passphrase),
        layout.releases_of(match_key.key_id): ReleasesFile.stating(match_key.key_id, 0),
    }
    public = {
        layout.AUTHORITY_PUBLIC_KEY: card,
        layout.SERVER_KEY: card,
        layout.CLIENT_KEY: card,
        layout.MATCH_PARAMETERS: match_key.scoring_context().to_json(),
        layout.MATCH_PUBLIC_KEY: match_key.public_key().to_json(),
    }
    return NewPairs(key.public, match_key.public_key(), secret, public)


def write_all(directory: Path, secret: dict[Path, str], public: dict[Path, str]) -> None:
    """New files in a new folder, secrets closed to other users; raises OSError."""
    (directory / layout.RELEASES).mkdir(parents=True)
    for closed in (layout.RELEASES, layout.RELEASES.parent):
        (directory / closed).chmod(0o700)
    for path, text in secret.items():
        write_new(directory / path, text, mode=0o600)
    for path, text in public.items():
        (directory / path).parent.mkdir(exist_ok=True)
        write_new(directory / path, text, mode=0o644)


def init_folder(
    directory: Path,
    passphrase: str,
    match: MatchParameters = LINEAR,
    consortium: str | None = None,
    policy: Policy = DEFAULT,
) -> MadeKeys:
    """Make two key pairs, for cards and for profile matches, and the folder that holds them.

    With the name of a `consortium`, its certificate authority too, which signs the `policy`. The
    folder appears whole or not at all.

    Raises:
        ConfigError: the passphrase is empty, or the policy is looser than any may be.
        KeyFileError: `directory` exists or cannot be written, or `consortium` is no name.
    """
    if lexists(directory):
        raise KeyFileError(
            f"{directory} exists: keys are never overwritten; name another folder, or move it away"
        )
    new = None if consortium is None else new_consortium(consortium, passphrase, policy)
    made = new_pairs(passphrase, match)
    secret, public = dict(made.secret), dict(made.public)
    if new:
        secret |= new.secret
        public |= new.public
    try:
        with appearing_whole(directory) as building:
            write_all(building, secret, public)
    except OSError as error:
        raise KeyFileError(
            f"{directory}: cannot make the key folder: {error.strerror or error}; "
            "nothing of it was left: name a folder on a disk that you can write"
        ) from error
    return MadeKeys(made.card, made.match, new.ca if new else None)
