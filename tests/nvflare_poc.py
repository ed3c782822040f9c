"""NVIDIA FLARE on this machine, as `nvflare poc prepare` lays it out: a server, sites, jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
from nvflare.fuel.flare_api.flare_api import new_secure_session
from processes import ONE_THREAD, SERVER

from securefl_cli.nvflare_export import SIDES

AUTHORITY = "keeper"
ADMIN = "admin@nvidia.com"
LETS_RUN = (f"{SIDES}.", "nvflare.collab.runtime.")
"""Classes of a job that a site lets run, beside those that it does anyway."""
CLIENT = ("client.client_train", "fed_client.json")
HUB = ("server.server_train", "fed_server.json")


class Poc:
    """Server and sites of a federation, whose files are a `processes.Site`'s."""

    def __init__(self, site, folder):
        self.site = site
        self.folder = folder
        self.env = {**os.environ, **ONE_THREAD, "HOME": str(folder)}
        self.env |= {"NVFLARE_POC_WORKSPACE": str(folder / "poc")}
        self.names = [*site.names, AUTHORITY]
        self.processes = {}
        folder.mkdir()
        self._prepare()

    def _prepare(self):
        command = [Path(sys.executable).parent / "nvflare", "poc", "prepare", "-c", *self.names]
        subprocess.run([*command, "--force"], env=self.env, check=True, capture_output=True)
        self.own(SERVER, "server", bundle="bundles/server", identity=SERVER, out="run")
        for name in self.site.names:
            self.own(name, name, bundle="bundles/client", identity=name)
        self.own("authority", AUTHORITY, keys="keys")
        for name in ("server", *self.names):
            local = self.kit(name) / "local"
            resources = json.loads((local / "resources.json.default").read_text())
            if (local / "resources.json").exists():
                resources = json.loads((local / "resources.json").read_text())
            resources["class_allow_list"] += LETS_RUN
            (local / "resources.json").write_text(json.dumps(resources))

    def kit(self, name):
        """The startup kit of a site."""
        return self.folder / "poc/example_project/prod_00" / name

    def own(self, party, name, **paths):
        """Write what a site has, as its securefl.toml."""
        files = {"settings": self.site.job, "passphrase_file": self.site.passphrase_file(party)}
        files |= {key: self.site.folder / path for key, path in paths.items()}
        lines = [f'{key} = "{path}"\n' for key, path in files.items()]
        (self.kit(name) / "local/securefl.toml").write_text("".join(lines))

    def start(self, name):
        module, file = HUB if name == "server" else CLIENT
        about = [f"uid={name}"] if name != "server" else []
        command = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{module}"]
        command += ["-m", str(self.kit(name)), "-s", file, "--set", "secure_train=true", *about]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*command, "org=nvidia", "config_folder=config"],
                **{"env": self.env, "stdout": log, "stderr": log, "cwd": self.folder},
            )

    @contextmanager
    def running(self):
        """Everything is up; all processes end with the block."""
        try:
            self.start("server")
            time.sleep(3)
            for name in self.names:
                self.start(name)
            with self.session() as session:
                deadline = time.monotonic() + 90
                while len(session.get_system_info().client_info) < len(self.names):
                    assert time.monotonic() < deadline, self.said("server")
                    time.sleep(0.5)
                yield session
        finally:
            for process in self.processes.values():
                self.end(process)

    @contextmanager
    def session(self):
        """The console of whoever hands jobs over."""
        deadline = time.monotonic() + 60
        while True:
            try:
                session = new_secure_session(ADMIN, str(self.kit(ADMIN)))
                break
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)
        try:
            yield session
        finally:
            session.close()

    def end(self, process):
        with_all = [process]
        if process.poll() is None:
            with_all += psutil.Process(process.pid).children(recursive=True)
        for each in with_all:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        process.wait()

    def job_process(self, name):
        """The process of the running job at a site."""
        for child in psutil.Process(self.processes[name].pid).children(recursive=True):
            if "worker_process" in " ".join(child.cmdline()):
                return child
        raise AssertionError(f"{name}: no job runs there")

    def said(self, name):
        return (self.folder / f"{name}.log").read_text()

    def ended(self, session, job, within_s=240):
        """How NVIDIA FLARE says that a job has ended."""
        deadline = time.monotonic() + within_s
        while not (status := session.get_job_meta(job)["status"]).startswith("FINISHED"):
            assert time.monotonic() < deadline, status + self.said("server")[-4000:]
            time.sleep(0.3)
        return status
