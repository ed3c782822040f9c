"""Section on tracing: who can tell from a statistic whether a record went into it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor, nn

from securefl.audit.findings import Number, Section
from securefl.audit.rules import decided
from securefl.audit.statistics import Interval
from securefl.audit.tracing.differencing import Differenced, Setting, differenced
from securefl.audit.tracing.likelihood import Others, private_limit
from securefl.audit.tracing.setup import EFFORTS, Release, TracingSetup
from securefl.audit.tracing.verdict import (
    RULES,
    SentStatistics,
    Traced,
    Visibility,
    told_apart,
    trials,
)
from securefl.data.split import Labelled
from securefl.io.html import PageTable, Picture
from securefl.report.plots import COLOURS, STYLES, bare, png

N, TEN, SIGMA = 16, 10, 4.0
"""Records, clients and noise of the figures that are compared between runs."""
_METHOD = (
    "AUC of the likelihood ratio under a Gaussian with the covariance of public records (Homer et "
    "al. 2008; Sankararaman et al. 2009; Dwork et al. 2015)"
)
_DIFFERENCE = _METHOD + ", on the difference of two totals that a real authority has opened"

Curves = Mapping[str, Mapping[int, Interval]]
"""AUCs by statistic and n."""


def tracing_section(
    model: nn.Module,
    pool: Labelled,
    public: Tensor,
    sent: SentStatistics,
    seed: int,
    effort: Literal["quick", "full"] = "quick",
) -> Section:
    """Trace records in what this run's model makes of its clients' data.

    Args:
        model: with the state that is broadcast; left as it was.
        pool: all clients' records.
        public: inputs that are like them and none of them, such as the test set's.
        sent: what of all this the run lets anybody see.
        seed: of draws and noise. Ciphertexts err by the operating system's randomness all the
            same, which only the last digits of differences show.
        effort: quick takes seconds, full a minute or two.

    Raises:
        DataError: too few records.
    """
    rng = np.random.default_rng(seed)
    setup = TracingSetup(model, pool, public, sent, rng, EFFORTS[effort])
    curves = _curves(setup)
    compared = _compared(setup, curves)
    setting = _setting(setup)
    two_sums = _TwoSums.of(differenced(setup.profiles, setup.labels_N, setting, setup.rng), rng)
    run = _run(setup, sent)
    auc = run.auc if run else None
    traced = Traced(sent, auc, two_sums.exact, two_sums.private, setting.least + 1)
    verdict, words, do = decided(RULES, traced)
    found = {**compared, **two_sums.aucs(sent.client_sigma), **({run.name: run.auc} if run else {})}
    numbers = [
        *(Number.of(name, auc, two_sums.method(name), seed) for name, auc in found.items()),
        Number(f"AUC of any attack, σ = {SIGMA:g}, at most", private_limit(SIGMA), "Φ(√2 / σ)"),
    ]
    return Section(
        key="tracing",
        title="Does a statistic show that a record was there?",
        verdict=verdict,
        words=words,
        numbers=numbers,
        tables=(_by_size(curves), two_sums.table()),
        pictures=(Picture("Told apart, by records of a client", _DESCRIBED, png(_figure(curves))),),
        notes=_NOTES,
        do=do,
        trials=trials(traced),
    )


_DESCRIBED = (
    "AUC against n on a logarithmic axis: of one client's profile it falls from nearly 1, of its "
    "means alone and of a sum of ten clients it is lower, and with noise it stays near 0.5."
)
_NOTES = (
    (
        "AUC: of a record that was in and one that was not, how often a reader says which is "
        "which; 0.5 is guessing. Records are drawn from all clients' data together, members and "
        "others in the same classes. The reader knows other records like them, the public ones."
    ),
    (
        "Statistics of all BN layers are those of a model at rest. In training, upper layers see "
        "records through the batch itself, which this attack does not model."
    ),
    (
        "Each figure is of one release. A client whose statistics are read in many rounds, under "
        "other models, shows more."
    ),
    "With noise the noisy sum itself is scored, also where SecureFL refuses it as drowned.",
)


PROFILE, MEANS = "one client's profile", "its means alone"
NOISY, OF_TEN = f"profile with noise, σ = {SIGMA:g}", f"sum of {TEN} clients"


def _curves(setup: TracingSetup) -> dict[str, dict[int, Interval]]:
    """Return the AUC of each statistic at all sizes for which there are records."""
    one: dict[str, Release] = {
        PROFILE: setup.profiles,
        MEANS: setup.means,
        NOISY: setup.private(SIGMA),
    }
    sizes = setup.effort.sizes
    found = {
        name: {n: setup.auc(release, n) for n in sizes if n <= max(N, setup.most())}
        for name, release in one.items()
    }
    of_ten = {n: setup.auc(setup.profiles, n, TEN) for n in sizes if n <= setup.most(TEN)}
    return {**found, OF_TEN: of_ten}


def _compared(setup: TracingSetup, curves: Curves) -> dict[str, Interval]:
    """Return what is reported of every run, at n = 16."""
    found = {
        f"AUC, a profile of {N}": curves[PROFILE][N],
        f"AUC, means alone of {N}": curves[MEANS][N],
        f"AUC, a profile of {N} with noise, σ = {SIGMA:g}": curves[NOISY][N],
    }
    if N in curves[OF_TEN]:
        found[f"AUC, a sum of {TEN} clients of {N}"] = curves[OF_TEN][N]
    others = Others.SAME_CLASS
    found[f"AUC, a profile of {N}, told from the same class"] = setup.auc(
        setup.profiles, N, others=others
    )
    if setup.layers:
        found[f"AUC, all BN layers' statistics of {N}"] = setup.auc(setup.layers, N)
    return found


@final
@dataclass(frozen=True, slots=True)
class _Run:
    """Result for what this very run shows."""

    name: str
    auc: Interval


def _run(setup: TracingSetup, sent: SentStatistics) -> _Run | None:
    """Trace what this run shows; None where nobody reads it, or only with clients' noise."""
    if sent.worst not in {Visibility.EACH, Visibility.TOTALS} or sent.client_sigma is not None:
        return None
    of_layers = sent.statistics is sent.worst and setup.layers
    release: Release = setup.layers if of_layers and setup.layers else setup.profiles
    what = "all BN layers' statistics" if of_layers else "a profile"
    if sent.sigma is not None:
        release, what = setup.private(sent.sigma), f"{what} with noise, σ = {sent.sigma:g}"
    n_clients = 1 if sent.worst is Visibility.EACH else sent.n_clients
    n = max(min(sent.n_records, setup.most(n_clients)), 2)
    whose = "one client" if n_clients == 1 else f"{n_clients} clients"
    found = setup.auc(release, n, n_clients)
    least = "" if n == sent.n_records else f" ({n_clients} x {n} were tested)"
    return _Run(f"AUC, this run: {what} of {whose}, {sent.n_records} records each{least}", found)


