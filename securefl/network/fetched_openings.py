"""Log of the authority of a run's sessions, fetched into the server's folder of the run.

It is evidence of what was decrypted, which an audit holds against the server's own ledger. Rows are
only ever added: those of a session that was killed are fetched in the next one.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from securefl.errors import OpeningRefused, PeerError
from securefl.federation.opening import Opening
from securefl.io.json import parsed
from securefl.network import bodies
from securefl.network.frames import SMALL, Frame, Link
from securefl.runs.folder_files import OPENINGS
from securefl.runs.folder_reader import read_rows
from securefl.runs.folder_writer import RunFolder

MAX_LOG_BYTES = 2**22
"""Most bytes of rows that are fetched at once."""
MOST_ROWS = 2_000_000
"""Most rows of a session: more than any policy opens."""
FETCH_S = 30.0
"""Seconds that the authority has for all that the folder lacks."""
_ROW = TypeAdapter(Opening)


@dataclass(slots=True)
class FetchedOpenings:
    """Log of the authority of the sessions of one run, as far as the folder has it."""

    folder: RunFolder
    sessions: Sequence[str]
    """Ids of the run's sessions, the present one last."""
    name: str = OPENINGS
    """Name of the folder's file that has them."""
    _n_rows: Counter[str] = field(init=False)
    """Rows that the folder has of each session."""

    def __post_init__(self) -> None:
        self._n_rows = Counter(row.run for row in read_rows(self.folder.path / self.name, Opening))

    async def fetch(self, authority: Link) -> None:
        """Add the rows that the folder has not.

        Raises:
            OpeningRefused: the authority cannot read its log.
            PeerError: it is gone, or its answer is no log of these sessions.
            RunFolderError: the folder cannot be written.
        """
        try:
            async with asyncio.timeout(FETCH_S):
                for session in self.sessions:
                    while rows := await self._next(authority, session):
                        self.folder.note_openings(rows, self.name)
                        self._n_rows[session] += len(rows)
        except TimeoutError:
            raise PeerError(f"{authority.name}: its log takes over {FETCH_S:g} s") from None
        self.sessions = self.sessions[-1:]  # of those before nothing is opened any more

    async def _next(self, authority: Link, session: str) -> list[Opening]:
        request = bodies.LogRequest(run=session, known=self._n_rows[session])
        await authority.send(Frame.LOG, request.to_bytes())
        answer = await authority.receive({Frame.LOG_ROWS: MAX_LOG_BYTES, Frame.REFUSED: SMALL})
        if answer.frame is Frame.REFUSED:
            refusal = bodies.parsed(bodies.Refusal, answer.body, authority.name)
            raise OpeningRefused(f"{authority.name}: {refusal.reason}")
        rows = [parsed(_ROW, line, PeerError) for line in answer.body.splitlines()]
        if any(row.run != session for row in rows):
            raise PeerError(f"{authority.name}: sent the log of another session")
        if self._n_rows[session] + len(rows) > MOST_ROWS:
            raise PeerError(f"{authority.name}: its log of a session has over {MOST_ROWS} rows")
        return rows
