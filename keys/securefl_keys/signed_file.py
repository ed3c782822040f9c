"""A public file that the consortium's certificate authority has signed.

JSON in one form to the byte, so that any changed byte is refused, one that means nothing included.
"""

import json
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, Field

from securefl.crypto.artefact import (
    Moment,
    Sha256,
    canonical,
    decoded,
    encoded,
    moment,
    parsed_file,
)
from securefl.errors import FileSignatureRefused, ForeignAuthority, KeyFileError
from securefl_keys.certificates import ConsortiumAuthority

SIGNATURE_BYTES = 64
_DOMAIN = b"securefl-signed-file/1\n"
"""Prefix of the signed bytes, with which no certificate, the other thing signed, begins."""

Counting = Annotated[int, Field(ge=1, lt=2**31)]


_BY_SIGNING = {"consortium", "authority", "created", "signature"}


class SignedFile(BaseModel):
    """Fields that all signed files have."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    anew: ClassVar[str] = "make the consortium anew, with: securefl keys init DIR --consortium NAME"
    """Way out of a file of an older version."""

    format: str
    consortium: str
    authority: Sha256
    """Fingerprint of the signer's certificate."""
    created: Moment
    epoch: Counting
    """Number of the keys that the file goes with."""
    signature: str

    @classmethod
    def signing(
        cls, ca: ConsortiumAuthority, key: Ed25519PrivateKey, at: datetime, **fields: Any
    ) -> str:
        """Sign a file with these fields and return its text."""
        known = {"consortium": ca.name, "authority": ca.fingerprint, "created": moment(at)}
        unsigned = cls.model_validate(known | fields | {"signature": ""})
        signature = encoded(key.sign(unsigned.to_be_signed()))
        return unsigned.model_copy(update={"signature": signature}).text()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the file, whoever signed it; raises KeyFileError."""
        return parsed_file(cls, text, "not such a file", cls.anew)

    @classmethod
    def verified(cls, text: str, ca: ConsortiumAuthority) -> Self:
        """Parse the file and require that this authority signed it.

        Raises:
            KeyFileError: no such file, or an older version's.
            ForeignAuthority: it names another authority.
            FileSignatureRefused: changed.
        """
        file = cls.parse(text)
        if (file.authority, file.consortium) != (ca.fingerprint, ca.name):
            raise ForeignAuthority(
                f"signed by authority {file.authority[:16]}…, not by {ca.fingerprint[:16]}… of "
                f"consortium {ca.name!r}: take all files from one bundle"
            )
        if file.text() != text:
            raise FileSignatureRefused("changed since it was signed: not in its one form")
        try:
            signature = decoded(file.signature, SIGNATURE_BYTES)
            ca.public_key.verify(signature, file.to_be_signed())
        except (InvalidSignature, KeyFileError):
            raise FileSignatureRefused("changed since it was signed: wrong signature") from None
        return file

    def signed_anew(
        self, ca: ConsortiumAuthority, key: Ed25519PrivateKey, at: datetime, **changes: Any
    ) -> str:
        """Return the text of a newly signed file that differs in these fields, signer and time."""
        kept = {name: value for name, value in self if name not in _BY_SIGNING}
        return self.signing(ca, key, at, **kept | changes)

    def text(self) -> str:
        """Return the file's one text form."""
        fields = self._fields() | {"signature": self.signature}
        return json.dumps(fields, indent=1) + "\n"

    def to_be_signed(self) -> bytes:
        """Return the bytes that the signature is over."""
        return _DOMAIN + canonical(self._fields())

    def _fields(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"signature"})


class VersionedFile(SignedFile):
    """A signed file that newer versions succeed."""

    version: Counting
    """Number of the version: one more with each change."""


def now() -> datetime:
    """Return the time on this machine."""
    return datetime.now(UTC)
