"""Attackers on a run's records: models that each party saw, and attacks that these allow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from securefl.audit.membership.attacks import (
    GAMMA,
    OFFLINE_A,
    Shadows,
    against_others,
    lira,
    loss_attack,
    over_rounds,
    own_models,
    rmia,
)
from securefl.audit.membership.candidates import Candidates, Phi

OWN_DEVIATIONS_FROM = 32
"""Number of models without a sample from which on LiRA takes the sample's own deviation."""
MODEL_HOLDERS = "whoever has the final model"
PARTIES = "every client, and the server"
UPDATE_READER = "a server that reads single clients' updates"


@final
@dataclass(frozen=True, slots=True, eq=False)
class SeenModels:
    """Confidences φ of a pool's samples by the models that somebody saw (`confidences`)."""

    final_S: Phi
    global_RS: Phi | None = None
    """Confidences by the global model after each round or some of them, in order; None where they
    were not kept."""
    clients_RKS: Phi | None = None
    """Confidences by each client's model after its local steps in these rounds; NaN out of a round.
    None where single updates travel encrypted: nobody sees them then."""
    another_run: bool = False
    """True where the models of rounds and clients are of another run of the same settings."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Attack:
    """Scores of all samples by one attack, higher for "member"."""

    name: str
    observer: str
    """Party that can do this."""
    method: str
    score_S: Phi
    another_run: bool = False
    """True where the models are of another run of the same settings."""


def attacks(pool: Candidates, seen: SeenModels, shadows: Shadows | None) -> Sequence[Attack]:
    """Return all attacks that what was seen allows, with every sample of the pool scored.

    Of rounds the second half counts, fixed beforehand: what is memorised shows late.
    """
    final_S, another = seen.final_S, seen.another_run
    method = "negative loss (Yeom et al. 2018)"
    found = [Attack("loss", MODEL_HOLDERS, method, loss_attack(final_S))]
    expected_S = shadows.mean_out_S() if shadows else None
    if shadows:
        found += _by_shadows(final_S, shadows, ~pool.member_S)
    like = f", against {len(shadows.phi_NS)} shadow models" if shadows else ""
    if seen.global_RS is not None:
        late = _late(seen.global_RS)
        method = f"mean φ of the models of the last {len(late)} rounds{like}"
        score_S = over_rounds(late, expected_S)
        found.append(Attack("rounds", PARTIES, method, score_S, another))
    if seen.clients_RKS is not None:
        late, owner_S = _late(seen.clients_RKS), pool.client_S
        method = f"mean φ of the client's own models in the last {len(late)} rounds{like}"
        score_S = over_rounds(own_models(late, owner_S), expected_S)
        found.append(Attack("updates", UPDATE_READER, method, score_S, another))
        method = "the same against the other clients' models (after Zhu et al. 2025)"
        score_S = against_others(late, owner_S)
        found.append(Attack("updates, others", UPDATE_READER, method, score_S, another))
    return found


def _by_shadows(final_S: Phi, shadows: Shadows, others_S: NDArray[np.bool_]) -> list[Attack]:
    n = len(shadows.phi_NS)
    many = shadows.n_out_S.min() >= OWN_DEVIATIONS_FROM
    deviation = shadows.own_deviation_S() if many else shadows.pooled_deviation()
    population = final_S[others_S], shadows.only(others_S)
    method = (
        f"share of non-members with a lower likelihood ratio, γ = {GAMMA:g}, a = {OFFLINE_A}, "
        f"{n} shadow models (Zarifzadeh et al. 2024)"
    )
    kind = "of each sample" if many else "pooled"
    return [
        Attack("RMIA", MODEL_HOLDERS, method, rmia(final_S, shadows, population)),
        Attack(
            "LiRA",
            MODEL_HOLDERS,
            f"offline, deviations {kind}, {n} shadow models (Carlini et al. 2022)",
            lira(final_S, shadows, deviation),
        ),
    ]


def _late(models_R: Phi) -> Phi:
    return models_R[len(models_R) // 2 :]
