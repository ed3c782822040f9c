"""Verdict on tracing: how statistics leave clients, and how well records are traced in them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import final

from securefl.audit.rules import MORE_NOISE, Rule, Verdict, always, counted, unmeasured
from securefl.audit.statistics import Interval
from securefl.audit.thresholds import CHANCE, NOTICED, PLAIN


class Visibility(StrEnum):
    """Form in which a statistic leaves a client."""

    NOT_SENT = "not sent"
    EACH = "in the clear: the server reads each client's"
    TOTALS = "encrypted: totals over the clients are opened"
    HIDDEN = "encrypted: no total of it is opened either"


@final
@dataclass(frozen=True, slots=True)
class SentStatistics:
    """Statistics that a run's clients send, and in which a record can be traced."""

    statistics: Visibility
    """Means and variances of BN layers."""
    profiles: Visibility
    """Profiles of FedProf; encrypted ones are `HIDDEN`, since scores alone are opened."""
    n_clients: int
    """Clients of the run, that a total may be of."""
    n_records: int
    """Records in one statistic of the client with the fewest: its mini-batch, or all its data."""
    least: int = 3
    """Value of exchange.min_clients."""
    layer: str | None = None
    """Layer that is profiled, selection.layer."""
    sigma: float | None = None
    """Noise at record level on these statistics, privacy.statistics_sigma; None without."""
    clip: float = 1.5
    """Value of privacy.statistics_clip."""
    client_sigma: float | None = None
    """Noise at client level, privacy.sigma; None without."""
    pairs: int | None = 0
    """Pairs of opened totals of the run that differ by one client; None where no log tells."""

    @property
    def worst(self) -> Visibility:
        """Form of the statistic of which most is seen."""
        order = (Visibility.EACH, Visibility.TOTALS, Visibility.HIDDEN, Visibility.NOT_SENT)
        return min((self.statistics, self.profiles), key=order.index)


_GUESSING = "of cases (50 % is guessing)"


@final
@dataclass(frozen=True, slots=True)
class Traced:
    """Results of tracing: what the rules go by."""

    sent: SentStatistics
    """Statistics of the run that anybody sees."""
    run: Interval | None
    """AUC of records in just that; None where noise of clients is on it."""
    difference: Interval
    """AUC in the difference of two totals of it."""
    noisy: Interval
    """AUC in such a difference with the clients' noise."""
    trial_clients: int = 4
    """Clients of the trial in which two totals were asked for."""

    @property
    def auc(self) -> Interval:
        """AUC that counts: in what is seen, and with clients' noise in a difference."""
        return self.noisy if self.run is None else self.run

    @property
    def numbers(self) -> tuple[float, ...]:
        """Numbers that decide."""
        counted = (self.auc, self.difference)
        return tuple(number for auc in counted for number in (auc.value, auc.low))

    @property
    def each_read(self) -> bool:
        """True where the server reads statistics of each client, without noise of clients."""
        return self.run is not None and self.sent.worst is Visibility.EACH

    @property
    def can_differ(self) -> bool:
        """True where two totals of this run may differ by one client."""
        return self.sent.n_clients > self.sent.least or bool(self.sent.pairs)

    @property
    def trial_shows(self) -> bool:
        """True where a trial's two totals, without noise, show the records of a client."""
        alone = (
            self.run is not None
            and self.sent.worst is Visibility.TOTALS
            and self.sent.sigma is None
        )
        return alone and told_apart(self.difference)

    @property
    def two_sums_show(self) -> bool:
        """True where two totals of this run that differ by one client may show its records."""
        return self.trial_shows and self.can_differ

    @property
    def not_differenced(self) -> bool:
        """True where totals have noise of records, with which no difference was measured."""
        totals = self.run is not None and self.sent.worst is Visibility.TOTALS
        return totals and self.sent.sigma is not None


def told_apart(auc: Interval) -> bool:
    """Return whether records are told apart for certain, be it somewhat."""
    return auc.low > NOTICED


def _says(auc: Interval) -> str:
    """Return how well a reader tells records apart, and whether that is certain."""
    words = f"says in {auc.in_percent()} {_GUESSING} which of two records was in"
    if told_apart(auc):
        return words
    if auc.low > CHANCE:
        return f"{words}, little better than guessing"
    return f"{words}, which may be chance"


