"""The policy as a signed file, and as people write it in TOML."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from securefl.exchange.policy import OpeningRule, Policy
from securefl.settings.load import parse_tables, read_tables
from securefl_keys import layout
from securefl_keys.key_files import found_in, text_of
from securefl_keys.roster import load_authority_certificate
from securefl_keys.signed_file import Counting, VersionedFile, now

POLICY_FORMAT: Literal["securefl-policy/3"] = "securefl-policy/3"

SENT = (
    "update/*",  # what a round ends with, one for each kind of tensor
    "*/sum",  # of a layer with batch normalisation
    "*/mean",
    "*/variance",
    "*/gradient",
    "*/moments",  # of a layer, released with differential privacy; of all layers, measured anew
    "fnr/*",
    "profile/score",
)
"""Messages of SecureFL's algorithms. An algorithm of your own needs a rule of its own."""
DEFAULT = Policy(rules=tuple(OpeningRule(names) for names in SENT))


class RuleTable(BaseModel):
    """One rule of the policy, as `OpeningRule`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    names: Annotated[str, Field(min_length=1, max_length=500)]
    precision_bits: Annotated[int, Field(ge=1, le=32)]


class PolicyTable(BaseModel):
    """Policy within the bounds that none may leave, as `Policy`. Nothing has a default."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    min_contributions: Annotated[int, Field(ge=3, le=10**6)]
    openings_per_run: Counting
    rules: Annotated[tuple[RuleTable, ...], Field(strict=False, min_length=1, max_length=100)]

    def policy(self) -> Policy:
        """Return the policy that the authority enforces."""
        return Policy(
            self.min_contributions,
            self.openings_per_run,
            tuple(OpeningRule(**rule.model_dump()) for rule in self.rules),
        )


class PolicyFile(PolicyTable, VersionedFile):
    """A policy, signed."""

    format: Literal["securefl-policy/3"]


def stated(policy: Policy) -> dict[str, Any]:
    """Return the fields of the policy's file; raises ConfigError out of `PolicyTable`'s bounds."""
    own = asdict(policy)
    del own["read"], own["noise_hides_clients"]  # are the settings' affair
    return parse_tables(PolicyTable, own).model_dump()


def read_policy(path: Path) -> Policy:
    """Read a policy in TOML; raises ConfigError for an unknown, missing or wrong key."""
    return parse_tables(PolicyTable, read_tables(path), f"{path}: ").policy()


def load_policy(directory: Path, at: datetime | None = None) -> PolicyFile:
    """Load the policy in a key folder or a bundle.

    Raises:
        KeyFileError: and its subclasses, as `SignedFile.verified`.
    """
    ca = load_authority_certificate(directory, None, at or now())
    with found_in(directory / layout.POLICY):
        return PolicyFile.verified(text_of(directory / layout.POLICY), ca)
