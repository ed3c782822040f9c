"""What differential privacy must not let happen, by tellers, servers, settings and models."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from on_the_wire import nothing_is_handed_over
from torch import nn
from torch.nn import functional

import securefl
from securefl.algorithms.federated import Federated
from securefl.build import job as job_module
from securefl.build.simulation import simulated
from securefl.errors import (
    ConfigError,
    CouplingFound,
    DataError,
    TooFewContributions,
    ValueRefused,
)
from securefl.exchange.one_time import OneTimeSealer
from securefl.exchange.plain import PlainChannel
from securefl.federation.client import Client
from securefl.federation.round import ServerRound
from securefl.models.build import build_model
from securefl.privacy import client_level, distributed_noise
from securefl.privacy.client_level import ClientLevel
from securefl.privacy.clipping import Clipping
from securefl.privacy.distributed_noise import DistributedNoise
from securefl.privacy.events import Gaussian
from securefl.privacy.randomness import secret
from securefl.types import Kind

pytestmark = pytest.mark.usefixtures("quick")

SIZES = (12, 9, 14, 8, 11, 10)
CLIENT = (
    "privacy.level=client",
    "privacy.sigma=2.0",
    "privacy.clip=0.05",
    "privacy.noise=seeded",
    "algorithm.name=fedavg",
    "algorithm.weights=uniform",
    "algorithm.local_steps=2",
    "data.clients=6",
    "exchange.encrypt=none",
    "train.lr=0.05",
    "train.batch_size=4",
    "run.rounds=2",
)
RECORD = (
    *CLIENT,
    "privacy.level=record",
    "privacy.records=8",
    "privacy.delta=1e-3",
    "model.norm=group",
)


def config(*settings):
    return securefl.load_config(None, settings)


def task(norm="batch", sizes=SIZES, model=None, seed=0, **changes):
    """Six clients, in float64, and public samples."""
    made = build_model("mlp", norm, in_channels=1, n_features=12, n_classes=4, width=4)

    def data(n, number):
        rng = torch.Generator().manual_seed(100 * seed + number)
        x = torch.randn(n, 12, generator=rng, dtype=torch.float64)
        return x, torch.randint(4, (n,), generator=rng)

    clients = [data(n, i) for i, n in enumerate(sizes)]
    return securefl.Task(
        (model or made).double(), clients, data(30, 98), public=data(8, 99), **changes
    )


def begun(*settings, job=None):
    """A run that has not begun, its task's model with GroupNorm."""
    return simulated(config(*CLIENT, *settings), job or task("group"), None, None)


def round_of(rounds, *places):
    """What these clients make of the first state, with cards of all."""
    rounds.parts.cards.holders(rounds.state, [f"client-{i}" for i in range(1, 7)])
    return rounds.after(rounds.round_of({f"client-{i}": 1 for i in places}, rounds.state))


# --- too little noise ---

SEALED = "exchange.encrypt=model"


@pytest.mark.parametrize("settings", [[], [SEALED], ["privacy.clipping=adaptive"]])
def test_a_total_with_too_many_missing_moves_no_model(settings):
    """With two that may be missing, four are enough and three are not; nothing is loaded."""
    rounds = begun("privacy.dropouts=2", *settings)
    before = rounds._state
    after = round_of(rounds, 1, 2, 3, 4)
    assert after.round == 1
    rounds = begun("privacy.dropouts=2", *settings)
    with pytest.raises(TooFewContributions, match=r"3 contributions"):
        round_of(rounds, 1, 2, 3)
    assert rounds._state.round == 0
    for kind, named in before.tensors.items():
        assert all(torch.equal(v, rounds._state.tensors[kind][n]) for n, v in named.items())


def test_the_authority_refuses_by_its_own_policy():
    """It opens nothing of fewer than n - dropouts, whoever asks, and says so in its log."""
    rounds = begun("privacy.dropouts=1", SEALED)
    assert rounds.parts.opener.policy.min_contributions == 5
    with pytest.raises(TooFewContributions, match="at least 5"):
        round_of(rounds, 1, 2, 3, 4)
    assert [o.n_clients for o in rounds._record.openings] == [0]
    assert "4 contributions" in rounds._record.openings[0].refused


