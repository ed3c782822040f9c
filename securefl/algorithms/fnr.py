"""FNR-FL: the clients that do worst on public samples are trained on them before the average.

Hu, Qiu & Tang, "Feature Norm Regularized Federated Learning", Algorithms 2 and 3:

    F_i[l]  client i's class-average feature norms on D_public, after its own training   Eq. (7)
    S_re    the ⌊n p⌋ clients of lowest accuracy A_i on D_public
    Δ_j[l] = Σ_{m∉S_re} (F_m[l] - F_j[l]) = S[l] - count[l] F_j[l]
    Φ_j    = L + λ J_j for E_re epochs on D_public, j ∈ S_re                              Eq. (9)

Who sees what: clients, and a server that reads opened totals, see three sums over all clients.
The histogram of the A_i, and of the confidences of those tied at its threshold: how many have
which, not who. S and count, the sum of the norms of at least three clients, fewer only where one is
lost between two sums of a round. All clients send the same messages, refined or not.

With all sealed a client so knows of itself alone whether it is in S_re, and the server of nobody,
but for two things: a client of S_re has E_re epochs more to train before it sends its model, and
one whose norms are refused as too large is not in S_re. With only statistics sealed the server has
each client's model and the public set, and can work out what the sums hide.

On digits nearly all of the gain is the labelled public data, which λ = 0 has too: see the recipe
`examples/recipes/digits/fnr.toml`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from securefl.algorithms.algorithm import Sgd, Work, averaged_tensors, copied, snapshot
from securefl.algorithms.features import Assessment, ClassNorms, assess, class_norms, last_linear
from securefl.algorithms.federated import Federated
from securefl.algorithms.lowest import (
    TieBreak,
    among_lowest,
    histogram,
    histogram_message,
    noisily_among_lowest,
    places,
)
from securefl.algorithms.public_training import Objective, Penalty, PublicData, train_on_public
from securefl.algorithms.servers.fednova import STEPS
from securefl.algorithms.solvers.solver import Solver, innermost
from securefl.errors import ConfigError, TooFewContributions
from securefl.exchange.sums import Exchange
from securefl.types import (
    ClientState,
    Contribution,
    Kind,
    MessageSpec,
    NamedTensors,
    Plan,
    State,
    Total,
    Weighing,
)

ACCURACIES, CONFIDENCES, NORMS = "fnr/accuracies", "fnr/confidences", "fnr/norms"
CONFIDENCE_LEVELS = 1024
NOISY_LEVELS = 20
"""Levels of accuracy: each one's count has noise, and the counts of all below are added up."""
ModelTensors = Mapping[Kind, NamedTensors]
"""Tensors as `averaged_tensors` gives them."""
MIN_REFERENCE = 3
"""With two clients outside S_re, each would read the other's norms off the sum."""


class Match(StrEnum):
    """Forms of J."""

    MATCHED = "matched"
    """Pulls a batch's own class norms to the others' mean. Ours: it has a gradient."""
    LITERAL = "literal"
    """J as printed. Δ_j is a constant, so ∇J = 0: bit for bit the training of λ = 0."""


class Ranking(StrEnum):
    """Ways to find the weakest."""

    EXACT = "exact"
    """From histograms of accuracies, and of confidences where accuracies are tied."""
    NOISY = "noisy"
    """From one of few levels, to which differential privacy adds noise. Ours."""


