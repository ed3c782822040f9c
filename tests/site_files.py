"""Clients with files of their own, for tests of sites."""

from __future__ import annotations

import csv
import json
from functools import cached_property

import numpy as np
from over_loopback import NAMES, SHORT, SIZES, Job

import securefl
from securefl.network.party import client_party

COLUMNS = ("age", "pressure", "smokes")
TABLES = (
    f"samples.columns={json.dumps(COLUMNS)}",
    'samples.levels={smokes = ["no", "yes", "once"]}',
    'samples.missing=["pressure"]',
    "samples.target=ill",
    'samples.classes=["no", "yes"]',
    "samples.most=64",
)


def written(folder):
    """Write each client's table and arrays, and its site.toml for each; returns the folder."""
    rng = np.random.default_rng(0)
    for number, (name, size) in enumerate(zip(NAMES, SIZES, strict=True)):
        own, n = folder / name, size + 6
        own.mkdir()
        with (own / "patients.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["name", "ill", "age2", *COLUMNS])
            for i in range(n):
                age, smokes = rng.normal(50 + number, 9), rng.choice(["no", "yes", "once"])
                pressure = "" if i % 5 == 0 else f"{rng.normal(120, 9):.2f}"
                ill = "yes" if age > 52 else "no"
                rows.writerow([f"{name}, {i}", ill, age / 10, age, pressure, smokes])
        x = rng.normal(number / 9, 1, size=(n, 1, 4, 4)).astype(np.float32)
        np.savez(own / "scans.npz", x=x, y=(x.mean((1, 2, 3)) > 0).astype(np.int64))
        (own / "tables.toml").write_text('train = "patients.csv"\ntest = 0.25\n')
        (own / "arrays.toml").write_text('train = "scans.npz"\n')
    return folder


class OwnData(Job):
    """A job whose clients have files."""

    files = None
    paths = None

    @cached_property
    def config(self):
        return securefl.load_config(None, [*SHORT, *self.settings])

    @property
    def sites(self):
        if self.paths:
            return self.paths
        kind = "arrays" if self.config.samples.shape else "tables"
        return {name: self.files / name / f"{kind}.toml" for name in NAMES}

    def party(self, name):
        return client_party(self.config, self.identity(name), self.folder / name, self.sites[name])
