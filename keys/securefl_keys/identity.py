"""Identities of clients and servers: made on their own machine, where the secret half stays sealed.

DIR/identity.key    sealed with its own passphrase, mode 0600
DIR/identity.csr    the signing request, for the consortium
DIR/identity.crt    the certificates that come back: of the identity, and of its transport key
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os.path import lexists
from pathlib import Path
from typing import ClassVar, Literal, TypeVar, final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefl.crypto.artefact import Origin
from securefl.errors import (
    CertificateExpired,
    CertificateRefused,
    CertificateRevoked,
    KeyFileError,
    RequestRefused,
)
from securefl.federation.client import Identities
from securefl.io.uncopyable import Held, SecretBytes
from securefl_keys import layout
from securefl_keys.certificate_form import (
    ROLES,
    Holder,
    Role,
    alike,
    key_id_of,
    pem_of,
    public_key_of,
    require_name,
    transport_public_key_of,
)
from securefl_keys.certificates import (
    CertificateFile,
    HolderCertificate,
    holder_certificate,
    transport_holder,
    transport_key,
)
from securefl_keys.key_files import appearing_together, found_in, load_secret, text_of, write_new
from securefl_keys.request import JoinRequest, make_request, read_request
from securefl_keys.roster import VerifiedRoster, load_roster
from securefl_keys.sealed_file import SealedFile

SEALED_CA_KEY_FORMAT: Literal["securefl-ca-secret-key/2"] = "securefl-ca-secret-key/2"
SEALED_IDENTITY_FORMAT: Literal["securefl-identity-secret-key/2"] = "securefl-identity-secret-key/2"


class _SealedEd25519(SealedFile):
    serialisation: ClassVar[str] = "ed25519-raw"


@final
class SealedCaKey(_SealedEd25519):
    """Sealed file of the key that issues certificates and signs the consortium's files."""

    use: ClassVar[str] = "certificates"

    format: Literal["securefl-ca-secret-key/2"]


@final
class SealedIdentityKey(_SealedEd25519):
    """Sealed file of the key by which a client, a server or the authority is known."""

    holders: ClassVar[tuple[Role, ...]] = ROLES
    use: ClassVar[str] = "signatures"

    format: Literal["securefl-identity-secret-key/2"]
    name: str

    @property
    def owner(self) -> Holder:
        """Holder of the key."""
        return Holder(self.name, self.role)


_Sealed = TypeVar("_Sealed", SealedCaKey, SealedIdentityKey)


def seal_ca_key(key: Ed25519PrivateKey, passphrase: str) -> str:
    """Seal the CA's key for `passphrase` alone; raises ConfigError where that is empty."""
    return SealedCaKey.sealing(
        SecretBytes(key.private_bytes_raw()),
        passphrase,
        Origin.now(),
        format=SEALED_CA_KEY_FORMAT,
        key_id=key_id_of(key.public_key()),
    )


def seal_identity_key(key: Ed25519PrivateKey, owner: Holder, passphrase: str) -> str:
    """Seal an identity's key, as `seal_ca_key`."""
    return SealedIdentityKey.sealing(
        SecretBytes(key.private_bytes_raw()),
        passphrase,
        Origin.now(),
        owner.role,
        format=SEALED_IDENTITY_FORMAT,
        key_id=key_id_of(key.public_key()),
        name=owner.name,
    )


def open_ca_key(text: str, passphrase: str) -> Ed25519PrivateKey:
    """Open the key in a file that `seal_ca_key` wrote; raises as `open_secret`."""
    return _opened_ed25519(SealedCaKey.parse(text), passphrase)


def open_identity_key(text: str, passphrase: str) -> tuple[Holder, Ed25519PrivateKey]:
    """Open owner and key in a file that `seal_identity_key` wrote; raises as `open_secret`."""
    file = SealedIdentityKey.parse(text)
    return file.owner, _opened_ed25519(file, passphrase)


def _opened_ed25519(file: _Sealed, passphrase: str) -> Ed25519PrivateKey:
    try:
        key = Ed25519PrivateKey.from_private_bytes(file.opened(passphrase))
    except ValueError as error:
        raise KeyFileError(f"what was sealed is no Ed25519 key: {error}") from None
    if key_id_of(key.public_key()) != file.key_id:
        raise KeyFileError(f"the header names key {file.key_id[:16]}…, another is inside")
    return key


@dataclass(frozen=True, slots=True)
class Identity(Holder, Held):
    """A private key, and the certificate that makes others believe it."""

    private_key: Ed25519PrivateKey = field(repr=False)
    certificate_pem: str = field(repr=False)
    transport: x509.Certificate | None = field(repr=False)
    """Certificate of the key of `transport_key`; None in a folder of an older release."""


