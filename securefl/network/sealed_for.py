"""Record of a client: at which models, and in which rounds, it has sealed for which officers.

Whoever opens holds all totals at one model, all of one round of the same settings, and all of their
columns, against each other, by a record of what was opened before. Officers that were named since
have no such record: of two totals the one that they open could be the other less one client. So a
client seals nothing for them where it has sealed for others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from securefl.errors import ConfigError, RunFolderError
from securefl.io.files import append_whole, make_folder, own_lines
from securefl.io.json import parsed

FILE = "sealed-for.jsonl"
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
_Name = Annotated[str, Field(max_length=100)]
_Row = tuple[Annotated[list[_Name], Field(max_length=7)], _Name, _Digest, int, _Digest]
_ROW = TypeAdapter(_Row)


@dataclass(slots=True)
class SealedFor:
    """The record of one client, in its own folder."""

    folder: Path
    settings: str
    """Digest of the settings, whoever takes part: `study_digest`."""
    _at: dict[object, tuple[str, ...]] | None = field(default=None)
    """Officers by what was sealed, and model, or settings and round; None before it is read."""

    def require(self, officers: Sequence[str], what: str, round_number: int, model: str) -> None:
        """Note that the client seals for these officers, before anything leaves it.

        Args:
            officers: names of those who open.
            what: the name of a question, or `update` for all that a round's training sends, or
                `columns` for what is measured of them.
            round_number: number of the round; of columns 0 in all of them.
            model: digest of the model that it is sent.

        Raises:
            ConfigError: it has sealed the same at this model, or in this round of these settings,
                for others.
            RunFolderError: the record is damaged, or cannot be written.
        """
        known, who = self._read(), tuple(sorted(officers))
        where = self._keys(what, round_number, model)
        if others := next((known[at] for at in where if known.get(at, who) != who), None):
            raise ConfigError(
                f"round {round_number}: this client has sealed at this model, or in this round of "
                f"these settings, for {', '.join(others)}, and now {', '.join(who)} would open: "
                "they have no record of what was opened then, and the difference of two totals "
                "could show one client. Begin another run, with another run.seed; or have those "
                "before open this one"
            )
        if all(at in known for at in where):
            return
        row = _ROW.dump_json((list(who), what, self.settings[:16], round_number, model[:16]))
        try:
            make_folder(self.folder, mode=0o700)
            append_whole(self.folder / FILE, row + b"\n")
        except OSError as error:
            raise RunFolderError(
                f"{self.folder / FILE}: cannot be written ({error.strerror or error}): free some "
                "space, then start this client again with the same command"
            ) from error
        known |= dict.fromkeys(where, who)

    def _keys(self, what: str, round_number: int, model: str) -> tuple[object, object]:
        return (what, model[:16]), (what, self.settings[:16], round_number)

    def _read(self) -> dict[object, tuple[str, ...]]:
        if self._at is None:
            known, path = dict[object, tuple[str, ...]](), self.folder / FILE
            try:
                lines = list(own_lines(path))
            except OSError as error:
                raise RunFolderError(f"{path}: cannot be read ({error})") from error
            for line in lines:
                officers, what, settings, number, model = parsed(_ROW, line, RunFolderError)
                where = (what, model), (what, settings, number)
                known |= dict.fromkeys(where, tuple(officers))
            self._at = known
        return self._at
