"""The grid over processes: whatever a simulation runs, separate processes run to the same bits."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from statistics import fmean

import pytest
import torch
from over_loopback import NAMES, SHORT, Consortium, Job, incidents_of, made_up_task, model_of
from pairs import each, marked, refused
from process_axes import BESIDE, CENTRAL, ENCRYPT, LOCAL, NORMALISATIONS, RECORDS, SELECTIONS

import securefl
from securefl.build.job import job_of
from securefl.build.simulation import simulated
from securefl.errors import ConfigError, DataError
from securefl.federation.message import CARD, SCORING
from securefl.federation.opening import Opening
from securefl.runs.folder_files import OPENINGS
from securefl.runs.folder_reader import read_rows, read_run

pytestmark = pytest.mark.usefixtures("quick")

FIRST = dict(
    zip(
        BESIDE,
        (
            *("fixbn, window", "fedtan, fused", "silobn", "fedtan", "fedbn", "fedtan-ii"),
            *("fixbn, both", "local-affine", "forward-only", "fedbn", "fixbn, affine", "static-bn"),
            *("fixbn", "fixbn", "fedtan", "fedavg", "singlenet"),
        ),
        strict=True,
    )
)
"""The normalisation that each of them goes with where not all products are run."""
PROFILED = ("exchange.encrypt=profiles", *SELECTIONS["fedprof"])
ROUNDING = 1e-6
"""Of a weight after two rounds. Sealed totals are right to about 2⁻³² of their largest value, so
their noise, another in each run, turns at most the last bit of a weight of 32 bits, and training
goes on from that. Mostly it turns none."""


def chosen(*axes, ordinary):
    """All products for `parametrize`; those that `ordinary` does not pick are marked `full`."""
    return [
        pytest.param(*names, id="-".join(names), marks=() if ordinary(*names) else pytest.mark.full)
        for names in product(*axes)
    ]


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture
def job(consortium, tmp_path):
    return lambda settings, **task: Job(
        consortium, tmp_path / "job", settings, made_up_task(**task)
    )


def same_run(job):
    """Both folders' models to the bit, metrics, selections and messages; no incidents."""
    over, alone = job.over_loopback(), job.simulated()
    model, wanted = model_of(over), model_of(alone)
    assert model.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(model[name], wanted[name])] == []
    there, here = read_run(over), read_run(alone)
    messages, asked = without_scores(there.ledger)
    assert sorted(map(repr, messages)) == sorted(map(repr, here.ledger))
    assert told(there, asked) == told(here)
    assert there.participants == here.participants
    assert incidents_of(over) == incidents_of(alone) == ""
    return there


def without_scores(ledger):
    """All messages but those that bring a client's score, which a simulation works out where the
    models are; and the bytes of these by round.
    """
    asked = [entry for entry in ledger if entry.name in SCORING]
    n_bytes = {entry.round: 0 for entry in asked}
    for entry in asked:
        n_bytes[entry.round] += entry.bytes
    return [entry for entry in ledger if entry.name not in SCORING], n_bytes


def told(record, asked=None):
    """Metrics without what differs: seconds, and what clients were asked to send beside."""
    asked = asked or {}
    return [
        replace(m, seconds=0.0, upload_bytes=m.upload_bytes - asked.get(m.round, 0))
        for m in record.metrics
    ]


ALGORITHMS = NORMALISATIONS, LOCAL, CENTRAL


# `test_grid` has every pair of them.
@pytest.mark.parametrize(
    ("policy", "solver", "server"),
    marked(product(*ALGORITHMS), each(ALGORITHMS, product(*ALGORITHMS))),
)
def test_every_algorithm_ends_where_a_simulation_does(policy, solver, server, job):
    """Model to the bit, metrics and messages; or both refuse, for the same reason."""
    parts = NORMALISATIONS[policy], LOCAL[solver], CENTRAL[server]
    settings = [setting for part in parts for setting in part]
    if refusal(settings):
        refused_alike(settings)
    else:
        same_run(job(settings))


# Of clients in threads of one process, one restores the filters under which another ignores this.
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize(
    ("beside", "policy"),
    chosen(BESIDE, NORMALISATIONS, ordinary=lambda beside, policy: policy == FIRST[beside]),
)
def test_whatever_goes_beside_an_algorithm_ends_where_a_simulation_does(beside, policy, job):
    """Selection, momentum, refinement, noise and precision; or both refuse."""
    settings = *NORMALISATIONS[policy], *BESIDE[beside]
    if refusal(settings):
        refused_alike(settings)
    else:
        same_run(job(settings))


@pytest.mark.parametrize("policy", ["fedavg", "fedbn"])
def test_clients_test_their_models_on_data_of_their_own(policy, job):
    """The score is the mean of theirs, as each has worked it out where its data are."""
    record = same_run(job(NORMALISATIONS[policy], own_tests=True))
    last = record.metrics[-1]
    assert last.clients.keys() == set(NAMES)
    assert last.loss == fmean(of.loss for of in last.clients.values())
    assert len({of.loss for of in last.clients.values()}) == len(NAMES)