_SEALED = 128
"""Values of a statistic that all trials are sealed of."""
_FEWEST_TRIALS = 100


def _setting(setup: TracingSetup) -> Setting:
    """Return a trial with the run's least number of clients, or three where those are too many."""
    sent, most, profiles = setup.sent, setup.effort.trials, setup.profiles
    least = sent.least if setup.most(2 * sent.least + 1) >= N else 3
    sigma = 1.0 if sent.client_sigma is None else sent.client_sigma
    # Wide statistics fill many ciphertexts: of these fewer are asked for.
    fitting = _SEALED * most // profiles.moments.pool_NV.shape[1]
    return Setting(N, least, min(most, max(fitting, _FEWEST_TRIALS)), sigma)


@final
@dataclass(frozen=True, slots=True)
class _TwoSums:
    """Results for the difference of two sums: what it shows of the client in one alone."""

    found: Differenced
    exact: Interval
    redrawn: Interval
    private: Interval

    @classmethod
    def of(cls, found: Differenced, rng: np.random.Generator) -> "_TwoSums":
        """Add intervals."""
        return cls(found, *(roc.auc(rng) for roc in (found.exact, found.redrawn, found.private)))

    def aucs(self, client_sigma: float | None) -> dict[str, Interval]:
        """Return the AUCs by name."""
        sigma = 1.0 if client_sigma is None else client_sigma
        return {
            "AUC, difference of two sums": self.exact,
            "AUC, difference of two sums of other mini-batches": self.redrawn,
            f"AUC, difference of two sums with clients' noise, σ = {sigma:g}": self.private,
        }

    @staticmethod
    def method(name: str) -> str:
        """Return how a number was found."""
        return _DIFFERENCE if "difference" in name else _METHOD

    def table(self) -> PageTable:
        """Return what was asked of the authority, and what it did."""
        error = "10⁻⁶" if self.found.error < 1e-6 else f"{self.found.error:.0e}"
        opened = f"opened; the difference is the client's, to {error}"
        rows = (
            ("one name twice in a round", "", self.found.again or "opened"),
            ("fewer clients than the least number", "", self.found.few or "opened"),
            ("two rounds, one client less, all else alike", _auc(self.exact), opened),
            ("the same, the others with other records", _auc(self.redrawn), "opened"),
            ("two rounds, one client less, with clients' noise", _auc(self.private), "opened"),
        )
        alarming = frozenset(
            i
            for i, auc in ((2, self.exact), (3, self.redrawn), (4, self.private))
            if told_apart(auc)
        )
        columns = ("asked of the authority", "AUC", "what it did")
        return PageTable("Trial: two totals that differ by one client", columns, rows, alarming)


def _auc(found: Interval) -> str:
    return f"{found.value:.3f} ({found.low:.3f}–{found.high:.3f})"


def _by_size(curves: Curves) -> PageTable:
    sizes = sorted({n for curve in curves.values() for n in curve})
    rows = [
        (str(n), *(_auc(curve[n]) if n in curve else "–" for curve in curves.values()))
        for n in sizes
    ]
    return PageTable(
        "Records told apart (AUC), by their number n at a client", ("n", *curves), rows
    )


def _figure(curves: Curves) -> Figure:
    figure = Figure(figsize=(4.5, 3.8), layout="constrained")
    axes = figure.subplots()
    for i, (name, curve) in enumerate(curves.items()):
        sizes, colour = list(curve), COLOURS[i % len(COLOURS)]
        values = [curve[n].value for n in sizes]
        axes.plot(sizes, values, label=name, color=colour, ls=STYLES[i % len(STYLES)], marker="o")
        low, high = [curve[n].low for n in sizes], [curve[n].high for n in sizes]
        axes.fill_between(sizes, low, high, color=colour, alpha=0.15, lw=0)
    axes.axhline(0.5, color=COLOURS[3], lw=1)
    axes.set_xscale("log", base=2)
    ticks = sorted({n for curve in curves.values() for n in curve})
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.set(xlabel="records of a client", ylabel="AUC (0.5: guessing)", ylim=(0.4, 1.02))
    bare(axes)
    axes.legend(frameon=False, fontsize=8)
    return figure
