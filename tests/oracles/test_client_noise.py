"""Noise at client level is what it claims, whole and in shares, around every kind of tensor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import sqrt

import numpy as np
import pytest
import torch
from by_hand import after_a_round, averaged, config
from by_hand import task as by_hand_task
from hypothesis import given
from hypothesis import strategies as st
from pairs import each, marked
from played import played
from scipy import stats
from steep import CLIP, clipped_updates, direction, opened_sum, steep_rounds
from tenseal import sealapi

import securefl
from securefl.crypto.one_time import ring
from securefl.crypto.params import SUMS
from securefl.errors import ConfigError, TooFewContributions
from securefl.exchange.one_time import OneTimeSealer
from securefl.exchange.plain import PlainChannel
from securefl.exchange.sums import MessageId, Sender
from securefl.federation.round import ServerRound
from securefl.privacy import client_level
from securefl.privacy.client_level import LEAST_VARIANCE
from securefl.privacy.clipped import MAX_CLIP, MIN_CLIP, Bounded, Quantile, clipped
from securefl.privacy.clipping import Clipping
from securefl.privacy.distributed_noise import ClientNoise, DistributedNoise, NoisyExchange
from securefl.privacy.randomness import Seeded
from securefl.runs.checkpoint import Checkpoint
from securefl.types import Kind, Total

PRIVATE = (
    "privacy.level=client",
    "privacy.noise=seeded",
    "privacy.delta=1e-3",
    "algorithm.weights=uniform",
)


def require_noise(residual, deviation):
    """Its variance is deviation² within a 99 % interval; the noise is seeded, so it always is."""
    low, high = stats.chi2.interval(0.99, residual.numel())
    assert low < float((residual / deviation).square().sum()) < high


# --- the whole noise, through clients, server and authority ---


@dataclass(frozen=True)
class Case:
    """A round whose noise is looked at."""

    n: int
    width: int
    missing: int = 0
    settings: tuple = ()
    counted: int = field(init=False)

    def __post_init__(self):
        told = dict(s.split("=") for s in self.settings)
        lost = sum(int(told.get(f"privacy.{key}", 0)) for key in ("dropouts", "colluders"))
        object.__setattr__(self, "counted", self.n - lost)

    def require(self):
        """Σ clip(Δ_i) is what was opened, but for noise of σ²C² n / (n - t - c), n present."""
        rounds = steep_rounds(self.n, self.width, *self.settings)
        present = range(self.missing, self.n)
        residual = opened_sum(rounds, present) - clipped_updates(rounds, present)
        deviation = CLIP * sqrt(len(present) / self.counted)
        require_noise(residual, deviation)
        # Not only as long as noise, but without a trace of the updates that it hides.
        assert abs(float(residual[0] @ direction(rounds))) < 2.6 * deviation


SEALED = "exchange.encrypt=model"
FIVE, FIFTY = partial(Case, 5, 4092), partial(Case, 50, 66000)
ONE_LOST, TEN_LOST = "privacy.dropouts=1", "privacy.dropouts=10"
CASES = {
    "five": FIVE(),
    "five, one may be lost": FIVE(0, (ONE_LOST,)),
    "five, one is lost": FIVE(1, (ONE_LOST,)),
    "five, one is lost and one tells": FIVE(1, (ONE_LOST, "privacy.colluders=1")),
    "five, sealed": FIVE(0, (SEALED,)),
    "five, sealed, one may be lost": FIVE(0, (SEALED, ONE_LOST)),
    "five, sealed, one is lost": FIVE(1, (SEALED, ONE_LOST)),
    "fifty": FIFTY(),
    "fifty, ten may be lost": FIFTY(0, (TEN_LOST,)),
    "fifty, ten are lost": FIFTY(10, (TEN_LOST,)),
    "fifty, sealed": Case(50, 4092, 0, (SEALED,)),
    "fifty, sealed, ten are lost": Case(50, 4092, 10, (SEALED, TEN_LOST)),
}


def halve_sigma(monkeypatch):
    whole = ClientNoise.deviation
    monkeypatch.setattr(ClientNoise, "deviation", lambda self, s, c, n: whole(self, s / 2, c, n))


def leave_one_share_out(monkeypatch):
    """The first client that sends anything sends it without noise."""
    noisy, seen = client_level.noisy, []

    def sometimes(value, randomness, deviation):
        seen.append(randomness)
        return value if randomness is seen[0] else noisy(value, randomness, deviation)

    monkeypatch.setattr(client_level, "noisy", sometimes)


def skip_the_clip(monkeypatch):
    monkeypatch.setattr(
        client_level, "clipped", lambda named, *_: Bounded(dict(named), within=True)
    )


SABOTAGE = halve_sigma, leave_one_share_out, skip_the_clip


@pytest.mark.parametrize("name", CASES)
def test_opened_totals_have_the_noise_that_is_counted(name):
    """σ²C² where as many are missing as may be, and more where fewer are; in the clear and not."""
    CASES[name].require()


@pytest.mark.parametrize("sabotage", SABOTAGE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", CASES)
def test_the_check_sees_noise_that_is_missing(name, sabotage, monkeypatch):
    """Half of σ, one share fewer, or no clip: the very same check fails."""
    if name.startswith("fifty, sealed") and sabotage is leave_one_share_out:
        return  # takes more values: the next test
    sabotage(monkeypatch)
    with pytest.raises(AssertionError):
        CASES[name].require()


@pytest.mark.parametrize(
    ("n", "width", "lost"), [(20, 9000, 4), pytest.param(50, 45000, 10, marks=pytest.mark.full)]
)
def test_one_share_of_many_is_missed_on_ciphertext_too(n, width, lost, monkeypatch):
    """With values enough to see a sixteenth, or a fortieth, of the variance."""
    case = Case(n, width, lost, (SEALED, f"privacy.dropouts={lost}"))
    case.require()
    leave_one_share_out(monkeypatch)
    with pytest.raises(AssertionError):
        case.require()


# --- sums in the middle of a round ---


def noise_of(n=5, *, sigma=1.0, clip=CLIP, clipping=Clipping.FLAT, **shares):
    """Of n clients."""
    return ClientNoise(sigma, clip, clipping, DistributedNoise(n, **shares))


@dataclass
class Collected:
    """The other end of a sum that nobody else is in."""

    n_clients: int
    values: list = field(default_factory=list)
    weight: float = 1.0

    def sum(self, name, values):
        self.values.append(values["x"])
        return Total(values, 1.0, self.n_clients)


def seeded(seed):
    return Seeded(torch.Generator().manual_seed(seed))


def test_sums_in_the_middle_of_a_round_are_clipped_and_noisy_alike():
    """By their own bound, and with the same shares; what has no bound is no sum."""
    noise = replace(noise_of(dropouts=1, colluders=1), bounds={"norms": 3.0})
    found = Collected(5)
    x = torch.full((3000,), 2.0, dtype=torch.float64)
    for seed in range(5):
        NoisyExchange(found, noise, seeded(seed)).sum("norms", {"x": x})
    require_noise(sum(found.values) - 5 * 3.0 * x / x.norm(), 3.0 * sqrt(5 / 3))
    with pytest.raises(KeyError):
        NoisyExchange(found, noise, seeded(0)).sum("another", {"x": x})


def test_a_client_does_not_go_on_from_a_sum_with_too_little_noise():
    """It leaves the round as soon as it is told how few were in it."""
    noise = replace(noise_of(dropouts=1), bounds={"norms": 3.0})
    with pytest.raises(
        TooFewContributions, match=r"^3 contributions: with fewer than 4 .*dropouts"
    ):
        NoisyExchange(Collected(3), noise, seeded(0)).sum("norms", {"x": torch.ones(4)})


@pytest.mark.parametrize("counts", [(3, 3, 0), (3, 0, 3), (3, 2, 1), (1, 0, 1)])
def test_no_share_left_is_refused(counts):
    """With the keys to change."""
    with pytest.raises(ConfigError, match=r"privacy\.dropouts = .*privacy\.colluders"):
        DistributedNoise(*counts)


# --- the clip ---

norms = st.floats(-9, 9).map(lambda power: 10.0**power)


def tensors_of(draws):
    """Three tensors with these norms."""
    rng = torch.Generator().manual_seed(0)
    named = {}
    for i, (shape, norm) in enumerate(zip([(4,), (2, 3), (1,)], draws, strict=True)):
        x = torch.randn(*shape, generator=rng, dtype=torch.float64)
        named[f"t{i}"] = x / x.norm() * norm
    return named


@given(st.tuples(norms, norms, norms), norms)
def test_no_contribution_is_longer_than_the_clip(lengths, clip):
    """All together flat, each at C / √L per layer; what is within stays as it is, to the bit."""
    named = tensors_of(lengths)
    whole = sqrt(sum(n * n for n in lengths))
    flat = clipped(named, clip, Clipping.FLAT)
    found = torch.cat([v.flatten() for v in flat.values.values()])
    assert float(found.norm()) <= clip * (1 + 1e-12)
    assert float(found.norm()) == pytest.approx(min(clip, whole))
    each = clipped(named, clip, Clipping.PER_LAYER)
    for name, value in each.values.items():
        bound = clip / sqrt(3)
        assert float(value.norm()) <= bound * (1 + 1e-12)
        assert float(value.norm()) == pytest.approx(min(bound, float(named[name].norm())))
    for bounded in (flat, each):
        same = all(torch.equal(bounded.values[name], named[name]) for name in named)
        assert same == bounded.within


def test_what_is_too_large_for_numbers_is_clipped_and_what_is_none_stays_none():
    """Norms that overflow give zeros; NaN and infinity give NaN, which no channel takes."""
    huge = {"x": torch.full((3,), 1e300, dtype=torch.float64)}
    assert torch.equal(clipped(huge, 1.0, Clipping.FLAT).values["x"], torch.zeros(3).double())
    for wrong in (torch.nan, torch.inf, -torch.inf):
        for clipping in (Clipping.FLAT, Clipping.PER_LAYER):
            found = clipped({"x": torch.tensor([1.0, wrong]), "y": torch.ones(2)}, 1.0, clipping)
            assert not found.within
            assert found.values["x"].isnan().any()


class Broken(torch.nn.Module):
    """Its loss has no gradient that is a number, where the label is 7."""

    def forward(self, output, y):
        factor = torch.where(y == 7, torch.inf, 1.0)
        return (output[:, 0] * factor).mean()


@pytest.mark.parametrize("encrypt", ["none", "model"])
def test_a_client_whose_update_is_no_number_takes_part_with_zeros(encrypt):
    """Nobody can tell: it is refused nowhere, has its share of the noise, and keeps what it had."""
    job = by_hand_task("mlp", "group", sizes=(6, 6, 6, 6))
    x, y = job.clients[2]
    clients = [*job.clients[:2], (x, torch.full_like(y, 7)), job.clients[3]]
    job = replace(job, clients=clients, loss=Broken(), metric="accuracy")
    settings = [*PRIVATE, "algorithm.name=fedavg", f"exchange.encrypt={encrypt}"]
    run = securefl.run(config(*settings, "solver.name=scaffold", rounds=2), job)
    assert run.incidents == []
    sent = [e.sender for e in run.ledger.entries if e.name == "update/parameters"]
    assert sent.count("client-3") == sent.count("client-1") == 2
    assert all(torch.isfinite(v).all() for v in run.model.state_dict().values())


# --- sensitivity: what a channel's rounding adds ---


def accounted(noise, n_values):
    """C', of which the noise is σ."""
    deviation = noise.deviation(noise.sigma, noise.clip, n_values)
    return deviation * sqrt(noise.shares.n_counted) / noise.sigma, deviation


