"""The exchange by the settings: kinds that are sealed, and the authority's policy."""

from dataclasses import replace

from torch import nn

from securefl.algorithms.algorithm import Algorithm
from securefl.errors import ConfigError
from securefl.exchange.card_keys import Quorum
from securefl.exchange.policy import OpeningRule, Policy
from securefl.federation.message import SCORE_MEAN
from securefl.norms.find import batch_norm_layers
from securefl.settings.tables import Config, Encrypt
from securefl.types import Kind

READ_BY_SERVER = frozenset({SCORE_MEAN, *(f"update/{kind}" for kind in Kind)})
"""Names of all totals that a server applies: those at a round's end."""
SEALED: dict[Encrypt, set[Kind]] = {
    Encrypt.STATISTICS: {Kind.STATISTICS, Kind.GRADIENTS, Kind.CLIPPING, Kind.SCORES},
    Encrypt.PROFILES: {Kind.PROFILES},
    Encrypt.MODEL: set(Kind) - {Kind.SELECTION, Kind.CARDS},
}


def sealed_kinds(config: Config) -> frozenset[Kind]:
    """Return the kinds that travel as ciphertext."""
    return frozenset[Kind]().union(*(SEALED[part] for part in config.exchange.encrypt))


def is_blind(config: Config, kind: Kind, name: str) -> bool:
    """Return whether the total of a message is sealed for its clients, by the settings."""
    added = kind in sealed_kinds(config) and kind is not Kind.PROFILES
    return config.exchange.blind and added and name not in READ_BY_SERVER


def policy_of(config: Config, consortium: Policy | None) -> Policy:
    """Return the policy that the authority enforces: the consortium's, made stricter by settings.

    Without a consortium, the settings alone. What is for clients alone these say by themselves,
    whatever the server asks for: all that is no total of a round's end.
    """
    exchange = config.exchange
    policy = consortium or Policy(rules=(OpeningRule("*", exchange.precision_bits),))
    rules = (
        replace(rule, precision_bits=min(rule.precision_bits, exchange.precision_bits))
        for rule in policy.rules
    )
    least = max(policy.min_contributions, exchange.min_clients)
    read = READ_BY_SERVER if exchange.blind else None
    noise = config.privacy.of_clients
    return replace(
        policy,
        min_contributions=least,
        rules=tuple(rules),
        read=read,
        noise_hides_clients=noise,
    )


def policy_of_sums(config: Config, consortium: Policy | None, n_clients: int) -> Policy:
    """Return the policy of sums: where clients share noise, too few shares are not opened."""
    policy = policy_of(config, consortium)
    least = max(policy.min_contributions, config.privacy.fewest_shares(config, n_clients))
    return replace(policy, min_contributions=least)


def quorum_of(config: Config) -> Quorum:
    """Return the officers who open sums, and how many of them are needed."""
    return Quorum(config.exchange.needed, config.exchange.officers)


def least_clients(config: Config) -> int:
    """Return the least contributions to a round.

    Where any sum is sealed, exchange.min_clients holds for all: with fewer, each client could
    compute the others' values from a total. Where none is, the server reads them anyway.
    """
    return config.exchange.min_clients if config.exchange.seals_sums else 1


def check_sealed(config: Config, algorithm: Algorithm, model: nn.Module) -> None:
    """Raise ConfigError where nothing would be encrypted."""
    exchange = config.exchange
    if Encrypt.STATISTICS in exchange.encrypt and Encrypt.MODEL not in exchange.encrypt:
        plan = algorithm.plan(algorithm.init(model), model)
        if not SEALED[Encrypt.STATISTICS] & {spec.kind for spec in (*plan.sums, *plan.update)}:
            why = "a model without batch normalisation has none to send"
            if batch_norm_layers(model):
                why = f'with algorithm.name = "{config.algorithm.name}" they stay with the clients'
                if config.privacy.warm_up:
                    why = f"with privacy.warm_up = {config.privacy.warm_up} clients send none"
            raise ConfigError(
                f'exchange.encrypt = "statistics", and {why}: nothing would be encrypted; set '
                'exchange.encrypt = "none", or "model"'
            )
