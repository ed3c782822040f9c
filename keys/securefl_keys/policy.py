"""The policy: which totals the authority may open and how, signed by the consortium."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from securefl.errors import OpeningRefused
from securefl_keys.signed_file import Counting, SignedFile

POLICY_FORMAT: Literal["securefl-policy/1"] = "securefl-policy/1"


class Flooding(BaseModel):
    """Noise that is added to what is opened."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    statistical_bits: Annotated[int, Field(ge=20, le=64)]
    releases: Annotated[int, Field(ge=1, lt=2**31)]
    """That it is sized for; after these the key is rotated."""


class OpeningRule(BaseModel):
    """For the messages whose names match."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    names: Annotated[str, Field(min_length=1, max_length=500)]
    """Shell pattern, as in `layer*/mean`."""
    precision_bits: Annotated[int, Field(ge=1, le=26)]
    """Bits after the point that are released."""
    flooding: Flooding | None


class PolicyFile(SignedFile):
    """The policy as it is written."""

    format: Literal["securefl-policy/1"]
    version: Counting
    min_contributions: Annotated[int, Field(ge=3, le=10**6)]
    openings_per_run: Annotated[int, Field(ge=1, lt=2**31)]
    rules: Annotated[tuple[OpeningRule, ...], Field(min_length=1, max_length=100)]
    """The first that matches counts; a name that none matches is not opened."""

    def rule_for(self, name: str) -> OpeningRule:
        """Raises OpeningRefused where the policy opens no message of this name."""
        for rule in self.rules:
            if fnmatchcase(name, rule.names):
                return rule
        raise OpeningRefused(f"the consortium's policy opens no {name!r:.100}")


DEFAULT: dict[str, Any] = {
    "version": 1,
    "min_contributions": 3,
    "openings_per_run": 1_000_000,
    "rules": (OpeningRule(names="*", precision_bits=24, flooding=None),),
}
"""What the authority does today: rounding to 24 bits, no flooding of sums."""
