"""What files of keys have in common: labels, epochs, times and digests."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from securefl.errors import KeyFileError
from securefl.io.json import require_plain

MAX_EPOCH = 2**31 - 1
File = TypeVar("File", bound=BaseModel)

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


class Labelled(BaseModel):
    """The label of any file; the rest is not looked at."""

    model_config = ConfigDict(frozen=True, strict=True)

    format: str


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


def parsed_file(
    kind: type[File],
    text: str,
    refusal: str,
    anew: str = "make the keys anew",
    replaced: Collection[str] = (),
) -> File:
    """Parse a JSON file of keys, whose field `format` has one value in `kind`.

    Raises:
        KeyFileError: `refusal` and the first fault, or another version.
    """
    require_plain(text, KeyFileError)
    (wanted,) = get_args(kind.model_fields["format"].annotation)
    require_version(text, wanted, anew, replaced)
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "its form"
        raise KeyFileError(f"{refusal}: {field}: {first['msg']}") from None


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
