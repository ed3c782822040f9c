"""A consortium's first files: its certificate authority, an empty roster, the policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefl.exchange.policy import Policy
from securefl_keys import layout
from securefl_keys.certificate_file import CertificateFile, issue_file, with_transport
from securefl_keys.certificate_text import pem_of
from securefl_keys.certificates import ConsortiumAuthority, make_authority, read_authority
from securefl_keys.holders import AUTHORITY
from securefl_keys.identity import load_identity
from securefl_keys.policy import POLICY_FORMAT, PolicyFile, stated
from securefl_keys.reading import found_in, text_of
from securefl_keys.roster import ROSTER_FORMAT, RosterFile
from securefl_keys.sealed_identity import seal_ca_key, seal_identity_key
from securefl_keys.signed_file import now
from securefl_keys.signer import Signer
from securefl_keys.transport import transport_key


@dataclass(frozen=True, slots=True)
class NewConsortium:
    """The texts of a consortium's first files."""

    ca: ConsortiumAuthority
    secret: dict[Path, str] = field(repr=False)
    """Sealed."""
    public: dict[Path, str] = field(repr=False)


def new_consortium(
    name: str, passphrase: str, policy: Policy, at: datetime | None = None
) -> NewConsortium:
    """A certificate authority with an empty roster, and the identity of who opens totals.

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
    """The authority's certificate file with the block for TLS that older releases did not write.

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
