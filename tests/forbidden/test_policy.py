"""What a policy does not allow the authority does not open, and no setting is looser than it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import securefl
from securefl import Config
from securefl.build.exchange import policy_of
from securefl.errors import OpeningRefused, TooFewContributions
from securefl.exchange.officer import KeySet, OneTimeOpener
from securefl.exchange.policy import OpeningRule, Policy
from securefl.settings.axes import PRIVACY
from securefl.types import Kind, MessageSpec


@pytest.fixture
def federation(federate):
    return federate()


@pytest.fixture
def decrypted(monkeypatch):
    """Each total that keys were asked for, as it happens."""
    seen, opens = [], OneTimeOpener.open

    def noted(self, *arguments):
        seen.append(arguments)
        return opens(self, *arguments)

    monkeypatch.setattr(OneTimeOpener, "open", noted)
    return seen


def request(federation, name="layer/mean", round_number=1, run=None):
    spec = MessageSpec(name, Kind.STATISTICS, federation.n_values)
    return federation.collect(spec=spec, round_number=round_number).request()


def fine(values, bits):
    """Whether they have no more bits than these behind the leading one."""
    significant = np.ldexp(np.frexp(values)[0], bits + 1)
    return np.array_equal(significant, np.rint(significant))


def test_no_more_is_opened_in_a_run_than_the_policy_says(federation, decrypted):
    """Three openings, of whatever name and round; the next is refused, and nothing is decrypted."""
    authority = federation.authority_of(Policy(openings_per_run=3))
    claimed = []
    authority._history.write = claimed.append
    for number in (1, 2, 3):
        authority.open(request(federation, round_number=number))
    for name, number in (("layer/mean", 4), ("layer/variance", 1)):
        with pytest.raises(
            OpeningRefused, match="opens 3 totals in a run, and these were asked for"
        ):
            authority.open(request(federation, name, number))
    assert len(decrypted) == 3
    assert federation.log[-1].refused
    assert len(claimed) == 2 * 3  # a row as it is asked for, one as it is answered; no more of them


def test_each_run_has_openings_of_its_own(federate):
    """The name of a run is in what clients sign."""
    one, other = federate(), federate(run="cd" * 32)
    authority = one.authority_of(Policy(openings_per_run=1))
    authority.roster = other.roster
    cards = {name: client.send_cards(other.run) for name, client in other.clients.items()}
    assert not authority.take_cards(other.run, cards)
    authority.open(request(other))
    authority.roster = one.roster
    cards = {name: client.send_cards(one.run) for name, client in one.clients.items()}
    assert not authority.take_cards(one.run, cards)  # those of another session are forgotten
    authority.open(request(one))
    with pytest.raises(OpeningRefused, match="opens 1 totals in a run"):
        authority.open(request(one, round_number=2))


def test_a_refused_total_uses_up_an_opening_too(federation):
    """A refusal is an answer."""
    authority = federation.authority_of(Policy(openings_per_run=1))
    with pytest.raises(TooFewContributions):
        authority.open(federation.collect("client-1").request())
    with pytest.raises(OpeningRefused, match="opens 1 totals in a run"):
        authority.open(request(federation, round_number=2))


@pytest.mark.parametrize("name", ["update/parameters", "layer/variance2", "Layer/mean", ""])
def test_a_name_that_no_rule_matches_is_not_opened(federation, name, decrypted):
    """Before anything is decrypted; the log names it."""
    rules = (OpeningRule("layer/mean"), OpeningRule("layer/varianc[ef]"))
    authority = federation.authority_of(Policy(rules=rules))
    with pytest.raises(OpeningRefused, match=f"the policy opens no '{name}'"):
        authority.open(request(federation, name))
    assert decrypted == []
    assert federation.log[-1].name == name
    authority.open(request(federation, "layer/variance"))
    assert len(decrypted) == 1


def test_the_first_rule_that_matches_says_how_precise_a_total_is(federation):
    """Means to 8 bits, all other messages of layers to 16, the rest to 24."""
    rules = (OpeningRule("*/mean", 8), OpeningRule("layer/*", 16), OpeningRule("*", 24))
    authority = federation.authority_of(Policy(rules=rules))
    for name, bits in (("layer/mean", 8), ("layer/variance", 16), ("update", 24)):
        opened = authority.open(request(federation, name))
        assert fine(opened.values, bits)
        assert not fine(opened.values, bits - 4)
        np.testing.assert_allclose(opened.values, federation.mean(), atol=8 * 2.0**-bits)


rules = st.builds(
    OpeningRule, st.sampled_from(["*", "layer*/mean", "update/*"]), st.integers(1, 32)
)
policies = st.builds(
    Policy,
    min_contributions=st.integers(3, 100),
    openings_per_run=st.integers(1, 2**31),
    rules=st.lists(rules, min_size=1, max_size=4).map(tuple),
)


def config(min_clients, precision_bits):
    exchange = {"encrypt": "model", "min_clients": min_clients, "precision_bits": precision_bits}
    return Config.model_validate({"exchange": exchange})


@given(policy=policies, least=st.integers(3, 100), bits=st.integers(16, 32))
def test_what_is_enforced_is_never_looser_than_settings_or_policy(policy, least, bits):
    """Fewest clients the larger, precision the coarser; names and openings the policy's."""
    made = policy_of(config(least, bits), policy)
    assert made.min_contributions == max(least, policy.min_contributions)
    assert made.openings_per_run == policy.openings_per_run
    assert [rule.names for rule in made.rules] == [rule.names for rule in policy.rules]
    for enforced, signed in zip(made.rules, policy.rules, strict=True):
        assert enforced.precision_bits == min(bits, signed.precision_bits)
    assert policy_of(config(least, bits), made) == made


@pytest.mark.parametrize(("level", "hides"), [("client", True), ("record", False), ("none", False)])
def test_sessions_are_counted_where_noise_hides_clients(level, hides):
    """By the settings: a mean over many would not have it."""
    made = config(3, 32)
    privacy = PRIVACY.own()[level]()
    made = policy_of(made.model_copy(update={"privacy": privacy}), Policy())
    assert made.noise_hides_clients is hides


@given(least=st.integers(3, 100), bits=st.integers(16, 32))
def test_without_a_consortium_the_settings_are_the_policy(least, bits):
    """With a rule for every name."""
    made = policy_of(config(least, bits), None)
    assert made == replace(Policy(), min_contributions=least, rules=(OpeningRule("*", bits),))


def test_a_run_enforces_the_consortiums_policy(tiny_config, tiny_task, key_set):
    """Which comes with the keys; here it opens no statistics of FedTAN's."""
    only = Policy(rules=(OpeningRule("update/*"),))
    config = tiny_config(exchange={"encrypt": "model"})
    with pytest.raises(OpeningRefused, match="the policy opens no '1/mean'"):
        securefl.run(config, tiny_task(), keys=KeySet(key_set.secrets, policy=only))
