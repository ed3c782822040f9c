"""Files of an older version are told from damaged ones, and the way out is named."""

from __future__ import annotations

from typing import get_args

from pydantic import BaseModel, ValidationError

from securefl.errors import KeyFileError


def require_not_older(kind: type[BaseModel], error: ValidationError, way_out: str) -> None:
    """Raises KeyFileError where nothing but its version keeps a file's `format` from being read."""
    first = error.errors()[0]
    if first["loc"] != ("format",):
        return
    (needed,) = get_args(kind.model_fields["format"].annotation)
    name, _, version = needed.partition("/")
    if first["input"] in [f"{name}/{older}" for older in range(1, int(version))]:
        raise KeyFileError(
            f"{first['input']}: made by an older version of SecureFL, this one reads {needed}: "
            f"{way_out}"
        )
