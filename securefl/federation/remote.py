"""Driver of clients that live at several sites, whatever carries the requests."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
from securefl.federation.transport import Lost, SiteCall, Transport
from securefl.types import ClientState


@dataclass(frozen=True, slots=True)
class Begun:
    """Beginning of a site's reply, which may have to wait for the rest or for room."""

    name: str
    """Sum that the reply is for; empty for the end of the round."""


Said = Reply | Begun
Outcome = Said | Lost
Heard = Callable[[str, Outcome], None]
"""Function that takes the outcome of a site."""
Calls = Callable[[Mapping[str, Request], ServerRound | None], Mapping[str, SiteCall[Said]]]
"""Function that puts requests to sites into bytes. In a round it knows how long replies are."""


@dataclass(frozen=True, slots=True)
class Sites:
    """Sites of clients, behind a transport."""

    transport: Transport
    calls: Calls
    home: Mapping[str, str]
    """Site of each client."""

    def ask(
        self, requests: Mapping[str, Request], heard: Heard, ongoing: ServerRound | None = None
    ) -> None:
        """Ask sites, all at once; see `Transport.call`. `ongoing` is the round of the requests."""
        awaited = (lambda: [*self.by_site(ongoing.awaited)]) if ongoing else None
        self.transport.call(self.calls(requests, ongoing), heard, awaited)

    def by_site(self, clients: Collection[str]) -> dict[str, list[str]]:
        """Group clients by their sites; both stay in order."""
        found: dict[str, list[str]] = {}
        for name in clients:
            found.setdefault(self.home[name], []).append(name)
        return found

    def train(self, ongoing: ServerRound, open_sum: OpenSum) -> Mapping[str, ClientState]:
        """Have all clients train, and open the round's sums.

        Returns the states that clients will keep once they count, where their sites send them.

        Raises:
            DataError: a planned sum is left out.
            Diverged, TooFewContributions, OpeningRefused, TotalRefused: see `ServerRound.open_all`.
        """
        remote = RemoteRound(self, ongoing, open_sum)
        remote.run()
        return remote.staged

    def counted(self, ongoing: ServerRound) -> None:
        """Tell the sites whose contributions count."""
        number = ongoing.context.number
        requests = {s: Counted(number, n) for s, n in self.by_site(ongoing.counted).items()}
        self.ask(requests, lambda *_: None)

    def answers(self, ask: Ask) -> dict[str, bytes | Refused]:
        """Return each client's answer; a client without one counts as having refused."""
        where = self.by_site(ask.names)
        requests = {site: replace(ask, names=names) for site, names in where.items()}
        found, replies = dict[str, bytes | Refused](), dict[str, Outcome]()
        self.ask(requests, replies.__setitem__)
        for site, reply in replies.items():
            for name in where[site]:
                if isinstance(reply, Answers) and name in reply.answers:
                    found[name] = reply.answers[name]
                else:
                    lost = reply if isinstance(reply, Lost) else Lost(f"{name}: gives no answer")
                    found[name] = Refused(ask.query.name, lost.reason, diverged=lost.diverged)
        return {name: found[name] for name in ask.names}


@dataclass(slots=True)
class RemoteRound:
    """Driver of one round of clients at sites."""

    sites: Sites
    ongoing: ServerRound
    open_sum: OpenSum
    staged: dict[str, ClientState] = field(default_factory=dict)
    """States that clients will keep once they count, where their sites send them."""

    def run(self) -> None:
        """Run it; raises as `Sites.train`."""
        present = self.sites.by_site(self.ongoing.present)
        requests: dict[str, Request] = {site: self._begin(of) for site, of in present.items()}
        while self._taken(requests):
            self.ongoing.open_all(self.open_sum)
            answer = self.ongoing.answer()
            staying = self.sites.by_site(answer.staying)
            requests = {site: Continue(answer.among(names)) for site, names in staying.items()}
        self.ongoing.open_all(self.open_sum)

    def _taken(self, requests: Mapping[str, Request]) -> str:
        """Take the contributions that come next; return the name of their sum, none at the end."""
        turn = _InTurn(self, tuple(requests))
        if not self.ongoing.due:  # nothing else can come
            turn.begin("")
        self.sites.ask(requests, turn.hear, self.ongoing)
        self.ongoing.require_somebody()
        return turn.name or ""

    def _begin(self, names: Collection[str]) -> Begin:
        context = self.ongoing.context
        times = {name: context.times[name] for name in names}
        since = {name: context.since.get(name, 0) for name in names}
        about = context.in_memory, context.job, context.past
        return Begin(context.run, context.state, times, since, *about)


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
        for client in self.remote.sites.by_site(self.due).get(site, ()):
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
