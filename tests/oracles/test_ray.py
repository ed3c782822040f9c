"""Workers in actors of a Ray cluster of two nodes make the bits that one process makes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from by_hand import task
from hired import SIZES, Returning, require_alike, require_same_bits, trained
from interruptible import SECUREFL
from side_by_side import vector

import securefl
from securefl.errors import ConfigError, PeerError
from securefl.federation.remote import Sites
from securefl.simulation.processes.engine import Workers
from securefl.simulation.processes.ipc import packed
from securefl.simulation.processes.worker import WorkerEnd

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402
from ray.exceptions import RayError  # noqa: E402

from securefl.simulation.ray import cluster as on_cluster  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_hang")]
HANGS_S = 900
"""Seconds: on a busy machine a cluster of two nodes takes more than a minute to start."""
FEDTAN = ("algorithm.name=fedtan",)
SCAFFOLD = ("algorithm.name=fedavg", "solver.name=scaffold")
PRIVATE = (
    *("algorithm.name=fedavg", "algorithm.weights=uniform", "privacy.level=client"),
    *("privacy.sigma=1.0", "privacy.noise=seeded", "run.rounds=2"),
)


@pytest.fixture(scope="module")
def nodes():
    """Two nodes of one CPU each, which stand for two machines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        made.add_node(num_cpus=1)
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
        made.shutdown()


@pytest.fixture
def homes(monkeypatch):
    """The node of each worker, once for each request."""
    found, call = {}, Workers.call

    def node_of(_actor):
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def noting(workers, requests, *more):
        call(workers, requests, *more)
        for site in requests:
            actor = workers._transport._workers[site]._actor
            node = ray.get(actor.__ray_call__.remote(node_of))
            found.setdefault(site, []).append(node)

    monkeypatch.setattr(Workers, "call", noting)
    return found


@pytest.mark.full  # one that is killed makes them, too
@pytest.mark.parametrize("settings", [FEDTAN, SCAFFOLD], ids=["fedtan", "scaffold"])
def test_actors_make_the_same_bits(nodes, settings):
    require_same_bits(settings, engine="ray")
    assert not ray.is_initialized()  # the connection has ended with the run


def test_actors_live_on_both_nodes_and_stay_where_they_are(nodes, homes):
    """A client's state is where it was made."""
    require_same_bits(SCAFFOLD, engine="ray")
    assert sorted(homes) == ["0", "1"]
    assert [len(set(places)) for places in homes.values()] == [1, 1]
    assert all(len(places) >= 2 * 3 for places in homes.values())
    (one, _), (other, _) = (places[0] for places in homes.values())
    assert one != other


def test_the_benchmark_of_engines_times_both_kinds_of_workers(nodes, benchmark):
    """As `benchmarks/engines.py --jobs ray --small --repeats 1`: one job, of one reading each."""
    part = benchmark("engine_ray").ray_part(benchmark("engine_ways").Settings(1, small=True))
    (row,) = part.results
    assert len(row.parallel_s) == len(row.ray_s) == 1
    (shown,) = part.grids["One round"].rows
    assert len(shown) == len(part.grids["One round"].columns)
    assert not any("left out" in note for note in part.notes)


@pytest.mark.full
@pytest.mark.usefixtures("uncounted")
def test_actors_add_the_same_seeded_noise(nodes):
    require_same_bits(PRIVATE, task(norm="group", sizes=(120, 110, 104, 100)), engine="ray")


@pytest.mark.full
def test_actors_seal_and_sign(nodes):
    """Totals differ by the openings' own noise; the messages are the same, to the byte."""
    settings = [*FEDTAN, "exchange.encrypt=statistics"]
    one, other = (trained(settings, engine) for engine in ("sequential", "ray"))
    assert float((vector(one.model) - vector(other.model)).abs().max()) < 1e-3
    assert one.ledger.entries == other.ledger.entries
    signers = [[(o.name, o.signers, o.refused) for o in run.openings] for run in (one, other)]
    assert signers[0] == signers[1] != []


def answers(actor):
    try:
        ray.get(actor.ready.remote())
    except RayError:
        return False
    return True


