"""DP-SGD (Abadi et al., CCS 2016, Algorithm 1) against the algorithm written out by hand."""

from __future__ import annotations

import copy
import math
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import by_hand
import numpy as np
import pytest
import torch
from by_hand import LR
from played import played
from privately_by_hand import config as private_config
from privately_by_hand import draws, generator, require_scatter, work_of
from safetensors.torch import load_file
from scipy import stats
from silent import Silent
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import securefl
from securefl.algorithms.algorithm import copied, trained_parameters
from securefl.algorithms.federated import Federated
from securefl.algorithms.solvers.fedprox import FedProx
from securefl.algorithms.solvers.moon import Moon
from securefl.algorithms.solvers.scaffold import Scaffold
from securefl.algorithms.solvers.sgd import SGD
from securefl.algorithms.solvers.solver import Start
from securefl.errors import ConfigError
from securefl.privacy.clipped import Quantile
from securefl.privacy.clipping import ClippedGradients, Clipping
from securefl.privacy.dp_sgd import DpSgd, PrivateStep
from securefl.privacy.randomness import Seeded, secret
from securefl.types import ClientState, Kind

pytestmark = pytest.mark.usefixtures("quick", "uncounted")

STEPS, MOMENTUM, SIGMA, CLIP, BATCH, RECORDS = 3, 0.8, 0.7, 0.6, 4, 9
QUANTILE, FIRST_CLIP, MU = 0.4, 2.0, 0.7
SIZES = (12, 9, 14)

# --- whole rounds, by hand ---

MOON = Moon(mu=1.0, temperature=0.5)


def record_gradients(model, x, y):
    """Each record's, by a loop; BN as it stands."""
    parameters = dict(model.named_parameters())
    found = []
    for i in range(len(y)):
        loss = functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        gradient = torch.autograd.grad(loss, list(parameters.values()))
        found.append(dict(zip(parameters, gradient, strict=True)))
    return found


def norm_of(gradient):
    return math.sqrt(sum(float((g**2).sum()) for g in gradient.values()))


def clipped(gradient, clip, clipping):
    """One record's, and whether there was nothing to clip."""
    if clipping == "per-layer":
        bound = clip / math.sqrt(len(gradient))
        factors = {n: min(1.0, bound / (float(g.norm()) or bound)) for n, g in gradient.items()}
    else:
        factors = dict.fromkeys(gradient, min(1.0, clip / (norm_of(gradient) or clip)))
    return {n: factors[n] * g for n, g in gradient.items()}, min(factors.values()) == 1


@dataclass
class Local:
    """A client's round by hand: its model, what it remembers, and its steps' private gradients."""

    model: nn.Module
    clip: float
    gradients: list


def private_round(model, data, rng, clipping, clip, term):
    """E steps of Algorithm 1, with momentum and weight decay; `term` is what a solver adds."""
    x, y = data
    local = copy.deepcopy(model).eval()
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    buffers = {n: torch.zeros_like(p) for n, p in start.items()}
    kept = []
    for _ in range(STEPS):
        sampled = np.flatnonzero(rng.random(len(y)) < BATCH / RECORDS)
        parts = [
            clipped(g, clip, clipping) for g in record_gradients(local, x[sampled], y[sampled])
        ]
        sigma, n_within = SIGMA, sum(within for _, within in parts)
        count_deviation = max(BATCH / 20, SIGMA)
        if clipping == "adaptive":
            sigma = (SIGMA**-2 - (2 * count_deviation) ** -2) ** -0.5
        step = {}
        for name, start_value in start.items():
            noise = rng.normal(0.0, sigma * clip, start_value.numel())
            total = sum((g[name] for g, _ in parts), torch.zeros_like(start_value))
            step[name] = (total + torch.from_numpy(noise).reshape(total.shape)) / BATCH
        if clipping == "adaptive":
            excess = n_within - len(sampled) / 2 + rng.normal(0.0, count_deviation, 1)[0]
            share = min(1.0, max(0.0, excess / BATCH + 0.5))
            clip *= math.exp(-0.2 * (share - QUANTILE))
        kept.append(step)
        with torch.no_grad():
            for name, w in local.named_parameters():
                g = step[name] + term(name, w, start[name]) + by_hand.DECAY * w
                buffers[name] = MOMENTUM * buffers[name] + g
                w.sub_(LR * buffers[name])
    return Local(local, clip, kept)


