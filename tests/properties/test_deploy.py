"""The files in examples/deploy start what they say, with no more than each role may have."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from interruptible import SECUREFL
from processes import Process

from securefl_cli.main import main

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples/deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
SITES = ("cleveland", "hungary", "switzerland", "long-beach")
OFFICERS = ("olga", "otto")
UNITS = {
    role: DEPLOY / f"securefl-{role}.service" for role in ("authority", "officer", "server", "site")
}


def parsed(command):
    """The innermost command's context; raises where an option does not exist."""
    innermost, rest = main, list(command)
    while hasattr(innermost, "commands"):
        innermost = innermost.get_command(None, rest.pop(0))
    return innermost.make_context(command[0], rest)


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_hardened_and_its_command_parses(name):
    service = SERVICES[name]
    parsed(service["command"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service["user"].startswith("0")
    assert service["environment"] == {"SECUREFL_LOG": "json"}


def mounts(name):
    """Folders of the host, by where they are in the container."""
    pairs = (volume.split(":")[:2] for volume in SERVICES[name]["volumes"])
    return {there: here for here, there in pairs}


def test_each_container_has_its_own_roles_folders_alone():
    """The keys are the authority's; a site's data and identity its own; one port is published."""
    own = {
        "server": {"bundles/server", "hub", "run"},
        "authority": {"keys"},
        **{officer: {"bundles/officer", officer} for officer in OFFICERS},
        **{site: {"bundles/client", site} for site in SITES},
    }
    for name, folders in own.items():
        seen = {here.removeprefix("./federation/") for here in mounts(name).values()}
        assert seen == folders | {"job.toml"}, name
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports == {"server": ["7443:7443"]}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Composed:
    """The services as processes, with paths of this machine in the place of the containers'."""

    def __init__(self, folder):
        self.folder, self.processes = folder, {}
        self.server_at = f"127.0.0.1:{free_port()}"
        self.metrics = {name: str(free_port()) for name in ("server", "authority", *OFFICERS)}

    def here(self, name, text):
        """A part of the command of this service."""
        secret = COMPOSE["secrets"]["passphrase"]["file"]
        paths = mounts(name) | {"/run/secrets/passphrase": secret}
        for there, path in sorted(paths.items(), reverse=True):
            text = re.sub(rf"(^|=){there}(?=/|$)", rf"\g<1>{self.folder / path}", text)
        text = re.sub(r"(0\.0\.0\.0|server):7443", self.server_at, text)
        return text.replace("9464", self.metrics.get(name, ""))

    def command(self, name):
        return [self.here(name, part) for part in SERVICES[name]["command"]]

    def run(self, name, *more):
        return subprocess.run(
            [*SECUREFL, *self.command(name), *more], capture_output=True, text=True, check=False
        )

    def up(self, name):
        log = self.folder / f"{name}.log"
        env = SERVICES[name]["environment"]
        self.processes[name] = Process(log, *self.command(name), env=env)
        return self.processes[name]

    def is_healthy(self, name):
        kind, *command = SERVICES[name]["healthcheck"]["test"]
        assert kind == "CMD"
        command = [self.here(name, part) for part in command]
        assert command.pop(0) == "python"
        done = subprocess.run([sys.executable, *command], capture_output=True, check=False)
        return done.returncode == 0


@pytest.fixture
def composed(tmp_path, hospitals_patients):
    made = Composed(tmp_path)
    yield made
    for process in made.processes.values():
        process.stop()


@pytest.mark.slow
@pytest.mark.full
def test_the_composed_services_run_to_their_end(composed):
    """Set up, and started in an order of their own; the logs are of JSON lines."""
    done = composed.run("setup", "--rounds", "3")
    assert done.returncode == 0, done.stderr
    assert not composed.is_healthy("server")
    sites = [composed.up(name) for name in SITES]
    authority, server = composed.up("authority"), composed.up("server")
    server.wait_for("Round 1/3")
    assert composed.is_healthy("server")
    assert composed.is_healthy("authority")
    assert server.ended() == 0, server.text()
    assert [site.ended() for site in sites] == [0, 0, 0, 0]
    assert authority.interrupt(signal.SIGTERM) == 0
    assert not composed.is_healthy("authority")
    for name, process in composed.processes.items():
        rows = [json.loads(line) for line in process.text().splitlines()]
        assert {row["role"] for row in rows} == {"site" if name in SITES else name}
    status = composed.run("status")
    assert status.returncode == 0
    assert "hospitals: complete" in status.stdout
    assert f"Took part: {', '.join(SITES)}" in status.stdout


@pytest.mark.slow
@pytest.mark.full
def test_a_composed_officer_comes_up_with_its_own_files(composed):
    """It is healthy, calls the server, and is stopped in words; the other has the same command."""
    done = composed.run("setup-officers", "--rounds", "3")
    assert done.returncode == 0, done.stderr
    olga = composed.up("olga")
    olga.wait_for("Calling the server at .* for consortium Hospitals")
    assert composed.is_healthy("olga")
    assert olga.interrupt(signal.SIGTERM) == 0
    rows = [json.loads(line) for line in olga.text().splitlines()]
    assert {(row["role"], row["name"]) for row in rows} == {("officer", "olga")}
    assert SERVICES["olga"]["command"] == SERVICES["otto"]["command"]
    assert (composed.folder / "federation/otto/card-2.key").is_file()


def test_the_image_has_what_the_package_is_built_from(tmp_path):
    """A wheel is built from the paths that are copied, and the entry point is its command."""
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    for line in lines:
        if line.startswith("COPY "):
            *sources, target = line.split()[1:]
            for source in sources:
                there = tmp_path / target.removeprefix("/")
                if (ROOT / source).is_dir():
                    junk = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(ROOT / source, there, dirs_exist_ok=True, ignore=junk)
                else:
                    there.mkdir(exist_ok=True)
                    shutil.copy(ROOT / source, there)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path]
    subprocess.run([*build, tmp_path / "src"], check=True, capture_output=True)
    assert len(list(tmp_path.glob("securefl-*.whl"))) == 1
    assert 'ENTRYPOINT ["securefl"]' in lines
    assert any(line.startswith("USER 10001") for line in lines)


def unit_of(path):
    """By section and key; keys that stand twice have their lines together."""
    reader = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",))
    reader.optionxform = str
    reader.read_string(path.read_text().replace("\\\n", " "))
    return reader


@pytest.mark.parametrize("role", UNITS)
def test_a_units_command_parses(role):
    """Its ExecStart is a command of this release, and of this role."""
    service = unit_of(UNITS[role])["Service"]
    program, *command = shlex.split(service["ExecStart"])
    assert program == "/opt/securefl/bin/securefl"
    assert command[0] == role
    context = parsed(command)
    assert context.params["passphrase_file"] == Path("${CREDENTIALS_DIRECTORY}/passphrase")
    state = f"/var/lib/{service['StateDirectory']}/"
    written = {"authority": "directory", "server": "out"}.get(role, "identity")
    assert str(context.params[written]).startswith(state)
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("role", UNITS)
def test_systemd_takes_the_units_and_finds_them_little_exposed(role, tmp_path):
    """With a program that is here; every key is known, and exposure is under 2 of 10."""
    unit = tmp_path / UNITS[role].name
    unit.write_text(UNITS[role].read_text().replace("/opt/securefl/bin/securefl", sys.executable))
    env = os.environ | {"SYSTEMD_PAGER": "", "LC_ALL": "C"}
    looking = {"capture_output": True, "text": True, "env": env}
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], check=False, **looking)
    assert (done.returncode, done.stderr) == (0, "")
    exposed = ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20"]
    done = subprocess.run([*exposed, unit], check=False, **looking)
    assert done.returncode == 0, done.stdout.splitlines()[-1]
    broken = tmp_path / f"broken-{role}.service"
    broken.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystm=strict"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", broken], check=False, **looking)
    assert "ProtectSystm" in done.stderr
