"""The base of all tables of settings, which have no unknown key; and the kinds of numbers."""

import re
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

Share = Annotated[float, Field(gt=0, lt=1, strict=True)]
ClosedShare = Annotated[float, Field(ge=0, le=1, strict=True)]
Positive = Annotated[float, Field(gt=0, le=1e38, allow_inf_nan=False, strict=True)]
NotNegative = Annotated[float, Field(ge=0, le=1e38, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=1, le=10**7, strict=True)]
BatchSize = Annotated[int, Field(ge=2, le=10**6, strict=True)]
"""Samples of a mini-batch; batch normalisation needs two."""


def of_form(pattern: str, words: str) -> AfterValidator:
    """Return a check of text by a pattern, which a message has in words."""
    form = re.compile(pattern)

    def check(text: str) -> str:
        if not form.fullmatch(text):
            raise PydanticCustomError("form", "must be {words}", {"words": words})
        return text

    return AfterValidator(check)


def one_of(names: Iterable[str]) -> Any:
    """Return what the settings' schema says of text that is one of these names."""
    return Field(json_schema_extra={"enum": list(names)})


class Table(BaseModel):
    """A frozen table; the text under a key describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
