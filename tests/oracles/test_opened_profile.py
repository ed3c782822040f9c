"""Opened profiles: honest ones of any size pass, and one that differs by a millionth is found."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from securefl.audit.exposure.opened_messages import NOISE, PROFILE_ERROR, require_profile
from securefl.audit.exposure.sealed_messages import SealedMessages
from securefl.errors import MessageRefused
from securefl.exchange.card_keys import Quorum
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time_match import OneTimeProfileSealer
from securefl.exchange.profile_match import HEADER_BYTES, MAX_SECOND_MOMENT, VARIANCE_FLOOR, Profile
from securefl.exchange.sums import MessageId
from securefl.federation.client import Client, Identities
from securefl.types import PROFILE

RUN, N = "1" * 64, 4096
SIZES = (1, 2, 6, 64, 1000, 1023, 1024, 2047, 2048, 5000)


def profile_of(mean_Q, variance_Q):
    return Profile(*(torch.as_tensor(v, dtype=torch.float64) for v in (mean_Q, variance_Q)), 0)


def random_profile(q, rng):
    return profile_of(rng.normal(size=q), rng.uniform(0.5, 2, q))


def extreme_profile(q, rng):
    """Variances at their floor, at their largest and anything between, as do means."""
    variance_Q = np.exp(rng.uniform(np.log(VARIANCE_FLOOR), np.log(MAX_SECOND_MOMENT), q))
    variance_Q[rng.random(q) < 0.3] = VARIANCE_FLOOR
    largest = np.sqrt(MAX_SECOND_MOMENT - np.minimum(variance_Q, MAX_SECOND_MOMENT))
    return profile_of(rng.choice([-1, 0, 1], q) * largest, variance_Q).in_range()


class Parties:
    """A client, the keys of officers, and a tap that knows both."""

    def __init__(self, quorum):
        keys, identities = KeySet.ephemeral(quorum), Identities.ephemeral(["client-1"])
        identity = identities.keys["client-1"]
        client = Client("client-1", 1.0, {}, card_keys=keys.public, signing_key=identity)
        self.sender = client.sender(RUN, keys.public.key_id)
        self.sealer, self.tap = OneTimeProfileSealer(keys.public), SealedMessages(keys, identities)
        assert self.tap.card(RUN, "client-1", keys.public.cards(RUN, self.sender)) == ""

    def slots(self, profile):
        """The profile sealed, and opened by the tap."""
        about = MessageId(RUN, 1, PROFILE, 2 * len(profile))
        payload, nonce = self.sealer.seal(profile, about, self.sender)
        return self.tap.slots_of_profile(about, "client-1", nonce, payload[HEADER_BYTES:])


@pytest.fixture(scope="module", params=[Quorum(), Quorum(2, 3)], ids=["authority", "officers"])
def parties(request):
    return Parties(request.param)


@pytest.mark.parametrize("q", SIZES)
@pytest.mark.parametrize("make", [random_profile, extreme_profile])
def test_honest_profiles_pass(parties, q, make):
    """Several ciphertexts among them, and sizes with room for one copy alone."""
    rng = np.random.default_rng(q)
    for _ in range(3):
        require_profile(parties.slots(make(q, rng)), q)


def test_slots_err_as_the_parameters_say(parties):
    """2.7e-7 as standard deviation, and never by half of what is called too much."""
    profile = random_profile(1000, np.random.default_rng(0))
    values = [(profile.variance_Q + profile.mean_Q**2) / 4, profile.mean_Q]
    x = np.concatenate([*values, [profile.variance_Q.log().mean()]])
    errors = parties.slots(profile)[0, : 2 * 2001] - np.tile(x, 2)
    assert errors.std() == pytest.approx(NOISE, rel=0.1)
    assert np.abs(errors).max() < PROFILE_ERROR / 2


@pytest.fixture(scope="module")
def opened(parties):
    """Slots of a profile of 64 elements, of which 31 copies fit, and 97 slots are empty."""
    return parties.slots(random_profile(64, np.random.default_rng(1)))


def changed(slots, change):
    slots = slots.copy()
    change(slots[0])
    return slots


@pytest.mark.parametrize("size", [2 * PROFILE_ERROR, 1.0])
@pytest.mark.parametrize("place", [31 * 129, N - 1])
def test_nothing_may_stand_behind_the_copies(opened, place, size):
    """The first slot there, and the last one."""

    def change(slots):
        slots[place] += size

    with pytest.raises(MessageRefused, match="behind its values"):
        require_profile(changed(opened, change), 64)


@pytest.mark.parametrize("place", [0, 128, 129 * 31 - 1])
def test_copies_must_be_alike(opened, place):
    """All of them, in the first value and in the last."""

    def change(slots):
        slots[place] += 2 * PROFILE_ERROR

    with pytest.raises(MessageRefused, match="not alike"):
        require_profile(changed(opened, change), 64)


@pytest.mark.parametrize("off", [-2e-5, 2e-5])
def test_the_logarithm_must_follow_from_the_rest(opened, off):
    """To a few errors, which the average over copies makes small."""

    def change(slots):
        slots[128 : 31 * 129 : 129] += off

    with pytest.raises(MessageRefused, match="mean logarithm"):
        require_profile(changed(opened, change), 64)


def test_a_variance_below_all_others_is_found(opened):
    """A second moment that is less than the mean's square."""

    def change(slots):
        slots[3 : 31 * 129 : 129] = slots[67 : 31 * 129 : 129] ** 2 / 4 - 1e-5

    with pytest.raises(MessageRefused, match="variance that none has"):
        require_profile(changed(opened, change), 64)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_an_error_that_is_too_small_is_found(opened, share):
    """None at all, or a third of what it should be."""
    profile = random_profile(64, np.random.default_rng(1))
    values = [(profile.variance_Q + profile.mean_Q**2) / 4, profile.mean_Q]
    x = np.tile(np.concatenate([*values, [profile.variance_Q.log().mean()]]), 31)
    exact = np.concatenate([x, np.zeros(N - len(x))])[None]
    with pytest.raises(MessageRefused, match="no error, or a small one"):
        require_profile(exact + share * (opened - exact), 64)


def test_rubbish_is_no_profile(opened):
    """So is what another key opens, or a profile of another size."""
    with pytest.raises(MessageRefused, match="opens to no profile"):
        require_profile(np.random.default_rng(0).normal(size=(1, N)) * 2.0**30, 64)
    with pytest.raises(MessageRefused):
        require_profile(opened, 63)
