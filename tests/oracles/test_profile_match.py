"""An encrypted score is the divergence in double precision, and nothing about it is lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from securefl.exchange.match_ckks import CkksMatcher, CkksProfileSealer
from securefl.exchange.match_flood import MAX_RELEASES, flood_deviation, grid_bits
from securefl.exchange.match_open import CkksScoreOpener, MatchKeys
from securefl.exchange.releases import MemoryCount

from securefl.errors import DataError, KeyWornOut, ValueRefused
from securefl.exchange import match_forms, match_open
from securefl.exchange.match_plain import PlainMatch
from securefl.exchange.profile import VARIANCE_FLOOR, Profile, divergence, range_unit

FORMS = (match_forms.LINEAR, match_forms.FULL, match_forms.PLAIN_VARIANCE)
SIZES = (8, 64, 512, 2048)
FLOODED = 2e-5
"""Six deviations of the noise that a score is flooded with, where its weights are largest."""


@pytest.fixture(scope="module")
def key_sets():
    linear, square = (MatchKeys.ephemeral(form) for form in FORMS[:2])
    return {"linear": linear, "full": square, "plain-variance": square}


def random_profile(q, rng, spread="uniform", version=0):
    """Means in ±3, variances in 1e-3..50, uniform or by order of magnitude."""
    draw = {
        "uniform": lambda: rng.uniform(1e-3, 50, q),
        "logarithmic": lambda: np.exp(rng.uniform(np.log(1e-3), np.log(50), q)),
    }
    mean_Q, variance_Q = rng.uniform(-3, 3, q), draw[spread]()
    return Profile(torch.from_numpy(mean_Q), torch.from_numpy(variance_Q), version)


def near(profile, rng, distance):
    """A profile whose elements differ by about so many standard deviations."""
    mean_Q, variance_Q = profile.mean_Q.numpy(), profile.variance_Q.numpy()
    noise = rng.normal(scale=distance, size=(2, len(mean_Q)))
    moved = (
        np.clip(mean_Q + noise[0] * variance_Q**0.5, -3, 3),
        np.clip(variance_Q * np.exp(noise[1]), 1e-3, 50),
    )
    return Profile(*(torch.from_numpy(np.asarray(part)) for part in moved), profile.version)


class Match:
    """All three roles."""

    def __init__(self, form, keys):
        self.sealer = CkksProfileSealer(form, keys.public)
        self.matcher = CkksMatcher(form, keys.scoring)
        self.opener = CkksScoreOpener(form, keys.secret, MemoryCount())

    def score(self, profiles, baseline):
        sealed = [self.sealer.seal(profile) for profile in profiles]
        return np.array(self.opener.open([self.matcher.match(one, baseline) for one in sealed]))


@pytest.fixture
def match_of(key_sets):
    return lambda form: Match(form, key_sets[form.name])


def by_hand(profile, baseline):
    """Σ KL of Gaussians from torch, in double precision."""
    pairs = [(p.mean_Q, p.variance_Q.sqrt()) for p in (profile, baseline)]
    normals = [torch.distributions.Normal(*pair) for pair in pairs]
    return torch.distributions.kl_divergence(*normals).mean().item()


@pytest.mark.parametrize("spread", ["uniform", "logarithmic"])
@pytest.mark.parametrize("q", SIZES)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_score_is_the_divergence(match_of, form, q, spread):
    """Within 1e-4 of itself and six deviations of the flooding, for near and unrelated profiles."""
    rng = np.random.default_rng(q)
    baseline = random_profile(q, rng, spread)
    profiles = [random_profile(q, rng, spread), *(near(baseline, rng, d) for d in (0.3, 0.05))]
    exact = np.array([by_hand(profile, baseline) for profile in profiles])
    opened = match_of(form).score(profiles, baseline)
    assert (np.abs(opened - exact) <= 1e-4 * exact + FLOODED).all(), opened - exact


@pytest.mark.parametrize("spread", ["uniform", "logarithmic"])
@pytest.mark.parametrize("q", SIZES)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_equal_profiles_score_zero(match_of, form, q, spread):
    """But for the flooding, although single weights are 500 times larger."""
    drawn = random_profile(q, np.random.default_rng(q), spread)
    for baseline in (drawn, drawn.in_unit(range_unit(drawn))):  # as it is, and as runs seal it
        assert np.abs(match_of(form).score([baseline] * 3, baseline)).max() <= FLOODED


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_stated_precision_keeps_the_order(match_of, form):
    """Of 50 clients, those whose gap exceeds the stated precision stay in order."""
    rng = np.random.default_rng(1)
    baseline = random_profile(64, rng)
    profiles = [near(baseline, rng, d) for d in np.linspace(0, 0.5, 50)]
    match = match_of(form)
    exact = np.array([by_hand(profile, baseline) for profile in profiles])
    opened = match.score(profiles, baseline)
    within = match.matcher.precision(baseline) + 1e-4 * exact
    assert (np.abs(opened - exact) <= within).all()
    apart = exact[:, None] - exact[None] > within[:, None] + within[None]
    assert apart.sum() > 1000
    assert (opened[:, None] > opened[None])[apart].all()


def test_the_precision_is_not_understated_much(match_of):
    """The stated precision of equal profiles is a bound that their scores come near."""
    baseline = random_profile(64, np.random.default_rng(2), "logarithmic")
    match = match_of(match_forms.LINEAR)
    scores = match.score([baseline] * 40, baseline)
    assert match.matcher.precision(baseline) / 100 < np.abs(scores).max()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_scores_are_flooded_and_rounded(key_sets, form):
    """One ciphertext opened often scatters as σ = √(12 τ) 2^15 t says, on the stated grid."""
    keys = key_sets[form.name]
    baseline = random_profile(8, np.random.default_rng(3))
    payload = CkksProfileSealer(form, keys.public).seal(baseline)
    score = CkksMatcher(form, keys.scoring).match(payload, baseline)
    opener = CkksScoreOpener(form, keys.secret, MemoryCount())
    exponent = int.from_bytes(score[:1], signed=True)
    normalised = np.array(opener.open([score] * 150)) * 2.0**-exponent
    assert normalised.std() == pytest.approx(flood_deviation(form.parameters), rel=0.3)
    on_grid = normalised * 2.0 ** grid_bits(form.parameters)
    np.testing.assert_array_equal(on_grid, np.rint(on_grid))


def test_without_noise_the_error_is_far_below_the_flood(key_sets, monkeypatch):
    """What a ciphertext's own noise adds is at most t, by which the flooding is sized."""
    monkeypatch.setattr(match_open, "gaussian", lambda size, _deviation: np.zeros(size))
    form, keys = match_forms.LINEAR, key_sets["linear"]
    baseline = random_profile(1000, np.random.default_rng(4))
    sealer, matcher = CkksProfileSealer(form, keys.public), CkksMatcher(form, keys.scoring)
    raw = [keys.secret.score(matcher.match(sealer.seal(baseline), baseline)[1:]) for _ in range(30)]
    # Decoding to doubles errs by 2^-36 or so; the noise t itself is 2^-53.
    assert np.abs(raw).max() < 2.0**-33 < flood_deviation(form.parameters) / 4
    opener = CkksScoreOpener(form, keys.secret, MemoryCount())
    assert opener.open([matcher.match(sealer.seal(baseline), baseline)]) == [0.0]


