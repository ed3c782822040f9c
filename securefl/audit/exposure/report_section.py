"""Section on exposure: who received what, to the byte, and what is not as the settings promise."""

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from securefl.audit.exposure.leaks import InspectedRounds, Leak
from securefl.audit.exposure.openings import opened_lists
from securefl.audit.exposure.verdict import RULES, Exposed, server_view
from securefl.audit.findings import Number, Section
from securefl.audit.rules import decided
from securefl.federation.ledger import AUTHORITY, SERVER, Entry
from securefl.federation.opening import Opening
from securefl.io.html import PageTable
from securefl.report.views import OUTSIDER, Field, PartyView, Shows, views
from securefl.types import Kind

_MOST_LEAKS = 40
"""Lines of leaks that a reader takes in; the JSON's number counts them all."""
_NOT_SEEN_OUTSIDE = (
    "An outside reader breaks no TLS. Within one process (a simulation) nothing is on a wire, and "
    "the ledger says what would be."
)
_LYING = (
    "All this is of a server that keeps to the protocol. One that shows clients models of its own "
    "making could read more: what, and what clients find out, stands in SECURITY.md."
)
_NOT_PLAYED = (
    "No round was played again and looked at byte by byte, as no data were given: all is what the "
    "folder's files say."
)
_CARDS = (
    "A client's cards hold the secret that the keys of its messages follow from. The server passes "
    "them on and learns nothing from them; the authority, or enough officers, can make all keys of "
    "these messages, and is not sent the messages."
)
_BESIDE_ROUNDS = (
    "Models that clients are sent beside a round's beginning have no row in the ledger: to be "
    "scored, the final one among them, or again after a lost connection."
)
_NOT_LOOKED_FOR = (
    "A ciphertext's noise, the nonce of its key and the times of messages could carry something "
    "that is not looked for here; nor is anything that a changed program sends past the ledger."
)


def exposure_section(
    ledger: Sequence[Entry],
    leaks: Sequence[Leak],
    inspected: InspectedRounds | None,
    *,
    noisy: bool = False,
    weighed: bool = False,
    openings: Sequence[Opening] = (),
) -> Section:
    """Return the section from the run's ledger, its folder's leaks and the inspected rounds.

    `inspected` is None where no round could be played again.
    `noisy` where each client adds all of its noise itself (privacy of records), `weighed` where a
    client's weight is its number of samples. `openings` are the rows of all logs of openings.
    """
    found = views(ledger)
    sized = weighed_alone(opened_lists(ledger, openings)) if weighed else 0
    all_leaks = [*leaks, *(inspected.leaks if inspected else ())]
    exposed = Exposed(found, all_leaks, noisy=noisy, sized=sized)
    verdict, words, do = decided(RULES, exposed)
    return Section(
        "exposure",
        "Who saw what",
        verdict,
        words,
        tuple(_numbers(ledger, found, leaks, inspected)),
        (*_leak_tables(all_leaks), *map(_table, _distinct(found))),
        notes=(
            *(_played(inspected) if inspected else (_NOT_PLAYED,)),
            _LYING,
            *([_CARDS] if any(entry.kind is Kind.CARDS for entry in ledger) else []),
            _BESIDE_ROUNDS,
            _NOT_SEEN_OUTSIDE,
            _NOT_LOOKED_FOR,
        ),
        do=do,
        attacked=False,
    )


def weighed_alone(lists: Collection[frozenset[str]]) -> int:
    """Return of how many clients the weight follows from the weights of totals of these lists.

    Each total opens with the sum of its clients' weights, one linear equation. A client's weight
    follows where its unit vector is in the span of the equations' rows, which the diagonal of the
    projection on that span says.
    """
    names = sorted(frozenset[str]().union(*lists))
    if not names:
        return 0
    rows = {tuple(name in signers for name in names) for signers in lists}
    equations_TK = np.array(sorted(rows), dtype=np.float64)
    projection_KK = np.linalg.pinv(equations_TK) @ equations_TK
    return int((projection_KK.diagonal() > 1 - 1e-9).sum())


def _played(inspected: InspectedRounds) -> Iterator[str]:
    if inspected.stopped:
        yield f"Played again, the run ended after {inspected.rounds} rounds: {inspected.stopped}"
    yield (
        f"Byte by byte, {inspected.rounds} rounds were looked at, played again; of all others, and "
        "of what officers answer, only what the folder's files say."
    )


def _numbers(
    ledger: Sequence[Entry],
    found: Sequence[PartyView],
    leaks: Sequence[Leak],
    inspected: InspectedRounds | None,
) -> Iterator[Number]:
    total = sum(entry.bytes for entry in ledger)
    own = sum(view.bytes for view in found if view.party != OUTSIDER)
    how = "bytes of the ledger whose receiver, sender, field and form are known"
    yield Number("attributed", own / total if total else 1.0, how, unit="%")
    yield Number("wire bytes", total, "all messages of ledger.jsonl", unit="bytes")
    server = server_view(found)
    n_read = sum(field.n_values for field in server.reads_single_clients)
    yield Number("single clients' values that the server could read", n_read, "ledger.jsonl")
    yield Number(
        "leaks in the folder",
        len(leaks),
        "ledger, log of openings, metrics, incidents and files against what the settings plan",
    )
    if inspected is None:
        return
    how = f"the first {inspected.rounds} rounds played again, every message opened and compared"
    yield Number("leaks on the wire", len(inspected.leaks), how)
    share = inspected.seen_bytes / inspected.ledger_bytes if inspected.ledger_bytes else 1.0
    yield Number("wire bytes seen of those written down", share, how, unit="%")


def _leak_tables(leaks: Sequence[Leak]) -> Iterator[PageTable]:
    if leaks:
        shown = [(x.what, x.why, str(x.round), x.who) for x in leaks[:_MOST_LEAKS]]
        title = f"Not as promised ({len(leaks)})"
        yield PageTable(
            title, ("Field", "Why", "Round", "Who"), shown, frozenset(range(len(shown)))
        )


def _distinct(found: Sequence[PartyView]) -> Iterator[tuple[str, PartyView]]:
    """Yield each view once, with the names of all clients that received the same."""
    alike: dict[tuple[Field, ...], list[PartyView]] = {}
    for view in found:
        alike.setdefault(view.fields, []).append(view)
    for same in alike.values():
        names = [view.party for view in same]
        yield names[0] if len(names) == 1 else f"each of {names[0]} .. {names[-1]}", same[0]


def _table(named: tuple[str, PartyView]) -> PageTable:
    party, view = named
    rows = [
        (
            field.name,
            str(field.shows),
            field.form,
            str(field.kind),
            _from(field),
            f"{field.times:,}",
            f"{field.n_values:,}",
            f"{field.bytes:,}",
        )
        for field in view.fields
    ]
    alarming = frozenset(
        i for i, field in enumerate(view.fields) if field.shows is Shows.ONE_CLIENT
    )
    title = f"What {_named(party)} received ({view.bytes:,} bytes)"
    columns = ("Field", "Shows", "Form", "Kind", "From", "Times", "Values", "Bytes")
    return PageTable(title, columns, rows, alarming)


def _named(party: str) -> str:
    return f"the {party}" if party in {SERVER, AUTHORITY, OUTSIDER} else party


def _from(field: Field) -> str:
    senders = field.senders
    return senders[0] if len(senders) == 1 else f"{len(senders)} parties"