@dataclass(frozen=True, slots=True)
class FNR:
    """Any federated training, with the weakest clients refined on public samples."""

    inner: Federated
    public: PublicData
    share: float = 0.3
    """p, the share of clients that are refined."""
    strength: float = 0.1
    """λ; 0 is the fine-tune-only ablation."""
    match: Match = Match.MATCHED
    ranking: Ranking = Ranking.EXACT

    def __post_init__(self) -> None:
        """Raises ConfigError for a share or a strength out of range."""
        if not 0 < self.share < 1:
            raise ConfigError(f"share = {self.share}: must be between 0 and 1; 0.3 is usual")
        if not 0 <= self.strength < float("inf"):
            raise ConfigError(f"strength = {self.strength}: must be a finite number from 0 on")

    def init(self, model: nn.Module) -> State:
        """Return the inner one's state."""
        return self.inner.init(model)

    def plan(self, state: State, model: nn.Module) -> Plan:
        """Return the inner one's plan, and three sums beside it.

        Raises:
            DataError: the model has no last linear layer, or fewer outputs than public classes.
        """
        plan, n_classes = self.inner.plan(state, model), last_linear(model).out_features
        self.public.check_labels(n_classes)
        ranked: tuple[MessageSpec, ...] = (
            histogram_message(ACCURACIES, len(self.public.samples) + 1),
            histogram_message(CONFIDENCES, CONFIDENCE_LEVELS),
        )
        if self.ranking is Ranking.NOISY:
            ranked = (histogram_message(ACCURACIES, NOISY_LEVELS),)
        norms = MessageSpec(NORMS, Kind.STATISTICS, 2 * n_classes, Weighing.EQUAL)
        return replace(plan, sums=(*plan.sums, *ranked, norms))

    def client(self, state: State, work: Work, exchange: Exchange) -> Contribution:
        """Train the inner one's round, then for clients of S_re E_re epochs on D_public."""
        contribution = self.inner.client(state, work, exchange)
        n_classes = last_linear(work.model).out_features
        found = assess(work.model, self.public.samples, n_classes)
        penalty = self.penalty(found, exchange)
        if penalty is None:
            return contribution
        before = snapshot(averaged_tensors(work.model))
        self.refine(state, work.model, work.sgd, Objective(work.loss, self.strength, penalty))
        return self.refined(state, contribution, before, averaged_tensors(work.model))

    def penalty(self, found: Assessment, exchange: Exchange) -> Penalty | None:
        """Return J_j of a client of S_re, and None of another; all ask for the same sums."""
        weak = self._among_weakest(found, exchange)
        reference = _reference(found.norms, weak, exchange)
        return self._penalty(reference, found.norms) if weak else None

    def refine(self, state: State, model: nn.Module, sgd: Sgd, objective: Objective) -> None:
        """Train E_re epochs on D_public a model that has had its local steps."""
        with self.inner.normalisation(state, model).more_training(model):
            train_on_public(model, self.public, state.round, sgd, objective)

    def refined(
        self, state: State, contribution: Contribution, before: ModelTensors, after: ModelTensors
    ) -> Contribution:
        """Return a client's contribution after `refine` moved its model from `before` to `after`.

        What a solver exchanges beside the model is of its own steps alone.
        """
        start = before[Kind.PARAMETERS]
        moved = {name: w - start[name] for name, w in after[Kind.PARAMETERS].items()}
        share = _share_sent(state, contribution)
        now = {name: value for named in after.values() for name, value in named.items()}
        tensors = dict(contribution.tensors)
        for kind, named in contribution.tensors.items():
            if kind is Kind.PARAMETERS:
                tensors[kind] = {n: sent + moved[n] * share.to(sent) for n, sent in named.items()}
            elif kind is Kind.STATISTICS:
                # What refinement leaves as it was is sent as it was: it may be another than the
                # model's own, as a control variate is.
                held = {n for n, v in before.get(kind, {}).items() if torch.equal(v, now[n])}
                tensors[kind] = copied(
                    {n: sent if n in held else now.get(n, sent) for n, sent in named.items()}
                )
        client_state = self._remembered(contribution.client_state, moved)
        own = copied({name: now[name] for name in client_state.own})
        return Contribution(tensors, replace(client_state, own=own))

    def update(self, state: State, totals: Mapping[Kind, Total]) -> State:
        """Return the inner one's next state."""
        return self.inner.update(state, totals)

    def n_refined(self, n_clients: int) -> int:
        """Return ⌊n p⌋, how many of a round's clients are refined.

        Raises:
            ConfigError: none would be, or too few others are left.
        """
        found = places(self.share, n_clients)
        if found < 1 or n_clients - found < MIN_REFERENCE:
            least = MIN_REFERENCE + 1
            way_out = "more clients, or another share"
            if n_clients < least:
                way_out = f"at least {least} clients, since no share fits fewer"
            raise ConfigError(
                f"fnr.share = {self.share}: of {n_clients} clients {found} are refined in a round; "
                f"it takes one or more, and {MIN_REFERENCE} others, in whose sum no client's norms "
                f"show: have {way_out}"
            )
        return found

    def fewest_clients(self) -> int:
        """Return the least number of clients of which a round can refine some."""
        return next(
            n
            for n in count(MIN_REFERENCE + 1)
            if places(self.share, n) and n - places(self.share, n) >= MIN_REFERENCE
        )

    def _among_weakest(self, found: Assessment, exchange: Exchange) -> bool:
        """Return True where this client is in S_re."""
        if self.ranking is Ranking.NOISY:
            share = found.n_correct / (len(self.public.samples) + 1)
            level = int(share * NOISY_LEVELS)
            return noisily_among_lowest(exchange, ACCURACIES, NOISY_LEVELS, level, self._places)
        n_levels = len(self.public.samples) + 1
        if not math.isfinite(found.confidence):  # it has diverged: refused, and out of the round
            exchange.sum(ACCURACIES, {"levels": torch.full((n_levels,), torch.nan)})
        counts = histogram(exchange, ACCURACIES, n_levels, found.n_correct)
        n_refined = self._places(int(counts.sum()))
        level = min(int(found.confidence * CONFIDENCE_LEVELS), CONFIDENCE_LEVELS - 1)
        tie_break = TieBreak(CONFIDENCES, CONFIDENCE_LEVELS, level)
        return among_lowest(exchange, n_refined, counts, found.n_correct, tie_break)

    def _places(self, n_present: int) -> int:
        """Return ⌊n p⌋ of those who are there, but for some who may be lost since the run began."""
        try:
            return self.n_refined(n_present)
        except ConfigError as error:
            raise TooFewContributions(str(error)) from None

    def _remembered(self, client_state: ClientState, moved: NamedTensors) -> ClientState:
        """Return what a solver keeps: of its own steps alone, unless it follows the refinement.

        So FedDyn's and FedDC's h_i do: the server's H sums all moves. Without the refinement in
        h_i it would run away from Σ p_i h_i, and the model with it.
        """
        solver = innermost(self.inner.solver)
        if not (isinstance(solver, Solver) and solver.follows_refinement):
            return client_state
        return replace(client_state, solver=solver.followed(client_state.solver, moved))

    def _penalty(self, reference: ClassNorms, own: ClassNorms) -> Penalty:
        if self.match is Match.LITERAL:
            delta_C = reference.sum_C - reference.count_C * own.mean_C
            return lambda features, y: literal_penalty(features, y, delta_C)
        return lambda features, y: matched_penalty(features, y, reference)


