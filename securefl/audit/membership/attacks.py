"""Attacks on membership: scores that say of each sample whether it trained a model.

Each attack is a function of φ (`confidences`), and gives a score per sample, higher for "member".
Axes: N shadow models, R rounds, K clients, S samples, Z samples of the population.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securefl.audit.membership.candidates import Phi, losses
from securefl.errors import DataError

GAMMA = 1.0
OFFLINE_A = 0.3
"""Value of RMIA's a, where nothing is known of how well members are learnt."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Shadows:
    """Confidences of shadow models in each sample, and which of them it trained."""

    phi_NS: Phi
    trained_NS: NDArray[np.bool_]

    @classmethod
    def of(cls, phi: ArrayLike, trained: ArrayLike) -> "Shadows":
        """Check shapes; raises DataError where they differ, or a sample trained all models."""
        phi_NS, trained_NS = np.asarray(phi, np.float64), np.asarray(trained, bool)
        if phi_NS.shape != trained_NS.shape or phi_NS.ndim != 2:
            raise DataError(
                f"confidences of shape {phi_NS.shape} for samples of shape {trained_NS.shape}: "
                "both must be (models, samples)"
            )
        if not np.isfinite(phi_NS).all() or trained_NS.all(axis=0).any():
            raise DataError("a sample has trained every shadow model, or its φ is not finite")
        return cls(phi_NS, trained_NS)

    def only(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> "Shadows":
        """Return the same models on these samples alone."""
        return Shadows(self.phi_NS[:, chosen], self.trained_NS[:, chosen])

    @property
    def n_out_S(self) -> NDArray[np.int64]:
        """Number of models that each sample has not trained."""
        n_S: NDArray[np.int64] = (~self.trained_NS).sum(axis=0)
        return n_S

    def mean_out_S(self) -> Phi:
        """Return μ of each sample over the models that it has not trained."""
        sum_S: Phi = np.where(self.trained_NS, 0.0, self.phi_NS).sum(axis=0)
        return sum_S / self.n_out_S

    def own_deviation_S(self) -> Phi:
        """Return σ of each sample over the models that it has not trained; needs many of them.

        Raises:
            DataError: a sample has fewer than two such models.
        """
        if (self.n_out_S < 2).any():
            raise DataError("a deviation of its own needs two models that a sample did not train")
        return np.sqrt(self._squares_S() / (self.n_out_S - 1))

    def pooled_deviation(self) -> float:
        """Return σ within samples, one for all: for few models. Differences of means are no part.

        Raises:
            DataError: no sample has two models that it did not train.
        """
        free = int((self.n_out_S - 1).sum())
        if free < 1:
            raise DataError("a deviation needs a sample with two models that it did not train")
        return float(np.sqrt(self._squares_S().sum() / free))

    def _squares_S(self) -> Phi:
        away_NS = np.where(self.trained_NS, 0.0, self.phi_NS - self.mean_out_S())
        squares_S: Phi = np.square(away_NS).sum(axis=0)
        return squares_S


def loss_attack(target_S: Phi) -> Phi:
    """Return the negative loss: members are fitted better (Yeom et al., CSF 2018, Adversary 2)."""
    return -losses(target_S)


def lira(target_S: Phi, shadows: Shadows, deviation: ArrayLike) -> Phi:
    """Return (φ - μ_out) / σ_out: offline LiRA (Carlini et al., IEEE S&P 2022, sections V, VI).

    Their score is Pr[N(μ_out, σ_out²) < φ]. This is its argument, in the same order and without
    ties where the probability is 1 in floating point. Where σ_out is 0 it counts as 1e-9.

    Args:
        target_S: φ by the model that is attacked.
        shadows: of models that were trained without each sample.
        deviation: `own_deviation_S` or `pooled_deviation` of the shadows.
    """
    return (target_S - shadows.mean_out_S()) / np.maximum(deviation, 1e-9)


def rmia(
    target_S: Phi,
    shadows: Shadows,
    population: tuple[Phi, Shadows],
    gamma: float = GAMMA,
    a: float = OFFLINE_A,
) -> Phi:
    """Return Pr_z[LR(x, z) ≥ γ]: offline RMIA (Zarifzadeh, Liu, Shokri, ICML 2024).

    LR(x, z) = (Pr(x|θ) / Pr(x)) / (Pr(z|θ) / Pr(z)), where Pr(x) = ((1 + a) Pr(x)_out + 1 - a) / 2
    stands for the mean over models with and without x. All is computed in logarithms.

    A z whose ratio is γ exactly counts half. Of continuous ratios that is x itself alone: so x may
    be among the z, and those that are have no advantage over those that are not.

    The score is a step function of x's own ratio, so which z there are changes the ROC by ties
    alone, and of few z there are many. γ says only where the steps are.

    Args:
        target_S: φ by the model that is attacked.
        shadows: of models that were trained without each sample.
        population: the same of samples z that the model was not trained on.
        gamma: γ, positive.
        a: 1 where models say of x the same with and without it; 0 where they are sure of a member.

    Raises:
        DataError: γ or a out of range, or no z.
    """
    if not (gamma > 0 and 0 <= a <= 1) or not len(population[0]):
        raise DataError(f"gamma = {gamma}, a = {a}: must be positive, and in 0..1, with some z")
    ratio_Z = np.sort(likelihood_ratio(*population, a))
    needed_S = likelihood_ratio(target_S, shadows, a) - np.log(gamma)
    sides = [np.searchsorted(ratio_Z, needed_S, side) for side in ("left", "right")]
    below_S: Phi = np.mean(sides, axis=0)
    return below_S / len(ratio_Z)


def likelihood_ratio(target_S: Phi, shadows: Shadows, a: float = OFFLINE_A) -> Phi:
    """Return log Pr(x|θ) - log Pr(x): RMIA's order of the samples, without ties."""
    log_p_NS = np.where(shadows.trained_NS, -np.inf, -losses(shadows.phi_NS))
    log_out_S = np.logaddexp.reduce(log_p_NS, axis=0) - np.log(shadows.n_out_S)
    known = np.log1p(a) - np.log(2) + log_out_S
    log_x_S: Phi = known if a == 1 else np.logaddexp(known, np.log1p(-a) - np.log(2))
    return -losses(target_S) - log_x_S


def over_rounds(phi_RS: Phi, expected_S: Phi | None = None) -> Phi:
    """Return the mean φ by the models of several rounds, above what is expected of each sample.

    Several models of one training can tell more than its last ("multi-temporal", Zhu et al.).
    Models of single rounds are less sure than finished ones, shadows among them. So what is
    expected is the line through φ over `expected_S`, by least squares over all samples; who trained
    is not looked at.

    Args:
        phi_RS: NaN where there was no model in a round; a sample without any has a score of NaN.
        expected_S: `mean_out_S` of shadows; without them hard samples look like non-members.
    """
    there_RS = ~np.isnan(phi_RS)
    n_S, sum_S = there_RS.sum(axis=0), np.where(there_RS, phi_RS, 0.0).sum(axis=0)
    mean_S: Phi = np.where(n_S > 0, sum_S / np.maximum(n_S, 1), np.nan)
    if expected_S is None:
        return mean_S
    line_S2 = np.stack([np.ones_like(expected_S), expected_S], axis=1)
    found, *_ = np.linalg.lstsq(line_S2[n_S > 0], mean_S[n_S > 0], rcond=None)
    above_S: Phi = mean_S - line_S2 @ found
    return above_S


def own_models(phi_RKS: Phi, client_S: NDArray[np.int64]) -> Phi:
    """Return φ of each sample by the models of the client whose it is or would be, shape (R, S)."""
    own_RS: Phi = phi_RKS[:, client_S, np.arange(len(client_S))]
    return own_RS


def against_others(phi_RKS: Phi, client_S: NDArray[np.int64]) -> Phi:
    """Return (φ_i - μ) / σ over the other clients' models, mean over rounds.

    After FedMIA (Zhu et al., CVPR 2025).
    The others have not trained client i's samples, so theirs is the distribution of a non-member.
    Two things differ from the paper. σ of a round is pooled over samples, since a few clients give
    no deviation of one sample. And rounds are added before and not after Φ, which is 1 in floating
    point where clients have different labels.

    It tells how client i's models differ from others', so it is fair only where members and
    non-members have the same labels in each client (`Candidates.compared`).

    Args:
        phi_RKS: by each client's model after its local steps; NaN where it was not in the round.
        client_S: whose each sample is or would be; in no round with two others, its score is NaN.
    """
    own_RS, others_RKS = own_models(phi_RKS, client_S), phi_RKS.copy()
    others_RKS[:, client_S, np.arange(len(client_S))] = np.nan
    there_RKS = ~np.isnan(others_RKS)
    n_RS = there_RKS.sum(axis=1)
    mean_RS = np.where(there_RKS, others_RKS, 0.0).sum(axis=1) / np.maximum(n_RS, 1)
    away_RKS = np.where(there_RKS, others_RKS - mean_RS[:, None], 0.0)
    squares_R, free_R = np.square(away_RKS).sum(axis=(1, 2)), np.maximum(n_RS - 1, 0).sum(axis=1)
    deviation_R = np.sqrt(squares_R / np.maximum(free_R, 1))
    z_RS = (own_RS - mean_RS) / np.maximum(deviation_R, 1e-9)[:, None]
    return over_rounds(np.where(n_RS >= 2, z_RS, np.nan))
