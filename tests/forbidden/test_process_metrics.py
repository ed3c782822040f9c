"""Metrics and health of server and authority: counts by name, and nothing that a client sent."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from processes import SERVER, Loop, federations
from prometheus_client.parser import text_string_to_metric_families

from securefl.errors import ConfigError
from securefl.federation.incidents import Incident
from securefl.network.connect import Address
from securefl.network.health import health_service
from securefl.network.metrics_page import metrics_page
from securefl.network.monitor import AuthorityMonitor, ServerMonitor
from securefl.runs.round_metrics import RoundMetrics
from securefl_cli.main import main

OF_SERVER = {
    "rounds_done",
    "rounds",
    "clients_connected",
    "clients_needed",
    "authority_connected",
    "openings_total",
    "client_missed_total",
    "phase_seconds_total",
    "sent_bytes_total",
    "received_bytes_total",
}
OF_AUTHORITY = {
    "server_connected",
    "openings_total",
    "refusals_total",
    "openings_left",
    "epoch",
    "sent_bytes_total",
    "received_bytes_total",
}


@pytest.fixture
def site(tmp_path):
    """Makes a federation; its processes end with the test."""
    with federations(tmp_path / "site") as make:
        yield make


def get(at, page, method="GET"):
    """The code and the text of a page."""
    try:
        with urlopen(Request(f"http://{at}/{page}", method=method), timeout=20) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def numbers(at, role):
    """By name without its prefix, and by labels."""
    code, text = get(at, "metrics")
    assert code == 200
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    assert all(s.name.startswith(f"securefl_{role}_") for s in samples)
    found = {}
    for sample in samples:
        name = sample.name.removeprefix(f"securefl_{role}_")
        if not name.endswith("_created"):
            found.setdefault(name, {})[tuple(sample.labels.values())] = sample.value
    return found


def where(process):
    return process.wait_for(r"Metrics on http://(\S+)/metrics")[1]


def until(holds, within_s=120):
    deadline = time.monotonic() + within_s
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_pages_of_a_run_say_who_is_there_who_was_late_and_what_is_left(site):
    """Dora is held still, and is late; carol is killed; both by their names."""
    here = site(rounds=400, reproducible=False, names=("alice", "bob", "carol", "dora", "emil"))
    server = here.server("--metrics", "0", "--timeout", "10")
    at = where(server)
    assert get(at, "healthz") == (200, "ok\n")
    assert get(at, "readyz") == (503, "the authority is not connected\n")
    opening = ("authority", "serve", here.job, "--keys", here.keys, "--server", here.server_at)
    own = ("--passphrase-file", here.passphrase_file("authority"), "--metrics", "0")
    authority = here.start("authority", *opening, *own)
    until(lambda: get(at, "readyz") == (503, "0 clients are connected, and a round needs 3\n"))
    clients = dict(zip(here.names, here.clients(), strict=True))
    server.wait_for("Round 1/400")
    assert get(at, "readyz") == (200, "ok\n")
    clients["dora"].process.send_signal(signal.SIGSTOP)
    clients["carol"].stop()
    server.wait_for("without dora")
    server.wait_for("without carol")
    found = until(lambda: (n := numbers(at, "server"))["rounds_done"][()] > 3 and n)
    assert found.keys() == OF_SERVER
    missed = found["client_missed_total"].keys()
    assert missed - {("dora", "dropped")} == {("dora", "late"), ("carol", "dropped")}
    assert found["clients_connected"] == {(): 3}
    assert found["authority_connected"] == {(): 1}
    assert found["phase_seconds_total"].keys() == {
        (phase,) for phase in ("wait", "train", "open", "evaluate", "add")
    }
    assert min(found["sent_bytes_total"][()], found["received_bytes_total"][()]) > 10**5
    of_authority = numbers(where(authority), "authority")
    assert of_authority.keys() == OF_AUTHORITY
    opened = of_authority["openings_total"][()]
    assert opened >= 4 * 3
    assert of_authority["openings_left"][()] <= 10**6 - opened
    assert get(where(authority), "readyz") == (200, "ok\n")
    server.process.send_signal(signal.SIGTERM)
    assert server.ended() == 0
    with pytest.raises(OSError, match="refused"):
        get(at, "metrics")
    until(lambda: get(where(authority), "readyz") == (503, "no server is connected\n"))
    clients["dora"].process.send_signal(signal.SIGCONT)


@pytest.mark.usefixtures("quick")
def test_the_counts_of_a_run_add_up(site):
    """Seconds by phase are those of the run's rounds; each opened total is counted."""
    here = site(rounds=3)
    loop = Loop(here)
    record = loop.run()
    watched = loop.server.monitor
    assert (watched.done, watched.rounds, watched.opened) == (3, 3, 3 * 4)
    assert len(here.openings.read_text().splitlines()) == watched.opened
    assert sum(watched.seconds.values()) == pytest.approx(sum(m.seconds for m in record.metrics))
    assert min(watched.seconds[name] for name in ("train", "open", "evaluate", "add")) > 0
    assert watched.missed == {}
    uploads = sum(m.upload_bytes for m in record.metrics)
    assert watched.traffic.received_bytes > uploads
    for client in loop.clients.values():
        of_client = client.monitor
        assert (of_client.asked, of_client.counted) == (3, 3)
        assert of_client.not_ready() == "no server has welcomed it"  # any more
        numbers = {n.name: n.values for n in of_client.numbers()}
        assert numbers["server_connected"] == {(): 0}
        assert numbers["sent_bytes"][()] > uploads / 2 / len(loop.clients)


