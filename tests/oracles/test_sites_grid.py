"""All of the grid over gRPC, of sites that each have a file of their own.

Marked `full` are all products but a few, which have each value of each axis and are not refused.
"""

from itertools import product

import pytest
import torch
from key_folders import cheap
from over_loopback import NAMES, Consortium, incidents_of, model_of
from pairs import each, marked
from process_axes import BESIDE, CENTRAL, ENCRYPT, LOCAL, NORMALISATIONS
from processes import Loop
from site_files import TABLES, OwnData

import securefl
from securefl.build.own_data import task_at
from securefl.build.simulation import simulated
from securefl.errors import ConfigError, DataError
from securefl.network.party import client_party
from securefl.network.server import server_job
from securefl.runs.folder_reader import read_run

pytestmark = [
    pytest.mark.usefixtures("quick"),
    # Of clients in threads of one process, one restores the filters under which another ignores it.
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]
ROUNDING = 1e-6
"""Of a weight up to 1, and relative to a larger one: as in `test_processes_grid`. Columns that are
not standardised have variances of 850, whose last of 32 bits is 6e-5. Mostly no bit is turned."""

ARRAYS = (
    *("samples.shape=[1, 4, 4]", 'samples.classes=["a", "b"]', "samples.most=64"),
    "samples.standardise=false",
)
"""For privacy, with which nothing is standardised: sums of columns would have no noise."""


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture
def job(consortium, files, tmp_path):
    """Makes a job of these settings beside the tables'."""

    def made(*settings, form=TABLES):
        here = OwnData(consortium, tmp_path, (*form, *settings))
        here.files = files
        return here

    return made


def refusal(job):
    """Why a rehearsal refuses these settings; empty where it runs them."""
    try:
        simulated(job.config, task_at(job.config, job.sites))
    except (ConfigError, DataError) as error:
        return str(error)
    return ""


def refused_alike(job):
    """Server and clients refuse the settings, too, before they connect to anybody."""
    for party in (
        lambda: server_job(job.config, data=job.server_file),
        lambda: client_party(job.config, job.identity("alice"), job.folder, job.sites["alice"]),
    ):
        with pytest.raises((ConfigError, DataError)):
            party()


def both(job, key_set=None):
    """Models over gRPC and of the rehearsal; no incident."""
    loop = Loop(job)
    with cheap():
        loop.run()
    assert loop.ended == dict.fromkeys(NAMES), loop.said
    assert incidents_of(job.folder / "run") == ""
    config, alone = job.config, job.folder / "alone"
    if key_set:  # which outlives the run
        run = config.run.model_copy(update={"reproducible": False})
        config = config.model_copy(update={"run": run})
    securefl.run(config, securefl.task_of_sites(config, job.sites), keys=key_set, out=alone)
    model, wanted = model_of(job.folder / "run"), model_of(alone)
    assert model.keys() == wanted.keys()
    there, here = read_run(job.folder / "run"), read_run(alone)
    assert there.participants == here.participants
    return model, wanted


def same_bits(job, *, runs):
    """Both end with the same model, to the bit, or all refuse the settings unless it `runs`."""
    if why := refusal(job):
        assert not runs, why
        refused_alike(job)
        return
    model, wanted = both(job)
    assert [name for name in wanted if not torch.equal(model[name], wanted[name])] == []


POLICIES = NORMALISATIONS | {
    "bn-scaffold": (*NORMALISATIONS["bn-scaffold"], "algorithm.weights=uniform"),
    "fbn": (*NORMALISATIONS["fbn"], "train.lr=1e-5"),
}
"""Of sites that keep their sizes to themselves control variates take equal weights alone. Tables
are as they are, and FBN's first rounds normalise by the statistics that the model began with."""
ALGORITHMS = POLICIES, LOCAL, CENTRAL
USUAL = {"fedavg": POLICIES["fedavg"]}
FEW = each((USUAL, LOCAL, CENTRAL), product(USUAL, LOCAL, CENTRAL))
"""Solvers and servers; `FEW_AROUND` has every normalisation."""
AROUND = BESIDE, POLICIES
FEW_AROUND = each(AROUND, product(*AROUND))
SEALED = *ALGORITHMS, {name: (f"exchange.encrypt={name}",) for name in ENCRYPT}
SUMS = {name: POLICIES[name] for name in ("fedavg", "fedtan", "hbn")}
FEW_SEALED = each((SUMS, *SEALED[1:]), product(SUMS, *SEALED[1:]))
"""The others are sealed in `test_processes_grid`."""


def settings_of(axes, names):
    return [setting for axis, name in zip(axes, names, strict=True) for setting in axis[name]]


@pytest.mark.parametrize(("policy", "solver", "server"), marked(product(*ALGORITHMS), FEW))
def test_in_the_clear_the_bits_are_those_of_a_rehearsal(policy, solver, server, job):
    names = policy, solver, server
    same_bits(job(*settings_of(ALGORITHMS, names)), runs=names in FEW)


@pytest.mark.parametrize(("beside", "policy"), marked(product(*AROUND), FEW_AROUND))
def test_so_they_are_with_whatever_goes_beside(beside, policy, job):
    private = "records" in beside or "clients" in beside
    form, names = ARRAYS if private else TABLES, (beside, policy)
    same_bits(job(*settings_of(AROUND, names), form=form), runs=names in FEW_AROUND)


@pytest.mark.parametrize(
    ("policy", "solver", "server", "encrypt"),
    marked(product(*SEALED), FEW_SEALED),
)
def test_sealed_they_are_the_same_to_the_rounding(policy, solver, server, encrypt, job, key_set):
    names = policy, solver, server, encrypt
    here = job(*settings_of(SEALED, names))
    if why := refusal(here):
        assert names not in FEW_SEALED, why
        refused_alike(here)
        return
    model, wanted = both(here, key_set)
    for name, value in wanted.items():
        torch.testing.assert_close(model[name], value, atol=ROUNDING, rtol=ROUNDING)
