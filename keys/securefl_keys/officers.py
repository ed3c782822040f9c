"""The officers in force, as a file that the consortium has signed: names and card keys in order.

Officer 1 is the authority; the others are members of the role officer.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from securefl.crypto.cards import CardKey, CardKeyFile
from securefl.errors import ConfigError, KeyFileError
from securefl.exchange.card_keys import MOST_OFFICERS, CardKeys, Quorum
from securefl_keys import layout
from securefl_keys.key_files import found_in, text_of
from securefl_keys.roster import VerifiedRoster, load_authority_certificate
from securefl_keys.signed_file import SignedFile
from securefl_keys.subject import AUTHORITY, MAX_NAME_BYTES

OFFICERS_FORMAT: Literal["securefl-officers/1"] = "securefl-officers/1"
ALONE = (AUTHORITY.name,)
"""Names of the officers where the authority is the only one."""


class ListedOfficer(BaseModel):
    """One officer, with its card key of the epoch."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES)]
    card: CardKeyFile

    @classmethod
    def of(cls, name: str, key: CardKey) -> ListedOfficer:
        """Return the entry of an officer of this name and key."""
        return cls(name=name, card=CardKeyFile.model_validate_json(key.to_json()))

    def key(self) -> CardKey:
        """Return the card key; raises KeyFileError where it is damaged."""
        return CardKey.from_json(self.card.model_dump_json())


class OfficersFile(SignedFile):
    """The officers of an epoch."""

    anew: ClassVar[str] = "make it anew, with: securefl keys officers set"

    format: Literal["securefl-officers/1"]
    needed: Annotated[int, Field(ge=1, le=MOST_OFFICERS)]
    """Quorum k: number of officers that together open a sum."""
    officers: Annotated[tuple[ListedOfficer, ...], Field(min_length=1, max_length=MOST_OFFICERS)]

    @property
    def names(self) -> tuple[str, ...]:
        """Names in order, the authority first."""
        return tuple(officer.name for officer in self.officers)

    def told(self) -> str:
        """Return names and quorum in words; empty where the authority is alone."""
        if len(self.names) == 1:
            return ""
        return f"{self.needed} of {len(self.names)} officers open sums: {', '.join(self.names)}"

    def card_keys(self, own: CardKey, roster: VerifiedRoster) -> CardKeys:
        """Return all card keys, found to go with the authority's and with the roster.

        Raises:
            KeyFileError: officer 1 has another key, somebody is no officer by the roster, or the
                keys are of several epochs.
            ConfigError: no quorum may be so.
        """
        first, *others = self.names
        if first != AUTHORITY.name or len(set(self.names)) != len(self.names):
            raise KeyFileError("officer 1 is not the authority, or an officer is there twice")
        for name in others:
            listed = roster.members.get(name)
            if listed is None or listed.role != "officer":
                raise KeyFileError(f"{name!r:.80} is no officer by the roster: {self.anew}")
        keys = tuple(officer.key() for officer in self.officers)
        if keys[0].to_json() != own.to_json():
            raise KeyFileError(f"officer 1 has another card key than the authority: {self.anew}")
        if {key.epoch for key in keys} != {self.epoch}:
            raise KeyFileError(f"a card key is not of epoch {self.epoch}: {self.anew}")
        try:
            return CardKeys(keys, Quorum(self.needed, len(keys)))
        except ConfigError as error:
            raise KeyFileError(f"{error}: {self.anew}") from error


def load_officers(directory: Path, at: datetime) -> OfficersFile | None:
    """Load the officers in a key folder or a bundle; None where there never was one.

    Whether they go with roster and keys, `OfficersFile.card_keys` tells.

    Raises:
        KeyFileError: and its subclasses, as `SignedFile.verified`.
    """
    path = directory / layout.OFFICERS
    if not path.exists():
        return None
    ca = load_authority_certificate(directory, None, at)
    with found_in(path):
        return OfficersFile.verified(text_of(path), ca)
