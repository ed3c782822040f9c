"""Transport: the one function that carries requests to sites, and their replies, as bytes.

Workers behind pipes, actors of Ray, and sites behind gRPC or NVIDIA FLARE are called by it. What
the bytes say, and how many may come, a `SiteCall` knows, which carries nothing itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

Parts = Sequence[bytes | memoryview]
"""One message: a head, which says its kind in few bytes, and the rest, in parts that nobody has to
join. Some carriers do."""
Meaning = TypeVar("Meaning")
"""Type of what a call understands."""
_Meaning_co = TypeVar("_Meaning_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Lost:
    """Outcome of a site from which no usable reply has come."""

    reason: str
    diverged: bool = False
    """True where the site has replied that its clients' values cannot be sent."""


class SiteCall(Protocol[_Meaning_co]):
    """One request to a site, and its reply, as bytes."""

    def request(self, connection: object) -> Parts:
        """Return the request; asked for as it is sent, so that nobody holds it before or after.

        A site that has begun anew has another `connection`, and knows of nothing said before.
        """

    def begins(self, beginning: Parts, n_bytes: int) -> _Meaning_co | None:
        """Take the beginning of a message of so many bytes, before the rest of it is read.

        Returns what is to be heard of it at once, if anything. Ray brings messages whole, and pipes
        their first part: so long may one of a run's own processes be that is refused.

        Raises:
            PeerError: nobody expects that message, or it is too long. The rest is not read.
        """

    def read(self, message: Parts) -> _Meaning_co | Lost | None:
        """Take a whole message; return the outcome once it was the last, None before.

        Nothing of it is held from then on. Raises PeerError where the message is none.
        """

    @property
    def unanswered(self) -> _Meaning_co | None:
        """Outcome of a request whose reply, if any comes, says nothing; None where it does."""


class Transport(Protocol):
    """Carrier of bytes to sites, which are asked at once, and back."""

    def call(
        self,
        calls: Mapping[str, SiteCall[Meaning]],
        heard: Callable[[str, Meaning | Lost], None],
        awaited: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        """Send each site its request, and return once the outcomes of all were `heard`.

        Each is handed over as it comes, and let go of: `Lost` where the site is not there, ends,
        is late, or sends what its call refuses. `awaited` returns the sites whose outcomes are
        not yet used, in the order of their use: others may be left unread meanwhile.
        """