def test_the_authority_opens_none_of_fewer_where_statistics_alone_are_sealed():
    """Also with the settings' own exchange.min_clients, which is lower."""
    job = task("batch")
    rounds = begun("exchange.encrypt=statistics", "privacy.colluders=0", job=job)
    with pytest.raises(TooFewContributions, match="at least 6"):
        round_of(rounds, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("settings", [[], [SEALED]])
def test_a_round_that_loses_too_many_passes_without_them(settings):
    """By simulated losses: nobody is asked to send, so nothing is opened and the model stays."""
    lossy = ["devices.dropout=0.5", "privacy.dropouts=1", "run.rounds=6", *settings]
    run = securefl.run(config(*CLIENT, *lossy), task("group"))
    present = [len(each.present) for each in run.participants]
    assert all(n in {0, 5, 6} for n in present)
    assert 0 in present
    uploads = Counter(e.round for e in run.ledger.entries if e.receiver == "server")
    assert all(uploads[i] == 0 for i, n in enumerate(present, 1) if not n)


@pytest.mark.parametrize("settings", [[], [SEALED]])
def test_refused_values_count_as_missing(tmp_path, settings, monkeypatch):
    """A run whose totals have too little noise ends with its model as it was, and none written."""
    contribute = Client.contribute

    def refused(client, *arguments, **named):
        if client.name == "client-3":
            raise ValueRefused("refused")
        return contribute(client, *arguments, **named)

    nothing_is_handed_over(monkeypatch)
    monkeypatch.setattr(Client, "contribute", refused)
    rounds = begun(*settings)
    before = {n: v.clone() for n, v in rounds._model.state_dict().items()}
    with pytest.raises(TooFewContributions):
        rounds.run(None)
    assert all(torch.equal(before[n], v) for n, v in rounds._model.state_dict().items())
    with pytest.raises(TooFewContributions):
        securefl.run(config(*CLIENT, *settings), task("group"), out=tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()
    # What was sent with noise was spent, whoever opened it.
    assert '"steps": 1' in (tmp_path / "run" / "privacy.json").read_text()


@pytest.mark.parametrize(
    ("settings", "n_clients", "allowed"),
    [
        ([*RECORD, "privacy.delta=0.03"], 6, "1 / 48"),
        ([*CLIENT, "privacy.delta=0.1"], 10, "1 / 10"),
        ([*CLIENT, "privacy.delta=0.005"], 299, "1 / 299"),
    ],
)
def test_a_delta_that_publishes_somebody_is_refused(settings, n_clients, allowed):
    """By how many clients there are, whatever the settings call them."""
    with pytest.raises(ConfigError, match=rf"privacy\.delta = .* must be below {allowed}"):
        config(*settings).privacy.require_clients(n_clients)
    config(*settings).privacy.require_clients(3)


@pytest.mark.parametrize("level", [CLIENT, RECORD], ids=["client", "record"])
def test_masks_of_layers_that_draw_are_each_clients_own(level):
    """With secret noise no seed gives a Dropout's masks, and none depends on another client."""
    drawn, runs = [], []

    class Mask(nn.Dropout):
        def forward(self, x):
            if self.training:
                drawn.append(torch.default_generator.initial_seed())
            return super().forward(x)

    model = nn.Sequential(nn.Linear(12, 8), Mask(0.5), nn.Linear(8, 4)).double()
    secret_noise = [s for s in level if s != "privacy.noise=seeded"]
    for _ in range(2):
        made = config(*secret_noise, "run.rounds=1")
        rounds = simulated(made, task("group", model=model), None, None)
        drawn.clear()  # what the guard drew
        rounds.run(None)
        runs.append(set(drawn))
    assert all(len(seeds) >= 6 for seeds in runs)
    assert not runs[0] & runs[1]


# --- nobody sees a value without noise ---


@dataclass
class Overheard:
    """What went through `noisy`, and what clients signed."""

    quiet: dict = field(default_factory=dict)
    """Noisy tensors by id: (with noise, without, deviation)."""
    sent: list = field(default_factory=list)
    """(client, message, tensors)."""
    sealed: list = field(default_factory=list)
    """What sealers of either kind got."""


@pytest.fixture
def overheard(monkeypatch):
    found = Overheard()
    noisy, contribute = distributed_noise.noisy, Client.contribute

    def noted(value, randomness, deviation):
        loud = noisy(value, randomness, deviation)
        found.quiet[id(loud)] = loud, value, deviation
        return loud

    def signed(client, run, round_number, spec, tensors, times=1, state="", *, model=""):
        found.sent.append((client.name, spec, dict(tensors)))
        return contribute(client, run, round_number, spec, tensors, times, state, model=model)

    def spied(sealer):
        seal = sealer.seal

        def noted_seal(self, values, weight, about, sender):
            found.sealed.append(values)
            return seal(self, values, weight, about, sender)

        monkeypatch.setattr(sealer, "seal", noted_seal)

    for module in (client_level, distributed_noise):
        monkeypatch.setattr(module, "noisy", noted)
    nothing_is_handed_over(monkeypatch)
    monkeypatch.setattr(Client, "contribute", signed)
    spied(PlainChannel)
    spied(OneTimeSealer)
    return found


EVERYTHING = (
    "algorithm.name=fixbn",
    "solver.name=scaffold",
    "train.momentum=0.5",
    "train.momentum_across_rounds=global",
    "fnr.name=matched",
    "privacy.clipping=adaptive",
    "privacy.dropouts=1",
    "privacy.colluders=1",
)


@pytest.mark.parametrize("encrypt", ["none", "statistics", "model"])
def test_all_that_clients_seal_has_a_whole_share_of_the_noise(overheard, encrypt):
    """Every vector of every kind, and of sums in the middle of a round: nobody gets another."""
    made = config(*CLIENT, *EVERYTHING, f"exchange.encrypt={encrypt}")
    run = securefl.run(made, task())
    kinds = {Kind.PARAMETERS, Kind.STATISTICS, Kind.MOMENTUM, Kind.CONTROL, Kind.CLIPPING}
    assert {spec.kind for _, spec, _ in overheard.sent} == kinds
    messages = [e for e in run.ledger.entries if e.receiver == "server" and e.sender != "authority"]
    messages = [e for e in messages if e.kind is not Kind.CARDS]
    assert len(messages) == len(overheard.sent) == len(overheard.sealed) == 2 * 6 * 7 - 6
    ratios = []
    for (_, spec, tensors), values in zip(overheard.sent, overheard.sealed, strict=True):
        for tensor in tensors.values():
            loud, quiet, deviation = overheard.quiet[id(tensor)]
            assert loud is tensor
            assert deviation >= 0.999 * share_of(spec)
            ratios.append(((loud - quiet) / deviation).flatten())
        packed = torch.cat([tensor.flatten() for tensor in tensors.values()])
        np.testing.assert_array_equal(values, packed.numpy())
    told = {(e.round, e.name) for e in messages if e.kind is not Kind.CLIPPING}
    assert run.history.client == (Gaussian(2.0, len(told)),)  # all of them were counted
    every = torch.cat(ratios)
    assert (every != 0).all()
    assert float(every.square().mean()) == pytest.approx(1, abs=0.05)


def share_of(spec):
    """The least deviation of a share: of four of six, with C that adapts by e^±0.2 at most."""
    whole = {"fnr/accuracies": 2.0 * 1.0, "fnr/norms": 2.0 * 1.5 * math.sqrt(8)}
    least = whole.get(spec.name, 2.0 * 0.05 * math.exp(-0.2))
    return (2.0 if spec.kind is Kind.CLIPPING else least) / math.sqrt(4)


def test_what_is_opened_is_noisy_too(overheard, monkeypatch):
    """The authority's total differs from that of the quiet values by σC or more."""
    opened, total = {}, ServerRound._total

    def noted(ongoing, spec):
        opened[spec.name] = total(ongoing, spec)
        return opened[spec.name]

    monkeypatch.setattr(ServerRound, "_total", noted)
    securefl.run(config(*CLIENT, SEALED, "run.rounds=1"), task())
    for name, total in opened.items():
        mine = [tensors for _, spec, tensors in overheard.sent if spec.name == name]
        off = [
            6 * value - sum(overheard.quiet[id(tensors[n])][1] for tensors in mine)
            for n, value in total.values.items()
        ]
        off = torch.cat([part.flatten() for part in off])
        assert float(off.square().mean().sqrt()) > 0.7 * 2.0 * 0.05
        if off.numel() > 50:
            assert float(off.square().mean().sqrt()) > 0.9 * 2.0 * 0.05


@pytest.mark.parametrize("level", [CLIENT, RECORD], ids=["client", "record"])
@pytest.mark.parametrize(
    "settings", [[], [SEALED], ["selection.name=random", "selection.fraction=0.7"]]
)
def test_how_many_records_a_client_has_shows_nowhere(level, settings):
    """One client with three times the records: messages of the same length, and the same ledger."""
    runs = [
        securefl.run(config(*level, *settings, "run.rounds=1"), task("group", sizes=sizes))
        for sizes in (SIZES, (*SIZES[:3], 3 * SIZES[3], *SIZES[4:]))
    ]
    one, other = (run.ledger.entries for run in runs)
    assert one == other
    assert {e.receiver for e in one} >= {"server", "client-1"}
    shown = [[(o.name, o.n_values, o.signers, o.n_clients) for o in run.openings] for run in runs]
    assert shown[0] == shown[1]
    assert [m.upload_bytes for m in runs[0].metrics] == [m.upload_bytes for m in runs[1].metrics]
    assert runs[0].history == runs[1].history


@pytest.mark.parametrize("level", [CLIENT, RECORD], ids=["client", "record"])
@pytest.mark.parametrize("weights", ["samples", "batch"])
def test_no_client_counts_by_its_records(level, weights):
    """Weights that tell its number of records are refused, and nothing is a default that tells."""
    with pytest.raises(ConfigError, match=r'algorithm\.weights = ".*set algorithm\.weights = "uni'):
        config(*level, f"algorithm.weights={weights}")
    told = [setting for setting in level if not setting.startswith("algorithm.weights")]
    with pytest.raises(ConfigError, match=r"algorithm\.weights"):
        config(*told)


# --- settings without a sound meaning ---

FIXBN = ("algorithm.name=fixbn",)
WINDOW = ("algorithm.switch=window", "algorithm.window=2", "run.rounds=4")
NOT_RECORD = ["fedtan", "fedtan-ii", "forward-only", "static-bn", "fedbn", "silobn", "local-affine"]

REFUSED = [
    # what nothing reads
    (["privacy.sigma=2.0"], r'privacy\.sigma = 2\.0 is read by nothing .*"none".*: leave it out'),
    (["privacy.clip=2.0"], r"privacy\.clip = 2\.0 is read by nothing .*: leave it out"),
    (
        ["privacy.clipping=flat", "privacy.delta=1e-3"],
        r"privacy\.delta = 0\.001 is read by nothing",
    ),
    (["privacy.budget=3.0"], r"privacy\.budget = 3\.0 is read by nothing"),
    (["privacy.noise=seeded"], r"privacy\.noise = 'seeded' is read by nothing"),
    ([*CLIENT, "privacy.records=8"], r"privacy\.records = 8 is read by nothing"),
    ([*CLIENT, "privacy.quantile=0.4"], r"privacy\.quantile = 0\.4 is read by nothing"),
    ([*CLIENT, "privacy.warm_up=2"], r"privacy\.warm_up = 2 is read by nothing"),
    ([*CLIENT, "privacy.releases=2"], r"privacy\.releases = 2 is read by nothing"),
    ([*CLIENT, "privacy.statistics_sigma=2.0"], r"privacy\.statistics_sigma = 2\.0 is read by"),
    ([*CLIENT, "privacy.statistics_clip=2.0"], r"privacy\.statistics_clip = 2\.0 is read by"),
    ([*CLIENT, "privacy.score_clip=2.0"], r"privacy\.score_clip = 2\.0 is read by nothing"),
    ([*RECORD, "privacy.dropouts=1"], r"privacy\.dropouts = 1 is read by nothing"),
    ([*RECORD, "privacy.colluders=2"], r"privacy\.colluders = 2 is read by nothing"),
    (
        [*RECORD, *FIXBN, "model.norm=batch", "privacy.warm_up=1", "privacy.releases=2"],
        r"privacy\.releases = 2 is read by nothing",
    ),
    # records
    *(
        (
            [*RECORD, f"algorithm.name={name}"],
            rf'level = "record" with algorithm\.name = "{name}": .*"fixbn" fre',
        )
        for name in NOT_RECORD
    ),
    (
        [*RECORD, *FIXBN, "model.norm=batch", "algorithm.freeze=affine"],
        r'algorithm\.freeze = "affine": .* freeze "statistics" or "both"',
    ),
    (
        [*RECORD, "algorithm.name=fixbn", "model.norm=batch", *WINDOW],
        r'algorithm\.switch = "window": .* give a round, or a share',
    ),
    ([*RECORD, "algorithm.local_epochs=1"], r"local_epochs = 1: .* give algorithm\.local_steps"),
    ([*RECORD, "solver.name=moon"], r'solver\.name = "moon": .* take another solver'),
    ([*RECORD, "solver.name=per-fedavg"], r'solver\.name = "per-fedavg": .* take another solver'),
    (
        [*RECORD, "solver.name=feddyn", "fnr.name=matched"],
        r'solver\.name = "feddyn" and fnr\.name = "matched": .* take another solver',
    ),
    ([*RECORD[:-3], "privacy.delta=1e-3", "model.norm=group"], r"needs privacy\.records: how many"),
    (
        [*RECORD, "train.batch_size=8"],
        r"batch_size = 8 with privacy\.records = 8: .* smaller batch",
    ),
    # clients
    *(
        (
            [*CLIENT, f"algorithm.name={name}"],
            rf'"client" with algorithm\.name = "{name}": .*take "fixbn" or',
        )
        for name in ("fedtan", "fedtan-ii", "forward-only")
    ),
    *(
        (
            [*CLIENT, f"algorithm.name={name}"],
            rf'"{name}": nothing is added up .*privacy\.level = "record"',
        )
        for name in ("centralised", "singlenet")
    ),
    (
        [*CLIENT, "algorithm.name=fixbn", *WINDOW],
        r'algorithm\.switch = "window": .* give a round, or a share',
    ),
    ([*CLIENT, "privacy.clipping=ghost"], r'privacy\.clipping = "ghost" .* take "flat"'),
    (
        [*CLIENT, "server.name=fednova"],
        r'server\.name = "fednova": .* take server\.name = "average"',
    ),
    (
        [*CLIENT, "selection.name=random", "selection.replacement=with"],
        r'selection\.replacement = "with": .* set selection\.replacement = "without"',
    ),
    # numbers
    ([*CLIENT, "privacy.sigma=0.001"], r"privacy\.sigma = 0\.001"),
    ([*CLIENT, "privacy.sigma=0.0"], r"privacy\.sigma = 0\.0"),
    ([*CLIENT, "privacy.clip=0.0"], r"privacy\.clip = 0\.0"),
    ([*CLIENT, "privacy.delta=0.5"], r"privacy\.delta = 0\.5"),
    ([*CLIENT, "privacy.level=both"], r"privacy\.level = "),
    ([*CLIENT, "privacy.sigmas=1.0"], r"privacy\.sigmas.*sigma"),
]


@pytest.mark.parametrize(
    ("settings", "message"), REFUSED, ids=lambda v: v if isinstance(v, str) else ""
)
def test_settings_without_a_sound_meaning_are_refused(settings, message):
    """The message names the keys, why, and the way out."""
    with pytest.raises(ConfigError, match=message):
        config(*settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["privacy.dropouts=5"], r"privacy\.dropouts = 5 and privacy\.colluders = 1 of 6 clients"),
        (
            ["selection.name=random", "privacy.dropouts=1"],
            r"of 2 clients in a round: .* lower them",
        ),
        (["privacy.sigma=1e6", "privacy.colluders=5"], r"σ = 1e\+06 on .* take a smaller σ"),
    ],
)
def test_what_only_a_task_shows_is_refused_before_anything_is_written(tmp_path, settings, message):
    """Shares that are none, and noise that is all rounding."""
    if "selection.name=random" in settings:
        settings = [*settings, "selection.fraction=0.3"]
    with pytest.raises(ConfigError, match=message):
        securefl.run(config(*CLIENT, *settings), task("group"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


AXES = {
    "algorithm": [
        *["fedtan", "fedtan-ii", "forward-only", "fixbn", "fedavg", "fedbn", "silobn"],
        *["local-affine", "fedper", "static-bn", "singlenet", "centralised"],
    ],
    "solver": [
        "sgd",
        "fedprox",
        "scaffold",
        "moon",
        "feddyn",
        "feddc",
        "per-fedavg",
        "agc",
        "ditto",
    ],
    "server": ["average", "momentum", "fedadam", "fedadagrad", "fedyogi", "fednova"],
    "selection": ["all", "random", "data-share", "fedprof", "afl", "cfcfm"],
    "fnr": ["none", "matched", "literal", "server"],
}
SIMPLEST = {"solver": "sgd", "server": "average", "selection": "all", "fnr": "none"}


class RoundDoneError(Exception):
    """After the first."""


def tried(level, names):
    """What comes of a round with these names: `refused`, or `ran`."""
    alone = names["algorithm"] in {"fedavg", "fedper", "singlenet", "centralised"}
    norm = "group" if alone and level is RECORD else "batch"
    private = names["selection"] == "fedprof" or (names["algorithm"] == "fixbn" and level is RECORD)
    made = [*level, *(f"{table}.name={name}" for table, name in names.items())]
    made += [f"model.norm={norm}", "algorithm.local_steps=1"]
    made += ["privacy.statistics_sigma=0.02"] if private else []
    made += ["selection.fraction=0.8"] if names["selection"] != "all" else []
    made += ["devices.preset=emnist"] if names["selection"] == "cfcfm" else []
    try:
        rounds = simulated(config(*made), task(norm), None, None)
    except (ConfigError, DataError) as error:
        refusal = str(error)
    else:
        return after_one_round(rounds)
    # It says which setting, and what to do.
    assert re.search(r"\w\.\w+ ?[=:]|needs batch norm", refusal), refusal
    assert re.search(r"\b(set|take|leave|give|freezes?|use|have)\b", refusal), refusal
    return "refused"


def after_one_round(rounds):
    """What there is then is all numbers, and something was spent."""
    rounds._odometer.epsilon = lambda done: None  # what it spends is another test's

    def stop(metrics):
        raise RoundDoneError

    with pytest.raises(RoundDoneError):
        rounds.run(stop)
    (metrics,) = rounds._metrics
    assert math.isfinite(metrics.loss)
    assert 0 <= metrics.accuracy <= 1
    assert not metrics.dropped
    tensors = [v for named in rounds._state.tensors.values() for v in named.values()]
    assert all(torch.isfinite(value).all() for value in tensors)
    assert rounds._odometer.history.events(rounds._odometer.spending.level)
    return "ran"


def pairs(first, second):
    for one, other in itertools.product(AXES[first], AXES[second]):
        yield {"algorithm": "fedavg", **SIMPLEST, first: one, second: other}


@pytest.fixture
def guarded_once(monkeypatch):
    """The guard looks at each model once: it knows nothing of the names beside its algorithm."""
    passed, guard = set(), job_module.require_independent_records

    def once(settings, *rest):
        seen = settings.algorithm.name, settings.model, settings.privacy.clipping
        if seen not in passed:
            guard(settings, *rest)
        passed.add(seen)

    monkeypatch.setattr(job_module, "require_independent_records", once)


@pytest.mark.usefixtures("guarded_once")
@pytest.mark.parametrize("axis", ["solver", "server", "selection", "fnr"])
@pytest.mark.parametrize(
    ("level", "least"), [(CLIENT, 1 / 3), (RECORD, 1 / 8)], ids=["client", "record"]
)
def test_every_algorithm_with_every_name_is_refused_or_runs(level, least, axis):
    """No pair of names fails in the middle of a round, or trains to something that is no number."""
    found = Counter(tried(level, names) for names in pairs("algorithm", axis))
    assert found["ran"] > least * found.total()
    assert found["refused"]


@pytest.mark.slow
@pytest.mark.usefixtures("guarded_once")
@pytest.mark.parametrize(
    ("level", "algorithm"),
    [
        pytest.param(CLIENT, "fixbn", id="client-fixbn"),
        pytest.param(RECORD, "fedavg", id="record-fedavg"),
        pytest.param(CLIENT, "fedavg", id="client-fedavg", marks=pytest.mark.full),
        pytest.param(RECORD, "fixbn", id="record-fixbn", marks=pytest.mark.full),
    ],
)
def test_every_two_names_beside_an_algorithm_are_refused_or_run(level, algorithm):
    """The other axes against each other."""
    others = [("solver", "selection"), ("server", "selection"), ("solver", "fnr")]
    found = Counter(
        tried(level, {**names, "algorithm": algorithm}) for pair in others for names in pairs(*pair)
    )
    assert found["ran"] > found["refused"]


# --- models in which records act on each other ---


class OwnForward(nn.BatchNorm1d):
    """A subclass that normalises by itself."""

    def forward(self, y):
        return (y - y.mean(0)) / (y.std(0) + 1)


class InForward(nn.Module):
    """Batch normalisation without a layer of it."""

    def forward(self, y):
        return functional.batch_norm(y, None, None, training=True)


class Shortcut(nn.Module):
    """A residual block whose shortcut alone has batch norm."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))
        self.downsample = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))

    def forward(self, y):
        return functional.relu(self.inner(y) + self.downsample(y))


class Instances(nn.Module):
    """Instance normalisation that keeps statistics of all records."""

    def __init__(self):
        super().__init__()
        self.norm = nn.InstanceNorm1d(2, track_running_stats=True)

    def forward(self, y):
        return self.norm(y.reshape(-1, 2, 3)).reshape(-1, 6)


def frozen_affine():
    return nn.BatchNorm1d(6).requires_grad_(False)


COUPLED = {
    "no affine parameters": lambda: nn.BatchNorm1d(6, affine=False),
    "frozen affine parameters": frozen_affine,
    "a forward of its own": lambda: OwnForward(6),
    "in a forward": InForward,
    "in a shortcut": Shortcut,
    "instance norm with running statistics": Instances,
}


def around(layer):
    return nn.Sequential(nn.Linear(12, 6), layer, nn.Linear(6, 4))


@pytest.mark.parametrize("shape", COUPLED)
def test_a_model_that_couples_records_is_refused_before_anything_is_written(tmp_path, shape):
    """Whatever model.norm says: the guard looks at the model that is trained."""
    job = task(model=around(COUPLED[shape]()))
    with pytest.raises(CouplingFound) as caught:
        securefl.run(config(*RECORD), job, out=tmp_path / "run")
    assert caught.value.layer.startswith("1")
    assert not (tmp_path / "run").exists()
    # At client level a client may mix its own records.
    if shape != "instance norm with running statistics":
        securefl.run(config(*CLIENT, "run.rounds=1"), job)


@pytest.mark.parametrize(
    "shape", ["a forward of its own", "in a forward", "instance norm with running statistics"]
)
def test_what_freezing_does_not_freeze_is_refused_too(tmp_path, shape):
    """FixBN puts torch's BN layers to rest, and the guard sees what is left."""
    model = nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6), COUPLED[shape](), nn.Linear(6, 4))
    made = config(*RECORD, *FIXBN, "model.norm=batch", "privacy.statistics_sigma=0.02")
    with pytest.raises((CouplingFound, DataError), match=r"'2'|'2\.norm'"):
        securefl.run(made, task(model=model), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_loss_that_couples_records_is_refused(tmp_path):
    """Class weights are divided by their sum over a batch."""
    job = task(
        "group", loss=nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 2.0, 5.0]).double())
    )
    with pytest.raises(CouplingFound, match=r"^the loss mixes the records"):
        securefl.run(config(*RECORD), job, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("level", [CLIENT, RECORD], ids=["client", "record"])
def test_an_algorithm_of_ones_own_is_refused(tmp_path, level):
    """Also one of ours that was built by hand, noise and all: nobody accounts for it."""
    noise = distributed_noise.ClientNoise(1.0, 1.0, Clipping.FLAT, DistributedNoise(6))
    for own in (Federated(), ClientLevel(Federated(), noise, secret)):
        with pytest.raises(
            ConfigError, match=r"privacy\.level = .*algorithm of your own.*leave pri"
        ):
            securefl.run(config(*level), task("group", algorithm=own), out=tmp_path / "run")
        assert not (tmp_path / "run").exists()