def carried(values):
    """What float32 makes of them on the way, which is the same in every unit of a power of two."""
    channel = PlainChannel("float32")
    unit = 2.0 ** np.ceil(np.log2(max(1.0, np.abs(values).max())))
    about = MessageId("ab" * 32, 1, "x", len(values))
    payload, _ = channel.seal(values / unit, 1.0, about, Sender("alice", bytes(32)))
    total = channel.start(len(values)).plus(payload).total()
    return unit * channel.open(total, len(values)).values


def at_the_brink(drawn, clip):
    """Noise that lies just below where float32 rounds up, and an update that takes it there."""
    below = drawn.astype(np.float32)
    unit = np.spacing(np.abs(below)).astype(float)
    update = 2e-3 * unit
    update *= min(1.0, clip / np.linalg.norm(update))
    return below + 0.4999 * unit, update


@given(
    seed=st.integers(0, 2**32 - 1),
    sigma=st.floats(-2, 6).map(lambda power: 10.0**power),
    clip=st.floats(-6, 6).map(lambda power: 10.0**power),
    n_values=st.integers(1, 3000),
    length=st.floats(-9, 1).map(lambda power: 10.0**power),
    counts=st.sampled_from([(3, 0, 0), (5, 1, 1), (50, 10, 0)]),
)
def test_rounding_moves_a_sum_by_no_more_than_is_accounted_for(
    seed, sigma, clip, n_values, length, counts
):
    """‖fl(clip(Δ) + noise) - fl(0 + noise)‖ ≤ C', for any Δ and where rounding is at its worst."""
    noise = ClientNoise(sigma, clip, Clipping.FLAT, DistributedNoise(*counts))
    try:
        bound, deviation = accounted(noise, n_values)
    except ConfigError:  # so much noise is refused: see below
        return
    rng = np.random.default_rng(seed)
    drawn = rng.normal(0, deviation, n_values)
    delta = rng.normal(size=n_values)
    cases = (drawn, delta / np.linalg.norm(delta) * length * clip), at_the_brink(drawn, clip)
    for drawn, update in cases:
        named = {"x": torch.from_numpy(update)}
        sent = clipped(named, clip, Clipping.FLAT).values["x"].numpy() + drawn
        assert np.linalg.norm(carried(sent) - carried(drawn)) <= bound
    assert bound >= clip


