"""Sites that bring their own data: over processes the bits of a rehearsal on one machine."""

import asyncio
import json
import re
import sys
from functools import partial

import numpy as np
import pytest
import torch
from over_loopback import NAMES, SHORT, SIZES, Consortium, incidents_of, model_of
from process_axes import BESIDE
from processes import Loop, until_refused
from site_files import COLUMNS, TABLES, OwnData
from small_audit import audits_are_tiny

import securefl
import securefl.network.client
from securefl.audit import audits
from securefl.audit.exposure.evidence import FolderEvidence, leaks_in
from securefl.audit.replay import replayed
from securefl.audit.targets import public_rows
from securefl.build.job import job_of
from securefl.build.own_data import task_at, task_of_sites
from securefl.build.own_model import code_of
from securefl.build.selection import numbers_of
from securefl.build.training import precision_of
from securefl.data.catalogue import Targets
from securefl.errors import ConfigError, DataError, RunFolderError
from securefl.federation.message import SCORES
from securefl.io import allowed_code
from securefl.io.tensors import read_tensors
from securefl.network.party import client_party
from securefl.network.server import server_job
from securefl.network.store import MODELS
from securefl.runs.folder_reader import read_config, read_run
from securefl.runs.folder_writer import RunFolder
from securefl.runs.task_record import SiteRecord, site_record
from securefl.settings.clashes import public_reader

pytestmark = pytest.mark.usefixtures("quick", "no_hang")
NUMBERS = (
    *(setting for setting in TABLES if "classes" not in setting and "ill" not in setting),
    "samples.target=age2",
)
PICTURES = ("samples.shape=[1, 4, 4]", 'samples.classes=["a", "b"]', "samples.most=64")
WAYS = {
    "fedavg": TABLES,
    "fedtan": (*TABLES, "algorithm.name=fedtan"),
    "numbers": (*NUMBERS, "train.lr=0.01"),
    "survival": (*NUMBERS, "samples.event=dead", "train.lr=0.01"),
    "batches count": (*TABLES, "algorithm.weights=batch"),
    "some take part": (
        *TABLES,
        *("solver.name=scaffold", "selection.name=random", "selection.fraction=0.6"),
    ),
    "own layers": (*TABLES, "algorithm.name=fedbn"),
    "records": (
        *(*PICTURES, "samples.standardise=false", "algorithm.weights=uniform"),
        "algorithm.name=fixbn",
        *("privacy.level=record", "privacy.records=30", "privacy.noise=seeded"),
        "privacy.statistics_sigma=0.1",
    ),
    "by losses": (*TABLES, *BESIDE["afl"]),
    "by sizes": (*TABLES, *BESIDE["data-share"]),
    "by profiles": (*TABLES, *BESIDE["fedprof"]),
    "by profiles, theorem 1": (*TABLES, *BESIDE["fedprof"], "selection.alpha=theorem1"),
    "the weakest refined": (*TABLES, *BESIDE["fnr, matched"], "algorithm.name=fedtan"),
    "tuned by the server": (*PICTURES, *BESIDE["fnr, server"], "algorithm.name=silobn"),
    "warmed up": (
        *(*PICTURES, "samples.standardise=false", "algorithm.weights=uniform"),
        *("algorithm.name=fixbn", "privacy.warm_up=2"),
        *("privacy.level=record", "privacy.records=30", "privacy.noise=seeded"),
    ),
    "arrays": (*PICTURES, "model.name=cnn", "model.width=4"),
    "arrays, flat": PICTURES,
    "arrays, of numbers": (
        *("samples.shape=[1, 4, 4]", "samples.most=64"),
        *("model.name=cnn", "model.width=4", "train.lr=0.01"),
    ),
}


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium"))


