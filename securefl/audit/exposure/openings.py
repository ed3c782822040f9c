"""Openings by the authority: what it may open, once, and written down; and cards of a session."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from securefl.audit.exposure.leaks import Leak
from securefl.audit.exposure.planned import planned_sums
from securefl.exchange.profile_match import SCORE
from securefl.federation.incidents import Incident
from securefl.federation.ledger import AUTHORITY, SERVER, Entry
from securefl.federation.message import CARD, SCORE_MEAN
from securefl.federation.opening import Opening
from securefl.types import Kind

_WHO = f"{AUTHORITY} -> {SERVER}"


@final
@dataclass(frozen=True, slots=True)
class OpeningsLog:
    """Log of the authority, as a run's folder has it."""

    openings: Sequence[Opening]
    sessions: int
    """Sessions of the run; a session's last round may be played again."""
    here: bool
    """True where the log is kept in the folder, as that of processes is not."""
    officers: Sequence[Opening] = ()
    """Rows of officers' own logs."""


def wrongly_opened(
    log: OpeningsLog,
    ledger: Sequence[Entry],
    expected: Sequence[Entry],
    finished: Collection[int],
    least: int,
) -> Iterator[Leak]:
    """Yield openings against the run's ledger, its settings' ledger, or what they allow.

    Args:
        log: what the authority says.
        ledger: what the run says.
        expected: what it should say.
        finished: rounds that are complete in both, and all of whose totals were opened.
        least: clients in a total.
    """
    opened = [opening for opening in log.openings if not opening.refused]
    yield from _of_too_few(opened, least)
    yield from _too_often(opened, log.sessions)
    yield from _strangers(opened, ledger)
    yield from _at_odds(opened, ledger)
    planned = planned_sums(expected)
    for entry in ledger:
        about = entry.name, entry.n_values
        if entry.sender == AUTHORITY and entry.name != SCORE and about not in planned[entry.round]:
            yield Leak.of(entry, f"{entry.n_values} values that no sum of these settings has")
    yield from _never_opened(ledger, finished)
    yield from _of_officers(log.officers, least)
    if log.here:
        yield from _not_written_down(log, ledger, finished)


def _of_too_few(opened: Sequence[Opening], least: int) -> Iterator[Leak]:
    for o in opened:
        n, signed = o.n_clients, len(set(o.signers))
        if o.name != SCORE and min(n, signed) < least:
            of = f"{n} clients" if n == signed else f"{n} clients by its row, {signed} by its list"
            yield Leak(o.round, o.name, _WHO, f"opened of {of}, below {least}")


def _too_often(opened: Sequence[Opening], sessions: int) -> Iterator[Leak]:
    """Yield totals, or a client's score, opened again beyond what ended sessions explain."""
    times = Counter(
        (o.round, o.name, signer)
        for o in opened
        for signer in (o.signers if o.name == SCORE else ("",))
    )
    again = Counter[int]()
    for (number, _, _), n in times.items():
        again[number] = max(again[number], n - 1)
    if again.total() < sessions:
        return
    for (number, name, _), n in times.items():
        if n > 1:
            yield Leak(number, name, _WHO, f"opened {n} times: what differs shows clients")


def _of_officers(officers: Sequence[Opening], least: int) -> Iterator[Leak]:
    """Yield keys that officers have added up of too few, or for different lists of one total."""
    answered = [row for row in officers if not row.refused]
    lists = defaultdict[tuple[str, int, str], set[frozenset[str]]](set)
    for row in answered:
        lists[row.run, row.round, row.name].add(frozenset(row.signers))
    yield from _of_too_few(answered, least)
    for (_, number, name), shown in lists.items():
        if len(shown) > 1:
            why = f"officers were shown {len(shown)} lists: what differs shows clients"
            yield Leak(number, name, _WHO, why)


def _strangers(opened: Sequence[Opening], ledger: Sequence[Entry]) -> Iterator[Leak]:
    """Yield totals of messages that nobody has sent."""
    sent = {(e.round, e.name, e.sender) for e in ledger if e.receiver == SERVER}
    rounds = {e.round for e in ledger}
    for o in opened:
        if o.name == SCORE or o.round not in rounds:
            continue
        if strangers := [s for s in o.signers if (o.round, o.name, s) not in sent]:
            why = f"opened with {', '.join(strangers):.100}, of whom no message is written down"
            yield Leak(o.round, o.name, _WHO, why)