def test_without_the_account_rounding_would_exceed_the_clip():
    """A few hundredths of C, where noise is at the brink of rounding, moves a sum by several C."""
    noise = noise_of(1, sigma=2e5, clip=1.0)
    bound, deviation = accounted(noise, 1000)
    drawn, update = at_the_brink(np.random.default_rng(0).normal(0, deviation, 1000), noise.clip)
    moved = np.linalg.norm(carried(update + drawn) - carried(drawn))
    assert np.linalg.norm(update) < 0.03 * noise.clip
    assert 5 * noise.clip < moved <= bound


def test_noise_that_is_all_rounding_is_refused_before_a_run():
    """By a line that names σ, the values and the way out."""
    with pytest.raises(ConfigError, match=r"σ = 1e\+06 on 8,184 values: .* take a smaller σ"):
        steep_rounds(5, 4092, "privacy.sigma=1e6")


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 100.0])
def test_encoding_rounds_no_more_than_is_said(size):
    """Half a unit of each coefficient, whatever the values are."""
    of, rng = ring(), np.random.default_rng(1)
    for row in rng.normal(0, size, (5, SUMS.poly_degree)):
        plain, half = sealapi.Plaintext(), SUMS.poly_degree // 2
        of._encoder.encode((row[:half] + 1j * row[half:]).tolist(), of._scale, plain)
        slots = np.asarray(of._encoder.decode_complex(plain))
        error = np.linalg.norm(np.concatenate([slots.real, slots.imag]) - row)
        assert SUMS.rounding / 3 < error <= SUMS.rounding
    assert SUMS.rounding == pytest.approx(5.27e-9, rel=1e-3)


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 100.0])
def test_encryption_errs_by_noise_that_is_independent_of_the_values(size, key_set):
    """Of the same deviation at every scale that clipping may have, and without correlation."""
    alice, about = Sender("alice", bytes(32)), MessageId("ab" * 32, 1, "x", 3000)
    opener, sealer = key_set.opener(), OneTimeSealer(key_set.public)
    opener.take_cards(about.run, "alice", key_set.public.cards(about.run, alice))
    v = np.random.default_rng(1).normal(0, size, about.n_values)
    payload, nonce = sealer.seal(v, 1 / 64, about, alice)
    opened = opener.open(payload, about, {"alice": nonce}, 70).values
    error = (opened - v) / 64
    assert error.std() == pytest.approx(SUMS.noise(1), rel=0.1)
    assert abs(np.corrcoef(error, v)[0, 1]) < 0.1