def make_identities(
    parent: Path, names: Sequence[str], role: Role, passphrase: str
) -> tuple[JoinRequest, ...]:
    """Make a new folder with a new key and a join request for each name; all appear, or none.

    Raises:
        RequestRefused: a name cannot be one, or is there twice; nobody joins in this role.
        ConfigError: the passphrase is empty.
        KeyFileError: a folder exists, or cannot be written.
    """
    for name in names:
        require_name(name, RequestRefused)
        if lexists(parent / name):
            raise KeyFileError(
                f"{parent / name} exists: identities are never overwritten; make it in another "
                "folder with --out, or move what is there away"
            )
    if len({alike(name) for name in names}) != len(names):
        raise RequestRefused("two of the names are one, or look and sound like one")
    made = [_made(Holder(name, role), passphrase) for name in names]
    try:
        with appearing_together([parent / name for name in names]) as buildings:
            for building, (sealed, request) in zip(buildings, made, strict=True):
                building.chmod(0o700)
                write_new(building / layout.IDENTITY_KEY, sealed, mode=0o600)
                write_new(building / layout.IDENTITY_REQUEST, request, mode=0o644)
    except OSError as error:
        raise KeyFileError(
            f"{parent}: cannot make the folder: {error.strerror or error}; nothing was left"
        ) from error
    return tuple(read_request(request) for _, request in made)


def _made(owner: Holder, passphrase: str) -> tuple[str, str]:
    key = Ed25519PrivateKey.generate()
    return seal_identity_key(key, owner, passphrase), make_request(owner, key)


def load_identity(directory: Path, passphrase: str) -> Identity:
    """Load the identity that its owner signs with; `listed` tells whether it is still a member.

    Raises:
        WrongPassphrase: another passphrase, or the key's file was changed.
        CertificateRefused: a certificate is of another key.
        KeyFileError: a file is missing, damaged, or readable by other users.
    """
    path = directory / layout.IDENTITY_KEY
    owner, key = load_secret(path, lambda text: open_identity_key(text, passphrase))
    text = _certificate_text(directory)
    with found_in(directory / layout.IDENTITY_CERTIFICATE):
        file = CertificateFile.parse(text)
        if public_key_of(file.identity) != key.public_key():
            raise CertificateRefused(f"it is not of {owner.name}'s key: put the right one there")
        own = transport_key(key).public_key()
        if file.transport and transport_public_key_of(file.transport) != own:
            raise CertificateRefused(
                f"its certificate for TLS is not of {owner.name}'s key: put the right file there"
            )
    return Identity(owner.name, owner.role, key, pem_of(file.identity), file.transport)


def load_identities(keys: Path, directories: Sequence[Path], passphrase: str) -> Identities:
    """Load the clients of these folders, to simulate the consortium of the folder `keys`.

    Every contribution of a client that was revoked or has expired is refused.

    Raises:
        WrongPassphrase: one has another passphrase.
        CertificateRefused: one is no client, or none that the roster lists now.
        KeyFileError: a file is missing, damaged, or readable by other users.
    """
    roster = load_roster(keys)
    for directory in directories:
        with suppress(CertificateExpired, CertificateRevoked):  # the roster refuses what it signs
            listed(directory, roster).require_role("client")
    found = [load_identity(directory, passphrase) for directory in directories]
    return Identities({own.name: own.private_key for own in found}, roster.identities())


def listed(directory: Path, roster: VerifiedRoster) -> HolderCertificate:
    """Return the certificate in an identity's folder, found in the roster; needs no passphrase.

    The authority's own is in no roster, and is found to be the authority's.

    Raises:
        ForeignAuthority, CertificateRefused: another consortium's, or of another role.
        CertificateExpired, CertificateRevoked, UnknownClient: no longer, or never, a member.
        KeyFileError: a file is missing, damaged, or readable by other users.
    """
    header = load_secret(directory / layout.IDENTITY_KEY, SealedIdentityKey.parse)
    with found_in(directory / layout.IDENTITY_CERTIFICATE):
        file = CertificateFile.parse(_certificate_text(directory))
        claimed = holder_certificate(file.identity, roster.ca)
        if (claimed.name, claimed.key_id) != (header.name, header.key_id):
            raise CertificateRefused(
                f"it is {claimed.name}'s, and {layout.IDENTITY_KEY} is {header.name}'s key "
                f"{header.key_id[:16]}…"
            )
        found = roster.holder_of(file.identity, header.role)
        if file.transport:
            transport_holder(file.transport, roster.ca).require_identity(found)
            roster.transport_holder_of(file.transport, header.role)
        return found


def no_tls(holder: Holder) -> str:
    """Say why an identity of an older release joins no run over processes, and the way out."""
    way_out = "renew it: securefl keys renew request, then securefl keys renew approve"
    if holder.role == "authority":
        way_out = "the next securefl keys join approve, or renew approve, adds it"
    return f"has no certificate for TLS, as those of older releases: {way_out}"


def name_in(directory: Path) -> str:
    """Return the owner's name in the header of the folder's key, which nothing vouches for yet."""
    return load_secret(directory / layout.IDENTITY_KEY, SealedIdentityKey.parse).name


def _certificate_text(directory: Path) -> str:
    path = directory / layout.IDENTITY_CERTIFICATE
    if not path.is_file():
        raise KeyFileError(
            f"{path}: missing: it is what the consortium sends back, made by: securefl keys join "
            f"approve {layout.IDENTITY_REQUEST} --keys DIR"
        )
    return text_of(path)