# Of clients in threads of one process, one restores the filters under which another ignores this.
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_sites_with_files_of_their_own_end_where_a_rehearsal_does(
    consortium, files, tmp_path, settings
):
    """To the bit; no site's data is anywhere else, and its size where it is asked for alone."""
    job = OwnData(consortium, tmp_path, settings)
    job.files = files
    loop = Loop(job)
    loop.run()
    assert loop.ended == dict.fromkeys(NAMES), loop.said
    alone = tmp_path / "alone"
    result = securefl.run(job.config, securefl.task_of_sites(job.config, job.sites), out=alone)
    model, wanted = model_of(tmp_path / "run"), model_of(alone)
    assert model.keys() == wanted.keys()
    assert all(torch.equal(model[name], wanted[name]) for name in wanted)
    assert incidents_of(tmp_path / "run") == ""
    over = job.record.metrics
    assert [(m.score, m.loss) for m in over] == [(m.score, m.loss) for m in result.metrics]
    metrics = {Targets.CLASSES: over[0].metric, Targets.NUMBERS: "r2", Targets.SURVIVAL: "c-index"}
    assert {m.metric for m in over} == {metrics[job.config.targets]}
    for name, own in result.own.items():  # and each site keeps its own part of the model
        (path,) = (job.party(name).folder / MODELS).iterdir()
        part = read_tensors(path)
        assert part.keys() == own.keys()
        assert all(torch.equal(part[n], own[n]) for n in own)
    if not public_reader(job.config):
        assert leaks_without_data(tmp_path / "run") == []


def leaks_without_data(folder):
    """Return what an audit of logs alone finds: it expects messages by zeros in place of data."""
    run = read_run(folder)
    task = task_at(run.config, {})
    expected = replayed(run.config, task, lambda _done, _all: None, run.participants).ledger
    job = job_of(run.config, task)
    scores = {spec.name: spec.n_values for spec in job.score_sums}
    scores |= {name: 1 for name in numbers_of(job) if name in SCORES}
    return leaks_in(FolderEvidence.of(run), expected, precision_of(task.model), scores)


@pytest.mark.parametrize("settings", [("algorithm.name=fedtan",), ("solver.name=scaffold",)])
def test_sealed_they_end_there_to_the_rounding(consortium, files, tmp_path, key_set, settings):
    """The server knows bounds of the weights alone, which sealed totals do not exceed."""
    sealed = ("exchange.encrypt=model", *settings)
    if "fedtan" in settings[0]:
        sealed = ("exchange.encrypt=statistics", *settings)
    job = OwnData(consortium, tmp_path, (*TABLES, *sealed, "run.reproducible=true"))
    job.files = files
    loop = Loop(job)
    loop.run()
    assert loop.ended == dict.fromkeys(NAMES), loop.said
    run = job.config.run.model_copy(update={"reproducible": False})
    config = job.config.model_copy(update={"run": run})
    result = securefl.run(config, securefl.task_of_sites(config, job.sites), keys=key_set)
    wanted = result.model.state_dict()
    for name, value in model_of(tmp_path / "run").items():
        torch.testing.assert_close(value, wanted[name], atol=1e-6, rtol=1e-6)
    assert incidents_of(tmp_path / "run") == ""


NET = """
import torch
from torch import nn

def net(shape, n_outputs):
    hidden = nn.Linear(shape[0], 7), nn.BatchNorm1d(7), nn.Tanh()
    return nn.Sequential(*hidden, nn.Linear(7, n_outputs))

def told(outputs, targets):
    ill = targets == 1
    return (outputs[ill].argmax(dim=1) == 1).double().mean()

def wrong(outputs, targets):
    raise KeyError("Smith")

def none(shape, n_outputs):
    return "a model"

def short(shape):
    return nn.Linear(2, 2)

def failing(shape, n_outputs):
    raise RuntimeError("Smith")
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A module with a model, which all parties have installed."""
    folder = tmp_path / "installed"
    folder.mkdir()
    (folder / "hospital_nets.py").write_text(NET)
    monkeypatch.syspath_prepend(str(folder))
    yield folder / "hospital_nets.py"
    sys.modules.pop("hospital_nets", None)


OWN_MODEL = "model.name=hospital_nets:net"


