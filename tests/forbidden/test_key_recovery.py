"""Whoever gets a sum's digits gets the secret key: Li and Micciancio's attack on what we release.

The attacker has every ciphertext (c0, c1) and is told what the totals open to. An exact opening is
c0 + c1 s, so s is the solution of a linear equation. TenSEAL shows the real parts of the slots
alone, which is one equation in two values of s for each pair of conjugate roots of unity: two
openings make it two. The two slots that a total is counted by are given away, exact, besides what
is released. Linear algebra needs errors below half a unit of the scale in each coefficient.

Noise flooding is the answer: docs/flooding.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil, log2, prod, sqrt

import numpy as np
import pytest
from tenseal import sealapi

from securefl.crypto.params import BOOKKEEPING_SLOTS, SUMS, CkksParameters
from securefl.errors import Crafted, KeyWornOut, MessageRefused
from securefl.exchange import ckks_open
from securefl.exchange.base import Values
from securefl.exchange.ckks import CkksAdder, CkksSealer
from securefl.exchange.ckks_open import CkksOpener
from securefl.exchange.decode_total import ROUNDING, SIZES, require_real
from securefl.exchange.digits import Digits
from securefl.exchange.keyset import KeySet
from securefl.exchange.policy import Flooding, Policy
from securefl.exchange.releases import MemoryCount

N, HALF = 4096, 2048
N_VALUES = HALF - BOOKKEEPING_SLOTS
N_CLIENTS = 50
WEIGHT = 1 / 64
"""Of a total."""
PRECISION_BITS = 32
STEP = 2.0**-PRECISION_BITS
UNROUNDED_BITS = 90
"""Finer than what doubles of this size hold."""
ONE_PRIME = CkksParameters(modulus_bits=(60, 49), scale_bits=45)
"""As most platforms have them, and SecureFL had."""
UNFLOODED = None
DEFAULT = Policy().flooding


class Attacker:
    """What takes no key. Polynomials are residues of shape (primes, N), numbers Python's."""

    def __init__(self, keys):
        self.context, self.frame = keys.adding._context, keys.adding.frame
        self.moduli = np.array(self.frame.moduli, object)[:, None]
        self.scale_bits = keys.adding.parameters.scale_bits
        seal = self.context.seal_context().data
        self.encoder, self.evaluator = sealapi.CKKSEncoder(seal), sealapi.Evaluator(seal)

    def halves(self, ciphertext):
        """(c0, c1)."""
        return self.frame.from_wire(ciphertext).astype(object)

    def payload(self, c0, c1):
        return self.frame.to_wire((np.stack([c0, c1]) % self.moduli).astype(np.uint64))

    def encoded(self, slots, scale_bits):
        """The polynomial with these slots, and the real slots that rounding has left it."""
        plain = sealapi.Plaintext()
        self.encoder.encode(list(slots), 2.0**scale_bits, plain)
        return self.words(plain), np.array(self.encoder.decode_double(plain))

    def words(self, plain):
        words = [plain[i] for i in range(len(self.moduli) * N)]
        return np.array(words, dtype=object).reshape(-1, N)

    def coefficients(self, polynomial):
        """Out of the transform, between -q/2 and q/2."""
        residues = np.stack([polynomial, polynomial]).astype(np.uint64)
        ciphertext = self.frame.loaded(self.context, residues).ciphertext()[0]
        self.evaluator.transform_from_ntt_inplace(ciphertext)
        q = prod(self.frame.moduli)
        total = np.zeros(N, object)
        for residue, modulus in zip(self.words(ciphertext), self.frame.moduli, strict=True):
            others = q // modulus  # the Chinese remainder theorem
            total += residue * pow(others, -1, modulus) * others
        return np.where(total % q > q // 2, total % q - q, total % q)

    def secret(self, ciphertexts, opened):
        """The coefficients of s, if `opened` are the exact real parts of two ciphertexts' slots.

        With ¯ for X -> 1/X, which turns the order of the transform round, twice the real part is
        c0 + ¯c0 + c1 s + ¯c1 ¯s.
        """
        rows = []
        for ciphertext, slots in zip(ciphertexts, opened, strict=True):
            c0, c1 = self.halves(ciphertext)
            twice, _ = self.encoded(slots, self.scale_bits + 1)
            known = (twice - c0 - c0[:, ::-1]) % self.moduli
            rows.append([polynomial[:, :HALF] for polynomial in (c1, c1[:, ::-1], known)])
        (a, b, u), (c, d, v) = rows
        determinant = (a * d - b * c) % self.moduli
        inverse = [
            [pow(int(x), -1, modulus) for x in row]
            for row, modulus in zip(determinant, self.frame.moduli, strict=True)
        ]
        s = (u * d - v * b) * np.array(inverse, object) % self.moduli
        conjugate = (a * v - c * u) * np.array(inverse, object) % self.moduli
        return self.coefficients(np.concatenate([s, conjugate[:, ::-1]], axis=1))

    def error_units(self, opened, exact):
        """Standard deviation, in units of the scale, of a coefficient of what is between two."""
        difference, _ = self.encoded(opened - exact, self.scale_bits)
        return np.std(self.coefficients(difference).astype(float))

    def digit_by_digit(self, opener, total, exact):
        """Slots read through rounding: a shifted total tells on which side of a half they are."""
        c0, c1 = self.halves(total)
        first = opener.open(total, N_VALUES, PRECISION_BITS)
        low = first.weight * first.values - STEP / 2
        high = low + STEP
        for _ in range(2 * (self.scale_bits - PRECISION_BITS)):
            wanted = np.zeros(HALF)
            wanted[:N_VALUES] = STEP / 2 - (low + high) / 2
            plain, added = self.encoded(wanted, self.scale_bits)
            opened = opener.open(self.payload(c0 + plain, c1), N_VALUES, PRECISION_BITS)
            above = opened.weight * opened.values > STEP / 2
            border = STEP / 2 - added[:N_VALUES]
            low = np.where(above, np.maximum(low, border), low)
            high = np.where(above, high, np.minimum(high, border))
        return with_bookkeeping((low + high) / 2, exact)


@dataclass
class Scene:
    """A key, two sums of full ciphertexts over fifty clients, and what only its holder knows."""

    keys: KeySet
    attacker: Attacker
    totals: list[bytes]
    exact: list[Values]
    true_secret: Values

    def opener(self, flooding):
        """Of the key as if it had released nothing."""
        return CkksOpener(self.keys.secret, MemoryCount(), flooding, N_CLIENTS)

    def released(self, flooding, precision_bits):
        """What the authority tells of the two totals, and the bookkeeping that we give away."""
        opener = self.opener(flooding)
        opened = [opener.open(total, N_VALUES, precision_bits) for total in self.totals]
        return [
            with_bookkeeping(total.weight * total.values, exact)
            for total, exact in zip(opened, self.exact, strict=True)
        ]

    def n_recovered(self, opened):
        """Coefficients of the secret key, of 4096."""
        return int((self.attacker.secret(self.totals, opened) == self.true_secret).sum())

    def error_units(self, opened):
        """Of each coefficient; half a unit is enough for linear algebra."""
        return self.attacker.error_units(opened[0], self.exact[0])


@cache
def scene_of(parameters):
    """Made once for each parameters; numbers of clients' are random, keys too."""
    keys = KeySet.ephemeral(parameters)
    rng, sealer, attacker = np.random.default_rng(0), CkksSealer(keys.public), Attacker(keys)

    def total():
        values = (rng.uniform(-30, 30, size=N_VALUES) for _ in range(N_CLIENTS))
        return sum_of(keys, *(sealer.seal(x, WEIGHT / N_CLIENTS) for x in values))

    totals = [total() for _ in range(2)]
    exact = [keys.secret.decrypt(total) for total in totals]
    secret = attacker.words(keys.secret._context.secret_key().data.data())
    return Scene(keys, attacker, totals, exact, attacker.coefficients(secret))


def sum_of(keys, *payloads):
    running = CkksAdder(keys.adding).start(N_VALUES)
    for payload in payloads:
        running = running.plus(payload)
    return running.total()


def with_bookkeeping(values, exact):
    """What the authority counts by is given away."""
    return np.append(values, exact[N_VALUES:])


def test_values_released_unflooded_and_unrounded_show_the_whole_key():
    """This is why flooding is needed: all 4096 coefficients, by linear algebra, of two totals."""
    scene = scene_of(ONE_PRIME)
    opened = scene.released(UNFLOODED, UNROUNDED_BITS)
    assert scene.n_recovered(opened) == N
    assert set(scene.true_secret) == {-1, 0, 1}
    assert np.array_equal(opened, scene.exact)


def test_values_released_rounded_show_a_listener_nothing():
    """Rounded to 2^-32 they err by 37 units in each coefficient, where half a unit is enough."""
    scene = scene_of(ONE_PRIME)
    opened = scene.released(UNFLOODED, PRECISION_BITS)
    expected = STEP / sqrt(12) * 2.0**ONE_PRIME.scale_bits / sqrt(N)
    assert expected == pytest.approx(36.95, rel=1e-3)
    assert scene.error_units(opened) == pytest.approx(expected, rel=0.1)
    assert scene.n_recovered(opened) == 0


@pytest.mark.parametrize(
    ("parameters", "flooding", "least_units"),
    [
        (ONE_PRIME, Flooding(statistical_bits=10, releases=2**13), 1e6),
        (ONE_PRIME, Flooding(statistical_bits=20, releases=2**13), 3e7),
        (SUMS, Flooding(statistical_bits=10, releases=2**13), 1e6),
        (SUMS, DEFAULT, 1e13),
    ],
    ids=["one prime, s = 10", "one prime, s = 20", "two primes, s = 10", "the default"],
)
def test_values_released_flooded_show_nothing_though_they_are_not_rounded(
    parameters, flooding, least_units
):
    """They err by σ 2^scale/√N units in each coefficient, by orders more than the half unit.

    By 1.8e13 units at the defaults.
    """
    scene = scene_of(parameters)
    opened = scene.released(flooding, UNROUNDED_BITS)
    sigma = flooding.deviation(parameters.noise(N_CLIENTS))
    error = scene.error_units(opened)
    assert error == pytest.approx(sigma * 2.0**parameters.scale_bits / sqrt(N), rel=0.1)
    assert error > least_units
    assert scene.n_recovered(opened) == 0


def test_one_prime_leaves_no_room_for_the_default_flooding():
    """σ = 33 drowns the count itself: nothing is released, and what was decrypted shows nothing."""
    scene = scene_of(ONE_PRIME)
    opener = scene.opener(DEFAULT)
    assert opener.deviation == pytest.approx(32.6, rel=0.01)
    slots = [opener._released(total, N_VALUES)[0] for total in scene.totals]
    for total in scene.totals:
        with pytest.raises(MessageRefused, match="does not count its clients"):
            opener.open(total, N_VALUES, PRECISION_BITS)
    assert scene.error_units(slots) > 1e13
    assert scene.n_recovered(slots) == 0


def test_values_released_under_the_default_policy_show_nothing():
    """As they leave the authority: two primes, flooded, and rounded to 2^-32."""
    scene, policy = scene_of(SUMS), Policy()
    opened = scene.released(policy.flooding, policy.rule_for("update").precision_bits)
    error = scene.error_units(opened)
    assert error > 1e13
    assert scene.n_recovered(opened) == 0


def test_two_primes_unflooded_hide_the_key_in_the_errors_of_doubles_alone():
    """A total that counts anything decodes to doubles, which err by 2e6 units of 2^-78.

    Nobody has drawn that error: it is how TenSEAL computes, and no protection.
    """
    scene = scene_of(SUMS)
    opened = scene.released(UNFLOODED, UNROUNDED_BITS)
    assert np.array_equal(opened, scene.exact)
    assert scene.n_recovered(opened) == 0
    attacker, key = scene.attacker, scene.keys.secret._context.secret_key().data.data()
    c0, c1 = attacker.halves(scene.totals[0])
    opening = (c0 + c1 * attacker.words(key)) % attacker.moduli
    twice = attacker.coefficients((opening + opening[:, ::-1]) % attacker.moduli)
    decoded, _ = attacker.encoded(opened[0], SUMS.scale_bits + 1)
    assert np.std((attacker.coefficients(decoded) - twice).astype(float)) / 2 > 1e5


def test_what_decrypts_to_almost_nothing_shows_the_key_under_two_primes_as_well():
    """Doubles near zero hold every digit of the noise: all 4096 coefficients.

    No authority opens such a ciphertext, since it counts nobody; with flooding it could.
    """
    scene = scene_of(SUMS)
    nothing = np.zeros(HALF)
    ciphertexts = [scene.keys.public.encrypt(nothing) for _ in range(2)]
    opened = [scene.keys.secret.decrypt(ciphertext) for ciphertext in ciphertexts]
    found = scene.attacker.secret(ciphertexts, opened)
    assert (found == scene.true_secret).sum() == N
    sigma = DEFAULT.deviation(SUMS.noise(1))
    rng = np.random.default_rng(0)
    flooded = [slots + rng.normal(0, sigma, HALF) for slots in opened]
    assert (scene.attacker.secret(ciphertexts, flooded) == scene.true_secret).sum() == 0


def crafted(scene, direction, values=None):
    """A total in which one client has added P to its c1, P zero where clients count."""
    attacker, keys = scene.attacker, scene.keys
    rng, sealer = np.random.default_rng(0), CkksSealer(keys.public)
    honest = [sealer.seal(rng.normal(size=N_VALUES), 0.25) for _ in range(2)]
    own = np.zeros(N_VALUES) if values is None else values
    c0, c1 = attacker.halves(sealer.seal(own, 0.25))
    slots = [direction] * N_VALUES + [0] * BOOKKEEPING_SLOTS
    added, _ = attacker.encoded(slots, attacker.scale_bits)
    return sum_of(keys, *honest, attacker.payload(c0, c1 + added))


def test_a_client_would_learn_the_key_from_a_ciphertext_that_it_crafts(monkeypatch):
    """One that adds P to its c1 adds P s to the total, and P may be zero where clients count.

    If nobody looked at imaginary parts, two openings, of P = 1/4 and i/4, would show the key to
    that client, though it knows no more of the others' values than their size: no noise helps.
    """
    monkeypatch.setattr(ckks_open, "require_real", lambda slots, noise: None)
    scene = scene_of(SUMS)
    opener = scene.opener(DEFAULT)

    def told(direction):
        opened = opener.open(crafted(scene, direction), N_VALUES, PRECISION_BITS)
        return 4 * opened.weight * opened.values

    slots = [*(told(0.25 + 0j) - 1j * told(0.25j)), *[0] * BOOKKEEPING_SLOTS]
    polynomial, _ = scene.attacker.encoded(slots, 30)
    found = np.rint(scene.attacker.coefficients(polynomial).astype(float) / 2**30)
    assert (found == scene.true_secret).sum() > 0.99 * N


@pytest.mark.parametrize("bits", range(2, 47, 4))
@pytest.mark.parametrize("unit", [1 + 0j, 1j])
def test_a_client_that_crafts_its_ciphertext_is_refused(bits, unit):
    """P s is not real: P is refused from 2^-2 to 2^-46, and its key opens nothing more."""
    scene = scene_of(SUMS)
    opener = scene.opener(DEFAULT)
    with pytest.raises(Crafted, match="the total's slots are not real"):
        opener.open(crafted(scene, 2.0**-bits * unit), N_VALUES, PRECISION_BITS)
    with pytest.raises(KeyWornOut):
        opener.open(scene.totals[0], N_VALUES, PRECISION_BITS)


def test_a_client_hides_nothing_that_it_crafts_behind_large_values():
    """With 8000 in all its slots P is refused from 2^-43 on, and the others' values are drowned.

    So is what a server puts in an honest total's place: its size alone raises no limit further.
    """
    scene = scene_of(SUMS)
    for value in (8000.0, 32000.0):
        total = crafted(scene, 2.0**-43, np.full(N_VALUES, value))
        with pytest.raises(Crafted):
            scene.opener(DEFAULT).open(total, N_VALUES, PRECISION_BITS)
    assert scene.opener(DEFAULT).deviation > 600 * ROUNDING * SIZES[1]


def test_nothing_lies_in_slots_that_no_value_takes():
    """Large values there would raise the limit for what a client crafts in the others."""
    scene, n_values = scene_of(SUMS), 64
    digits = Digits.of(SUMS, n_values)
    slots = np.zeros(HALF)
    slots[-BOOKKEEPING_SLOTS:] = 0.25, 1.0
    slots[len(digits.gain_bits) * n_values] = 1e-6
    total = CkksAdder(scene.keys.adding).start(n_values)
    for _ in range(3):
        total = total.plus(scene.keys.public.encrypt(slots))
    with pytest.raises(MessageRefused, match="not empty"):
        scene.opener(DEFAULT).open(total.total(), n_values, PRECISION_BITS)


def test_a_server_that_adds_to_a_total_what_is_no_plaintext_is_refused():
    """A server alone could add P to the second polynomial of honest totals."""
    scene = scene_of(SUMS)
    attacker = scene.attacker
    c0, c1 = attacker.halves(scene.totals[0])
    for unit in (1, 1j):
        added, _ = attacker.encoded([unit / 4] * N_VALUES + [0] * BOOKKEEPING_SLOTS, 78)
        total = attacker.payload(c0, c1 + added)
        with pytest.raises(Crafted):
            scene.opener(DEFAULT).open(total, N_VALUES, PRECISION_BITS)


@pytest.mark.parametrize("bits", [48, 50, 52])
def test_what_passes_of_a_crafted_ciphertext_is_far_below_the_noise(bits):
    """P s is then 5000 times smaller than the noise on what is released, or less."""
    scene = scene_of(SUMS)
    slots = scene.keys.secret.slots(crafted(scene, 2.0**-bits))
    shown = np.sqrt(np.mean(slots.imag**2))
    assert shown < ROUNDING * SIZES[0]
    assert scene.opener(DEFAULT).deviation > 5000 * ROUNDING * SIZES[0]


VALUES = {
    "zeros": lambda rng: np.zeros(N_VALUES),
    "ones": lambda rng: np.ones(N_VALUES),
    "normal": lambda rng: rng.normal(size=N_VALUES),
    "huge": lambda rng: rng.uniform(-8000, 8000, size=N_VALUES),
    "tiny": lambda rng: 1e-9 * rng.normal(size=N_VALUES),
    "a single one": lambda rng: np.eye(1, N_VALUES, 7)[0] * 8000,
    "signs in turn": lambda rng: np.resize([1.0, -1.0], N_VALUES),
}


@pytest.mark.parametrize(("n_clients", "kind"), [*((3, k) for k in VALUES), (500, "normal")])
def test_honest_totals_are_real_by_a_margin(n_clients, kind):
    """Imaginary parts of what was encrypted are 10 times below the limit, but for huge values."""
    scene, rng = scene_of(SUMS), np.random.default_rng(1)
    sealer, weight = CkksSealer(scene.keys.public), 2.0 ** -ceil(log2(n_clients))
    few = [sealer.seal(VALUES[kind](rng), weight) for _ in range(min(n_clients, 20))]
    total = sum_of(scene.keys, *(few[i % len(few)] for i in range(n_clients)))
    assert margin(scene.keys.secret.slots(total)) > (2 if kind == "huge" else 10)


def test_honest_values_that_cancel_out_are_not_refused():
    """Rounding of ±1000 does not cancel, where the values do."""
    scene, rng = scene_of(SUMS), np.random.default_rng(1)
    sealer, values = CkksSealer(scene.keys.public), 1000 * rng.normal(size=N_VALUES)
    payloads = [sealer.seal(sign * values, 0.25) for sign in (1, -1, 0)]
    slots = scene.keys.secret.slots(sum_of(scene.keys, *payloads))
    require_real(slots[None], 0.0)
    assert margin(slots) > 5


def margin(slots):
    size = np.clip(np.sqrt(np.mean(slots.real**2)), *SIZES)
    return ROUNDING * size / np.sqrt(np.mean(slots.imag**2))


def shifted(scene, flooding):
    """What a server that shifts each total by plaintexts and has it opened again finds out.

    "Honest but curious" excludes this, and an authority opens a round and name once.
    """
    opener = scene.opener(flooding)
    pairs = zip(scene.totals, scene.exact, strict=True)
    return [scene.attacker.digit_by_digit(opener, *pair) for pair in pairs]


def test_a_server_that_shifts_totals_reads_through_rounding():
    """Each of 27 unflooded openings of a total tells a digit of what rounding to 2^-32 hides."""
    scene = scene_of(ONE_PRIME)
    assert scene.n_recovered(shifted(scene, UNFLOODED)) == N


@pytest.mark.parametrize(
    ("parameters", "flooding", "least_units"),
    [(ONE_PRIME, Flooding(statistical_bits=10, releases=2**18), 1e6), (SUMS, DEFAULT, 1e12)],
    ids=["one prime", "the default"],
)
def test_a_server_that_shifts_totals_learns_nothing_of_flooded_ones(
    parameters, flooding, least_units
):
    """Every opening has noise of its own: no shift undoes it, 27 or 93 do not average it out."""
    scene = scene_of(parameters)
    opened = shifted(scene, flooding)
    error = scene.error_units(opened)
    assert error > least_units
    assert scene.n_recovered(opened) == 0