SEALED_AS = {name: (f"exchange.encrypt={name}",) for name in ENCRYPT}


# Whatever runs is sealed once below.
@pytest.mark.parametrize(
    ("policy", "encrypt"),
    chosen(
        *(NORMALISATIONS, SEALED_AS),
        ordinary=lambda *names: refused((NORMALISATIONS, SEALED_AS), names),
    ),
)
def test_sealed_every_normalisation_ends_where_a_simulation_does(policy, encrypt, job, key_set):
    """But for rounding; messages and what the authority has opened are the same."""
    settings = (*NORMALISATIONS[policy], f"exchange.encrypt={encrypt}")
    if refusal(settings):
        refused_alike(settings)
    else:
        nearly_the_same_run(job(settings), key_set)


SEALED_AXES = *ALGORITHMS, SEALED_AS


@pytest.mark.parametrize(
    ("policy", "solver", "server", "encrypt"), each(SEALED_AXES, product(*SEALED_AXES))
)
def test_sealed_every_algorithm_ends_where_a_simulation_does(
    policy, solver, server, encrypt, job, key_set
):
    """Each normalisation, solver and server optimiser is sealed once at least."""
    names = policy, solver, server, encrypt
    parts = [axis[name] for axis, name in zip(SEALED_AXES, names, strict=True)]
    settings = [setting for part in parts for setting in part]
    assert refusal(settings) == ""
    nearly_the_same_run(job(settings), key_set)


SEALED_BESIDE = {
    "scaffold, fedadam": ("fedtan", "statistics", LOCAL["scaffold"], CENTRAL["fedadam"]),
    "fedprox, afl, momentum": (
        *("silobn", "model", LOCAL["fedprox"], SELECTIONS["afl"]),
        BESIDE["momentum, local"],
    ),
    "fnr": ("fedavg", "model", BESIDE["fnr, matched"]),
    "records": ("fixbn", "statistics", RECORDS),
    "clients": ("fedavg", "model", BESIDE["clients"]),
}
"""Settings beside a sealed normalisation, so that each axis of the grid is sealed once at least."""


# As above: of clients in threads of one process.
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("beside", SEALED_BESIDE)
def test_sealed_whatever_goes_beside_ends_where_a_simulation_does(beside, job, key_set):
    policy, encrypt, *others = SEALED_BESIDE[beside]
    settings = [setting for other in others for setting in other]
    settings = [*NORMALISATIONS[policy], f"exchange.encrypt={encrypt}", *settings]
    assert refusal(settings) == ""
    nearly_the_same_run(job(settings), key_set)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(PROFILED, id="profiles"),
        pytest.param(
            (*PROFILED, "algorithm.name=fedtan", "exchange.encrypt=statistics,profiles"),
            id="statistics and profiles",
        ),
        pytest.param((*PROFILED, "exchange.encrypt=model", *LOCAL["scaffold"]), id="model"),
    ],
)
def test_sealed_profiles_select_as_a_simulation_does(settings, job, key_set):
    """Scores are opened by the authority; the same clients are drawn by them."""
    record = nearly_the_same_run(job(settings), key_set)
    assert all(each.scores for each in record.participants)


def refusal(settings):
    """Why a simulation refuses these settings; empty where it runs them."""
    try:
        simulated(*asked(settings))
    except (ConfigError, DataError) as error:
        return str(error)
    return ""


def refused_alike(settings):
    """A party refuses the settings, too, before it connects to anybody."""
    with pytest.raises((ConfigError, DataError)):
        job_of(*asked(settings))


def asked(settings):
    return securefl.load_config(None, [*SHORT, *settings]), made_up_task()


def nearly_the_same_run(job, key_set):
    """As `same_run`, with sealed sums: to the rounding."""
    over, alone = job.over_loopback(), job.simulated(key_set)
    model, wanted = model_of(over), model_of(alone)
    assert model.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(model[name], value, atol=ROUNDING, rtol=0)
    there, here = read_run(over), read_run(alone)
    messages, _ = without_scores(there.ledger)
    # Who is not selected gives a card, too, for the sum of scores.
    sent, wanted = ([repr(e) for e in of if e.name != CARD] for of in (messages, here.ledger))
    assert sorted(sent) == sorted(wanted)
    assert [(t.selected, t.present) for t in there.participants] == [
        (t.selected, t.present) for t in here.participants
    ]
    opened = [one for one in openings(job.openings) if one.name not in SCORING]
    assert opened == openings(alone / OPENINGS)
    assert incidents_of(over) == incidents_of(alone) == ""
    return there


def openings(path):
    """What was opened, of whom; keys are others, and models by the last bits of their weights."""
    return [replace(row, key_id="", epoch=0, run="", model="") for row in read_rows(path, Opening)]