def allowed(job, folder):
    """The sites' files, each with a line that lets the model run."""
    found = {}
    for name, path in job.sites.items():
        found[name] = folder / f"{name}.toml"
        train = path.parent / "patients.csv"
        found[name].write_text(f'train = "{train}"\nmodel = "hospital_nets:net"\n')
    return found


def test_a_model_of_their_own_ends_where_a_rehearsal_does(consortium, files, tmp_path, code):
    """Code of each party's installation, which each has allowed."""
    job = OwnData(consortium, tmp_path, (*TABLES, OWN_MODEL))
    job.files = files
    with pytest.raises(ConfigError, match='allow it with model = "hospital_nets:net" in'):
        job.party("alice")
    with pytest.raises(ConfigError, match="allow it with --model hospital_nets:net"):
        server_job(job.config)
    job.paths = allowed(job, tmp_path)
    loop = OwnModel(job)
    loop.run()
    assert loop.ended == dict.fromkeys(NAMES), loop.said
    result = securefl.run(job.config, securefl.task_of_sites(job.config, job.paths))
    model, wanted = model_of(tmp_path / "run"), result.model.state_dict()
    assert "1.0.weight" in model
    assert all(torch.equal(model[name], wanted[name]) for name in model)


class OwnModel(Loop):
    """A loop whose server has allowed the model."""

    def _server(self):
        server = super()._server
        with pytest.MonkeyPatch.context() as patch:
            job = partial(server_job, model=self.config.model.name)
            patch.setattr("processes.server_job", job)
            return server()


def test_a_metric_of_their_own_scores_each_site(
    consortium, files, tmp_path, code, key_set, monkeypatch
):
    """Over sites it is the mean of their values, weighted by their test samples."""
    monkeypatch.setattr(allowed_code, "_ALLOWED", set())
    metric = "hospital_nets:told"
    settings = (*TABLES, "exchange.encrypt=model", f"run.metric={metric}")
    job = OwnData(consortium, tmp_path, settings)
    job.files = files
    assert len(code_of(job.config)) == 64  # each party's is compared with the server's
    allowed_code._ALLOWED.clear()
    for party in (partial(job.party, "alice"), partial(server_job, job.config)):
        with pytest.raises(ConfigError, match=f"allow it with securefl --code {metric}"):
            party()
    securefl.allow_code(metric)
    loop = Loop(job)
    loop.run()
    assert loop.ended == dict.fromkeys(NAMES), loop.said
    run = job.config.run.model_copy(update={"reproducible": False})
    config = job.config.model_copy(update={"run": run})
    task = securefl.task_of_sites(config, job.sites)
    result = securefl.run(config, task, keys=key_set)
    for over, here in zip(job.record.metrics, result.metrics, strict=True):
        assert over.metric == here.metric == metric
        assert over.score == pytest.approx(here.score, abs=1e-6)
        assert over.pooled.value == pytest.approx(here.pooled.value, abs=1e-6)
    last = result.metrics[-1]
    n = [len(y) for _, y in task.client_tests]
    by_hand = np.average([of.score for of in last.clients.values()], weights=n)
    assert last.pooled.value == pytest.approx(by_hand)


def test_other_code_of_the_model_is_refused(consortium, files, tmp_path, code, monkeypatch):
    job = OwnData(consortium, tmp_path, (*TABLES, OWN_MODEL))
    job.files = files
    job.paths = allowed(job, tmp_path)
    loop = OwnModel(job)
    digest = securefl.network.client.code_of
    changed = lambda config: digest(config)[::-1]  # noqa: E731
    monkeypatch.setattr(securefl.network.client, "code_of", changed)
    with pytest.raises(asyncio.CancelledError):
        loop.run(until_refused(*NAMES))
    assert "the code that the settings name is another than the server's" in str(
        loop.ended["alice"]
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("hospital_nets:none", "gave a str, and is to give a torch.nn.Module"),
        ("hospital_nets:nothing", "cannot be had"),
        ("hospital_nets:short", "raised a TypeError: mend it; it is called with a sample's shape"),
        ("hospital_nets:failing", "raised a RuntimeError: mend it; "),
        ("no_such_module_here:net", "install the module here"),
    ],
)
def test_what_is_no_model_is_refused(code, name, why):
    config = securefl.load_config(None, [*SHORT, *TABLES, f"model.name={name}"])
    with pytest.raises(ConfigError, match=why):
        task_at(config, {})


