"""Cards of a session: one of each client that seals anything, once, and none of anybody else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from securefl.audit.exposure.leak import Leak
from securefl.audit.exposure.openings import is_sealed
from securefl.federation.incidents import Incident
from securefl.federation.ledger import SERVER, Entry
from securefl.federation.message import CARD
from securefl.federation.opening import Opening
from securefl.types import Kind


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
