"""Clients with files of their own, for tests of sites."""

from __future__ import annotations

import csv
import json
import re
from functools import cached_property

import numpy as np
import pytest
from over_loopback import NAMES, SHORT, SIZES, Job

import securefl
from securefl.build.own_data import task_at
from securefl.errors import ConfigError
from securefl.network.party import client_party
from securefl.settings.clashes import public_reader

COLUMNS = ("age", "pressure", "smokes")
TABLES = (
    f"samples.columns={json.dumps(COLUMNS)}",
    'samples.levels={smokes = ["no", "yes", "once"]}',
    'samples.missing=["pressure"]',
    "samples.target=ill",
    'samples.classes=["no", "yes"]',
    "samples.most=64",
)

N_PUBLIC = 24


def written(folder):
    """Write each client's table and arrays, and its site.toml for each; returns the folder."""
    rng = np.random.default_rng(0)
    for number, (name, size) in enumerate(zip(NAMES, SIZES, strict=True)):
        own, n = folder / name, size + 6
        own.mkdir()
        with (own / "patients.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["name", "ill", "age2", *COLUMNS, "dead"])
            for i in range(n):
                age, smokes = rng.normal(50 + number, 9), rng.choice(["no", "yes", "once"])
                pressure = "" if i % 5 == 0 else f"{rng.normal(120, 9):.2f}"
                ill = "yes" if age > 52 else "no"
                dead = int(i % 3 > 0)
                rows.writerow([f"{name}, {i}", ill, age / 10, age, pressure, smokes, dead])
        x = rng.normal(number / 9, 1, size=(n, 1, 4, 4)).astype(np.float32)
        np.savez(own / "scans.npz", x=x, y=(x.mean((1, 2, 3)) > 0).astype(np.int64))
        tables, arrays = 'train = "patients.csv"\ntest = 0.25\n', 'train = "scans.npz"\n'
        np.savez(own / "doses.npz", x=x, y=x.mean((1, 2, 3)) * 3 + 1)
        (own / "doses.toml").write_text('train = "doses.npz"\ntest = 0.25\n')
        (own / "tables.toml").write_text(f'{tables}public = "../public.csv"\n')
        (own / "arrays.toml").write_text(f'{arrays}public = "../public.npz"\n')
    _write_public(folder)
    return folder


def _write_public(folder):
    """Write public samples as a table and as arrays, and the server's file for each."""
    rng = np.random.default_rng(1)
    ages = np.linspace(40, 70, N_PUBLIC) + rng.normal(0, 1, N_PUBLIC)
    with (folder / "public.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["ill", "age2", *COLUMNS])
        for i, age in enumerate(ages):
            smokes = ("no", "yes", "once")[i % 3]
            rows.writerow(["yes" if age > 52 else "no", age / 10, age, f"{110 + i}", smokes])
    x = rng.normal(0.2, 1, size=(N_PUBLIC, 1, 4, 4)).astype(np.float32)
    np.savez(folder / "public.npz", x=x, y=(x.mean((1, 2, 3)) > 0).astype(np.int64))
    (folder / "tables.toml").write_text('public = "public.csv"\n')
    (folder / "arrays.toml").write_text('public = "public.npz"\n')


def digest_of(files, config):
    """Return the digest of these public samples, as the refusal of settings without it tells it."""
    server = {"server": files / f"{_kind(config)}.toml"}
    with pytest.raises(ConfigError, match="for all parties, public = ") as refused:
        task_at(config, server)
    return re.search(r'public = "([0-9a-f]{64})"$', str(refused.value))[1]


def _kind(config):
    if config.samples.shape:
        return "arrays" if config.samples.classes else "doses"
    return "tables"


class OwnData(Job):
    """A job whose clients have files."""

    files = None
    paths = None

    @cached_property
    def config(self):
        """Settings, with the digest of public samples, where any are read."""
        settings = [*SHORT, *self.settings]
        config = securefl.load_config(None, settings)
        if not public_reader(config):
            return config
        digest = digest_of(self.files, config)
        return securefl.load_config(None, [*settings, f"samples.public={digest}"])

    @property
    def server_file(self):
        """File of the server's own; None where nothing reads public samples."""
        reads = public_reader(self.config)
        return self.files / f"{_kind(self.config)}.toml" if reads else None

    @property
    def sites(self):
        """Each party's own file, as a rehearsal takes them."""
        if self.paths:
            return self.paths
        kind, server = _kind(self.config), self.server_file
        own = {name: self.files / name / f"{kind}.toml" for name in NAMES}
        return {**own, "server": server} if server else own

    def party(self, name):
        return client_party(self.config, self.identity(name), self.folder / name, self.sites[name])
