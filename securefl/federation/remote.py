"""The driver of clients that live at several sites, whatever carries the requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from securefl.federation.contribution import Refused
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
from securefl.types import Memory


@dataclass(frozen=True, slots=True)
class Lost:
    """Outcome of a site from which no usable reply has come."""

    reason: str
    diverged: bool = False
    """True where the site has replied that its clients' values cannot be sent."""


class Transport(Protocol):
    """Carrier of requests to sites and of their replies."""

    def call(
        self, requests: Mapping[str, Request], ongoing: ServerRound | None = None
    ) -> dict[str, Reply | Lost]:
        """Send each site its request, all at once; return the replies, or `Lost` without one.

        `ongoing` is the round of the requests; it knows how large a reply may be.
        """


@dataclass(slots=True)
class RemoteRound:
    """Driver of one round of clients at sites."""

    transport: Transport
    home: Mapping[str, str]
    """Site of each client."""
    ongoing: ServerRound
    open_sum: OpenSum
    staged: dict[str, Memory] = field(default_factory=dict)
    """States that clients will keep once they count, where their sites send them."""

    def run(self) -> None:
        """Have all clients train, and open the round's sums.

        Raises:
            DataError: a planned sum is left out.
            Diverged, TooFewContributions, OpeningRefused, TotalRefused: see `ServerRound.open_all`.
        """
        replies = self._called(
            {
                site: self._begin(names)
                for site, names in self._at_sites(self.ongoing.present).items()
            }
        )
        while name := _most_ask_for(replies):
            replies = self._sum(name, replies)
        self.ongoing.begin_update()
        done = {site: reply for site, reply in replies.items() if isinstance(reply, Done)}
        for client in self.ongoing.present:
            reply = done.get(self.home[client])
            if reply is None or client not in reply.sent:
                self.ongoing.lose(client, "update", f"{client}: has sent nothing at the end")
            elif self.ongoing.take(client, reply.sent[client]) and client in reply.memories:
                self.staged[client] = reply.memories[client]
        self.ongoing.open_all(self.open_sum)

    def _sum(self, name: str, replies: Mapping[str, Reply]) -> dict[str, Reply]:
        ongoing = self.ongoing
        ongoing.begin_sum(name)
        asked = {
            site: reply
            for site, reply in replies.items()
            if isinstance(reply, Asked) and reply.name == name
        }
        for client in ongoing.present:
            reply = asked.get(self.home[client])
            if reply is None or client not in reply.sent:
                ongoing.lose(client, name, f"{client}: sent another message")
            else:
                ongoing.take(client, reply.sent[client])
        ongoing.open_all(self.open_sum)
        answer = ongoing.answer()
        return self._called({site: Continue(answer) for site in self._at_sites(answer.staying)})

    def _called(self, requests: Mapping[str, Request]) -> dict[str, Reply]:
        """Return the replies; clients at sites without one are out of the round."""
        found: dict[str, Reply] = {}
        for site, reply in self.transport.call(requests, self.ongoing).items():
            if isinstance(reply, Lost):
                for client in self._at_sites(self.ongoing.present).get(site, ()):
                    self.ongoing.lose(client, "round", reply.reason, diverged=reply.diverged)
            else:
                found[site] = reply
        self.ongoing.require_somebody()
        return found

    def _begin(self, names: Collection[str]) -> Begin:
        context = self.ongoing.context
        times = {name: context.times[name] for name in names}
        since = {name: context.since.get(name, 0) for name in names}
        return Begin(context.run, context.state, times, since, context.in_memory, context.job)

    def _at_sites(self, names: Collection[str]) -> dict[str, list[str]]:
        return by_site(names, self.home)


def _most_ask_for(replies: Mapping[str, Reply]) -> str:
    """Return the sum that most clients ask for, the only one to count; empty if most are done."""
    votes = Counter[str]()
    for reply in replies.values():
        if isinstance(reply, Asked | Done):
            votes[reply.name if isinstance(reply, Asked) else ""] += len(reply.sent)
    return votes.most_common(1)[0][0] if votes else ""


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
    transport.call(requests)


def answers(transport: Transport, home: Mapping[str, str], ask: Ask) -> dict[str, bytes | Refused]:
    """Return each client's answer; a client without one counts as having refused."""
    where = by_site(ask.names, home)
    requests = {site: replace(ask, names=names) for site, names in where.items()}
    found: dict[str, bytes | Refused] = {}
    for site, reply in transport.call(requests).items():
        for name in where[site]:
            if isinstance(reply, Answers) and name in reply.answers:
                found[name] = reply.answers[name]
            else:
                lost = reply if isinstance(reply, Lost) else Lost(f"{name}: gives no answer")
                found[name] = Refused(ask.query.name, lost.reason, diverged=lost.diverged)
    return {name: found[name] for name in ask.names}