def rounds_by_hand(job, n_rounds, clipping="flat", solver="sgd", released=()):
    """The global model after some rounds; `released` are statistics by their round."""
    model = copy.deepcopy(job.model)
    zeros = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    control, own = zeros, [zeros for _ in job.clients]
    first = FIRST_CLIP if clipping == "adaptive" else CLIP
    clips = [first] * len(job.clients)
    for done in range(n_rounds):
        if done in released:
            model.load_state_dict(released[done], strict=False)
        locals_ = []
        for i, data in enumerate(job.clients):
            c, ci = control, own[i]
            terms = {
                "sgd": lambda _name, _w, _start: 0.0,
                "fedprox": lambda _name, w, start: MU * (w - start),
                "scaffold": lambda name, _w, _start, c=c, ci=ci: c[name] - ci[name],
            }
            rng = draws(done, i, before=int(done in released))
            local = private_round(model, data, rng, clipping, clips[i], terms[solver])
            locals_.append(local)
            clips[i] = local.clip
        means = [by_hand.mean([1 / STEPS] * STEPS, local.gradients) for local in locals_]
        p = [1 / len(locals_)] * len(locals_)
        control, own = by_hand.mean(p, means), means  # Σ p_i (c + c_i⁺ - c_i), since c = Σ p_i c_i
        parameters = [copied(dict(local.model.named_parameters())) for local in locals_]
        model.load_state_dict(by_hand.mean(p, parameters), strict=False)
    return model, clips


def settings_of(norm, clipping="flat", solver="sgd"):
    algorithm = ["algorithm.name=fixbn", "privacy.statistics_sigma=0.01"]
    if norm == "group":
        algorithm = ["algorithm.name=fedavg", "model.norm=group"]
    first = FIRST_CLIP if clipping == "adaptive" else CLIP
    beside = [f"privacy.quantile={QUANTILE}"] if clipping == "adaptive" else []
    beside += [f"solver.mu={MU}"] if solver == "fedprox" else []
    return [
        *algorithm,
        *beside,
        f"algorithm.local_steps={STEPS}",
        f"train.batch_size={BATCH}",
        f"train.momentum={MOMENTUM}",
        f"solver.name={solver}",
        "privacy.level=record",
        f"privacy.records={RECORDS}",
        f"privacy.sigma={SIGMA}",
        f"privacy.clip={first}",
        f"privacy.clipping={clipping}",
    ]


def run_and_hand(norm, clipping, solver):
    """Two rounds of a run, and of the loop from where the run's first statistics are."""
    job = by_hand.task("mlp", norm, SIZES)
    found = played(private_config(*settings_of(norm, clipping, solver), rounds=2), job)
    released = {}
    if norm == "batch":
        released[0] = found.rounds[0].after.tensors[Kind.STATISTICS]
        assert not torch.equal(released[0]["1.running_mean"], job.model[1].running_mean)
    return found, *rounds_by_hand(job, 2, clipping, solver, released)


@pytest.mark.parametrize(
    ("clipping", "solver"),
    [
        ("flat", "sgd"),
        ("per-layer", "sgd"),
        ("ghost", "sgd"),
        ("adaptive", "sgd"),
        ("flat", "fedprox"),
        ("flat", "scaffold"),
    ],
)
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_rounds_are_algorithm_1(norm, clipping, solver):
    """Two rounds of three steps, with momentum and weight decay, to 1e-12; BN is at rest.

    What a solver adds stands on top of the private gradient; C is remembered where it adapts.
    """
    found, expected, clips = run_and_hand(norm, clipping, solver)
    assert by_hand.largest_difference(found.result.model, expected) < 1e-12
    kept = [
        client_state.solver.get("privacy/clip")
        for client_state in found.rounds[-1].kept_after.values()
    ]
    if clipping == "adaptive":
        assert [float(clip) for clip in kept] == pytest.approx(clips, rel=1e-12)
        assert min(abs(clip - FIRST_CLIP) for clip in clips) > 0.05
    else:
        assert kept == [None] * len(SIZES)