def matched_penalty(
    features_BF: Float[Tensor, "B ..."], y: Int64[Tensor, " B"], reference: ClassNorms
) -> Float[Tensor, ""]:
    """Return J = Σ_l ρ_l (F_j[l](w) - mean_{m∉S_re} F_m[l])², over classes that both have."""
    batch = class_norms(features_BF, y, len(reference.count_C))
    reference_C = reference.mean_C.to(batch.sum_C)
    known_C = reference.known_C.to(y.device)
    share_C = batch.count_C / len(y) * known_C
    return (share_C * (batch.mean_C - reference_C).square()).sum()


def literal_penalty(
    features_BF: Float[Tensor, "B ..."], y: Int64[Tensor, " B"], delta_C: Float[Tensor, " C"]
) -> Float[Tensor, ""]:
    """Return J = Σ_l ρ_l Δ_j[l], which no weight moves."""
    return delta_C.to(features_BF)[y].mean()


def _reference(own: ClassNorms, refined: bool, exchange: Exchange) -> ClassNorms:
    """Return S and count over the clients outside S_re; the others take part with zeros."""
    counts = not refined
    values: NamedTensors = {
        "norms": own.mean_C * counts,
        "present": own.known_C.to(own.mean_C) * counts,
    }
    total = exchange.sum(NORMS, values)
    present_C = (total.values["present"] * total.n_clients).round().clamp(min=0)
    return ClassNorms(total.values["norms"] * total.n_clients, present_C)


def _share_sent(state: State, contribution: Contribution) -> Tensor:
    """Return the share of a move that is sent: FedNova's clients scale theirs by their steps."""
    steps = contribution.tensors.get(Kind.CONTROL, {}).get(STEPS)
    return torch.ones(()) if steps is None else state.tensors[Kind.CONTROL][STEPS] / steps
