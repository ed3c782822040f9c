"""What is no score is not opened, and what is opened shows a score and no profile."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import tenseal as ts
import torch
from reachability import KEY_PARTS, keyed_contexts, reachable
from securefl.crypto.match_public import MatchPublicKey, ScoringContext
from securefl.crypto.match_secret import MatchSecretKey
from securefl.exchange.match_ckks import CkksMatcher, CkksProfileSealer
from securefl.exchange.match_flood import MAX_RELEASES
from securefl.exchange.match_open import CkksScoreOpener, MatchKeys
from securefl.exchange.releases import MemoryCount

from securefl.crypto import blinding
from securefl.crypto.artefact import Artefact, Origin
from securefl.crypto.ring import RingFrame
from securefl.errors import ConfigError, KeyFileError, KeyWornOut, MessageRefused
from securefl.exchange import match_forms
from securefl.exchange.match_plain import PlainMatch
from securefl.exchange.matching import HEADER_BYTES
from securefl.exchange.profile import Profile

Q = 64
ORIGIN = Origin.now()
FORMS = (match_forms.LINEAR, match_forms.FULL, match_forms.PLAIN_VARIANCE)


@pytest.fixture(scope="module")
def key_sets():
    linear, square = (MatchKeys.ephemeral(form) for form in FORMS[:2])
    return {"linear": linear, "full": square, "plain-variance": square}


@pytest.fixture
def roles_of(key_sets):
    def make(form):
        keys = key_sets[form.name]
        return (
            CkksProfileSealer(form, keys.public),
            CkksMatcher(form, keys.scoring),
            CkksScoreOpener(form, keys.secret, MemoryCount()),
        )

    return make


def random_profile(rng, q=Q, version=3):
    mean_Q, variance_Q = rng.uniform(-3, 3, q), rng.uniform(0.5, 5, q)
    return Profile(torch.from_numpy(mean_Q), torch.from_numpy(variance_Q), version)


def replaced(payload, start, content):
    return payload[:start] + content + payload[start + len(content) :]


def correlation_with_profile(roles, n_clients=60):
    """The best that the authority does at telling held-out clients' profiles from opened slots.

    Least squares of each entry on the slot of its own product, which shows it exactly where
    nothing is blinded.
    """
    rng = np.random.default_rng(0)
    sealer, matcher, opener = roles
    baseline = random_profile(rng)
    profiles = [random_profile(rng) for _ in range(n_clients)]
    payloads = [matcher.match(sealer.seal(profile), baseline) for profile in profiles]
    slots = np.stack([opener.secret_key.slots(payload[1:]).real for payload in payloads])
    sealed = np.stack([sealer.match_form.sealed(profile) for profile in profiles])
    seen, hidden = slots[:, : sealed.shape[1]], sealed
    half = n_clients // 2
    guesses, truths = [], []
    for column in range(2 * Q):
        slope, _ = np.polyfit(seen[:half, column], hidden[:half, column], 1)
        guesses.append(standardised(slope * seen[half:, column]))
        truths.append(standardised(hidden[half:, column]))
    return abs(np.corrcoef(np.ravel(guesses), np.ravel(truths))[0, 1])


def standardised(values):
    return (values - values.mean()) / values.std()


def no_blinding(classes, moduli, constant):
    """A mask that hides nothing: the constant at every root."""
    return np.stack([np.full(classes.shape[1], constant % m, np.uint64) for m in moduli])


def test_opened_slots_tell_nothing_of_the_profile(roles_of):
    """A regression on what the key opens predicts no entry of profiles held out."""
    assert correlation_with_profile(roles_of(match_forms.LINEAR), 120) < 0.05


def test_without_blinding_the_same_attack_reads_the_profile(roles_of, monkeypatch):
    """So the test above can fail."""
    monkeypatch.setattr(blinding, "blinding", no_blinding)
    assert correlation_with_profile(roles_of(match_forms.LINEAR)) > 0.9


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_two_scores_of_one_payload_share_the_score_alone(roles_of, form):
    """Every other coefficient that the key opens is drawn anew, over the whole modulus."""
    sealer, matcher, opener = roles_of(form)
    rng = np.random.default_rng(1)
    profile, baseline = random_profile(rng), random_profile(rng)
    payload = sealer.seal(profile)
    one, other = (opener.secret_key.slots(matcher.match(payload, baseline)[1:]) for _ in range(2))
    assert abs(np.corrcoef(one.real, other.real)[0, 1]) < 0.1
    assert one.mean().real == pytest.approx(other.mean().real, abs=1e-9)
    modulus = np.prod([float(m) for m in opener.secret_key.score_frame.moduli])
    spread = modulus / 2.0**form.parameters.score_scale_bits / 12**0.5
    deviation = np.sqrt((np.abs(one) ** 2).mean() / form.parameters.poly_degree)
    assert deviation == pytest.approx(spread, rel=0.05)


def test_a_mask_is_uniform_and_sums_to_its_constant(key_sets):
    """In each class of roots the values sum to c N/2, and fill the range evenly."""
    scoring = key_sets["linear"].scoring
    classes, moduli = scoring._classes, scoring.frame.moduli
    assert (classes.sum(axis=1) == classes.shape[1] // 2).all()
    constant = -(2**70)
    for row, members, modulus in zip(
        blinding.blinding(classes, moduli, constant), classes, moduli, strict=True
    ):
        assert row.max() < modulus
        counts, _ = np.histogram(row.astype(float), bins=16, range=(0, modulus))
        assert counts.min() > 0.75 * len(row) / 16
        for part in (row[members], row[~members]):
            assert (int(part.sum(dtype=object)) - constant * len(part)) % modulus == 0


def test_masks_never_repeat(key_sets):
    """They come from the operating system, whatever has been seeded."""
    scoring = key_sets["linear"].scoring
    masks = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002 -- what a run might do
        torch.manual_seed(0)
        masks.append(blinding.blinding(scoring._classes, scoring.frame.moduli, 0))
    assert (masks[0] != masks[1]).mean() > 0.99


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_damaged_payloads_never_reach_the_parser(roles_of, form, monkeypatch):
    """Wrong length, form, size, version, or a coefficient outside the ring."""
    sealer, matcher, _ = roles_of(form)
    rng = np.random.default_rng(2)
    baseline = random_profile(rng)
    payload = sealer.seal(random_profile(rng))
    n_clear = 8 * form.n_clear(Q)
    first = HEADER_BYTES + n_clear
    coefficient = matcher.context.frame.word_bytes
    other = random_profile(rng, q=Q + 1)
    damaged = {
        "bytes": payload[:-1],
        "expected": payload + b"\0",
        "exactly": b"",
        "no profile": replaced(payload, 0, b"prf2"),
        "outside the ring": replaced(payload, first, b"\xff" * coefficient),
        "encrypts nothing": payload[:first] + bytes(len(payload) - first),
        "elements|bytes": sealer.seal(other),
        "version": sealer.seal(random_profile(rng, version=4)),
    }
    if n_clear:
        for number in (float("nan"), float("inf"), -1.0, 0.0, 65.0):
            bad = replaced(payload, HEADER_BYTES, np.float64(number).tobytes())
            with pytest.raises(MessageRefused, match="variance"):
                matcher.match(bad, baseline)
    monkeypatch.setattr(ts, "ckks_vector_from", lambda *_: pytest.fail("parsed"))
    for message, bad in damaged.items():
        with pytest.raises(MessageRefused, match=message):
            matcher.match(bad, baseline)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_what_another_key_sealed_is_not_opened(roles_of, form):
    """The constant coefficient alone would be a plausible number: the one at N/2 is none."""
    _, matcher, opener = roles_of(form)
    rng = np.random.default_rng(3)
    foreign = CkksProfileSealer(form, MatchKeys.ephemeral(form).public)
    baseline = random_profile(rng)
    score = matcher.match(foreign.seal(random_profile(rng)), baseline)
    assert opener.open([score]) == [None]
    with pytest.raises(MessageRefused, match="another key"):
        opener.secret_key.score(score[1:])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_tampered_ciphertexts_and_scores_are_not_opened(roles_of, form):
    """One changed coefficient makes a score that is none, and keeps none beside it back."""
    sealer, matcher, opener = roles_of(form)
    rng = np.random.default_rng(4)
    baseline = random_profile(rng)
    payload = sealer.seal(random_profile(rng))
    score = matcher.match(payload, baseline)
    place = len(payload) - matcher.context.frame.word_bytes
    changed = replaced(payload, place, bytes([payload[place] ^ 1]))
    for bad in (
        matcher.match(changed, baseline),
        replaced(score, len(score) // 2 // 6 * 6 + 1, b"\1\2\3"),
        score[:-1],
        score[:1],
        b"",
        replaced(score, 1, b"\xff" * 6),
        score[:1] + bytes(len(score) - 1),
    ):
        one, none, other = opener.open([score, bad, score])
        assert none is None
        assert one == pytest.approx(other, rel=0.01)


def test_rubbish_counts_as_released(roles_of):
    """Whether a ciphertext opens tells of the key, too; so it is told no more often."""
    _, _, opener = roles_of(match_forms.LINEAR)
    opener.open([b""] * MAX_RELEASES)
    with pytest.raises(KeyWornOut, match="new key"):
        opener.open([b""])


@pytest.mark.parametrize("number", [np.nan, np.inf, complex(np.nan, 0), complex(0, np.nan)])
def test_a_score_that_is_no_number_is_none(roles_of, monkeypatch, number):
    """Whatever a ciphertext decodes to, only a number is released."""
    sealer, matcher, opener = roles_of(match_forms.LINEAR)
    baseline = random_profile(np.random.default_rng(7))
    score = matcher.match(sealer.seal(baseline), baseline)
    monkeypatch.setattr(MatchSecretKey, "slots", lambda *_: np.array([number]))
    assert opener.open([score]) == [None]


def test_nothing_is_released_that_is_not_counted(roles_of, monkeypatch):
    """The count is first: where it refuses, nothing is even decrypted."""
    sealer, matcher, opener = roles_of(match_forms.LINEAR)
    baseline = random_profile(np.random.default_rng(8))
    score = matcher.match(sealer.seal(baseline), baseline)
    opener.count.spend(MAX_RELEASES - 1, MAX_RELEASES)
    monkeypatch.setattr(MatchSecretKey, "score", lambda *_: pytest.fail("decrypted"))
    with pytest.raises(KeyWornOut):
        opener.open([score, score])
    assert opener.count.n_released == MAX_RELEASES - 1


def test_a_count_only_grows():
    """Nobody spends less than nothing."""
    count = MemoryCount()
    count.spend(5, at_most=10)
    with pytest.raises(ValueError, match="only grows"):
        count.spend(-1, at_most=10)
    assert count.n_released == 5


def test_a_key_serves_its_own_forms_alone(key_sets):
    """A linear key under a form that squares is refused by all three roles, with the way out."""
    keys = key_sets["linear"]
    for make in (
        lambda form: CkksProfileSealer(form, keys.public),
        lambda form: CkksMatcher(form, keys.scoring),
        lambda form: CkksScoreOpener(form, keys.secret, keys.count),
    ):
        make(match_forms.LINEAR)
        with pytest.raises(ConfigError, match="keys init --match plain-variance"):
            make(match_forms.PLAIN_VARIANCE)


def test_a_plain_payload_is_checked_too():
    """Length, size, version and values."""
    rng, plain = np.random.default_rng(5), PlainMatch()
    baseline = random_profile(rng)
    payload = plain.seal(random_profile(rng))
    nan, negative = (np.float64(x).tobytes() for x in (np.nan, -1.0))
    for bad in (
        payload[:-1],
        plain.seal(random_profile(rng, q=Q + 1)),
        plain.seal(random_profile(rng, version=4)),
        replaced(payload, HEADER_BYTES, nan),
        replaced(payload, len(payload) - 8, negative),
    ):
        with pytest.raises(MessageRefused):
            plain.match(bad, baseline)
    score = plain.match(payload, baseline)
    one, *rest = plain.open([score, b"1234567", b"", nan, score])
    assert rest == [None, None, None, one]


@pytest.mark.parametrize("parts", [[part] for part in KEY_PARTS], ids=" and ".join)
def test_a_scoring_context_refuses_any_key(key_sets, parts):
    """Parameters with a key inside are no server's."""
    secret = key_sets["linear"].secret
    context = ts.context_from(
        secret._context.serialize(**{f"save_{part}": part in KEY_PARTS[:2] for part in KEY_PARTS})
    )
    if "galois_keys" in parts:
        context.generate_galois_keys()
    if "relin_keys" in parts:
        context.generate_relin_keys()
    content = context.serialize(**{f"save_{part}": part in parts for part in KEY_PARTS})
    with pytest.raises(KeyFileError, match="key"):
        ScoringContext(Artefact(content, secret.key_id, secret.parameters, secret.origin))


