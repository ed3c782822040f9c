"""Three clients, a server and an authority as processes give what `securefl run` gives."""

import os
import re
import signal
import struct
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from processes import PASSPHRASE, Site

import securefl
from securefl.runrecord import read_run
from securefl_keys.loading import load_all, load_authority

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.slow]
MARKER = "planted-marker-7f1c"


@pytest.fixture
def site(tmp_path):
    """Makes a federation; its processes end with the test."""
    made = []

    def make(**settings):
        made.append(Site(tmp_path / "site", **settings))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def in_one_process(site):
    keys = load_all(site.folder / "keys", PASSPHRASE) if site.sealed else None
    out = site.folder / "alone"
    securefl.run(securefl.load_config(site.job), keys=keys, out=out)
    return read_run(out), safetensors.torch.load_file(out / "model.safetensors")


def in_processes(site):
    out = site.folder / "run"
    return read_run(out), safetensors.torch.load_file(out / "model.safetensors")


def test_in_the_clear_the_model_is_that_of_one_process_bit_for_bit(site):
    here = site(algorithm="fedtan", encrypt="none", rounds=3)
    server = here.server()
    clients = here.clients()
    assert server.ended() == 0, server.text()
    assert [client.ended() for client in clients] == [0, 0, 0]
    (record, model), (wanted, wanted_model) = in_processes(here), in_one_process(here)
    assert model.keys() == wanted_model.keys()
    assert all(torch.equal(model[name], wanted_model[name]) for name in model)
    assert [(m.accuracy, m.loss) for m in record.metrics] == [
        (m.accuracy, m.loss) for m in wanted.metrics
    ]
    # The same files, but for pictures, which `quick` leaves out here; and the same messages.
    pictures = {"accuracy.png", "traffic.png"}
    assert names(here.folder / "run") - pictures == names(here.folder / "alone")
    assert sorted(map(repr, record.ledger)) == sorted(map(repr, wanted.ledger))


def names(folder):
    return {path.name for path in folder.iterdir()} - {".lock"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("algorithm", "encrypt", "openings"), [("fedtan", "statistics", 4), ("fedavg", "model", 2)]
)
def test_encrypted_the_model_is_the_same_and_the_server_holds_no_secret(
    site, algorithm, encrypt, openings
):
    here = site(algorithm=algorithm, encrypt=encrypt, rounds=3)
    authority = here.authority()
    server = here.server("--set", f'run.name="{MARKER}"')
    clients = here.clients()
    server.wait_for(r"Round 1/3")
    os.kill(server.pid, signal.SIGSTOP)
    needles = secrets_of(here)
    try:
        assert found_in(server.pid, needles) == set()
        assert found_in(server.pid, {"marker": MARKER.encode()}) == {"marker"}
        assert found_in(clients[0].pid, needles) == set()
        assert found_in(authority.pid, needles) >= {"key", "passphrase"}  # it would be found
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert server.ended() == 0, server.text()
    assert [client.ended() for client in clients] == [0, 0, 0]
    assert authority.interrupt() == 130
    assert "Traceback" not in authority.text()
    (record, model), (wanted, wanted_model) = in_processes(here), in_one_process(here)
    for name, value in model.items():
        torch.testing.assert_close(value, wanted_model[name], atol=1e-4, rtol=1e-4)
    assert record.metrics[-1].accuracy == pytest.approx(wanted.metrics[-1].accuracy, abs=0.02)
    everything = b"".join(path.read_bytes() for path in (here.folder / "run").iterdir())
    assert not [name for name, needle in needles.items() if needle in everything]
    opened = (here.folder / "authority-log/openings.jsonl").read_text().splitlines()
    assert len(opened) == 3 * openings


def secrets_of(site):
    """What must not be at the server: the passphrase, and bytes of the key that it opens."""
    key = load_authority(site.folder / "keys", PASSPHRASE)
    return {
        "passphrase": PASSPHRASE.encode(),
        "key": raw_key(key),
        "sealed key": (site.folder / "keys/authority/secret.key").read_bytes()[-400:-100],
    }


def raw_key(key):
    """Six of the key's coefficients, as SEAL has them in memory; in files they are compressed."""
    polynomial = key._context.secret_key().data.data()
    return struct.pack("<6Q", *(polynomial[i] for i in range(1000, 1006)))


def found_in(pid, needles):
    """Which of these stand in a process's listing, environment, open files, or memory."""
    proc = Path("/proc") / str(pid)
    parts = [(proc / name).read_bytes() for name in ("environ", "cmdline", "maps")]
    for handle in (proc / "fd").iterdir():
        target = handle.readlink()
        parts.append(str(target).encode())
        if target.is_file() and target.stat().st_size < 2**24:
            parts.append(target.read_bytes())
    found = {name for name, needle in needles.items() if any(needle in part for part in parts)}
    for line in (proc / "maps").read_text().splitlines():
        start, end, access = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
        if access[:2] == "rw":
            memory = mapped(proc / "mem", int(start, 16), int(end, 16))
            found |= {name for name, needle in needles.items() if needle in memory}
    return found


def mapped(path, start, end):
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        try:
            return file.read(end - start)
        except OSError:  # [vvar] and its like
            return b""


def test_a_killed_client_is_an_incident_and_a_late_one_joins_again(site):
    here = site(algorithm="fedtan", encrypt="none", rounds=150)
    server = here.server("--timeout", "4")
    clients = here.clients()
    clients[2].wait_for("round 1 counts")
    clients[2].stop()
    server.wait_for(r"without client-3: ")
    os.kill(clients[1].pid, signal.SIGSTOP)
    server.wait_for(r"without client-2: late")
    os.kill(clients[1].pid, signal.SIGCONT)
    clients[1].wait_for("joining again")
    assert server.ended() == 0, server.text()
    assert [client.ended() for client in clients[:2]] == [0, 0]
    metrics = in_processes(here)[0].metrics
    assert len(metrics) == 150
    assert {name for m in metrics for name in m.dropped} == {"client-2", "client-3"}
    assert server.text().count("client-2 has joined") == 2


def test_ctrl_c_ends_the_server_and_its_clients_in_one_line(site):
    here = site(encrypt="none", rounds=10_000)
    server = here.server()
    clients = here.clients()
    server.wait_for(r"Round 1/")
    assert server.interrupt() == 130
    assert server.text().endswith("Interrupted.\n")
    assert [client.ended(30) for client in clients] == [1, 1, 1]
    for process in (server, *clients):
        assert "Traceback" not in process.text()
    assert all("Error: server: the server was stopped" in c.text() for c in clients)
