"""What the files of all keys have in common: each says what it is and which TenSEAL reads it."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Annotated, Any, TypeVar

import tenseal as ts
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from securefl.errors import KeyFileError

CODEC = f"tenseal-{ts.__version__}"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Labelled(BaseModel):
    """The label of any file; the rest is not looked at."""

    model_config = ConfigDict(frozen=True, strict=True)

    format: str


class KeyFile(Labelled):
    """The text form of a public artefact: JSON of just these fields and its subclass's."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    codec: str
    key_id: Sha256


_File = TypeVar("_File", bound=KeyFile)


def read_key_file(text: str, kind: type[_File], format_: str) -> _File:
    """Parse a file of this format; TenSEAL sees none of it.

    Raises:
        KeyFileError: it is no such file, or of another TenSEAL version.
    """
    try:
        label = Labelled.model_validate_json(text)
        if label.format != format_:
            raise KeyFileError(f"this is a {label.format!r:.60} file where {format_} is needed")
        file = kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise KeyFileError(f"not a SecureFL key file: {first['msg']}") from error
    if file.codec != CODEC:
        raise KeyFileError(f"made by {file.codec!r:.40}, this is {CODEC}: make the keys anew")
    return file


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