def test_the_loop_by_hand_tells_each_way_from_the_others():
    """Ghost clipping is flat clipping; nothing else gives the same model."""
    job = by_hand.task("mlp", "group", SIZES)
    ways = [("flat", "sgd"), ("per-layer", "sgd"), ("adaptive", "sgd")]
    ways += [("flat", "fedprox"), ("flat", "scaffold")]
    models = [rounds_by_hand(job, 2, *way)[0] for way in ways]
    for i, one in enumerate(models):
        for other in models[:i]:
            assert by_hand.largest_difference(one, other) > 1e-4


# --- single steps ---


def total_output(output, y):
    """A record's gradient in a linear layer without bias is its x."""
    del y
    return output.mean()


def linear(n_features):
    return nn.Linear(n_features, 1, bias=False).double()


def labelled(x):
    return x, torch.zeros(len(x), dtype=torch.int64)


def step_of(**changes):
    """With noise and a clip that are not seen."""
    usual = {"sigma": 0.01, "clip": 1e9, "clipping": Clipping.FLAT, "sample_rate": 0.5, "batch": 8}
    return PrivateStep(**usual | changes)


def begun(step, model, data, randomness, *, loss=total_output, solver=None, client_state=None):
    """A session of one client."""
    work = work_of(model, data, loss, client_state=client_state)
    parameters = trained_parameters(model)
    zeros = {name: torch.zeros_like(p) for name, p in parameters.items()}
    start = Start(work, parameters, copied(parameters), zeros)
    return DpSgd(solver or SGD(), step, randomness).begin(start)


def gradients(step, model, data, randomness, n_steps=1, loss=total_output):
    """Of so many steps that do not move the model, each as one vector."""
    session = begun(step, model, data, randomness, loss=loss)
    found = []
    for _ in range(n_steps):
        session.gradients(nullcontext)
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return torch.stack(found)


class Everyone(Seeded):
    """Every record is sampled; noise as ever."""

    def uniform(self, size):
        return np.zeros(size)


class Nobody(Seeded):
    """No record is ever sampled; noise as ever."""

    def uniform(self, size):
        return np.ones(size)


class Quiet(Seeded):
    """Records are sampled as ever; no noise."""

    def gaussian(self, size, deviation):
        return np.zeros(size)


@pytest.mark.parametrize("clipping", Clipping)
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_of_all_records_and_without_noise_a_step_is_the_full_gradient(norm, clipping):
    """Times n / B, since the divisor is the public B; BN in evaluation mode."""
    job = by_hand.task("mlp", norm, (11,))
    step = step_of(clipping=clipping, sample_rate=1.0)
    model, loss = copy.deepcopy(job.model).train(), functional.cross_entropy
    (found,) = gradients(step, model, job.clients[0], Silent, loss=loss)
    x, y = job.clients[0]
    wanted = torch.autograd.grad(loss(model.eval()(x), y), list(model.parameters()))
    wanted = torch.cat([g.flatten() for g in wanted]) * 11 / 8
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert wanted.abs().max() > 0.1


def require_poisson(n=24, rate=0.3, n_steps=800, alpha=1e-3):
    """Asserts that each record is sampled with probability `rate`, each by itself."""
    step, data = step_of(sample_rate=rate), labelled(torch.eye(n).double())
    sampled_TN = gradients(step, linear(n), data, Quiet, n_steps) * step.batch
    torch.testing.assert_close(sampled_TN, sampled_TN.round(), rtol=0, atol=1e-9)
    sampled_TN, size = sampled_TN.round().numpy(), stats.binom(n, rate)
    sizes = sampled_TN.sum(axis=1)
    often = [k for k in range(n + 1) if n_steps * size.pmf(k) >= 5]  # for χ² to hold
    seen = [int((sizes == k).sum()) for k in often]
    wanted = [n_steps * float(size.pmf(k)) for k in often]
    pairs = zip([*seen, n_steps - sum(seen)], [*wanted, n_steps - sum(wanted)], strict=True)
    assert sum((s - w) ** 2 / w for s, w in pairs) <= stats.chi2(len(often)).isf(alpha)
    low, high = stats.binom(n_steps, rate).interval(1 - alpha / n)
    times = sampled_TN.sum(axis=0)
    assert low <= times.min()
    assert times.max() <= high
    together = np.corrcoef(sampled_TN.T)[np.triu_indices(n, 1)]
    assert np.abs(together).max() * n_steps**0.5 <= stats.norm.isf(alpha / 2 / len(together))


