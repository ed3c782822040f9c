"""Common text of key files: labels, epochs, times, digests, Base64."""

import base64
import binascii
import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from securefl.errors import KeyFileError
from securefl.io.json import require_plain


def encoded(data: bytes) -> str:
    """Return Base64 in the standard alphabet, with padding."""
    return base64.b64encode(data).decode()


def decoded(text: str, n_bytes: int | None = None) -> bytes:
    """Return the bytes of a key file's field; raises KeyFileError, also for another length."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise KeyFileError(f"damaged key file: {error}") from error
    # Base64 has spare bits at its end: two texts for the same bytes, of which one was changed.
    if encoded(data) != text or n_bytes not in {None, len(data)}:
        raise KeyFileError("damaged key file: base64 of another length or form")
    return data


MAX_EPOCH = 2**31 - 1
File = TypeVar("File", bound=BaseModel)

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Epoch = Annotated[int, Field(ge=1, le=MAX_EPOCH)]
Moment = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")]
"""Time in UTC."""


def moment(at: datetime) -> str:
    """Return a time as files write it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Origin:
    """Number and date of one of a consortium's keys."""

    epoch: int
    """Epoch from 1; one more with each rotation."""
    created: str
    """Time in UTC, `YYYY-MM-DDThh:mm:ssZ`."""

    @classmethod
    def now(cls, epoch: int = 1) -> "Origin":
        """Return the origin of a key that is being made."""
        return cls(epoch, moment(datetime.now(UTC)))


class _Labelled(BaseModel):
    """Label of any file; the rest is not looked at."""

    model_config = ConfigDict(frozen=True, strict=True)

    format: str


def require_version(
    text: str, wanted: str, anew: str = "make the keys anew", replaced: Collection[str] = ()
) -> None:
    """Raises KeyFileError, with the way out, where a file has another label than `wanted`.

    It is another version where the name is the same, or one of those that `wanted` has replaced.
    """
    try:
        found = _Labelled.model_validate_json(text).format
    except ValidationError:
        return  # no labelled file at all: what reads it says so
    name, _, version = found.partition("/")
    of_this_name = name == wanted.partition("/")[0] or name in replaced
    if of_this_name and found != wanted and version.isascii() and version.isdigit():
        raise KeyFileError(
            f"a {found:.60} file, of another SecureFL; this one reads {wanted}: {anew}"
        )
    if found != wanted:
        raise KeyFileError(f"this is a {found!r:.60} file where {wanted} is needed")


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


def canonical(fields: dict[str, Any]) -> bytes:
    """Return the fields as JSON with sorted keys, no spaces, in ASCII."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def digest(*parts: bytes) -> str:
    """Return the SHA-256 in hex. It tells damage, not forgery."""
    return hashlib.sha256(b"".join(parts)).hexdigest()
