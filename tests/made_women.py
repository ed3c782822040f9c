"""The table of women at four clinics in the form of opt.csv, of made-up women."""

from __future__ import annotations

import csv

import numpy as np

from securefl.data.opt import CLINICS, FORM


def made_women(seed=0):
    """Return a row for each woman, in mixed order of clinics; words have R's trailing blanks."""
    rng = np.random.default_rng(seed)
    rows = []
    for code, n in CLINICS.values():
        for i in range(n):
            row = {"PID": "1", "GA.at.outcome": "270"}
            for column in FORM.columns:
                words = FORM.levels.get(column)
                row[column] = f"{rng.choice(words)} " if words else f"{rng.normal(20, 3):.3f}"
            row |= {"Clinic": code}
            if i % 9 == 0:
                row[FORM.missing[i % 4]] = "NA" if i % 2 else "   "
            rows.append(row)
    return [rows[i] for i in rng.permutation(len(rows))]


def write_women(folder, women):
    """Write them to opt.csv."""
    with (folder / "opt.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, ["rownames", *women[0]])
        rows.writeheader()
        rows.writerows(women)
