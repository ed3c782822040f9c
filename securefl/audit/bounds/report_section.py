"""The section on ε: what the accountant promises at most beside what canaries show at least.

The claim is refuted where a lower bound exceeds it, or where the noise of a round is less than the
settings promise. Each of these tests alarms with a probability of 5 % divided by their number, if
the claim is true.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast, final

import numpy as np
from numpy.typing import ArrayLike

from securefl.audit.bounds.canary_bounds import (
    CanaryBound,
    OneRunBound,
    canary_bound,
    one_run_bound,
)
from securefl.audit.bounds.client_rounds import CanaryRound, canary_round
from securefl.audit.bounds.record_canaries import Canaries
from securefl.audit.findings import FindingsTable, Number, Section, Verdict
from securefl.audit.rules import Rule, always, decided
from securefl.audit.statistics import Interval
from securefl.privacy.accountants import Accountant, epsilon
from securefl.privacy.events import Gaussian, Level
from securefl.privacy.history import History
from securefl.privacy.wording import WHAT
from securefl.settings.tables import Config

ALARM = 0.05
CANARIES, DIMENSIONS = 200, 10_000
MOST_DRAWS = 20_000_000
_FEWEST_SHARES_SEEN = 4.5
"""Deviations by which a missing share shows, so that it is found in 95 % of runs and more."""

MEANINGS = (
    (0.16, "next to nothing; without noise that is no promise"),
    (1.0, "records are kept apart a little"),
    (3.0, "records are kept apart"),
    (8.0, "records are kept apart so well that the model is far from private"),
    (math.inf, "some records are kept apart all but surely"),
)
"""Lower bounds on ε up to each number, in words."""


@final
@dataclass(frozen=True, slots=True)
class ClientTest:
    """What a round of canary clients shows of the noise that the settings promise."""

    bound: CanaryBound
    """By the mean cosine: right where the noise is Gaussian."""
    free: OneRunBound
    """By guesses alone, whatever the noise is."""
    claimed: float
    """ε of one release of an update, by the accountant."""
    noise: Interval
    promised: float
    uneven: bool
    """Whether some tensor's noise is not normal with that deviation."""
    clients: int
    """Of the round whose noise was measured."""
    dimensions: int
    """Of the same."""

    @property
    def shown(self) -> float:
        """The ε of one release that canary clients show at least."""
        return max(self.bound.epsilon, self.free.epsilon)

    @property
    def refuted(self) -> bool:
        """Whether the noise is not what is promised, or hides less than the accountant says."""
        as_promised = self.noise.low <= self.promised <= self.noise.high
        return self.shown > self.claimed or not as_promised or self.uneven

    @property
    def missing_share_shows(self) -> bool:
        """Whether the noise of one client less would have been noticed."""
        missing = 1 - math.sqrt(1 - 1 / self.clients)
        return missing * math.sqrt(2 * self.dimensions) >= _FEWEST_SHARES_SEEN


def client_test(config: Config, n_clients: int, seed: int) -> ClientTest:
    """Canary clients through the run's own client-level privacy; DataError where it has none."""
    delta, each = config.privacy.delta, 1 - ALARM / 4
    rng = np.random.default_rng(seed)
    everybody = canary_round(config, np.ones(CANARIES, bool), DIMENSIONS, seed)
    bound = canary_bound(everybody.cosines, DIMENSIONS, delta, each)
    some = canary_round(config, rng.random(CANARIES) < 0.5, DIMENSIONS, seed + 1)
    free = one_run_bound(some.cosines, some.included, delta, each)
    claimed = epsilon([Gaussian(config.privacy.sigma)], delta)
    own = _noise_round(config, n_clients, seed + 2)
    noise, d = own.noise(each), len(own.released)
    uneven = own.uneven(each)
    return ClientTest(bound, free, claimed, noise, own.promised, uneven, n_clients, d)