def test_a_fresh_ciphertext_is_no_noisier_than_stated(key_sets):
    """Each coefficient's noise has the deviation of which t is four."""
    for form in FORMS[:2]:
        keys, parameters = key_sets[form.name], form.parameters
        baseline = np.zeros((1, parameters.slots))
        frame = keys.public.frame
        ciphertext = frame.parsed(keys.secret._context, keys.public.encrypt(baseline))
        slots = keys.secret._decoder.slots(ciphertext)
        deviation = np.sqrt((np.abs(slots) ** 2).mean() / parameters.poly_degree)
        assert deviation == pytest.approx(parameters.noise / 4, rel=0.1)


def test_a_key_releases_so_many_scores_and_no_more(match_of):
    """The flooding is sized for MAX_RELEASES: then a new key is due, and nothing is released."""
    match = match_of(match_forms.LINEAR)
    baseline = random_profile(8, np.random.default_rng(5))
    match.opener.count.spend(MAX_RELEASES - 1, MAX_RELEASES)
    with pytest.raises(KeyWornOut, match="new key"):
        match.score([baseline] * 2, baseline)
    match.score([baseline], baseline)
    assert match.opener.count.n_released == MAX_RELEASES


@pytest.mark.parametrize("q", SIZES)
def test_the_plain_match_is_the_divergence(q):
    """Bit for bit."""
    rng, plain = np.random.default_rng(q), PlainMatch()
    profile, baseline = random_profile(q, rng), random_profile(q, rng)
    (score,) = plain.open([plain.match(plain.seal(profile), baseline)])
    assert score == divergence(profile, baseline)
    assert score == pytest.approx(by_hand(profile, baseline), rel=1e-12)