def killing(monkeypatch, *when):
    """Have the second worker killed before these calls; returns the requests of each call."""
    names, ask = [], Sites.ask

    def kill_first(sites, requests, *more):
        names.append({type(request).__name__ for request in requests.values()})
        if len(names) in when:
            actor = sites.transport._transport._workers["1"]._actor
            ray.kill(actor)
            while answers(actor):  # for a moment, it may
                pass
        return ask(sites, requests, *more)

    monkeypatch.setattr(Sites, "ask", kill_first)
    return names


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(FEDTAN, id="in a sum", marks=pytest.mark.full),
        pytest.param(SCAFFOLD, id="between rounds", marks=pytest.mark.full),
    ],
)
def test_an_actor_that_is_killed_changes_no_bit(nodes, monkeypatch, caplog, settings):
    """Another one is given the copies of what clients keep, and the round runs again."""
    one = trained(settings, "sequential")
    names = killing(monkeypatch, 2 if settings is FEDTAN else 3)
    other = trained(settings, "ray")
    require_alike(one, other)
    told, *more = caplog.messages
    assert more == []
    assert re.match(r"round [12]: a worker has died \(it was killed by `ray.kill`\); the", told)
    if settings is FEDTAN:
        assert names[:4] == [{"Begin"}, {"Continue"}, {"Begin"}, {"Continue"}]
    else:
        assert names[:4] == [{"Begin"}, {"Counted"}, {"Begin"}, {"Begin"}]


@pytest.mark.full
def test_actors_that_die_again_and_again_end_the_run(nodes, monkeypatch):
    killing(monkeypatch, 2, 4, 6)
    with pytest.raises(PeerError, match=r'round 1: workers have died 3 times .*"sequential"'):
        trained(FEDTAN, "ray")


@pytest.mark.full
def test_a_run_of_actors_resumes_with_the_same_bits(nodes, tmp_path):
    """What clients keep is in the main process, too, and so in the checkpoint."""
    settings, job = ["solver.name=feddyn", "algorithm.name=fedavg", "run.rounds=4"], task()
    one = trained(settings, "sequential", job)

    def stop(metrics):
        if metrics.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(settings, "ray", job, out=tmp_path / "run", on_round=stop)
    other = securefl.resume(tmp_path / "run", job)
    assert torch.equal(vector(one.model), vector(other.model))


@pytest.mark.full
def test_what_is_raised_in_an_actor_is_raised(nodes):
    job = task(sizes=SIZES[:2], algorithm=Returning(1))
    with pytest.raises(ConfigError, match=r"client\(\) gave a NoneType: it must return"):
        trained([], "ray", job, n_workers=1)


@pytest.mark.full
@pytest.mark.parametrize(
    ("more", "of"), [(("run.workers=3",), "1 CPU "), (("run.threads=2",), "2 CPUs ")]
)
def test_more_workers_than_the_cluster_has_places_for_are_refused(nodes, tmp_path, more, of):
    """They would wait for ever; nothing is written."""
    config = securefl.load_config(None, ["run.engine=ray", "run.workers=2", *more])
    with pytest.raises(ConfigError, match=f"has places for [02] workers of {of}"):
        securefl.run(config, task(sizes=SIZES), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not ray.is_initialized()


@pytest.mark.full
def test_an_actor_that_cannot_begin_ends_the_run_in_words(nodes, monkeypatch):
    """A machine of the cluster that has another torch, say."""
    other = packed(partial(WorkerEnd, "no settings of torch"))
    monkeypatch.setattr(on_cluster, "packed", lambda _: other)
    with pytest.raises(ConfigError, match=r"could not begin in the Ray cluster: Attr.*same secur"):
        trained(FEDTAN, "ray")


def test_without_ray_the_way_out_is_said_before_anything_is_written(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("securefl.simulation.ray.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs Ray: pip install 'securefl\[ray\]'"):
        trained(FEDTAN, "ray", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("module", ["securefl.simulation.choice", "securefl_cli.main"])
def test_no_other_engine_loads_ray(module):
    script = f"import sys, {module}; print('ray' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.full
def test_a_local_cluster_begins_and_ends_with_the_run_in_silence(tmp_path):
    """Ctrl-C ends it; neither Ray's words nor its processes are left."""
    settings = ("run.rounds=5000", "run.engine=ray", "run.workers=2", "exchange.encrypt=none")
    sets = [part for setting in settings for part in ("--set", setting)]
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    with (tmp_path / "said").open("w+") as said:
        process = subprocess.Popen(
            [*SECUREFL, "run", *sets, "--out", tmp_path / "run"],
            stdout=said, stderr=said, env=environment, start_new_session=True,
        )  # fmt: skip
        metrics, give_up = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 50
        while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 2):
            assert time.monotonic() < give_up
            assert process.poll() is None
            time.sleep(0.05)
        children = below(process.pid)
        assert len(children) >= 2 + 2  # Ray's own two, and the workers
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=30) == 130
        said.seek(0)
        text = said.read()
    assert "Engine: ray, as asked for: 2 workers with 1 torch thread" in text
    assert not re.search(r"Traceback|raylet|Started a local|usage", text)
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < give_up
        time.sleep(0.05)


def below(pid):
    """Its children, and theirs."""
    own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in own] + [each for child in own for each in below(child)]
