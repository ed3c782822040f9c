"""The base of all tables of settings, which have no unknown key; and the kinds of numbers."""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(gt=0, lt=1, strict=True)]
ClosedShare = Annotated[float, Field(ge=0, le=1, strict=True)]
Positive = Annotated[float, Field(gt=0, le=1e38, allow_inf_nan=False, strict=True)]
NotNegative = Annotated[float, Field(ge=0, le=1e38, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=1, le=10**7, strict=True)]


def one_of(names: Iterable[str]) -> Any:
    """Return what the settings' schema says of text that is one of these names."""
    return Field(json_schema_extra={"enum": list(names)})


class Table(BaseModel):
    """A frozen table; the text under a key describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