def _at_odds(opened: Sequence[Opening], ledger: Sequence[Entry]) -> Iterator[Leak]:
    """Yield totals whose row says other numbers than its own list or the answer's message."""
    answers = defaultdict[tuple[int, str], set[int]](set)
    for entry in ledger:
        if entry.sender == AUTHORITY:
            answers[entry.round, entry.name].add(entry.n_values)
    for o in opened:
        if o.name == SCORE:
            continue
        if o.n_clients != len(set(o.signers)):
            why = f"its row counts {o.n_clients} clients, and lists {len(set(o.signers))}"
            yield Leak(o.round, o.name, _WHO, why)
        if (sent := answers.get((o.round, o.name))) and o.n_values not in sent:
            why = f"its row has {o.n_values} values, and the message {min(sent)}"
            yield Leak(o.round, o.name, _WHO, why)


def _never_opened(ledger: Sequence[Entry], finished: Collection[int]) -> Iterator[Leak]:
    sums = (e for e in ledger if is_sealed(e) and e.kind is not Kind.PROFILES)
    sealed = {(e.round, e.name) for e in sums}
    for number, name in sealed - {(e.round, e.name) for e in ledger if e.sender == AUTHORITY}:
        if number in finished:
            why = "a round went on with a sealed total that the authority has never opened"
            yield Leak(number, name, f"clients -> {SERVER}", why)


def opened_lists(ledger: Sequence[Entry], openings: Sequence[Opening]) -> frozenset[frozenset[str]]:
    """Return the lists of clients that sealed totals were opened of; a refused request opens none.

    Of a total that the authority has sent, and no log has, all of its senders count.
    """
    opened = [row for row in openings if not row.refused and row.name not in {SCORE, SCORE_MEAN}]
    logged = {(row.round, row.name) for row in opened}
    answered = {(e.round, e.name) for e in ledger if e.sender == AUTHORITY} - logged
    senders = defaultdict[tuple[int, str], set[str]](set)
    for entry in ledger:
        summed = is_sealed(entry) and entry.kind in {Kind.PARAMETERS, Kind.STATISTICS}
        if summed and (entry.round, entry.name) in answered:
            senders[entry.round, entry.name].add(entry.sender)
    return frozenset(
        [frozenset(row.signers) for row in opened] + [frozenset(of) for of in senders.values()]
    )


def is_sealed(entry: Entry) -> bool:
    """Return whether this is a client's contribution to a sum, or its profile, and ciphertext."""
    from_client = entry.sender not in {SERVER, AUTHORITY}
    return from_client and entry.form == "ciphertext" and entry.kind is not Kind.CARDS


def _not_written_down(
    log: OpeningsLog, ledger: Sequence[Entry], finished: Collection[int]
) -> Iterator[Leak]:
    opened = Counter((o.round, o.name) for o in log.openings if not o.refused)
    sent = Counter((e.round, e.name) for e in ledger if e.sender == AUTHORITY)
    asked = {
        (e.round, e.name) for e in ledger if e.receiver == AUTHORITY and e.kind is not Kind.CARDS
    }
    for number, name in sent - opened:
        yield Leak(number, name, _WHO, "sent by the authority, and not in its log")
    for number, name in asked - {(o.round, o.name) for o in log.openings}:
        why = "asked of the authority, and not in its log"
        yield Leak(number, name, f"{SERVER} -> {AUTHORITY}", why)
    for number, name in opened.keys() - sent.keys():
        if number in finished:
            yield Leak(number, name, _WHO, "opened, and not written down as sent")


def wrongly_carded(
    ledger: Sequence[Entry],
    openings: Sequence[Opening],
    incidents: Sequence[Incident],
    sessions: int,
) -> Iterator[Leak]:
    """Yield cards that no session asks for, and what is sealed by clients without a card.

    A client is asked once a session and for each new key, and again where its card was refused. The
    authority gets each that arrives in its form, the same bytes.
    """
    given = [e for e in ledger if e.kind is Kind.CARDS and e.receiver == SERVER]
    passed_on = [e for e in ledger if e.kind is Kind.CARDS and e.sender == SERVER]
    refused = Counter(i.client for i in incidents if i.name == CARD)
    keys = {o.key_id for o in openings}
    usual = sessions + max(0, len(keys) - 1) if any(map(is_sealed, ledger)) else 0
    for client, times in Counter(e.sender for e in given).items():
        if times > usual + refused[client]:
            why = f"{times} cards, where {usual + refused[client]} are due"
            yield Leak(0, CARD, f"{client} -> {SERVER}", why)
    sizes = Counter((e.round, e.bytes) for e in given)
    for entry in passed_on:
        sizes[entry.round, entry.bytes] -= 1
        if sizes[entry.round, entry.bytes] < 0:
            yield Leak.of(entry, "passed on, and no client has sent it")
    first = {e.sender: e.round for e in reversed(given)}
    sealed = {e.sender: e for e in reversed(ledger) if is_sealed(e)}
    for client, entry in sealed.items():
        if first.get(client, entry.round + 1) > entry.round:
            yield Leak.of(entry, "sealed, and its sender has handed over no card")
