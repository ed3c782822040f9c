"""Driver of clients that live at several sites, whatever carries the requests."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from securefl.federation.contribution import Refused, Sent
from securefl.federation.round import OpenSum, ServerRound
from securefl.federation.site import (
    Answers,
    Ask,
    Asked,
    Begin,
    Continue,
    Counted,
    Done,
    Reply,
    Request,
)
from securefl.types import ClientState


@dataclass(frozen=True, slots=True)
class Lost:
    """Outcome of a site from which no usable reply has come."""

    reason: str
    diverged: bool = False
    """True where the site has replied that its clients' values cannot be sent."""


@dataclass(frozen=True, slots=True)
class Begun:
    """Beginning of a site's reply, of which the rest is under way and may have to wait."""

    name: str
    """Sum that the reply is for; empty for the end of the round."""


Outcome = Reply | Lost | Begun


class Transport(Protocol):
    """Carrier of requests to sites and of their replies."""

    def call(
        self,
        requests: Mapping[str, Request],
        heard: Callable[[str, Outcome], None],
        ongoing: ServerRound | None = None,
    ) -> None:
        """Send each site its request, all at once, and return once all replies were `heard`.

        Each is handed over as it comes, `Lost` where none does, and let go of; of one that takes
        long, `Begun` may be heard before. `ongoing` is the round of the requests; it knows how
        large a reply may be, and whose have been taken.
        """


@dataclass(slots=True)
class RemoteRound:
    """Driver of one round of clients at sites."""

    transport: Transport
    home: Mapping[str, str]
    """Site of each client."""
    ongoing: ServerRound
    open_sum: OpenSum
    staged: dict[str, ClientState] = field(default_factory=dict)
    """States that clients will keep once they count, where their sites send them."""

    def run(self) -> None:
        """Have all clients train, and open the round's sums.

        Raises:
            DataError: a planned sum is left out.
            Diverged, TooFewContributions, OpeningRefused, TotalRefused: see `ServerRound.open_all`.
        """
        present = self._at_sites(self.ongoing.present)
        requests: dict[str, Request] = {site: self._begin(of) for site, of in present.items()}
        while self._taken(requests):
            self.ongoing.open_all(self.open_sum)
            answer = self.ongoing.answer()
            staying = self._at_sites(answer.staying)
            requests = {site: Continue(answer.among(names)) for site, names in staying.items()}
        self.ongoing.open_all(self.open_sum)

    def _taken(self, requests: Mapping[str, Request]) -> str:
        """Take the contributions that come next; return the name of their sum, none at the end."""
        turn = _InTurn(self, tuple(requests))
        if not self.ongoing.due:  # nothing else can come
            turn.begin("")
        self.transport.call(requests, turn.hear, self.ongoing)
        self.ongoing.require_somebody()
        return turn.name or ""

    def _begin(self, names: Collection[str]) -> Begin:
        context = self.ongoing.context
        times = {name: context.times[name] for name in names}
        since = {name: context.since.get(name, 0) for name in names}
        about = context.in_memory, context.job, context.past
        return Begin(context.run, context.state, times, since, *about)

    def _at_sites(self, names: Collection[str]) -> dict[str, list[str]]:
        return by_site(names, self.home)