def test_a_phase_in_another_counts_once():
    """Scores are asked for while the model is evaluated."""
    watched = ServerMonitor()
    with watched.phase("evaluate"), watched.phase("train"):
        time.sleep(0.01)
    watched.round_done(RoundMetrics(1, 0.5, 0.1, 0.1, 0, (), seconds=2.0))
    assert watched.seconds.keys() == {"evaluate", "add"}
    assert sum(watched.seconds.values()) == pytest.approx(2.0)


def test_a_process_whose_loop_is_stuck_is_not_alive(monkeypatch):
    """Or whose loop has ended."""
    monkeypatch.setattr("securefl.network.monitor.ALIVE_S", 0.2)
    for watched in (ServerMonitor(), AuthorityMonitor()):

        async def stuck(watched=watched):
            watched.loop = asyncio.get_running_loop()
            alive = await asyncio.to_thread(watched.is_alive)
            asking = asyncio.get_running_loop().run_in_executor(None, watched.is_alive)
            time.sleep(1)
            return alive, await asking

        assert watched.is_alive()
        assert asyncio.run(stuck()) == (True, False)
        assert not watched.is_alive()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_page_is_had_at_either_kind_of_address(host):
    with metrics_page(ServerMonitor(), "server", Address(host, 0)) as at:
        assert get(at, "healthz") == (200, "ok\n")


def test_a_name_is_no_line_of_its_own_and_nobody_writes_there():
    """Of a client with a name that Prometheus would read as more."""
    watched = ServerMonitor()
    watched.note(Incident(1, "model", 'a"} 1\nsecurefl_server_rounds 9\n#\\', "a: late, nothing"))
    with metrics_page(watched, "server", Address("127.0.0.1", 0)) as at:
        for name in ("pass", "sits out"):
            watched.note(Incident(1, name, "bob", "bob: the round passes: alice: late, nothing"))
        found = numbers(at, "server")
        assert found["rounds"] == {(): 0}
        assert found["client_missed_total"] == {
            ('a"} 1\nsecurefl_server_rounds 9\n#\\', "late"): 1,
            ("bob", "pass"): 1,
            ("bob", "sits out"): 1,
        }
        assert get(at, "metrics", "POST")[0] == get(at, "metrics", "DELETE")[0] == 501
        assert get(at, "")[0] == get(at, "../etc/passwd")[0] == 404
        host, port = at.split(":")
        with pytest.raises(Exception, match="cannot listen there"):  # noqa: SIM117
            with metrics_page(watched, "server", Address(host, int(port))):
                pass


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_port_is_opened_where_nobody_asks(site):
    """A server listens at its one port alone."""
    here = site(encrypt="none")
    server = here.server()
    looking = [sys.executable, "-c", LISTENING, str(server.pid)]
    listens = subprocess.run(looking, capture_output=True, text=True, check=True).stdout.split()
    assert listens == [here.server_at.split(":")[1]]


