"""The public files of CKKS keys: a context without its secret key, and what is to be known of it.

Every file says what it is, whose, of which key and epoch, and which TenSEAL reads it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple

import tenseal as ts
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from securefl.crypto.contexts import public_context
from securefl.crypto.match_params import MatchParameters
from securefl.errors import KeyFileError
from securefl.io.json import require_plain

CODEC = f"tenseal-{ts.__version__}"
MAX_EPOCH = 2**31 - 1

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Epoch = Annotated[int, Field(ge=1, le=MAX_EPOCH)]
Moment = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")]
"""In UTC."""


def moment(at: datetime) -> str:
    """A time as files write it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Origin:
    """Which of a consortium's keys a key is, and since when."""

    epoch: int
    """From 1; one more with each rotation."""
    created: str
    """UTC, `YYYY-MM-DDThh:mm:ssZ`."""

    @classmethod
    def now(cls, epoch: int = 1) -> Origin:
        """Of a key that is being made."""
        return cls(epoch, moment(datetime.now(UTC)))


class FileKind(NamedTuple):
    """What fixes the label of a public file."""

    format: str
    role: Literal["server", "client"]
    """Who needs it."""
    purpose: Literal["matches"]


class Labelled(BaseModel):
    """The label of any file; the rest is not looked at."""

    model_config = ConfigDict(frozen=True, strict=True)

    format: str


class KeyFile(BaseModel):
    """The text form of a public artefact: JSON of just these fields.

    A ciphertext's shape is not in it: it follows from the context.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: str
    role: str
    purpose: str
    codec: str
    key_id: Sha256
    epoch: Epoch
    created: Moment
    parameters: MatchParameters
    context: str
    sha256: Sha256
    """Over all other fields: the context does not show every parameter."""

    def content(self) -> bytes:
        """What the digest is over."""
        return canonical(self.model_dump(exclude={"sha256"}))


@dataclass(frozen=True, slots=True)
class Artefact:
    """A context without its secret key, and what is to be known of it."""

    context: bytes
    key_id: str
    parameters: MatchParameters
    origin: Origin

    def to_json(self, kind: FileKind) -> str:
        """The artefact as text; it holds nothing secret."""
        file = KeyFile(
            **kind._asdict(),
            codec=CODEC,
            key_id=self.key_id,
            epoch=self.origin.epoch,
            created=self.origin.created,
            parameters=self.parameters,
            context=base64.b64encode(self.context).decode(),
            sha256="0" * 64,
        )
        stated = file.model_copy(update={"sha256": digest(file.content())})
        return stated.model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str, kind: FileKind) -> Artefact:
        """Parse a key file; TenSEAL sees none of it yet.

        Raises:
            KeyFileError: damaged, or of another role or TenSEAL version.
        """
        require_plain(text, KeyFileError)
        try:
            require_version(text, kind.format)
            label = Labelled.model_validate_json(text).format
            if label != kind.format:
                raise KeyFileError(f"this is a {label!r:.60} file where {kind.format} is needed")
            file = KeyFile.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            raise KeyFileError(f"not a SecureFL key file: {first['msg']}") from error
        if (file.role, file.purpose) != kind[1:]:
            raise KeyFileError(f"a file for {kind.role}s, of {kind.purpose}, says otherwise")
        if file.codec != CODEC:
            raise KeyFileError(f"made by {file.codec!r:.40}, this is {CODEC}: make the keys anew")
        require_digest(file.sha256, file.content())
        origin = Origin(file.epoch, file.created)
        return Artefact(decoded(file.context), file.key_id, file.parameters, origin)

    def parsed(self) -> ts.Context:
        """TenSEAL's context, of just these parameters and without a secret key.

        Raises:
            KeyFileError: it is another one.
        """
        return public_context(self.context, self.parameters)


def require_version(
    text: str, wanted: str, anew: str = "make the keys anew", replaced: Collection[str] = ()
) -> None:
    """Raises KeyFileError, with the way out, where a file's label differs in its version alone.

    So it does where the label's name is one of those that `wanted` has replaced.
    """
    try:
        found = Labelled.model_validate_json(text).format
    except ValidationError:
        return  # no labelled file at all: what reads it says so
    name, _, version = found.partition("/")
    of_this_name = name == wanted.partition("/")[0] or name in replaced
    if of_this_name and found != wanted and version.isascii() and version.isdigit():
        raise KeyFileError(
            f"a {found:.60} file, of another SecureFL; this one reads {wanted}: {anew}"
        )


def decoded(context: str) -> bytes:
    """The serialised context in a file; raises KeyFileError where it is not base64."""
    try:
        return base64.b64decode(context, validate=True)
    except ValueError as error:
        raise KeyFileError(f"damaged key file: {error}") from error


def canonical(fields: dict[str, Any]) -> bytes:
    """Fields as JSON with sorted keys, no spaces, in ASCII."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def digest(*parts: bytes) -> str:
    """SHA-256 in hex. It tells damage, not forgery."""
    return hashlib.sha256(b"".join(parts)).hexdigest()


def require_digest(stated: str, *parts: bytes) -> None:
    """Raises KeyFileError where a file's content does not match its SHA-256."""
    if digest(*parts) != stated:
        raise KeyFileError("damaged key file: its content does not match its SHA-256")
