"""The leak ledger: who received what, to the byte, and what is not as the settings promise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from securefl.audit.exposure.views import OUTSIDER, Field, Leak, PartyView, Shows, views
from securefl.audit.findings import FindingsTable, Number, Section, Verdict
from securefl.audit.replay import Tapped
from securefl.federation.ledger import AUTHORITY, SERVER, Entry
from securefl.federation.query import LOSS, SCORES, SIZE
from securefl.types import Kind

_MOST_LEAKS = 40
"""Lines of leaks that a reader takes in; the JSON's number counts them all."""
_NOT_SEEN_OUTSIDE = (
    "An outside reader breaks no TLS. Within one process (a simulation) nothing is on a wire, and "
    "the ledger says what would be."
)
_CARDS = (
    "A client's cards hold the secret that the keys of its messages follow from. The server passes "
    "them on and learns nothing from them; the authority, or enough officers, can make all keys of "
    "these messages, and is not sent the messages."
)
_NOT_LOOKED_FOR = (
    "A ciphertext's noise, the nonce of its key and the times of messages could carry something "
    "that is not looked for here; nor is anything that a changed program sends past the ledger."
)


def exposure_chapter(
    ledger: Sequence[Entry], leaks: Sequence[Leak], tapped: Tapped, *, noisy: bool = False
) -> Section:
    """Of the run's ledger, of what its folder shows to be wrong, and of the tapped rounds.

    `noisy` where each client adds all of its noise itself (privacy of records).
    """
    found = views(ledger)
    verdict, words = _verdict(found, [*leaks, *tapped.leaks], noisy=noisy)
    return Section(
        "exposure",
        "Who saw what",
        verdict,
        words,
        tuple(_numbers(ledger, found, leaks, tapped)),
        (*_leak_tables([*leaks, *tapped.leaks]), *map(_table, _distinct(found))),
        notes=(
            *_stopped(tapped),
            _tapped(tapped),
            *([_CARDS] if any(entry.kind is Kind.CARDS for entry in ledger) else []),
            _NOT_SEEN_OUTSIDE,
            _NOT_LOOKED_FOR,
        ),
    )


def _tapped(tapped: Tapped) -> str:
    return (
        f"Byte by byte, {tapped.rounds} rounds were looked at, played again; of all others, and of "
        "what officers answer, only what the folder's files say."
    )


def _stopped(tapped: Tapped) -> tuple[str, ...]:
    if not tapped.stopped:
        return ()
    return (f"Played again, the run ended after {tapped.rounds} rounds: {tapped.stopped}",)


def _verdict(
    found: Sequence[PartyView], leaks: Sequence[Leak], *, noisy: bool
) -> tuple[Verdict, str]:
    if leaks:
        first = leaks[0]
        return Verdict.LEAKS, (
            f"{len(leaks)} messages or files are not as the settings promise. The first: round "
            f"{first.round}, {first.what}, {first.who}: {first.why}."
        )
    server = next((view for view in found if view.party == SERVER), PartyView(SERVER, ()))
    read = sorted({str(field.kind) for field in server.reads_single_clients})
    scored = any(field.shows is Shows.SCORES for field in server.fields)
    if not read and scored:
        return Verdict.WEAK, (
            "Of single clients the server could read a score each, by which it selected: how far "
            "their data are from its own. All that clients sent it was sealed."
        )
    if not read:
        return Verdict.HOLDS, (
            "The server could read nothing of any single client: all that clients sent it was "
            "sealed, and it learnt totals alone."
        )
    sealed = any(field.form == "ciphertext" for field in server.fields)
    what = " and ".join(read)
    if not sealed and noisy:
        return Verdict.WEAK, (
            f"Nothing was encrypted: the server could read the {what} of every single client, with "
            "the noise that ε counts."
        )
    if not sealed:
        return Verdict.LEAKS, (
            f"Nothing was encrypted: the server could read the {what} of every single client."
        )
    return Verdict.WEAK, (
        f"As the settings say, and no more: the server could read the {what} of every single "
        f"client. The rest was sealed. {_way_out(server.reads_single_clients)}"
    )


def _way_out(read: Sequence[Field]) -> str:
    """Return the settings that keep the server from reading these."""
    ways = []
    if any(field.kind is not Kind.SELECTION for field in read):
        ways.append('exchange.encrypt = "model" seals these too.')
    if any(field.name in SCORES for field in read):
        ways.append('With sites.scores = "mean" it reads the mean of scores alone.')
    if any(field.name in {SIZE, LOSS} for field in read):
        ways.append("Another selection.name asks clients for no number.")
    return " ".join(ways)


def _numbers(
    ledger: Sequence[Entry], found: Sequence[PartyView], leaks: Sequence[Leak], tapped: Tapped
) -> Iterator[Number]:
    total = sum(entry.bytes for entry in ledger)
    own = sum(view.bytes for view in found if view.party != OUTSIDER)
    how = "bytes of the ledger whose receiver, sender, field and form are known"
    yield Number("attributed", own / total if total else 1.0, how, unit="%")
    yield Number("wire bytes", total, "all messages of ledger.jsonl", unit="bytes")
    server = next((view for view in found if view.party == SERVER), PartyView(SERVER, ()))
    n_read = sum(field.n_values for field in server.reads_single_clients)
    yield Number("single clients' values that the server could read", n_read, "ledger.jsonl")
    yield Number(
        "leaks in the folder",
        len(leaks),
        "ledger, log of openings, metrics, incidents and files against what the settings plan",
    )
    how = f"the first {tapped.rounds} rounds played again, every message opened and compared"
    yield Number("leaks on the wire", len(tapped.leaks), how)
    share = tapped.seen_bytes / tapped.ledger_bytes if tapped.ledger_bytes else 1.0
    yield Number("wire bytes seen of those written down", share, how, unit="%")


def _leak_tables(leaks: Sequence[Leak]) -> Iterator[FindingsTable]:
    if leaks:
        shown = [(str(x.round), x.what, x.who, x.why) for x in leaks[:_MOST_LEAKS]]
        title = f"Not as promised ({len(leaks)})"
        yield FindingsTable(
            title, ("Round", "Field", "Who", "Why"), shown, frozenset(range(len(shown)))
        )


def _distinct(found: Sequence[PartyView]) -> Iterator[tuple[str, PartyView]]:
    """Clients that received the same are shown once."""
    alike: dict[tuple[Field, ...], list[PartyView]] = {}
    for view in found:
        alike.setdefault(view.fields, []).append(view)
    for same in alike.values():
        names = [view.party for view in same]
        yield names[0] if len(names) == 1 else f"each of {names[0]} .. {names[-1]}", same[0]


def _table(named: tuple[str, PartyView]) -> FindingsTable:
    party, view = named
    rows = [
        (
            field.name,
            str(field.kind),
            field.form,
            _from(field),
            f"{field.times:,}",
            f"{field.n_values:,}",
            f"{field.bytes:,}",
            str(field.shows),
        )
        for field in view.fields
    ]
    alarming = frozenset(
        i for i, field in enumerate(view.fields) if field.shows is Shows.ONE_CLIENT
    )
    title = f"What {_named(party)} received ({view.bytes:,} bytes)"
    columns = ("Field", "Kind", "Form", "From", "Times", "Values", "Bytes", "Shows")
    return FindingsTable(title, columns, rows, alarming)


def _named(party: str) -> str:
    return f"the {party}" if party in {SERVER, AUTHORITY, OUTSIDER} else party


def _from(field: Field) -> str:
    senders = field.senders
    return senders[0] if len(senders) == 1 else f"{len(senders)} parties"
