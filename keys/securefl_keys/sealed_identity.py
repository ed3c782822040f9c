"""Ed25519 secrets at rest: the certificate authority's key, and the keys of identities."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeVar, final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefl.crypto.artefact import Origin
from securefl.errors import KeyFileError
from securefl_keys.sealed_file import SealedFile
from securefl_keys.subject import ROLES, Holder, Role, key_id_of

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
        key.private_bytes_raw(),
        passphrase,
        Origin.now(),
        format=SEALED_CA_KEY_FORMAT,
        key_id=key_id_of(key.public_key()),
    )


def seal_identity_key(key: Ed25519PrivateKey, owner: Holder, passphrase: str) -> str:
    """Seal an identity's key, as `seal_ca_key`."""
    return SealedIdentityKey.sealing(
        key.private_bytes_raw(),
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
