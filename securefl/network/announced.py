"""Announcements of a round: the authority reads no more than the server has announced for it."""

from __future__ import annotations

from dataclasses import dataclass

from securefl.errors import OpeningRefused
from securefl.network import bodies


@dataclass(slots=True)
class Announced:
    """The last READY of a connection; of no other round is anything opened."""

    ready: bodies.Ready | None = None
    n_scores: int = 0
    """Scores that were asked for since."""

    def require_session(self, run: str, server: str) -> None:
        """Raise OpeningRefused for cards of another session than the announced one."""
        if self.ready is None or run != self.ready.run:
            raise OpeningRefused(f"{server} has not asked READY for this session")

    def require_values(self, asked: bodies.OpenRequest, server: str) -> None:
        """Raise OpeningRefused where a sum has more values than were announced."""
        if asked.n_values > self._ready_for(asked, server).needed:
            raise OpeningRefused(f"{asked.n_values} values, more than READY has announced")

    def require_scores(self, asked: bodies.OpenRequest, server: str) -> None:
        """Count scores; raise OpeningRefused where they are too many."""
        announced, n_scores = self._ready_for(asked, server).scores, len(asked.signed)
        if self.n_scores + n_scores > announced:
            raise OpeningRefused(
                f"{n_scores} scores after {self.n_scores}, and READY has announced {announced}"
            )
        self.n_scores += n_scores

    def _ready_for(self, asked: bodies.OpenRequest, server: str) -> bodies.Ready:
        # Who asks for no new round is not looked at anew, and might be a server no longer.
        if self.ready is None or (asked.run, asked.round) != (self.ready.run, self.ready.round):
            raise OpeningRefused(f"{server} has not asked READY for it")
        return self.ready