def test_other_samples_do_not_go_on_in_a_run(consortium, files, tmp_path):
    """A site's file that has changed since, before anything of it leaves."""
    job = OwnData(consortium, tmp_path, TABLES)
    job.files = files
    honest = securefl.task_of_sites(job.config, job.sites)
    first = job.party("alice").session("ab" * 32, "cd" * 32)
    job.party("alice").session("ef" * 32, "cd" * 32)
    path = tmp_path / "other.toml"
    path.write_text(f'train = "{files / "bob" / "patients.csv"}"')
    job.paths = dict.fromkeys(NAMES, path)
    with pytest.raises(RunFolderError, match="its samples are others"):
        job.party("alice").session("ef" * 32, "cd" * 32)
    job.party("alice").session("ef" * 32, "ee" * 32)
    first.store.forget()
    kept = [tmp_path / "alice" / site_record(job_id * 32) for job_id in ("cd", "ee")]
    own = zip(honest.clients, honest.client_tests, strict=True)
    alice, bob, *_ = (SiteRecord.of(train, test) for train, test in own)
    for path, mine, others in zip(kept, (alice, bob), (bob, alice), strict=True):
        mine.require_same(path, "alice")  # which stays, for an audit
        with pytest.raises(ConfigError, match="its samples that train are others than it began"):
            others.require_same(path, "alice")


def test_the_server_has_nobodys_data(consortium, files, tmp_path):
    """What stands for them is zeros, and nothing that it could train on.

    Its folder's settings name the sites and the form of samples, and no data set.
    """
    config = securefl.load_config(None, [*SHORT, *TABLES])
    job = server_job(config)
    assert dict(job.data) == {}
    assert all(not x.any() for x, _ in (*job.task.clients, *job.task.client_tests))
    assert {*job.weights.values()} == {64 / 512}  # the most, over a power of two for five
    folder = RunFolder.create(tmp_path / "run", config).path
    written = json.loads((folder / "config.json").read_text())
    assert written["data"] == {"names": [*NAMES]}
    assert written["samples"]["columns"] == [*COLUMNS]
    assert read_config(folder) == config


def test_no_size_is_told(consortium, files, tmp_path):
    """A client weighs its own size over the bound of the settings, which all know."""
    config = securefl.load_config(None, [*SHORT, *TABLES])
    party = client_party(
        config, consortium.identity("alice"), tmp_path, files / "alice" / "tables.toml"
    )
    assert party.client.weight == (SIZES[0] + 6 - round((SIZES[0] + 6) / 4)) / 512
    assert {*party.job.data} == {"alice"}


def test_a_rehearsal_has_all_sites(files):
    config = securefl.load_config(None, [*SHORT, *TABLES])
    with pytest.raises(ConfigError, match=r"bob, carol, dora, eve: no site\.toml"):
        securefl.task_of_sites(config, {"alice": files / "alice" / "tables.toml"})
    with pytest.raises(ConfigError, match=r"--data site\.toml"):
        securefl.run(config)


def accuracy_of(tmp_path, scale, offset, unit):
    """Return the accuracy on three tables whose first column is a + scale·z, z the same in all."""
    files = {}
    for name, n in zip(("a", "b", "c"), (120, 90, 60), strict=True):
        rng, own = np.random.default_rng(n), tmp_path / name
        own.mkdir(parents=True)
        rows = [f"{offset + scale * z},{'yes' if z > 0.3 else 'no'}" for z in rng.normal(size=n)]
        (own / "own.csv").write_text("z,ill\n" + "\n".join(rows))
        (own / "site.toml").write_text('train = "own.csv"\ntest = 0.3\n')
        files[name] = own / "site.toml"
    settings = (
        *('data.names=["a", "b", "c"]', 'samples.columns=["z"]', "samples.target=ill"),
        *('samples.classes=["no", "yes"]', "samples.most=99", f"samples.units={{z={unit}}}"),
        *("run.rounds=8", "algorithm.local_steps=5", "exchange.encrypt=none"),
    )
    config = securefl.load_config(None, settings)
    return securefl.run(config, task_of_sites(config, files)).metrics[-1].accuracy


