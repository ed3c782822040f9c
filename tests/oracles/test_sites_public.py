"""Sites with their own data where public samples are read, or sites tell numbers."""

import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from over_loopback import NAMES, SHORT, Consortium, incidents_of, model_of
from process_axes import BESIDE
from processes import CLIENTS, Loop, Site
from site_files import N_PUBLIC, TABLES, OwnData, digest_of
from with_officers import Officers, OfficersJob, WithOfficers

import securefl
from securefl.algorithms.public_training import ServerTuned
from securefl.audit.bounds.canaries import drawn_canaries, with_canaries, with_room
from securefl.audit.replay import replayed
from securefl.build.job import job_of
from securefl.build.own_data import site_job, task_at
from securefl.build.simulation import simulated
from securefl.data.samples import samples
from securefl.data.site_file import load_samples
from securefl.errors import ConfigError, DataError
from securefl.federation.query import Respondent
from securefl.network.server import server_job
from securefl.runs.folder_reader import read_run
from securefl.types import SIZE
from securefl_cli.main import main

pytestmark = pytest.mark.usefixtures("quick", "no_hang")
ROUNDING = 1e-6
"""Of a weight: as in `test_sites_own_data`."""
FEDPROF = (*TABLES, *BESIDE["fedprof"])
REFINED = (*TABLES, *BESIDE["fnr, matched"])
RECORDS = (
    *TABLES,
    *("samples.standardise=false", "algorithm.name=fixbn", "algorithm.weights=uniform"),
    *("privacy.level=record", "privacy.records=20", "privacy.noise=seeded"),
    *("privacy.statistics_sigma=0.1", "privacy.statistics_clip=100.0"),
)


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture(scope="module")
def officers(tmp_path_factory):
    return Officers(tmp_path_factory.mktemp("officers"))


def settings_of(files, *settings):
    """The settings with the digest of the public samples."""
    config = securefl.load_config(None, [*SHORT, *settings])
    return securefl.load_config(
        None, [*SHORT, *settings, f"samples.public={digest_of(files, config)}"]
    )


def nearly_the_same(job, loop, key_set):
    """A run over gRPC ends where the rehearsal does, but for rounding, and selects the same."""
    loop.run()
    assert loop.ended == dict.fromkeys(NAMES), loop.said
    assert incidents_of(job.folder / "run") == ""
    run = job.config.run.model_copy(update={"reproducible": False})  # the keys outlive it
    config, alone = job.config.model_copy(update={"run": run}), job.folder / "alone"
    securefl.run(config, securefl.task_of_sites(config, job.sites), keys=key_set, out=alone)
    model, wanted = model_of(job.folder / "run"), model_of(alone)
    assert model.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(model[name], value, atol=ROUNDING, rtol=ROUNDING)
    there, here = read_run(job.folder / "run").participants, read_run(alone).participants
    assert [(t.selected, t.present) for t in there] == [(t.selected, t.present) for t in here]
    return there


SEALED = {
    "profiles": (*FEDPROF, "exchange.encrypt=profiles"),
    "profiles and statistics": (
        *(*FEDPROF, "exchange.encrypt=statistics,profiles", "algorithm.name=fedtan"),
    ),
    "the weakest refined": (*REFINED, "exchange.encrypt=model"),
    "by losses": (*TABLES, *BESIDE["afl"], "exchange.encrypt=model"),
    "records": (*RECORDS, "exchange.encrypt=statistics"),
}


# Of clients in threads of one process, one restores the filters under which another ignores this.
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("settings", SEALED.values(), ids=SEALED)
def test_sealed_they_end_where_a_rehearsal_does(consortium, files, tmp_path, key_set, settings):
    job = OwnData(consortium, tmp_path, settings)
    job.files = files
    participants = nearly_the_same(job, Loop(job), key_set)
    if "profiles" in job.config.exchange.encrypt:
        assert all(each.scores for each in participants)


@dataclass
class OwnOfficersJob(OwnData, OfficersJob):
    """A job of sites with files, whose sums officers open."""


class OwnWithOfficers(WithOfficers):
    """A loop with officers whose parties have files."""

    _server = Loop._server


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param((*TABLES, "exchange.encrypt=model", "algorithm.name=fedtan"), id="fedtan"),
        pytest.param((*FEDPROF, "exchange.encrypt=model,profiles"), id="fedprof"),
    ],
)
def test_officers_open_what_sites_with_files_seal(officers, files, tmp_path, settings):
    job = OwnOfficersJob(officers, tmp_path, (*settings, "exchange.officers=3"))
    job.files = files
    nearly_the_same(job, OwnWithOfficers(job), officers.key_set())


def test_of_profiles_the_server_alone_reads_public_samples(files):
    """A site needs none, and has none."""
    config = settings_of(files, *FEDPROF)
    site = files / "alice" / "site without public samples.toml"
    site.write_text('train = "patients.csv"\n')
    assert site_job(config, "alice", site).public is None
    assert site_job(config, None, None).public is None
    held = server_job(config, data=files / "tables.toml")
    assert len(held.public) == N_PUBLIC
    assert not held.data


