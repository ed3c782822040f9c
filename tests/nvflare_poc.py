"""NVIDIA FLARE on this machine, as `nvflare poc prepare` lays it out: a server, sites, jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from nvflare.fuel.flare_api.flare_api import new_secure_session
from processes import ONE_THREAD, SERVER
from with_officers import OTHERS

from securefl_cli.nvflare import SIDES

ADMIN = "admin@nvidia.com"
LETS_RUN = (f"{SIDES}.", "nvflare.collab.runtime.")
"""Classes of a job that a site lets run, beside those that it does anyway."""
CLIENT = ("client.client_train", "fed_client.json")
HUB = ("server.server_train", "fed_server.json")


class Poc:
    """Server and sites; each job's federation is a `processes.Site`."""

    authority = "keeper"

    def __init__(self, folder, clients):
        self.folder = folder
        self.env = {**os.environ, **ONE_THREAD, "HOME": str(folder)}
        self.env |= {"NVFLARE_POC_WORKSPACE": str(folder / "poc")}
        self.names = [*clients, self.authority, *OTHERS]
        self.processes = {}
        self.session = None
        folder.mkdir()
        command = [Path(sys.executable).parent / "nvflare", "poc", "prepare", "-c", *self.names]
        subprocess.run([*command, "--force"], env=self.env, check=True, capture_output=True)
        for name in ("server", *self.names):
            local = self.kit(name) / "local"
            resources = json.loads((local / "resources.json.default").read_text())
            if (local / "resources.json").exists():
                resources = json.loads((local / "resources.json").read_text())
            resources["class_allow_list"] += LETS_RUN
            (local / "resources.json").write_text(json.dumps(resources))

    def own_files(self, site):
        """Write what each site has in the next job."""
        self.own(SERVER, "server", site, bundle="bundles/server", identity=SERVER, out="run")
        for name in site.names:
            self.own(name, name, site, bundle="bundles/client", identity=name)
        self.own("authority", self.authority, site, keys="keys")
        for name in OTHERS:
            if (site.folder / name).exists():
                self.own(name, name, site, bundle="bundles/officer", officer=name)

    def own(self, party, name, site, **paths):
        """Write what one site has, as its securefl.toml."""
        files = {"settings": site.job, "passphrase_file": site.passphrase_file(party)}
        files |= {key: site.folder / path for key, path in paths.items()}
        lines = [f'{key} = "{path}"\n' for key, path in files.items()]
        (self.kit(name) / "local/securefl.toml").write_text("".join(lines))

    def kit(self, name):
        """Return the startup kit of a site."""
        return self.folder / "poc/example_project/prod_00" / name

    def start(self, name):
        module, file = HUB if name == "server" else CLIENT
        about = [f"uid={name}"] if name != "server" else []
        command = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{module}"]
        command += ["-m", str(self.kit(name)), "-s", file, "--set", "secure_train=true", *about]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*command, "org=nvidia", "config_folder=config"],
                env=self.env,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    @contextmanager
    def running(self):
        """Start everything; all processes end with the block."""
        try:
            self.start("server")
            time.sleep(3)
            for name in self.names:
                self.start(name)
            self.until(self._console, within_s=60)
            self.until(lambda: len(self.session.get_system_info().client_info) == len(self.names))
            yield self
        finally:
            if self.session:
                self.session.close()
            for process in self.processes.values():
                self.end(process)

    def _console(self):
        """Log in as whoever hands jobs over; return False where nobody answers yet."""
        try:
            self.session = new_secure_session(ADMIN, str(self.kit(ADMIN)))
        except Exception:
            return False
        return True

    def until(self, happens, within_s=90):
        deadline = time.monotonic() + within_s
        while not happens():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.2)

    def end(self, process):
        """Kill a process of ours, and those that it has started."""
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            process.kill()
        process.wait()

    def job_process(self, name):
        """Return the process of the running job at a site."""
        for child in psutil.Process(self.processes[name].pid).children(recursive=True):
            if "worker_process" in " ".join(child.cmdline()):
                return child
        raise AssertionError(f"{name}: no job runs there")

    def said(self, name="server"):
        return (self.folder / f"{name}.log").read_text()

    def error_logs(self, name):
        """Return what NVIDIA FLARE hands on to its server."""
        return self.kit(name).rglob("error_log.txt")

    def ended(self, job, within_s=240):
        """Return how NVIDIA FLARE says that a job has ended."""

        def status():
            return self.session.get_job_meta(job)["status"]

        self.until(lambda: status().startswith("FINISHED"), within_s)
        return status()