def _in_words(found: Traced) -> str:
    if found.run is None:
        return (
            "Each client adds noise to what it sends. From the difference of two totals, in a "
            f"trial with {found.trial_clients} clients, a reader {_says(found.noisy)}."
            f"{_opened(found)}"
        )
    apart = _says(found.run)
    if found.each_read:
        return f"The server reads each client's statistics, and {apart}."
    words = f"Who reads a total of all clients {apart}."
    if found.not_differenced:
        return f"{words} The difference of two totals was not measured with this noise."
    if not found.two_sums_show:
        return words
    measured = f"{found.difference.in_percent()} in a trial with {found.trial_clients} clients"
    if found.difference.value <= found.auc.value:
        return (
            f"{words} Two totals that differ by one client, while the model hardly changes, show "
            f"that client's records, too ({measured}): the least number of clients does not stop "
            f"that. Noise does.{_opened(found)}"
        )
    return (
        f"{words} But two totals that differ by one client, while the model hardly changes, show "
        f"that client as if it were in the clear ({measured}): the least number of clients does "
        f"not stop that. Noise does.{_opened(found)}"
    )


def _opened(found: Traced) -> str:
    """Return whether this run may open two such totals, and how many pairs it has opened."""
    of = f" This run has {found.sent.n_clients} clients at a minimum of {found.sent.least}"
    were = f"opened so: {counted(found.sent.pairs, 'pair')}" if found.sent.pairs else "none was"
    if found.sent.pairs is None:
        were = "whether one was is not known"
    if not found.can_differ:
        return f"{of}, so no such pair can be opened, and {were}."
    return f"{of}, so that such a pair can be opened; {were}."


def trials(found: Traced) -> str:
    """Return what a trial shows that this run cannot; empty where there is nothing."""
    if found.can_differ or not found.trial_shows:
        return ""
    return (
        f"With {found.trial_clients} clients of the audit's own, two totals that differ by one "
        f"client, while the model hardly changes, show that client's records "
        f"({found.difference.in_percent()}).{_opened(found)}"
    )


def _noise(found: Traced) -> str:
    if found.sent.sigma is not None:
        return f"{MORE_NOISE} For statistics it is privacy.statistics_sigma."
    return MORE_NOISE


RULES: tuple[Rule[Traced], ...] = (
    unmeasured(lambda found: found.numbers),
    Rule(
        Verdict.OPEN,
        lambda found: found.sent.worst is Visibility.NOT_SENT,
        "no client sends statistics or profiles",
        lambda _: (
            "No client of this run sends statistics or profiles, so nobody can trace a record in "
            "them. The figures say what they would show."
        ),
    ),
    Rule(
        Verdict.HOLDS,
        lambda found: found.sent.worst is Visibility.HIDDEN,
        "nobody reads what a record could be traced in: of sealed profiles scores alone are opened",
        lambda _: (
            "Profiles travel encrypted, and only scores of them are opened: nobody reads the "
            "statistics that a record could be traced in."
        ),
    ),
    Rule(
        Verdict.LEAKS,
        lambda found: found.auc.low > PLAIN,
        f"the AUC's whole interval is above {PLAIN}: in what the run shows, or with clients' noise "
        "in the difference of two totals",
        _in_words,
        do=_noise,
    ),
    Rule(
        Verdict.WEAK,
        lambda found: told_apart(found.auc),
        f"the same is above {NOTICED}",
        _in_words,
        do=_noise,
    ),
    Rule(
        Verdict.WEAK,
        lambda found: found.each_read,
        "the server reads each client's statistics, without noise of clients",
        _in_words,
        do=lambda found: f'Set exchange.encrypt = "statistics". {_noise(found)}',
    ),
    Rule(
        Verdict.WEAK,
        lambda found: found.two_sums_show,
        f"two totals that differ by one client, without noise, show it with an AUC above {NOTICED}",
        _in_words,
        do=_noise,
    ),
    Rule(
        Verdict.WEAK,
        lambda found: found.auc.low > CHANCE,
        f"the AUC's whole interval is above {CHANCE}: records are told apart for certain, if by "
        "little",
        _in_words,
        do=_noise,
    ),
    Rule(
        Verdict.OPEN,
        lambda found: found.not_differenced,
        "totals have noise of records, and the difference of two was not measured with it",
        _in_words,
        do=(
            "No audit measures that difference; the ε of this run bounds what it shows. A larger "
            "privacy.statistics_sigma lowers it."
        ),
    ),
    Rule(Verdict.HOLDS, always, "records are not told apart for certain", _in_words),
)