# --- the channels ---

EVERY_KIND = (
    *PRIVATE,
    "algorithm.name=fixbn",
    "algorithm.switch=2",
    "solver.name=scaffold",
    "train.momentum=0.5",
    "train.momentum_across_rounds=global",
    "privacy.clip=0.05",
    "exchange.precision_bits=24",
)


def test_sealed_and_open_runs_have_the_same_totals():
    """For the same seeds, over FixBN's both stages, to what the authority leaves of each value."""
    runs = [
        played(config(*EVERY_KIND, f"exchange.encrypt={encrypt}", rounds=3), by_hand_task())
        for encrypt in ("none", "model")
    ]
    for i, (one, other) in enumerate(zip(runs[0].rounds, runs[1].rounds, strict=True)):
        kinds = {Kind.PARAMETERS, Kind.STATISTICS, Kind.MOMENTUM, Kind.CONTROL}
        assert one.after.tensors.keys() == other.after.tensors.keys() == kinds
        for kind in kinds:
            for name, value in one.after.tensors[kind].items():
                # A round's own rounding, and what training makes of that of the rounds before.
                difference = float((value - other.after.tensors[kind][name]).abs().max())
                assert difference <= 2.0**-24 * 30**i


def test_every_kind_of_tensor_is_noisy():
    """One round with noise and one without differ by it, in each tensor of each kind."""
    loud = played(config(*EVERY_KIND, rounds=3), by_hand_task()).rounds[0].after
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Seeded, "gaussian", lambda self, size, deviation: np.zeros(size))
        still = played(config(*EVERY_KIND, rounds=3), by_hand_task()).rounds[0].after
    share = 0.05 * sqrt(4 / 3) / 4  # of four clients' mean, of whom one may tell
    for kind in (Kind.PARAMETERS, Kind.STATISTICS, Kind.MOMENTUM, Kind.CONTROL):
        for name, value in loud.tensors[kind].items():
            noise = value - still.tensors[kind][name]
            assert (noise != 0).all()
            size = float(noise.square().mean().sqrt())
            assert share / 3 < size < 3 * share
            if noise.numel() > 20:
                assert size == pytest.approx(share, rel=0.3)