def _noise_round(config: Config, n_clients: int, seed: int) -> CanaryRound:
    """As many clients as the run has, and values enough to see a share that is missing."""
    dimensions = max(DIMENSIONS, min(45 * n_clients**2, MOST_DRAWS // n_clients))
    return canary_round(config, np.ones(n_clients, bool), dimensions, seed)


def record_bound(scores: ArrayLike, canaries: Canaries, config: Config) -> OneRunBound:
    """Of a run with canary records."""
    return one_run_bound(scores, canaries.included, config.privacy.delta, 1 - ALARM)


def meaning_of(shown: float) -> str:
    """Returns in words what a lower bound `shown` on ε says of a record.

    An ε allows a guess whether a record was trained on, made with even odds, to be right with a
    probability of 1 / (1 + e^-ε) (Kairouz et al., ICML 2015, at δ = 0).
    """
    words = next(words for most, words in MEANINGS if shown <= most)
    right = f"{100 / (1 + math.exp(-shown)):.4g}"
    return f"{words} (up to {right} % of guesses at even odds are right)"


@final
@dataclass(frozen=True, slots=True)
class Bounded:
    """What the rules go by."""

    level: str
    """privacy.level."""
    claimed: float
    """The largest ε by the accountant; infinite where nothing is promised."""
    records: OneRunBound | None
    clients: ClientTest | None

    @property
    def shown(self) -> float:
        """The ε that canary records show at least."""
        return self.records.epsilon if self.records else 0.0

    @property
    def whom(self) -> str:
        """Whom the promise is about, in words."""
        return WHAT[Level(self.level)]

    @property
    def out_of_reach(self) -> bool:
        """True where no canary could have refuted the claim."""
        tried = self.records
        return not self.clients and (tried is None or tried.ceiling <= self.claimed)


def _wrong_noise(clients: ClientTest) -> str:
    return (
        f"The claim is refuted: a round's noise measures {clients.noise.value:.3g} clip norms "
        f"where {clients.promised:.3g} are promised{', unevenly' if clients.uneven else ''}, "
        f"and canary clients show an ε of at least {clients.shown:.3g} where the round is said to "
        f"spend {clients.claimed:.3g}."
    )


def _too_few_canaries(found: Bounded) -> str:
    ceiling = f"{found.records.ceiling:.2g}" if found.records else "nothing"
    return (
        f"ε is said to be at most {found.claimed:.3g} for {found.whom}. So many canary records can "
        f"show {ceiling} at most, and showed {found.shown:.2g}: they could not have refuted it."
    )


def _stood(found: Bounded) -> str:
    least = f"canary records show at least {found.shown:.2g}"
    if clients := found.clients:
        least = (
            f"canary clients show at least {clients.shown:.2g} of the {clients.claimed:.3g} of one "
            "round"
        )
    return (
        f"ε is at most {found.claimed:.3g} for {found.whom}. It was attacked, and stood: {least}."
    )


RULES: tuple[Rule[Bounded], ...] = (
    Rule(
        Verdict.LEAKS,
        # A record is a part of a client: what hides clients hides it, too.
        lambda found: found.shown > found.claimed,
        "canary records show a larger ε than is claimed",
        lambda found: (
            f"The claim is refuted: ε is said to be at most {found.claimed:.3g}, and canary "
            f"records show at least {found.shown:.3g}."
        ),
    ),
    Rule(
        Verdict.LEAKS,
        lambda found: bool(found.clients and found.clients.refuted),
        "canary clients show a larger ε than a round is said to spend, or the noise of a round is "
        "not what is promised",
        lambda found: _wrong_noise(cast("ClientTest", found.clients)),
    ),
    Rule(
        Verdict.OPEN,
        lambda found: math.isinf(found.claimed) and bool(found.records),
        "no ε is claimed; it says what canary records show",
        lambda found: (
            "No differential privacy was claimed, so nothing bounds what the model tells of a "
            f"record. Canary records show an ε of at least {found.shown:.2g}: "
            f"{meaning_of(found.shown)}."
        ),
    ),
    Rule(
        Verdict.OPEN,
        lambda found: math.isinf(found.claimed),
        "no ε is claimed, and no canary records were tried",
        lambda _: (
            "No differential privacy was claimed, and no canary records were tried; without "
            "noise that promises nothing."
        ),
    ),
    Rule(
        Verdict.WEAK,
        lambda found: found.out_of_reach,
        "so many canary records could not have refuted the claim",
        _too_few_canaries,
    ),
    Rule(Verdict.HOLDS, always, "the claim was attacked, and stood", _stood),
)


def epsilon_section(
    config: Config,
    history: History,
    records: OneRunBound | None,
    clients: ClientTest | None,
    seed: int,
) -> Section:
    """Upper and lower bounds side by side.

    Args:
        config: the run's settings.
        history: what it has spent.
        records: of canary records in a run of the same settings; None where there was none.
        clients: of canary clients; None where noise is not at client level.
        seed: of the canaries.
    """
    claimed = _claimed(config, history)
    verdict, words = decided(RULES, Bounded(config.privacy.level, claimed, records, clients))
    return Section(
        "epsilon",
        "Bounds on ε",
        verdict,
        words,
        tuple(_numbers(config, history, claimed, records, clients, seed)),
        (_side_by_side(claimed, records, clients),),
        notes=tuple(_notes(config, records, clients)),
    )


def _claimed(config: Config, history: History) -> float:
    """By PLD; infinite where nothing is promised."""
    table = config.privacy
    if table.level == "none":
        return math.inf
    return history.epsilon(Level(table.level), table.delta)


def _numbers(
    config: Config,
    history: History,
    claimed: float,
    records: OneRunBound | None,
    clients: ClientTest | None,
    seed: int,
) -> Iterator[Number]:
    delta = config.privacy.delta
    yield Number("ε at most", claimed, f"accountant, PLD at δ = {delta:g}, of privacy.json")
    if math.isfinite(claimed):
        by_rdp = history.epsilon(Level(config.privacy.level), delta, Accountant.RDP)
        yield Number("ε at most, by RDP", by_rdp, f"accountant, RDP at δ = {delta:g}")
    if records:
        how = (
            f"one-run auditing (Steinke et al., 2023): {records.right} of {records.guesses} "
            f"guesses right, of {records.canaries} canary records; δ = {delta:g}, "
            f"{records.confidence:.3g} confidence, corrected for the choice of threshold"
        )
        yield Number("ε at least, records", records.epsilon, how, seed)
        yield Number("ε that so many canary records can show", records.ceiling, how, seed)
    if clients:
        yield from _of_clients(clients, seed)


def _of_clients(found: ClientTest, seed: int) -> Iterator[Number]:
    bound, free = found.bound, found.free
    how = (
        f"{bound.canaries} canary clients in {DIMENSIONS:,} dimensions (Andrew et al., 2024), one "
        f"release; δ = {bound.delta:g}, {bound.confidence:.3g} confidence"
    )
    yield Number("ε of one release at most", found.claimed, "accountant, PLD")
    yield Number("ε of one release at least, if its noise is Gaussian", bound.epsilon, how, seed)
    yield Number("μ at least", bound.mu, how, seed)
    guesses = f"{free.right} of {free.guesses} guesses right; {how}, any noise"
    yield Number("ε of one release at least, assumption-free", free.epsilon, guesses, seed + 1)
    yield Number("ε that so many canary clients can show", free.ceiling, guesses, seed + 1)
    measured = (
        f"χ² of what {found.clients} clipped canary updates leave of their total, "
        f"{found.dimensions:,} values"
    )
    yield Number.of("noise of a total, in clip norms", found.noise, measured, seed + 2)
    yield Number("noise that is promised, in clip norms", found.promised, "σ √(n / (n - t))")


def _side_by_side(
    claimed: float, records: OneRunBound | None, clients: ClientTest | None
) -> FindingsTable:
    rows = []
    if records:
        least, ceiling = f"{records.epsilon:.3f}", f"{records.ceiling:.3f}"
        rows.append(("the run, canary records", least, _said(claimed), ceiling))
    if clients:
        most = _said(clients.claimed)
        gaussian = "one release of an update, Gaussian noise"
        rows.append((gaussian, f"{clients.bound.epsilon:.3f}", most, "none"))
        free = f"{clients.free.epsilon:.3f}", most, f"{clients.free.ceiling:.3f}"
        rows.append(("one release of an update, any noise", *free))
        rows.append(("the run, its releases together", "not measured", _said(claimed), ""))
    return FindingsTable(
        "ε from both sides", ("Of", "At least", "At most", "Ceiling of the test"), rows
    )


def _said(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3f}"


def _notes(
    config: Config, records: OneRunBound | None, clients: ClientTest | None
) -> Iterator[str]:
    if records:
        yield (
            "Canary records are put into a second run of the same settings, not into the audited "
            "one: its model has never seen them."
        )
        yield (
            "A lower bound far below the upper one does not say that less is leaked: a stronger "
            "attack may exist, and no attack of this size shows more than the ceiling."
        )
    if clients:
        yield "How one release composes over rounds is the accountant's; one release was attacked."
    if clients and not clients.missing_share_shows:
        yield (
            f"With {clients.clients} clients one share of the noise is so little that its absence "
            "would not have been noticed."
        )
    if config.privacy.noise == "seeded":
        yield "The noise follows from run.seed: whoever knows that takes it off again."