def test_the_server_alone_tunes_on_them(files):
    config = settings_of(files, *TABLES, *BESIDE["fnr, server"])
    site = site_job(config, "alice", files / "alice" / "tables.toml").algorithm.inner
    tuned = server_job(config, data=files / "tables.toml").algorithm.inner
    assert isinstance(tuned, ServerTuned)
    assert type(site) is type(tuned.inner)


@pytest.mark.parametrize("settings", [FEDPROF, REFINED, (*TABLES, *BESIDE["fnr, server"])])
def test_a_server_without_its_file_is_told_of_it(files, settings):
    """And so is a rehearsal."""
    config = settings_of(files, *settings)
    sites = {name: files / name / "tables.toml" for name in NAMES}
    for party in (lambda: server_job(config), lambda: securefl.task_of_sites(config, sites)):
        with pytest.raises(ConfigError, match=r"none are given: name them in a file .* --data"):
            party()


def test_who_refines_and_has_no_public_samples_is_told_so(files):
    config = settings_of(files, *REFINED)
    site = files / "alice" / "site without any.toml"
    site.write_text('train = "patients.csv"\n')
    with pytest.raises(ConfigError, match=r"without any\.toml: names no public samples, and with"):
        site_job(config, "alice", site)
    with pytest.raises(ConfigError, match=r"with --data site\.toml"):
        site_job(config, None, None)


def test_all_parties_take_the_same_public_samples(files, tmp_path):
    """In whatever file: the digest is of what it holds, and the order counts."""
    config = settings_of(files, *REFINED)
    x, y = load_samples(files, "public.csv", config.samples, torch.float64)
    site, train = tmp_path / "site.toml", files / "alice" / "patients.csv"
    site.write_text(f'train = "{train}"\npublic = "public.npz"\n')
    np.savez(tmp_path / "public.npz", x=x.numpy(), y=y.numpy())
    assert len(site_job(config, "alice", site).public) == N_PUBLIC
    np.savez(tmp_path / "public.npz", x=x.flip(0).numpy(), y=y.flip(0).numpy())
    with pytest.raises(DataError, match=r"have the digest [0-9a-f]{64}, and samples\.public = "):
        site_job(config, "alice", site)


def test_the_digest_does_not_depend_on_the_models_floats(files):
    config = settings_of(files, *REFINED, "model.dtype=float64")
    assert config.samples.public == settings_of(files, *REFINED).samples.public
    assert task_at(config, {"server": files / "tables.toml"}).public[0].dtype is torch.float64


def test_a_site_that_holds_a_public_sample_is_refused(files, tmp_path):
    """As far as a party can see: its own samples, and no stand-ins for others'."""
    config = settings_of(files, *REFINED)
    site = tmp_path / "site.toml"
    site.write_text(f'train = "{files / "public.csv"}"\npublic = "{files / "public.csv"}"\n')
    with pytest.raises(DataError, match=r"samples are also public: \d+ of alice"):
        site_job(config, "alice", site)


def test_a_line_of_a_table_is_public_with_its_target_alone(files, tmp_path):
    """Of whole numbers, inputs are often equal by chance; numbers of lines are the way out."""
    config = settings_of(files, *REFINED)
    site, own = tmp_path / "site.toml", tmp_path / "own.csv"
    site.write_text(f'train = "own.csv"\npublic = "{files / "public.csv"}"\n')
    lines = (files / "public.csv").read_text().splitlines()
    other = {"yes": "no", "no": "yes"}
    mixed = [",".join([other[ill], *rest]) for ill, *rest in (li.split(",") for li in lines[1:])]
    own.write_text("\n".join([lines[0], *mixed]))
    assert site_job(config, "alice", site).public is not None
    own.write_text("\n".join([lines[0], *mixed[:-2], *lines[-2:]]))
    with pytest.raises(
        DataError, match=r"2 samples are also public: .* they are 23, 24, counted"
    ) as e:
        site_job(config, "alice", site)
    assert "carve_public" not in str(e.value)
    assert "leaves such samples out of its own file, which tells nobody" in str(e.value)


def test_zeros_that_stand_for_other_sites_samples_are_no_clash(files, tmp_path):
    """A public sample of zeros alone is nobody's."""
    form = ("samples.shape=[2]", 'samples.classes=["a", "b"]', "samples.most=64")
    config = securefl.load_config(None, [*SHORT, *form, "fnr.name=server"])
    x, y = np.array([[0, 0], [1, 2], [3, 4]], np.float32), np.array([0, 1, 0])
    np.savez(tmp_path / "public.npz", x=x, y=y)
    server = tmp_path / "server.toml"
    server.write_text('public = "public.npz"\n')
    with pytest.raises(ConfigError, match="for all parties, public = ") as told:
        task_at(config, {"server": server})
    digest = re.search(r"[0-9a-f]{64}", str(told.value))[0]
    config = securefl.load_config(
        None, [*SHORT, *form, "fnr.name=server", f"samples.public={digest}"]
    )
    assert len(server_job(config, data=server).public) == 3