@given(
    st.floats(-3, 3), st.floats(1e-3, 50), st.floats(-3, 3), st.floats(1e-3, 50), st.floats(0.1, 9)
)
def test_a_divergence_does_not_depend_on_the_unit(mean_k, variance_k, mean_b, variance_b, unit):
    """Affine maps of the representation change no divergence between Gaussians."""
    pairs = [(mean_k, variance_k), (mean_b, variance_b)]
    one, other = (
        Profile(torch.tensor([m]).double(), torch.tensor([v]).double(), 0) for m, v in pairs
    )
    moved = divergence(one.in_unit(unit), other.in_unit(unit))
    assert moved == pytest.approx(divergence(one, other), rel=1e-9, abs=1e-12)


def test_what_would_overflow_is_refused_before_it_is_sealed(match_of):
    """A sum beyond the modulus wraps in silence; a larger unit is the way out."""
    far = Profile(torch.full((8,), 20.0).double(), torch.ones(8).double(), 0)
    match = match_of(match_forms.LINEAR)
    with pytest.raises(ValueRefused, match="larger unit") as refused:
        match.sealer.seal(far)
    assert "401" in str(refused.value)
    assert "401" not in refused.value.without_value
    sealed = match.sealer.seal(far.in_unit(4))
    with pytest.raises(ValueRefused, match="baseline"):
        match.matcher.match(sealed, far)
    assert abs(match.score([far.in_unit(4)], far.in_unit(4))[0]) < FLOODED


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_most_distant_profiles_that_can_be_sealed_do_not_wrap(match_of, form):
    """All elements at the end of the range, against all at the other end."""
    q = 1023  # fills the slots
    mean_Q = torch.full((q,), 7.99).double()
    variance_Q = torch.full((q,), VARIANCE_FLOOR).double()
    profile, baseline = Profile(mean_Q, variance_Q, 0), Profile(-mean_Q, variance_Q, 0)
    wide = Profile(torch.zeros(q).double(), torch.full((q,), 64.0).double(), 0)
    for one, other in ((profile, baseline), (wide, baseline), (baseline, wide)):
        (score,) = match_of(form).score([one], other)
        exact = by_hand(one, other)
        assert abs(score - exact) <= 1e-4 * exact + match_of(form).matcher.precision(other)


@pytest.mark.parametrize(
    ("mean", "variance", "version", "what"),
    [
        ([], [], 0, "one at least"),
        ([0.0, 1.0], [1.0], 0, "one of each"),
        ([float("nan")], [1.0], 0, "NaN"),
        ([0.0], [float("inf")], 0, "infinity"),
        ([0.0], [-1e-9], 0, "variance"),
        ([0.0], [1.0], -1, "version"),
    ],
)
def test_what_is_no_profile_is_refused(mean, variance, version, what):
    """Each message says what is wrong."""
    with pytest.raises(DataError, match=what):
        Profile(torch.tensor(mean).double(), torch.tensor(variance).double(), version)