@dataclass(slots=True)
class _InTurn:
    """Contributions to one sum, added in the order of the clients: bits depend on it.

    Those that come early are held. Where several sums may come, it is the one that most ask for,
    once all have said for which they ask.
    """

    remote: RemoteRound
    sites: Sequence[str]
    """Sites that were sent requests, in order."""
    name: str | None = None
    """Name of the sum; empty at the end of the round, None before it is known."""
    said: dict[str, Outcome] = field(default_factory=dict)
    """Outcomes that came before the sum was known, by site."""
    due: list[str] = field(init=False)
    """Clients whose turn has not come."""
    early: dict[str, Sent | Lost | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.due = list(self.remote.ongoing.present)

    def begin(self, name: str) -> None:
        """Begin the sum of this name, or those at the round's end; raises as `ServerRound`."""
        self.name, ongoing = name, self.remote.ongoing
        ongoing.begin_sum(name) if name else ongoing.begin_update()

    def hear(self, site: str, outcome: Outcome) -> None:
        """Add the contributions of a site, and those that have waited for it."""
        if self.name is not None:
            self._heard(site, outcome)
            return
        self.said[site] = outcome
        if len(self.said) < len(self.sites):
            return
        said, self.said = self.said, {}
        name = _most_ask_for(said)
        if any(map(_contributors, said.values())):
            self.begin(name)
        self.name = name
        for each in self.sites:
            self._heard(each, said.pop(each))

    def _heard(self, site: str, outcome: Outcome) -> None:
        if isinstance(outcome, Begun):
            return
        for client in by_site(self.due, self.remote.home).get(site, ()):
            self.early[client] = self._of(client, outcome)
        while self.due and self.due[0] in self.early:
            client = self.due.pop(0)
            self._take(client, self.early.pop(client))

    def _of(self, client: str, outcome: Outcome) -> Sent | Lost | None:
        """Return what a client has sent; None where it is something else than is due."""
        match outcome:
            case Lost():
                return outcome
            case Asked() | Done() if isinstance(left := outcome.sent.get(client), Refused):
                return left  # also where others ask for another sum, or none
            case Done() if not self.name:
                self.remote.staged |= outcome.client_states
                return outcome.sent.get(client)
            case Asked() if self.name == outcome.name:
                return outcome.sent.get(client)
            case _:
                return None

    def _take(self, client: str, sent: Sent | Lost | None) -> None:
        ongoing = self.remote.ongoing
        if isinstance(sent, Lost):
            ongoing.lose(client, "round", sent.reason, diverged=sent.diverged)
        elif sent is None:
            why = "sent another message" if self.name else "has sent nothing at the end"
            ongoing.lose(client, self.name or "update", f"{client}: {why}")
        else:
            ongoing.take(client, sent)


def _most_ask_for(replies: Mapping[str, Outcome]) -> str:
    """Return the sum that most clients ask for, the only one to count; empty if most are done."""
    votes = Counter[str]()
    for reply in replies.values():
        match reply:
            case Asked() | Done():
                votes[reply.name if isinstance(reply, Asked) else ""] += _contributors(reply)
            case Begun():
                votes[reply.name] += _contributors(reply)
    return votes.most_common(1)[0][0] if votes else ""


def _contributors(outcome: Outcome) -> int:
    """Return the number of clients that have sent, or begun to send, anything but a refusal."""
    if isinstance(outcome, Begun):
        return 1  # of a site with one client
    if not isinstance(outcome, Asked | Done):
        return 0
    return sum(not isinstance(sent, Refused) for sent in outcome.sent.values())


def by_site(names: Collection[str], home: Mapping[str, str]) -> dict[str, list[str]]:
    """Group clients by their sites; both stay in order."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(home[name], []).append(name)
    return found


def counted(transport: Transport, ongoing: ServerRound, home: Mapping[str, str]) -> None:
    """Tell the sites whose contributions count."""
    number = ongoing.context.number
    requests = {s: Counted(number, n) for s, n in by_site(ongoing.counted, home).items()}
    transport.call(requests, lambda *_: None)


def answers(transport: Transport, home: Mapping[str, str], ask: Ask) -> dict[str, bytes | Refused]:
    """Return each client's answer; a client without one counts as having refused."""
    where = by_site(ask.names, home)
    requests = {site: replace(ask, names=names) for site, names in where.items()}
    found, replies = dict[str, bytes | Refused](), dict[str, Outcome]()
    transport.call(requests, replies.__setitem__)
    for site, reply in replies.items():
        for name in where[site]:
            if isinstance(reply, Answers) and name in reply.answers:
                found[name] = reply.answers[name]
            else:
                lost = reply if isinstance(reply, Lost) else Lost(f"{name}: gives no answer")
                found[name] = Refused(ask.query.name, lost.reason, diverged=lost.diverged)
    return {name: found[name] for name in ask.names}