LISTENING = """
import sys
from pathlib import Path
proc = Path("/proc") / sys.argv[1]
mine = {str(p.readlink()) for p in (proc / "fd").iterdir()}
for name in ("tcp", "tcp6"):
    for line in (proc / "net" / name).read_text().splitlines()[1:]:
        cells = line.split()
        if cells[3] == "0A" and f"socket:[{cells[9]}]" in mine:
            print(int(cells[1].rpartition(":")[2], 16))
"""


OPERATORS = [
    ("--metrics", "metrics_page", "prometheus_client"),
    ("--health", "health", "grpc_health"),
]


@pytest.mark.parametrize(("option", "module", "needs"), OPERATORS)
def test_what_the_extra_has_is_refused_in_words_without_it(
    site, monkeypatch, option, module, needs
):
    """With the way to have it; where it is there and the address is not, that is said."""
    here = site(encrypt="none")
    for name in [name for name in sys.modules if name.split(".")[0] == needs]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, needs, None)
    monkeypatch.delitem(sys.modules, f"securefl.network.{module}", raising=False)
    arguments = ["server", "serve", here.job, *here.member(SERVER, "server"), option, "0"]
    arguments += ["--out", here.folder / "run"]
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exit_code == 2
    assert "pip install 'securefl[ops]'" in done.output
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.undo()
        arguments[-3:-2] = [str(taken.getsockname()[1])]
        done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exit_code == 2
    assert re.search(rf"{option} 127.0.0.1:\d+: cannot listen there", done.output)


def test_every_role_can_be_started_without_any_extra():
    """What an extra brings is loaded where it is asked for, and nowhere else."""
    extras = ("prometheus_client", "grpc_health", "ray", "nvflare", "pyarrow")
    roles = ["server", "authority", "officers", "client", "sites"]
    code = f"""
import sys
sys.modules.update(dict.fromkeys({extras!r}))
for role in {roles!r}:
    __import__("securefl.network." + role)
import securefl_cli.roles, securefl_cli.serve, securefl_cli.server_run, securefl_cli.site
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_caller_that_hangs_up_leaves_no_line(capfd):
    with metrics_page(ServerMonitor(), "server", Address("127.0.0.1", 0)) as at:
        host, port = at.split(":")
        for _ in range(20):
            with socket.create_connection((host, int(port))) as caller:
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                caller.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert get(at, "healthz") == (200, "ok\n")
    assert capfd.readouterr() == ("", "")


def test_callers_that_say_nothing_do_not_keep_others_from_asking_for_health(monkeypatch):
    """As many as may be connected, and more."""
    monkeypatch.setattr("securefl.network.health._SILENT_S", 1)
    with ExitStack() as stack:
        at = stack.enter_context(health_service(AuthorityMonitor(), Address("127.0.0.1", 0)))
        host, port = at.split(":")
        for _ in range(70):
            stack.enter_context(socket.create_connection((host, int(port))))
        channel = stack.enter_context(grpc.insecure_channel(at))
        ask = HealthStub(channel).Check
        assert ask(HealthCheckRequest(), timeout=60, wait_for_ready=True).status == 1


def test_health_by_grpc_is_that_of_the_page(monkeypatch):
    """An orchestrator asks with the library's own stub."""
    watched = AuthorityMonitor()
    with (
        health_service(watched, Address("127.0.0.1", 0)) as at,
        grpc.insecure_channel(at) as channel,
    ):
        stub = HealthStub(channel)

        def asked(service):
            return stub.Check(HealthCheckRequest(service=service), timeout=10).status

        assert (asked(""), asked("ready")) == (1, 2)  # SERVING, NOT_SERVING
        watched.server = "hub"
        assert (asked(""), asked("ready")) == (1, 1)
        watched.loop = asyncio.new_event_loop()
        watched.loop.close()
        monkeypatch.setattr("securefl.network.monitor.ALIVE_S", 0.2)
        assert asked("") == 2
        with pytest.raises(grpc.RpcError, match='the services are "" and "ready"'):
            asked("securefl")
        with pytest.raises(grpc.RpcError, match="ask Check"):
            list(stub.Watch(HealthCheckRequest(), timeout=10))
        with pytest.raises(grpc.RpcError, match="larger than"):
            asked("x" * 5000)
        host, port = at.split(":")
        with pytest.raises(ConfigError, match="cannot listen there"):
            health_service(watched, Address(host, int(port))).__enter__()
