"""A new consortium: its first files, and a key folder with them."""

from dataclasses import dataclass, field
from datetime import datetime
from os.path import lexists
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefl.crypto.card_secret import CardSecret
from securefl.crypto.cards import CardKey
from securefl.errors import KeyFileError
from securefl.exchange.policy import Policy
from securefl_keys import layout
from securefl_keys.certificate_form import AUTHORITY, pem_of
from securefl_keys.certificates import (
    CertificateFile,
    ConsortiumAuthority,
    issue_file,
    make_authority,
    read_authority,
    transport_key,
    with_transport,
)
from securefl_keys.identity import load_identity, seal_ca_key, seal_identity_key
from securefl_keys.key_files import appearing_whole, found_in, text_of, write_new
from securefl_keys.policy import DEFAULT, POLICY_FORMAT, PolicyFile, stated
from securefl_keys.roster import ROSTER_FORMAT, RosterFile
from securefl_keys.sealed_keys import seal_secret
from securefl_keys.signed_file import now
from securefl_keys.signer import Signer


@dataclass(frozen=True, slots=True)
class NewConsortium:
    """Texts of a consortium's first files."""

    ca: ConsortiumAuthority
    secret: dict[Path, str] = field(repr=False)
    """Texts with secrets, each sealed, by path."""
    public: dict[Path, str] = field(repr=False)


def new_consortium(
    name: str, passphrase: str, policy: Policy, at: datetime | None = None
) -> NewConsortium:
    """Make a certificate authority with an empty roster, and the identity that opens totals.

    Raises:
        ConfigError: the passphrase is empty, or the policy is looser than any may be.
        KeyFileError: `name` cannot be one.
    """
    at, key, identity = at or now(), Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    certificate = pem_of(make_authority(name, key, at))
    ca = read_authority(certificate, at)
    empty = {"format": ROSTER_FORMAT, "version": 1, "certificates": (), "revoked": ()}
    secret = {
        layout.CA_KEY: seal_ca_key(key, passphrase),
        layout.AUTHORITY_IDENTITY: seal_identity_key(identity, AUTHORITY, passphrase),
    }
    keys = identity.public_key(), transport_key(identity).public_key()
    public = {
        layout.AUTHORITY_CERTIFICATE: issue_file(ca, key, AUTHORITY, keys, at).text,
        layout.CA_CERTIFICATE: certificate,
        layout.ROSTER: RosterFile.signing(ca, key, at, epoch=1, **empty),
        layout.POLICY: PolicyFile.signing(
            ca, key, at, format=POLICY_FORMAT, epoch=1, version=1, **stated(policy)
        ),
    }
    return NewConsortium(ca, secret, public)


def lacking_transport(directory: Path, signer: Signer, passphrase: str) -> str | None:
    """Return the authority's certificate file with the TLS certificate that older releases lacked.

    None where the file has it already.

    Raises:
        WrongPassphrase, CertificateRefused: as `load_identity`, of the authority's folder.
        KeyFileError: a file is missing or damaged.
    """
    path = directory / layout.AUTHORITY_CERTIFICATE
    text = text_of(path)
    with found_in(path):
        file = CertificateFile.parse(text)
    if file.transport:
        return None
    identity = load_identity(directory / layout.AUTHORITY, passphrase)
    own = transport_key(identity.private_key).public_key()
    return with_transport(signer.ca, signer.key, file.identity, own).text


@dataclass(frozen=True, slots=True)
class MadeKeys:
    """The public half of the pair in a new folder, and its consortium if it has one."""

    card: CardKey
    consortium: ConsortiumAuthority | None = None


@dataclass(frozen=True, slots=True)
class NewPair:
    """Texts of a new key pair."""

    card: CardKey
    secret: dict[Path, str] = field(repr=False)
    """Texts with secrets: sealed, but still for the authority alone."""
    public: dict[Path, str] = field(repr=False)


def new_pair(passphrase: str, epoch: int = 1) -> NewPair:
    """Make a fresh key pair of that epoch; raises ConfigError where the passphrase is empty."""
    key = CardSecret.generate(epoch)
    card = key.public.to_json()
    secret = {layout.AUTHORITY_KEY: seal_secret(key, passphrase)}
    public = {
        layout.AUTHORITY_PUBLIC_KEY: card,
        layout.SERVER_KEY: card,
        layout.CLIENT_KEY: card,
    }
    return NewPair(key.public, secret, public)


def write_all(directory: Path, secret: dict[Path, str], public: dict[Path, str]) -> None:
    """Write new files into a new folder, secrets closed to other users; raises OSError."""
    closed = directory / layout.AUTHORITY
    closed.mkdir(parents=True)
    closed.chmod(0o700)
    for path, text in secret.items():
        write_new(directory / path, text, mode=0o600)
    for path, text in public.items():
        (directory / path).parent.mkdir(exist_ok=True)
        write_new(directory / path, text, mode=0o644)


def init_folder(
    directory: Path,
    passphrase: str,
    consortium: str | None = None,
    policy: Policy = DEFAULT,
) -> MadeKeys:
    """Make a key pair for clients' cards, and the folder that holds it.

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
    made = new_pair(passphrase)
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
    return MadeKeys(made.card, new.ca if new else None)