# --- clipping that adapts ---


@given(st.floats(0.01, 100), st.floats(1, 1000))
def test_what_adaptive_clipping_costs_is_what_is_counted(sigma, expected):
    """z⁻² = z_Δ⁻² + (2σ_b)⁻², where one contribution moves its own bit by 1/2."""
    quantile = Quantile(0.5, expected, sigma)
    costs = quantile.sum_sigma**-2 + (2 * quantile.count_deviation) ** -2
    assert costs == pytest.approx(sigma**-2)
    assert quantile.sum_sigma > sigma


@given(st.floats(MIN_CLIP, MAX_CLIP), st.floats(-1e9, 1e9))
def test_no_noise_leads_the_clip_norm_out_of_its_range(clip, noise):
    """However large, it moves C by e^0.2 at most, and not beyond what can be sealed."""
    after = Quantile(0.5, 20, 1.0).followed(clip, noise)
    assert MIN_CLIP <= after <= MAX_CLIP
    assert 0.81 < after / clip < 1.23


@pytest.mark.parametrize(
    ("target", "start"), [pytest.param(0.5, 3.5, marks=pytest.mark.full), (0.8, 4.5)]
)
def test_the_clip_norm_converges_to_the_quantile(target, start):
    """Of fifty clients' norms, which are η i²: from above and from below."""
    adaptive = ["privacy.clipping=adaptive", f"privacy.quantile={target}"]
    clip = [f"privacy.clip={start}", "privacy.sigma=0.05"]
    rounds = steep_rounds(50, 4, *adaptive, *clip)
    state, seen = rounds._state, []
    for _ in range(30):
        state = after_a_round(rounds, state)
        seen.append(float(state.tensors[Kind.CLIPPING]["parameters"]))
    lengths = [rounds.config.train.lr * i * i for i in range(50)]
    assert seen[0] != start
    assert np.mean(seen[-10:]) == pytest.approx(np.quantile(lengths, target), rel=0.15)


def test_adaptive_noise_is_what_is_counted():
    """The sum's is z_Δ C, the bits' σ_b: together they cost σ."""
    rounds = steep_rounds(50, 60000, "privacy.clipping=adaptive")
    quantile = Quantile(0.5, 50, 1.0)
    residual = opened_sum(rounds, range(50)) - clipped_updates(rounds, range(50))
    require_noise(residual, quantile.sum_sigma * CLIP)
    assert quantile.count_deviation == 2.5
    bits = []
    for seed in range(100):
        again = steep_rounds(5, 4, "privacy.clipping=adaptive", f"run.seed={seed}")
        with finished_totals() as totals:
            opened_sum(again, range(5))
        (mean,) = totals["update/clipping"].values.values()
        bits.append(5 * float(mean) - (2 - 2.5))  # two of five are within C
    require_noise(torch.tensor(bits), 1.0)


def finished_totals():
    """What is opened of an update, by name."""

    class Finished:
        def __enter__(self):
            self.patch, found, total = pytest.MonkeyPatch(), {}, ServerRound._total

            def noted(ongoing, spec):
                found[spec.name] = total(ongoing, spec)
                return found[spec.name]

            self.patch.setattr(ServerRound, "_total", noted)
            return found

        def __exit__(self, *_):
            self.patch.undo()

    return Finished()


class StopError(Exception):
    """Stands for a crash."""


def stop_after_one(metrics):
    raise StopError