def test_the_servers_context_neither_encrypts_nor_decrypts(key_sets):
    """TenSEAL itself refuses, and a public key is refused a secret one."""
    keys = key_sets["linear"]
    context = keys.scoring._context
    with pytest.raises(ValueError, match="doesn't support encryption"):
        ts.ckks_vector(context, [1.0])
    for held in (context, keys.public._context):
        with pytest.raises(ValueError, match="Secret key"):
            held.secret_key()
        assert not held.has_secret_key()
        assert not held.has_galois_keys()
    whole = keys.secret.to_secret_bytes()
    with pytest.raises(KeyFileError, match="secret"):
        MatchPublicKey(Artefact(whole, keys.secret.key_id, keys.secret.parameters, ORIGIN))


def test_a_matcher_that_has_scored_reaches_no_key(roles_of):
    """Nothing that it leads to encrypts or decrypts; the same search finds a planted key."""
    sealer, matcher, opener = roles_of(match_forms.LINEAR)
    baseline = random_profile(np.random.default_rng(6))
    matcher.match(sealer.seal(baseline), baseline)
    assert keys_reached(matcher) == []
    assert keys_reached([matcher, sealer])
    assert keys_reached([matcher, opener])


def keys_reached(root):
    things = reachable(root)
    assert any(isinstance(thing, ts.Context) for thing in things)
    holders = (MatchSecretKey, MatchPublicKey, MatchKeys, CkksProfileSealer, CkksScoreOpener)
    return keyed_contexts(things) + [thing for thing in things if isinstance(thing, holders)]