def test_an_audits_shadows_have_no_tests_of_their_own(files):
    """And are built all the same."""
    config = settings_of(files, *REFINED)
    given = {name: files / name / "tables.toml" for name in NAMES}
    task = securefl.task_of_sites(config, {**given, "server": files / "tables.toml"})
    assert len(job_of(config, replace(task, client_tests=())).data) == len(NAMES)


def test_an_audits_canaries_have_room_beside_a_sites_own_samples(files):
    """Though the settings bound a site's samples by what the largest has."""
    config = securefl.load_config(None, [*SHORT, *TABLES])
    task = securefl.task_of_sites(config, {name: files / name / "tables.toml" for name in NAMES})
    planted = with_canaries(task, drawn_canaries(task.test, 400, 0))
    largest = max(len(samples(of, "a client")) for of in planted.clients)
    assert largest > config.samples.most
    roomy = with_room(config, planted)
    assert roomy.samples.most == largest
    assert with_room(config, task) == config
    assert sum(job_of(roomy, planted).weights.values()) <= 1
    assert len(replayed(roomy, planted, lambda *_: None).models) == 1 + config.run.rounds


def test_a_rehearsal_takes_the_servers_file_as_it_takes_sites(files, tmp_path):
    """To run, to go on, and to score the model, on the sites' test samples alone."""
    digest = settings_of(files, *FEDPROF).samples.public
    job, names, run = tmp_path / "job.toml", json.dumps(CLIENTS), str(tmp_path / "run")
    job.write_text(JOB.format(names=names, public=f'public = "{digest}"'))
    given = {name: files / name / "tables.toml" for name in CLIENTS}
    given["server"] = files / "tables.toml"
    options = [part for name, file in given.items() for part in ("--site", f"{name}={file}")]
    done = CliRunner().invoke(main, ["run", str(job), *options, "--out", run])
    assert done.exit_code == 0, done.output
    (tmp_path / "run" / "model.safetensors").unlink()
    done = CliRunner().invoke(main, ["run", "--resume", run, *options])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(main, ["evaluate", run, *options])
    assert done.exit_code == 0, done.output
    assert all(name in done.output for name in CLIENTS)
    assert "server" not in done.output


def test_a_site_that_says_more_than_the_most_is_not_selected_by_it(files, monkeypatch):
    config = securefl.load_config(None, [*SHORT, *TABLES, *BESIDE["data-share"]])
    task = securefl.task_of_sites(config, {name: files / name / "tables.toml" for name in NAMES})
    honest = Respondent._size
    lying = lambda self, name: 65.0 if name == "alice" else honest(self, name)  # noqa: E731
    monkeypatch.setattr(Respondent, "_size", lying)
    rounds = simulated(config, task)
    result = rounds.run(None)
    incidents = [i for i in result.incidents if i.name == SIZE]
    assert {i.client for i in incidents} == {"alice"}
    assert "from 1 to 64" in incidents[0].reason
    assert all("alice" not in each.selected for each in result.participants)
    assert len(result.participants[0].selected) == len(NAMES) - 1  # all others standardise


JOB = """
[run]
rounds = 2
reproducible = true
engine = "sequential"
[data]
names = {names}
[samples]
columns = ["age", "pressure", "smokes"]
levels = {{ smokes = ["no", "yes", "once"] }}
missing = ["pressure"]
target = "ill"
classes = ["no", "yes"]
most = 64
{public}
[algorithm]
name = "fedavg"
local_steps = 2
[selection]
name = "fedprof"
fraction = 0.7
[exchange]
encrypt = "none"
"""


def test_the_commands_end_where_a_rehearsal_does(files, tmp_path):
    """A server with its file, and three sites, each a process."""
    site = Site(tmp_path / "site", encrypt="none")
    own = {name: files / name / "tables.toml" for name in CLIENTS}
    server, names = files / "tables.toml", json.dumps(CLIENTS)
    site.job.write_text(JOB.format(names=names, public=""))
    digest = digest_of(files, site.config)
    site.job.write_text(JOB.format(names=names, public=f'public = "{digest}"'))
    try:
        process = site.server("--data", server)
        for name, file in own.items():
            site.client(name, "--data", file)
        process.wait_for("Run folder")
    finally:
        site.stop()
    task = securefl.task_of_sites(site.config, {**own, "server": server})
    securefl.run(site.config, task, out=tmp_path / "alone")
    model, wanted = model_of(site.folder / "run"), model_of(tmp_path / "alone")
    assert all(torch.equal(model[name], wanted[name]) for name in wanted)
    there, here = read_run(site.folder / "run"), read_run(tmp_path / "alone")
    assert there.participants == here.participants
