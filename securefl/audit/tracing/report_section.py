"""The chapter on tracing: who can tell from a statistic whether a record went into it.

What tracing comes to, in plain words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor, nn

from securefl.audit.findings import FindingsTable, Number, Picture, Section, Verdict
from securefl.audit.statistics import Interval
from securefl.audit.tracing.differencing import Differenced
from securefl.audit.tracing.experiment import Others, Release
from securefl.audit.tracing.likelihood import private_limit
from securefl.audit.tracing.setup import EFFORTS, SentStatistics, Shown, TracingSetup
from securefl.data.split import Labelled
from securefl.report.plots import COLOURS, STYLES, bare, png

N, TEN, SIGMA = 16, 10, 4.0
"""Of the figures that are compared between runs."""
_METHOD = (
    "AUC of the likelihood ratio under a Gaussian with the covariance of public records (Homer et "
    "al. 2008; Sankararaman et al. 2009; Dwork et al. 2015)"
)
_DIFFERENCE = _METHOD + ", on the difference of two totals that a real authority has opened"

Curves = Mapping[str, Mapping[int, Interval]]
"""AUCs by statistic and n."""


def tracing_chapter(
    model: nn.Module,
    pool: Labelled,
    public: Tensor,
    sent: SentStatistics,
    seed: int,
    effort: Literal["quick", "full"] = "quick",
) -> Section:
    """How well records are traced in what this run's model makes of its clients' data.

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
    bench = TracingSetup(model, pool, public, sent, rng, EFFORTS[effort])
    curves = _curves(bench)
    compared = _compared(bench, curves)
    two_sums = _TwoSums.of(bench.differenced(N), rng)
    run = _run(bench, sent)
    auc = run.auc if run else None
    verdict, words = judged(sent, auc, two_sums.exact, two_sums.private)
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
NOISY, OF_TEN = f"its profile, noise of σ = {SIGMA:g}", f"sum of {TEN} clients"


def _curves(bench: TracingSetup) -> dict[str, dict[int, Interval]]:
    """Each statistic at all sizes for which there are records."""
    one: dict[str, Release] = {
        PROFILE: bench.profiles,
        MEANS: bench.means,
        NOISY: bench.private(SIGMA),
    }
    sizes = bench.effort.sizes
    found = {
        name: {n: bench.auc(release, n) for n in sizes if n <= max(N, bench.most())}
        for name, release in one.items()
    }
    of_ten = {n: bench.auc(bench.profiles, n, TEN) for n in sizes if n <= bench.most(TEN)}
    return {**found, OF_TEN: of_ten}


def _compared(bench: TracingSetup, curves: Curves) -> dict[str, Interval]:
    """What is reported of every run, at n = 16."""
    found = {
        f"AUC, a profile of {N}": curves[PROFILE][N],
        f"AUC, means alone of {N}": curves[MEANS][N],
        f"AUC, a profile of {N} with noise, σ = {SIGMA:g}": curves[NOISY][N],
    }
    if N in curves[OF_TEN]:
        found[f"AUC, a sum of {TEN} clients of {N}"] = curves[OF_TEN][N]
    others = Others.SAME_CLASS
    found[f"AUC, a profile of {N}, told from the same class"] = bench.auc(
        bench.profiles, N, others=others
    )
    if bench.layers:
        found[f"AUC, all BN layers' statistics of {N}"] = bench.auc(bench.layers, N)
    return found


@final
@dataclass(frozen=True, slots=True)
class _Run:
    """What this very run shows."""

    name: str
    auc: Interval


def _run(bench: TracingSetup, sent: SentStatistics) -> _Run | None:
    """None where nobody reads a statistic, or nobody one without clients' noise."""
    if sent.worst not in {Shown.EACH, Shown.TOTALS} or sent.client_sigma is not None:
        return None
    of_layers = sent.statistics is sent.worst and bench.layers
    release: Release = bench.layers if of_layers and bench.layers else bench.profiles
    what = "all BN layers' statistics" if of_layers else "a profile"
    if sent.sigma is not None:
        release, what = bench.private(sent.sigma), f"{what} with noise, σ = {sent.sigma:g}"
    n_clients = 1 if sent.worst is Shown.EACH else sent.n_clients
    n = max(min(sent.n_records, bench.most(n_clients)), 2)
    whose = "one client" if n_clients == 1 else f"{n_clients} clients"
    found = bench.auc(release, n, n_clients)
    least = "" if n == sent.n_records else f" ({n_clients} x {n} were tested)"
    return _Run(f"AUC, this run: {what} of {whose}, {sent.n_records} records each{least}", found)