WRONG_SAMPLES = {
    "of a fixed size": lambda self, size: self._rng.permutation(size) / size,
    "of two neighbours both or none": lambda self, size: np.repeat(self._rng.random(size // 2), 2),
    "a tenth too seldom": lambda self, size: self._rng.random(size) * 1.1,
    "the first record always": lambda self, size: self._rng.random(size) * (np.arange(size) > 0),
}


def test_a_sample_is_poissons():
    """Sizes are binomial, every record's turns are, and no two go together, each at 99.9 %."""
    require_poisson()


@pytest.mark.parametrize("wrong", WRONG_SAMPLES)
def test_a_sample_that_is_not_poissons_is_found_out(monkeypatch, wrong):
    """By the same look at it."""
    monkeypatch.setattr(Seeded, "uniform", WRONG_SAMPLES[wrong])
    with pytest.raises(AssertionError):
        require_poisson()


SIDE = 30
PRIVATE = {"sigma": 1.7, "clip": 0.6, "batch": 5}


def require_private(n_steps=200):
    """Asserts that noise has the deviation σ C / B, and that no record moves a step beyond C / B.

    And that the sum of what is clipped is divided by B, whoever is sampled.
    """
    step = step_of(**PRIVATE)
    x = torch.randn(7, SIDE, generator=generator(1), dtype=torch.float64)
    x[3] *= 1e6
    x[4] *= 1e-3
    deviation = step.sigma * step.clip / step.batch
    silent = gradients(step, linear(SIDE), labelled(x), Silent)[0]
    for randomness, without in ((Nobody, 0.0), (Everyone, silent)):
        found = gradients(step, linear(SIDE), labelled(x), randomness, n_steps)
        require_scatter(found - without, deviation)
    for i in range(len(x)):
        others = torch.cat([x[:i], x[i + 1 :]])
        moved = (silent - gradients(step, linear(SIDE), labelled(others), Silent)[0]).norm()
        assert float(moved) == pytest.approx(min(float(x[i].norm()), step.clip) / step.batch)


def of_the_mean(sum_of):
    def changed(self, x, y, clip):
        found = sum_of(self, x, y, clip)
        sums = {name: g * PRIVATE["batch"] / max(1, len(x)) for name, g in found.sums.items()}
        return replace(found, sums=sums)

    return changed


def without_clip(sum_of):
    return lambda self, x, y, _clip: sum_of(self, x, y, 1e12)


def scaled(factor):
    return lambda gaussian: lambda self, size, deviation: factor * gaussian(self, size, deviation)


def once_drawn(gaussian):
    drawn = {}

    def changed(self, size, deviation):
        return drawn.setdefault((size, deviation), gaussian(self, size, deviation))

    return changed


SABOTAGE = {
    "half of the noise": (Seeded, "gaussian", scaled(0.5)),
    "a tenth less noise": (Seeded, "gaussian", scaled(0.9)),
    "no noise": (Seeded, "gaussian", scaled(0.0)),
    "the noise of the first step in all": (Seeded, "gaussian", once_drawn),
    "no clip": (ClippedGradients, "sum_of", without_clip),
    "the mean of the sample": (ClippedGradients, "sum_of", of_the_mean),
}


def test_a_step_is_as_private_as_said():
    """Noise of σ C / B at 99.9 %, with records or with none; a record moves it by C / B at most."""
    require_private()


@pytest.mark.parametrize("how", SABOTAGE)
def test_a_step_that_is_less_private_is_found_out(monkeypatch, how):
    """By the same look at it: sabotaged noise, clip or divisor."""
    owner, name, change = SABOTAGE[how]
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    with pytest.raises(AssertionError):
        require_private()


def test_a_client_says_nothing_of_its_sample_but_the_sum():
    """With twenty records more whose gradient is zero all that it sends and keeps is the same."""
    x = torch.randn(6, SIDE, generator=generator(2), dtype=torch.float64)
    more = torch.cat([x, torch.zeros(20, SIDE).double()])
    found = []
    for data in (labelled(x), labelled(more)):
        algorithm = Federated(solver=DpSgd(Scaffold(), step_of(**PRIVATE), Everyone))
        model = nn.Linear(SIDE, 1, bias=False).double()
        nn.init.ones_(model.weight)
        work = work_of(model, data, total_output, n_steps=4)
        found.append(algorithm.client(algorithm.init(model), work, exchange=None))
    torch.testing.assert_close(found[0].tensors, found[1].tensors, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        found[0].client_state.solver, found[1].client_state.solver, rtol=0, atol=1e-12
    )
    assert found[0].tensors[Kind.PARAMETERS]["weight"].sub(1).abs().min() > 1e-6


@pytest.mark.parametrize("clipping", Clipping)
def test_a_torch_dataset_is_as_good_as_tensors(clipping):
    """Bit for bit the same steps, those of an empty sample as well."""
    job = by_hand.task("mlp", "group", (7,))
    step, loss = step_of(clipping=clipping, sample_rate=0.15), functional.cross_entropy
    ways = (job.clients[0], TensorDataset(*job.clients[0]))
    one, other = (gradients(step, copy.deepcopy(job.model), data, Quiet, 25, loss) for data in ways)
    assert torch.equal(one, other)
    empty = (one == 0).all(dim=1)
    assert 0 < int(empty.sum()) < 25


def test_a_run_on_torch_datasets_is_one_on_tensors():
    """Bit for bit, through all of a run."""
    job = by_hand.task("mlp", "group", SIZES)
    config = private_config(*settings_of("group"), rounds=2)
    datasets = replace(job, clients=[TensorDataset(*data) for data in job.clients])
    models = [securefl.run(config, task).model for task in (job, datasets)]
    assert by_hand.largest_difference(*models) == 0


def test_a_step_has_its_context_around_one_pass():
    """What a policy puts around the first step's pass is there, once a step."""
    entered = []

    @contextmanager
    def around():
        entered.append("in")
        yield
        entered.append("out")

    def loss(output, y):
        entered.append("pass")
        return total_output(output, y)

    data = labelled(torch.ones(4, 3).double())
    session = begun(step_of(), linear(3), data, Silent, loss=loss)
    session.gradients(nullcontext)  # looks at one record's gradient as well
    entered.clear()
    for _ in range(2):
        session.gradients(around)
    assert entered == ["in", *["pass"] * 4, "out"] * 2  # the loss of each record by itself


# --- clipping that adapts ---


@pytest.mark.parametrize("sigma", [0.3, 1.0, 7.0])
@pytest.mark.parametrize("expected", [4, 40, 400])
def test_the_norms_and_the_sum_cost_together_what_sigma_does(sigma, expected):
    """z⁻² = z_Δ⁻² + (2σ_b)⁻², with the paper's σ_b = n / 20 where that is enough."""
    quantile = Quantile(0.5, expected, sigma)
    sum_sigma, count_sigma = quantile.sum_sigma, 2 * quantile.count_deviation
    assert sum_sigma**-2 + count_sigma**-2 == pytest.approx(sigma**-2)
    assert quantile.count_deviation == pytest.approx(max(expected / 20, sigma))
    assert sigma < sum_sigma <= sigma * 2 / math.sqrt(3) * (1 + 1e-12)


@pytest.mark.parametrize("first", [0.05, 50.0])
@pytest.mark.parametrize("target", [0.25, 0.5, 0.8])
def test_the_clip_norm_finds_the_quantile_of_the_norms(target, first):
    """From far below or above, to 20 % after 300 steps; 600 records of log-normal norms."""
    rng = np.random.default_rng(4)
    norms = np.exp(0.6 * rng.standard_normal(600))
    turns = rng.standard_normal((600, 3))
    x = norms[:, None] * turns / np.linalg.norm(turns, axis=1, keepdims=True)
    quantile = Quantile(target, 60, 1.0)
    step = step_of(sigma=1.0, clip=first, sample_rate=0.1, batch=60, quantile=quantile)
    session = begun(step, linear(3), labelled(torch.from_numpy(x)), Seeded)
    for _ in range(300):
        session.gradients(nullcontext)
    found = float(session.end().client_state["privacy/clip"])
    assert found == pytest.approx(np.quantile(norms, target), rel=0.2)


def test_a_client_goes_on_with_the_clip_norm_that_it_found():
    """Also beside what its solver remembers; the settings' is for the first round alone."""
    x = torch.randn(9, SIDE, generator=generator(2), dtype=torch.float64)
    step = step_of(clip=1e-3, quantile=Quantile(0.5, 8, 1.0))
    client_state = ClientState()
    for expected in (1e-3, None):
        session = begun(
            step, linear(SIDE), labelled(x), Seeded, solver=Scaffold(), client_state=client_state
        )
        assert expected is None or session.private.clip == expected
        assert expected is not None or session.private.clip == client_state.solver["privacy/clip"]
        session.gradients(nullcontext)
        client_state = ClientState(solver=session.end().client_state)
        assert client_state.solver.keys() == {"weight", "privacy/clip"}
    assert float(client_state.solver["privacy/clip"]) > 1e-3 * math.exp(0.1)


class StopError(Exception):
    """Stands for a crash."""


def stop_after_two(metrics):
    if metrics.round == 2:
        raise StopError


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_a_resumed_private_run_ends_bit_for_bit_as_an_uninterrupted_one(tmp_path, norm):
    """Each client's C is in the checkpoint, and seeded noise goes on where it was."""
    job = by_hand.task("mlp", norm, SIZES)
    settings = [*settings_of(norm, "adaptive"), "train.momentum_across_rounds=local"]
    if norm == "batch":
        settings += ["algorithm.switch=3", "privacy.releases=3"]
    config = private_config(*settings, rounds=4)
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    securefl.run(config, job, out=whole)
    with pytest.raises(StopError):
        securefl.run(config, job, out=halves, on_round=stop_after_two)
    kept = load_file(halves / "checkpoint.safetensors")
    clips = [float(v) for name, v in kept.items() if name.endswith("privacy/clip")]
    assert len(clips) == len(SIZES) == len({FIRST_CLIP, *clips}) - 1
    securefl.resume(halves, job)
    for name in ("model.safetensors", "checkpoint.safetensors"):
        assert (whole / name).read_bytes() == (halves / name).read_bytes()


# --- what draws, and what is refused ---


def test_secret_noise_is_other_noise_each_time_and_seeded_noise_the_same():
    """Of one seed: two runs of `secret` end apart, by noise's size; two of `seeded` bit for bit."""
    job = by_hand.task("mlp", "group", SIZES)
    seeded = settings_of("group")
    models = {
        noise: [
            securefl.run(private_config(*seeded, f"privacy.noise={noise}", rounds=1), job).model
            for _ in range(2)
        ]
        for noise in ("seeded", "secret")
    }
    assert by_hand.largest_difference(*models["seeded"]) == 0
    assert by_hand.largest_difference(*models["secret"]) > 0.1 * LR * SIGMA * CLIP / BATCH


def test_secret_draws_are_the_operating_systems():
    """As scattered as said, sampled as said, whatever the generator."""
    step = step_of(**PRIVATE, sample_rate=0.3)
    data = labelled(torch.zeros(4, SIDE).double())
    found = gradients(step, linear(SIDE), data, secret, 300)
    require_scatter(found, step.sigma * step.clip / step.batch, alpha=1e-9)
    drawn = secret(generator(0)).uniform(20_000)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert stats.kstest(drawn, "uniform").pvalue > 1e-9


@pytest.mark.parametrize("solver", ["moon", "per-fedavg"])
def test_a_solver_of_two_passes_is_refused(solver):
    """Their second gradient is of records that no clip has seen."""
    with pytest.raises(
        ConfigError, match=f'"record" with solver.name = "{solver}".*another solver'
    ):
        private_config(*settings_of("group"), f"solver.name={solver}", rounds=2)


def test_a_term_beside_the_loss_is_refused():
    """MOON's, once it has a last model; without one it is SGD, and FedProx's is no such term."""
    job = by_hand.task("mlp", "group", SIZES)
    step, loss, last = (
        step_of(),
        functional.cross_entropy,
        ClientState(solver=copied(_parameters(job))),
    )
    for solver in (MOON, FedProx(mu=0.3)):
        first = begun(
            step, copy.deepcopy(job.model), job.clients[0], Seeded, loss=loss, solver=solver
        )
        first.gradients(nullcontext)
    model = copy.deepcopy(job.model)
    later = begun(
        step,
        model,
        job.clients[0],
        Seeded,
        loss=loss,
        solver=Moon(mu=1.0, temperature=0.5),
        client_state=last,
    )
    with pytest.raises(ConfigError, match=r'a term of its own.*solver\.name = "sgd"'):
        later.gradients(nullcontext)


def _parameters(job):
    return dict(job.model.named_parameters())