@pytest.mark.usefixtures("quick")
def test_the_clip_norm_survives_a_stop(tmp_path):
    """Model, clip norms and all of the state end bit for bit as without one."""
    job = by_hand_task()
    made = config(*EVERY_KIND, "privacy.sigma=3.0", "privacy.clipping=adaptive", rounds=3)
    securefl.run(made, job, out=tmp_path / "whole")
    with pytest.raises(StopError):
        securefl.run(made, job, out=tmp_path / "halves", on_round=stop_after_one)
    first = clips(tmp_path / "halves")
    securefl.resume(tmp_path / "halves", job)
    for name in ("model.safetensors", "checkpoint.safetensors", "privacy.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "halves" / name).read_bytes()
    last = clips(tmp_path / "halves")
    assert first.keys() == last.keys() == {"parameters", "statistics", "momentum", "control"}
    assert all(float(last[kind]) != float(first[kind]) != 0.05 for kind in last)


def clips(folder):
    return Checkpoint.read(folder / "checkpoint.safetensors").state.tensors[Kind.CLIPPING]


# --- around an algorithm ---

INNER = {
    "fedavg": ["algorithm.name=fedavg"],
    "fixbn": ["algorithm.name=fixbn", "algorithm.switch=2"],
    "scaffold": ["algorithm.name=fedavg", "solver.name=scaffold"],
    "feddyn": ["algorithm.name=fedavg", "solver.name=feddyn"],
    "fedadam": ["algorithm.name=fixbn", "algorithm.switch=2", "server.name=fedadam"],
    "momentum": [
        "algorithm.name=fedavg",
        "train.momentum=0.5",
        "train.momentum_across_rounds=global",
    ],
    "some": ["algorithm.name=fedavg", "selection.name=random", "selection.fraction=0.5"],
    "some, full": [
        "algorithm.name=fixbn",
        "algorithm.switch=2",
        "selection.name=random",
        "selection.fraction=0.5",
        "selection.aggregation=full",
    ],
    "fedbn": ["algorithm.name=fedbn"],
}


AROUND = INNER, {name: (f"privacy.clipping={name}",) for name in ("flat", "per-layer", "adaptive")}


@pytest.mark.parametrize(
    ("inner", "clipping"), marked(product(*AROUND), each(AROUND, product(*AROUND)))
)
def test_without_noise_and_clip_it_is_the_inner_algorithm(inner, clipping, monkeypatch):
    """To 1e-12 in double precision, in every round and every kind of tensor."""
    monkeypatch.setattr(ClientNoise, "deviation", lambda *_: 0.0)
    alike = [*INNER[inner], "algorithm.weights=uniform"]
    around = ["privacy.level=client", "privacy.clip=1e9", "privacy.delta=1e-3"]
    around += [f"privacy.clipping={clipping}"]
    plain = played(config(*alike, rounds=3), by_hand_task())
    private = played(config(*alike, *around, rounds=3), by_hand_task())
    assert plain.selected == private.selected
    for one, other in zip(plain.rounds, private.rounds, strict=True):
        for kind, named in one.after.tensors.items():
            torch.testing.assert_close(
                dict(other.after.tensors[kind]), dict(named), atol=1e-12, rtol=1e-12
            )
        torch.testing.assert_close(dict(other.after.private), dict(one.after.private))
        assert one.metrics.loss == pytest.approx(other.metrics.loss, rel=1e-9)


def test_secret_noise_is_new_each_time_and_seeded_noise_the_same():
    """A seed gives it again; without one, no two runs have the same."""
    alike = {}
    for noise in ("seeded", "secret"):
        made = config(*EVERY_KIND, f"privacy.noise={noise}", rounds=3)
        one, other = (averaged(played(made, by_hand_task()).result.model) for _ in range(2))
        alike[noise] = {torch.equal(one[name], other[name]) for name in one}
    assert alike == {"seeded": {True}, "secret": {False}}


@pytest.mark.usefixtures("quick")
def test_noise_does_not_make_a_variance_negative():
    """However large it is, a round leaves a BN variance half of what it was, or more."""
    loud = [*EVERY_KIND, "privacy.sigma=100.0", "privacy.clip=1.0", "train.lr=1e-6"]
    run, halved = played(config(*loud, rounds=3), by_hand_task()), 0
    for one in run.rounds:
        named = one.after.tensors[Kind.STATISTICS]
        for name in (n for n in named if n.endswith("running_var")):
            before = one.before.tensors[Kind.STATISTICS][name]
            assert (named[name] >= LEAST_VARIANCE * before).all()
            halved += int((named[name] == LEAST_VARIANCE * before).sum())
    assert halved