@final
@dataclass(frozen=True, slots=True)
class _TwoSums:
    """What the difference of two sums shows of the client that is in one alone."""

    found: Differenced
    exact: Interval
    redrawn: Interval
    private: Interval

    @classmethod
    def of(cls, found: Differenced, rng: np.random.Generator) -> _TwoSums:
        """With intervals."""
        return cls(found, *(roc.auc(rng) for roc in (found.exact, found.redrawn, found.private)))

    def aucs(self, client_sigma: float | None) -> dict[str, Interval]:
        """By name."""
        sigma = 1.0 if client_sigma is None else client_sigma
        return {
            "AUC, difference of two sums": self.exact,
            "AUC, difference of two sums of other mini-batches": self.redrawn,
            f"AUC, difference of two sums with clients' noise, σ = {sigma:g}": self.private,
        }

    @staticmethod
    def method(name: str) -> str:
        """How a number was found."""
        return _DIFFERENCE if "difference" in name else _METHOD

    def table(self) -> FindingsTable:
        """What was asked of the authority, and what it did."""
        error = "10⁻⁶" if self.found.error < 1e-6 else f"{self.found.error:.0e}"
        opened = f"opened; the difference is the client's, to {error}"
        rows = (
            ("one name twice in a round", self.found.again or "opened", ""),
            ("fewer clients than the least number", self.found.few or "opened", ""),
            ("two rounds, one client less, all else alike", opened, _auc(self.exact)),
            ("the same, the others with other records", "opened", _auc(self.redrawn)),
            ("two rounds, one client less, with clients' noise", "opened", _auc(self.private)),
        )
        alarming = frozenset(
            i
            for i, auc in ((2, self.exact), (3, self.redrawn), (4, self.private))
            if level(auc) is not Verdict.HOLDS
        )
        columns = ("asked of the authority", "what it did", "AUC")
        return FindingsTable("Two sums that differ by one client", columns, rows, alarming)


def _auc(found: Interval) -> str:
    return f"{found.value:.3f} ({found.low:.3f}–{found.high:.3f})"


def _by_size(curves: Curves) -> FindingsTable:
    sizes = sorted({n for curve in curves.values() for n in curve})
    rows = [
        (str(n), *(_auc(curve[n]) if n in curve else "–" for curve in curves.values()))
        for n in sizes
    ]
    return FindingsTable("AUC by records n of a client", ("n", *curves), rows)


def _figure(curves: Curves) -> Figure:
    figure = Figure(figsize=(6, 4), layout="constrained")
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


NOTICED, PLAIN = 0.6, 0.75
"""Where an AUC's whole interval is above, records are told apart somewhat, or plainly."""

Said = tuple[Verdict, str]

_GUESSING = "of cases (50 % is guessing)"
_UNREAD: dict[Shown, Said] = {
    Shown.NOT_SENT: (
        Verdict.OPEN,
        (
            "No client of this run sends statistics or profiles, so nobody can trace a record in "
            "them. The figures say what they would show."
        ),
    ),
    Shown.HIDDEN: (
        Verdict.HOLDS,
        (
            "Profiles travel encrypted, and only scores of them are opened: nobody reads the "
            "statistics that a record could be traced in."
        ),
    ),
}


def judged(
    sent: SentStatistics, run: Interval | None, difference: Interval, noisy: Interval
) -> Said:
    """A verdict on a run.

    Args:
        sent: what anybody sees of its statistics.
        run: how well records are traced in just that; None where noise of clients is on it.
        difference: how well in the difference of two totals of it.
        noisy: how well in one with the clients' noise.
    """
    if sent.worst in _UNREAD:
        return _UNREAD[sent.worst]
    if run is None:
        return _with_noise(noisy)
    apart = f"says in {run.value:.0%} {_GUESSING} which of two records was in"
    if sent.worst is Shown.EACH:
        alarm = max(level(run), Verdict.WEAK, key=_ALARMS.index)
        return alarm, f"The server reads each client's statistics, and {apart}."
    found = level(run), f"Who reads a total of all clients {apart}."
    if sent.sigma is not None or level(difference) is Verdict.HOLDS:
        return found
    return max(found[0], Verdict.WEAK, key=_ALARMS.index), (
        f"{found[1]} But two totals that differ by one client, while the model hardly changes, "
        f"show that client as if it were in the clear ({difference.value:.0%}): the least number "
        "of clients does not stop that. Noise does."
    )


_ALARMS = (Verdict.HOLDS, Verdict.WEAK, Verdict.LEAKS)


def level(auc: Interval) -> Verdict:
    """Of one figure by itself."""
    return _ALARMS[(auc.low > NOTICED) + (auc.low > PLAIN)]


def _with_noise(noisy: Interval) -> Said:
    return level(noisy), (
        "Each client adds noise to what it sends. Even from the difference of two totals, a reader "
        f"says in {noisy.value:.0%} {_GUESSING} which of two records was in."
    )