def test_the_matcher_imports_no_secret_key():
    """Nothing that is loaded for the server's matcher or a client's sealer knows what one is."""
    code = "import sys, securefl.exchange.match_ckks; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert "securefl.crypto.match_public" in modules
    assert not {
        "securefl.crypto.secret",
        "securefl.crypto.match_secret",
        "securefl.exchange.match_open",
    } & set(modules)


def test_no_key_is_pickled_copied_or_printed(key_sets):
    """As for the key of sums."""
    keys = key_sets["linear"]
    for part in (keys.secret, keys.public, keys.scoring):
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                copied(part)
    assert repr(keys.secret) == f"MatchSecretKey(key_id={keys.secret.key_id[:16]}…)"
    assert "secret" not in repr(keys)
    with pytest.raises(KeyFileError):
        MatchSecretKey(keys.public._context, keys.public.parameters, ORIGIN)


def test_a_ciphertext_survives_the_wire_and_no_other_shape_is_read(key_sets):
    """What is written is what is read; a ciphertext of another size is a bug, and said to be."""
    keys = key_sets["linear"]
    frame = keys.public.frame
    wire = keys.public.encrypt(np.ones((1, frame.poly_degree // 2)))
    ciphertext = frame.parsed(keys.scoring._context, wire)
    assert frame.to_wire(frame.residues(ciphertext)) == wire
    assert len(wire) == 2 * 2 * 4096 * 6
    other = RingFrame(frame.parms_id, frame.poly_degree, frame.moduli, 3, 1)
    with pytest.raises(RuntimeError, match="shape"):
        other.residues(ciphertext)