@pytest.mark.parametrize(
    ("scale", "offset", "unit"),
    [(98_000, 260_000, 1e5), (1e-4, 3e-4, 1e-4), (3e-6, 0, 1e-6), (3, 2020, 1)],
)
def test_a_column_in_a_unit_of_its_own_trains_as_one_of_size_one(tmp_path, scale, offset, unit):
    """However large, small or far from zero its values are."""
    of_size_one = accuracy_of(tmp_path / "one", 1, 0, 1)
    assert of_size_one > 0.9
    assert accuracy_of(tmp_path / "own", scale, offset, unit) >= of_size_one - 0.03


def test_a_unit_in_which_no_variance_can_be_sent_is_found_before_anything_is(tmp_path):
    """By the range of the model's messages, of which long ones have a narrower one."""
    with pytest.raises(DataError, match=r"can be sent: have all sites set samples.units = \{ z = "):
        accuracy_of(tmp_path, 98_000, 260_000, 1)


def test_a_model_without_a_file_is_refused():
    """Parties compare the file of its code."""
    config = securefl.load_config(None, [*SHORT, *TABLES, "model.name=math:sqrt"])
    with pytest.raises(
        ConfigError, match="no file has its source: give a function or class of a file"
    ):
        code_of(config)


@pytest.fixture
def larger(tmp_path):
    """Return a file for each site, of 60 records, a quarter of which tests."""
    rng, paths = np.random.default_rng(1), {}
    for number, name in enumerate(NAMES):
        x = rng.normal(number / 9, 1, size=(60, 1, 4, 4)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, y=(x.mean((1, 2, 3)) > 0).astype(np.int64))
        paths[name] = tmp_path / f"{name}.toml"
        paths[name].write_text(f'train = "{name}.npz"\ntest = 0.25\n')
    return paths


def test_an_audit_takes_all_sites_own_tests_for_public_samples(
    consortium, larger, tmp_path, monkeypatch
):
    """The common test set is a placeholder of alike rows, with which nothing could be measured.

    The report names the settings' model, and each site's score as read by whoever has the folder.
    """
    audits_are_tiny(monkeypatch)
    sealing = ("algorithm.local_steps=1", "exchange.encrypt=statistics")
    job = OwnData(consortium, tmp_path, (*PICTURES, *sealing))
    job.paths = larger
    task, out = securefl.task_of_sites(job.config, job.sites), tmp_path / "run"
    securefl.run(job.config, task, out=out)
    public, labels = public_rows(job.config, task)
    assert len(public) == len(labels) == 75
    assert torch.equal(public[:15], task.client_tests[0][0])
    audited = securefl.audit_run(out, audits.QUICK, task=task)
    assert [section.words for section in audited.sections if not section.measured] == []
    kept = "stands in metrics.jsonl (each round's, with the loss) and report.html"
    assert kept in audited.sections[0].notes[0]
    assert "the simulation's operator reads it" in audited.sections[0].notes[0]
    assert sum(kept in cells[1] for cells in audited.tables[0].rows) == 1
    scored = r"mean over clients [\d.]+ %; over all samples [\d.]+ %"
    assert re.fullmatch(scored, audited.facts["Accuracy"])
    model = job.config.model
    assert audited.facts["Model"] == f"{model.name}, norm {model.norm}"
    (own,) = (table for table in audited.tables if table.title.startswith("Data of the sites' own"))
    assert own.rows[0][1].startswith(f"{audited.facts['Model']}: torch.nn.")
