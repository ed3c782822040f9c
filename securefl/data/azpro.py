"""Days in hospital after two procedures on the heart, by hospital (Arizona 1991; Hilbe's COUNT).

3589 patients of 17 hospitals, four readings each.
"""

import gzip
import tarfile
import zlib
from pathlib import Path

import torch

from securefl.data.catalogue import DATA_SETS
from securefl.data.files import Domains, check_numbers, n_bytes_of
from securefl.data.packages import locate_packaged
from securefl.data.tables import parse_csv
from securefl.errors import DataError
from securefl.settings.data import DataTable
from securefl.settings.samples import SamplesTable

SHA256 = "e52e89e16c00ead3ee52fd0272370578c514e6658c2de5809d51c14919c09f45"
"""Digest of all patients as 64-bit floats."""
READINGS = ("procedure", "sex", "admit", "age75")
"""1 for bypass surgery (0 angioplasty), for men, for an urgent admission, and above 75 years."""
CODES = {name: float(name.rpartition("-")[2]) for name in DATA_SETS["azpro"].domains}
"""Code of each hospital in the file."""
MEMBER = "resources/rdata/csv/COUNT/azpro.csv"
"""Place in the package's archive."""

_MAX_PACKED_BYTES = 1 << 25  # the archive has 16 MB
_MAX_BYTES = 1 << 30  # of all that stands in it up to the table
_MAX_TABLE_BYTES = 1 << 22
_N_PATIENTS = 3589
_FORM = SamplesTable(columns=("hospital", *READINGS), target="los", most=_N_PATIENTS)


def read_azpro(data: DataTable, _seed: int) -> Domains:
    """Return the patients by hospital, in the file's order.

    x (n, 4) is of zeros and ones; y (n, 1) is the logarithm of the days, since their spread grows
    with them.

    Raises:
        DataError: the package is missing, or its archive is damaged or another one.
    """
    path = locate_packaged(*data.traits.packaged)
    x, days = parse_csv(_table(path), path, _FORM)
    check_numbers(path, torch.cat([x, days], dim=1), SHA256)
    code, y = x[:, 0], days.log()
    own = {name: (code - of).abs() < 0.01 for name, of in CODES.items()}
    return {name: (x[held, 1:], y[held]) for name, held in own.items()}


def _table(path: Path) -> bytes:
    """Return the table's bytes; the archive is read as far as that, and nothing is unpacked."""
    n_bytes_of(path, _MAX_PACKED_BYTES)
    try:
        with gzip.open(path) as file, tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:  # its own bytes are not read yet
                if member.offset_data + member.size > _MAX_BYTES:
                    raise DataError(f"{path}: unpacks to more than {_MAX_BYTES} bytes")
                found = archive.extractfile(member) if member.name == MEMBER else None
                if found is not None:
                    return _bounded(found.read(_MAX_TABLE_BYTES + 1), path)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise DataError(
            f"{path}: cannot be unpacked ({error}); install the package anew"
        ) from error
    raise DataError(f"{path}: has no {MEMBER}; install the package anew")


def _bounded(content: bytes, path: Path) -> bytes:
    if len(content) > _MAX_TABLE_BYTES:
        raise DataError(f"{path}: {MEMBER} has more than {_MAX_TABLE_BYTES} bytes")
    return content
