"""Section on ε: what the accountant promises at most beside what canaries show at least.

The claim is refuted where a lower bound exceeds it, or where the noise of a round is less than the
settings promise. Each of these tests alarms with a probability of 5 % divided by their number, if
the claim is true.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from securefl.audit.bounds.canaries import Canaries, CanaryRound, canary_round
from securefl.audit.bounds.canary_bounds import (
    ClientTest,
    canary_bound,
    one_run_bound,
)
from securefl.audit.bounds.record_bounds import Method, Noise, RecordBounds, record_bounds
from securefl.audit.bounds.verdict import RULES, CanaryBounds
from securefl.audit.findings import Number, Section
from securefl.audit.rules import decided
from securefl.audit.thresholds import ALARM
from securefl.io.html import PageTable
from securefl.privacy.accountants import Accountant, epsilon
from securefl.privacy.events import Gaussian, Level
from securefl.privacy.history import History
from securefl.settings.tables import Config

CANARIES, DIMENSIONS = 200, 10_000
NO_CLAIM = 'none claimed: no noise is added (privacy.level = "none")'
"""Method in the place of an accountant's."""
MOST_DRAWS = 20_000_000


def client_test(config: Config, n_clients: int, seed: int) -> ClientTest:
    """Test the run's client-level privacy by canary clients; DataError where it has none."""
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
    """Play a round of as many clients as the run has, with values enough to see a missing share."""
    dimensions = max(DIMENSIONS, min(45 * n_clients**2, MOST_DRAWS // n_clients))
    return canary_round(config, np.ones(n_clients, bool), dimensions, seed)


def bounds_of_records(
    scores: ArrayLike, canaries: Canaries, config: Config, history: History
) -> RecordBounds:
    """Return the bounds from a run with canary records.

    Args:
        scores: of each canary, shape (m,); higher for "was in".
        canaries: which of them were in.
        config: the run's settings.
        history: what it has spent: all of it by Gaussian noise, unless a stage had none.
    """
    table = config.privacy
    gaussian = table.private and not history.stages_without_privacy(Level(table.level))
    noise = Noise.GAUSSIAN if gaussian else Noise.UNKNOWN
    return record_bounds(scores, canaries.included, table.delta, noise, 1 - ALARM)


def epsilon_section(
    config: Config,
    history: History,
    records: RecordBounds | None,
    clients: ClientTest | None,
    seed: int,
) -> Section:
    """Return the section with upper and lower bounds side by side.

    Args:
        config: the run's settings.
        history: what it has spent.
        records: of canary records in a run of the same settings; None where there was none.
        clients: of canary clients; None where noise is not at client level.
        seed: of the canaries.
    """
    claimed = _claimed(config, history)
    verdict, words, do = decided(
        RULES, CanaryBounds(config.privacy.level, claimed, records, clients)
    )
    return Section(
        "epsilon",
        "Bounds on ε",
        verdict,
        words,
        tuple(_numbers(config, history, claimed, records, clients, seed)),
        (_side_by_side(claimed, records, clients), *_records_table(records)),
        notes=tuple(_notes(config, records, clients)),
        do=do,
    )


def _claimed(config: Config, history: History) -> float:
    """Return the ε that PLD promises; infinite where nothing is promised."""
    table = config.privacy
    if not table.private:
        return math.inf
    return history.epsilon(Level(table.level), table.delta)


def _numbers(
    config: Config,
    history: History,
    claimed: float,
    records: RecordBounds | None,
    clients: ClientTest | None,
    seed: int,
) -> Iterator[Number]:
    delta = config.privacy.delta
    accounted = f"accountant, PLD at δ = {delta:g}, of privacy.json"
    yield Number("ε at most", claimed, accounted if config.privacy.private else NO_CLAIM)
    if math.isfinite(claimed):
        by_rdp = history.epsilon(Level(config.privacy.level), delta, Accountant.RDP)
        yield Number("ε at most, by RDP", by_rdp, f"accountant, RDP at δ = {delta:g}")
    if records:
        yield from _of_records(records, delta, seed)
    if clients:
        yield from _of_clients(clients, seed)


def _of_records(found: RecordBounds, delta: float, seed: int) -> Iterator[Number]:
    about = f"{found.any.canaries} canary records, δ = {delta:g}"
    how = (
        f"{about}: {found.leading}, the tightest of the bounds that hold here; "
        f"{1 - ALARM:.3g} confidence, corrected for the choice among them"
    )
    yield Number("ε at least, records", found.epsilon, how, seed)
    yield Number("ε that so many canary records can show, by that bound", found.ceiling, how, seed)
    for method in Method:
        words = f"{_by(found, method)}; {about}, {found.scores.confidence:.4g} confidence"
        yield Number(f"ε at least, {method}", found.epsilon_of(method), words, seed)


def _by(found: RecordBounds, method: Method) -> str:
    """Return in words how a bound is made of the scores."""
    guesses = f"{found.any.right} of {found.any.guesses} guesses right"
    match method:
        case Method.ANY:
            return f"one-run auditing (Steinke et al., 2023; Mahloujifar et al., 2025), {guesses}"
        case Method.CURVE:
            right = f"{found.curve.right} of {found.curve.guesses} guesses right"
            return f"f-DP in one run (Mahloujifar et al., 2025), {right}"
        case Method.SCORES:
            return (
                "noncentral t (our reading of Agrawal et al., 2026), μ at least "
                f"{found.scores.mu:.3g}, Shapiro and Wilk's p {found.scores.p_gaussian:.2g}"
            )


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
    claimed: float, records: RecordBounds | None, clients: ClientTest | None
) -> PageTable:
    rows = []
    if records:
        least = f"{records.epsilon:.3f}"
        ceiling = "none" if math.isinf(records.ceiling) else f"{records.ceiling:.3f}"
        rows.append(("the run, canary records", least, _said(claimed), ceiling))
    if clients:
        most = _said(clients.claimed)
        gaussian = "one release of an update, Gaussian noise"
        rows.append((gaussian, f"{clients.bound.epsilon:.3f}", most, "none"))
        free = f"{clients.free.epsilon:.3f}", most, f"{clients.free.ceiling:.3f}"
        rows.append(("one release of an update, any noise", *free))
        rows.append(("the run, its releases together", "not measured", _said(claimed), ""))
    return PageTable(
        "ε from both sides", ("Of", "At least", "At most", "Ceiling of the test"), rows
    )


def _records_table(found: RecordBounds | None) -> Iterator[PageTable]:
    if found is None:
        return
    rows = []
    for method in Method:
        leads = "leads" if method is found.leading else "holds, too"
        least, ceiling = found.epsilon_of(method), found.ceiling_of(method)
        role = leads if found.may_lead(method) else "may not lead"
        rows.append(
            (str(method), f"{least:.3f}", "none" if math.isinf(ceiling) else f"{ceiling:.3f}", role)
        )
    yield PageTable(
        "ε of canary records by three bounds", ("By", "At least", "Ceiling", "Here"), rows
    )


def _said(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3f}"


def _assumed(found: RecordBounds) -> str:
    if found.noise is Noise.UNKNOWN:
        return (
            "Nothing is known of this run's noise, so the bound that assumes nothing leads; the "
            "others are of a run with Gaussian noise."
        )
    if found.scores.gaussian:
        return (
            "The bound by scores takes them for Gaussian, as the noise is by the settings. Shapiro "
            "and Wilk's test, at a level of 5 %, found nothing against it."
        )
    return (
        "The bound by scores takes them for Gaussian. They are not, or are too few to tell, so it "
        "does not lead."
    )


def _notes(
    config: Config, records: RecordBounds | None, clients: ClientTest | None
) -> Iterator[str]:
    if records:
        yield (
            "Canary records are put into a second run of the same settings, not into the audited "
            "one: its model has never seen them."
        )
        yield _assumed(records)
        yield (
            "A lower bound far below the upper one does not say that less is leaked: a stronger "
            "attack may exist, and guesses of so many canaries show no more than their ceiling."
        )
    if clients:
        yield "How one release composes over rounds is the accountant's; one release was attacked."
    if clients and not clients.missing_share_shows:
        yield (
            f"With {clients.clients} clients one share of the noise is so little that its absence "
            "would not have been noticed."
        )
    if config.privacy.seeded:
        yield "The noise follows from run.seed: whoever knows that takes it off again."
