"""Verdict on who saw what: nothing but what the settings promise, and who reads it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from securefl.audit.exposure.leaks import Leak
from securefl.audit.rules import Rule, Verdict, always, counted
from securefl.federation.ledger import SERVER
from securefl.federation.message import SCORES
from securefl.report.views import Field, PartyView, Shows
from securefl.types import LOSS, SIZE, Kind


def server_view(found: Sequence[PartyView]) -> PartyView:
    """Return what the server received; nothing where it received no message."""
    return next((view for view in found if view.party == SERVER), PartyView(SERVER, ()))


@final
@dataclass(frozen=True, slots=True)
class Exposed:
    """Views of all parties, and leaks: what the rules go by."""

    views: Sequence[PartyView]
    leaks: Sequence[Leak]
    noisy: bool
    """True where each client adds all of its noise itself."""
    sized: int = 0
    """Number of clients whose numbers of samples follow from the weights of totals."""

    @property
    def read(self) -> str:
        """Kinds of single clients' values that the server could read; empty for none."""
        fields = server_view(self.views).reads_single_clients
        *some, last = sorted({str(field.kind) for field in fields}) or [""]
        return f"{', '.join(some)} and {last}" if some else last

    @property
    def way_out(self) -> str:
        """Settings that keep the server from reading these."""
        return _way_out(server_view(self.views).reads_single_clients)

    @property
    def scored(self) -> bool:
        """True where the server could read a score of each client."""
        return any(field.shows is Shows.SCORES for field in server_view(self.views).fields)

    @property
    def sealed(self) -> bool:
        """True where anything was sealed on its way to the server."""
        return any(field.form == "ciphertext" for field in server_view(self.views).fields)


def _sizes(found: Exposed) -> str:
    """Return what the weights of totals tell of clients; nothing for nothing."""
    if not found.sized:
        return ""
    return (
        " Totals of several lists of clients were opened, each with its weight, and from these "
        f"follows how many samples {counted(found.sized, 'client')} of the run trained on."
    )


UNIFORM = 'Set algorithm.weights = "uniform": then no total\'s weight tells of samples.'


def _first_leak(found: Exposed) -> str:
    first = found.leaks[0]
    return (
        f"Messages or files are not as the settings promise: {len(found.leaks)}. The first: round "
        f"{first.round}, {first.what}, {first.who}: {first.why}."
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


RULES: tuple[Rule[Exposed], ...] = (
    Rule(
        Verdict.LEAKS,
        lambda found: bool(found.leaks),
        "a message or a file is not as the settings promise",
        _first_leak,
        do=(
            "Use the run for nothing before you know how the first of them came about; then make "
            "it anew."
        ),
    ),
    Rule(
        Verdict.WEAK,
        lambda found: not found.read and found.scored,
        "of single clients the server could read scores alone",
        lambda found: (
            "Of single clients the server could read a score each, by which it selected: how far "
            "their data are from its own. All that clients sent it was sealed."
            f"{_sizes(found)}"
        ),
        do=lambda found: (
            "Where no score of a client may be known, take another selection.name."
            + (f" {UNIFORM}" if found.sized else "")
        ),
    ),
    Rule(
        Verdict.WEAK,
        lambda found: not found.read and found.sized > 0,
        "the server could read totals alone, and the weights of totals over several lists of "
        "clients tell how many samples single clients have",
        lambda found: f"All that clients sent to the server was sealed.{_sizes(found)}",
        do=UNIFORM,
    ),
    Rule(
        Verdict.HOLDS,
        lambda found: not found.read,
        "the server could read totals alone",
        lambda _: (
            "By its role, a server that kept to the protocol could read nothing of any single "
            "client: all that clients sent it was sealed, and it learnt totals alone."
        ),
    ),
    Rule(
        Verdict.WEAK,
        lambda found: not found.sealed and found.noisy,
        "nothing at all was encrypted, and each client adds noise of its own to what it sends",
        lambda found: (
            f"Nothing was encrypted: the server could read the {found.read} of every single "
            "client, with the noise that ε counts."
        ),
        do='Set exchange.encrypt = "model".',
    ),
    Rule(
        Verdict.LEAKS,
        lambda found: not found.sealed,
        "nothing at all was encrypted",
        lambda found: (
            f"Nothing was encrypted: the server could read the {found.read} of every single client."
        ),
        do='Set exchange.encrypt = "model".',
    ),
    Rule(
        Verdict.WEAK,
        always,
        "the server could read single clients' values, as the settings say, and the rest is sealed",
        lambda found: (
            f"As the settings say, and no more: the server could read the {found.read} of every "
            f"single client. The rest was sealed."
        ),
        do=lambda found: found.way_out,
    ),
)
