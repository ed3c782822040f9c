"""File of a site: the place of its samples, which nobody else needs to know.

# site.toml
train = "patients.csv"
test = 0.2
"""

import math
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from securefl.data import arrays, folders, tables
from securefl.data.scales import check_scales
from securefl.data.split import Split
from securefl.errors import ConfigError, DataError
from securefl.io.own_code import own_function
from securefl.settings.load import parse_tables, read_tables
from securefl.settings.samples import SamplesTable, Word
from securefl.settings.table import Share, Table

Loaded = tuple[Tensor, Tensor]


class SiteFile(Table):
    """Content of the file."""

    train: Word
    """Table (.csv, .parquet), arrays x and y (.npz, .safetensors), a folder of pictures in
    folders named by class, or `module:function`, which takes no argument and returns (x, y).
    Relative to the file's own folder."""
    test: Annotated[Word | Share, Field(union_mode="smart")] = 0.2
    """Samples for testing, as `train`; or the share of it that is set aside for them."""
    public: Word | None = None
    """Public samples, in the same forms, where the settings have each site train on some, in a
    file that all parties have."""
    model: Word | None = None
    """Function `module:function` of the settings' `model.name`, which this site has seen and lets
    run here."""
    approval: Literal["required"] | None = None
    """Required where this site takes part in no other job than that which it has approved, in
    approved.json beside this file (`securefl site review --approve`).
    """


class ServerData(Table):
    """Content of the server's own file, where the settings have it read public samples."""

    public: Word
    """Samples that no site holds and nobody is tested on; in the forms of `SiteFile.train`."""


def read_site(path: Path) -> SiteFile:
    """Read a site's file; raises ConfigError where it is none."""
    return parse_tables(SiteFile, read_tables(path), f"{path}: ")


def read_server(path: Path) -> ServerData:
    """Read the server's file; raises ConfigError where it is none."""
    return parse_tables(ServerData, read_tables(path), f"{path}: ")


def load_site(
    path: Path, form: SamplesTable, seed: int, dtype: torch.dtype, limit: float = math.inf
) -> Split:
    """Load a site's own samples.

    Args:
        path: the site's file.
        form: the form that all sites' samples have.
        seed: chooses the samples that are set aside for testing.
        dtype: of floats.
        limit: largest absolute mean or variance of a column that can be sent.

    Raises:
        ConfigError: the file does not say where samples lie, or a function cannot be had.
        DataError: samples cannot be read, are not of this form, or do not suit their units.
    """
    site = read_site(path)
    share = 0.0 if isinstance(site.test, str) else site.test
    # As many as can be, whichever way the share is rounded: the number itself is compared below.
    most = min(tables.MAX_ROWS, int((form.most + 1) / (1 - share)))
    x, y = load_samples(path.parent, site.train, form, dtype, most)
    if isinstance(site.test, str):
        test = load_samples(path.parent, site.test, form, dtype)
    else:
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        n_test = max(1, round(site.test * len(y)))
        test = x[order[:n_test]], y[order[:n_test]]
        x, y = x[order[n_test:]], y[order[n_test:]]
    if not len(y):
        raise DataError(f"{path}: no sample is left to train on: give more, or a smaller test")
    if len(y) > form.most:
        raise DataError(
            f"{path}: {len(y)} samples to train on, and samples.most = {form.most}: leave some "
            "out, or have all sites set a larger one"
        )
    check_scales(x, y, form, limit, f"{path}: {site.train}")
    return Split(x, y, *test)


def doubts(path: Path) -> str:
    """Return words on what a site may not have meant; empty where there is nothing of the kind.

    Files beside its pictures are not read; or it is tested on what it trains on.

    Raises:
        ConfigError: the site's file is none.
        DataError: a folder cannot be read.
    """
    site, words = read_site(path), []
    for where in (site.train, site.test):
        if isinstance(where, str) and (path.parent / where).is_dir():
            found = folders.passed_over(path.parent / where)
            named = ", ".join(f"{n} {ending or 'without an ending'}" for ending, n in found.items())
            if found:
                words.append(
                    f"{path.parent / where}: {sum(found.values())} files are passed over "
                    f"({named:.200}): pictures are JPEG, PNG or BMP"
                )
    if isinstance(site.test, str) and _is_same(path.parent, site.train, site.test):
        words.append(
            f"{path}: test = {site.test!r}: these are the training samples, and scores say nothing "
            "of others: name others, or the share that is set aside, as in test = 0.2"
        )
    return "; ".join(words)


def _is_same(folder: Path, one: str, other: str) -> bool:
    """Return whether both names are of one file, folder or function."""
    if one == other:
        return True
    try:
        return (folder / one).samefile(folder / other)
    except OSError:  # functions, or a file that is missing
        return False


def load_samples(
    folder: Path,
    where: str,
    form: SamplesTable,
    dtype: torch.dtype,
    most: int = tables.MAX_ROWS,
) -> Loaded:
    """Load the samples that a party's file names; raises as `load_site`.

    Args:
        folder: the file's own.
        where: a table, arrays, a folder of pictures or a function, as `SiteFile.train`.
        form: the form that all samples have.
        dtype: of floats.
        most: as of `tables.load_table`.
    """
    module, colon, name = where.partition(":")
    at = folder / where
    if colon and module.replace(".", "").isidentifier() and name.isidentifier():
        x, y = _called(module, name)
    elif at.suffix.lower() in tables.SUFFIXES:
        _require(form.columns, where, "samples.columns")
        x, y = tables.load_table(at, form, most)
    elif at.suffix.lower() in arrays.SUFFIXES:
        # Of classes, too: `_of_form` checks what a function gives.
        x, y = arrays.load_numbers(at, len(form.target_columns))
    elif at.is_dir():
        _require(form.shape, where, "samples.shape")
        _require(form.classes, where, "samples.classes")
        x, y = _pictures(at, form)
    else:
        raise DataError(
            f"{at}: no such folder of pictures, and no .csv, .parquet, .npz or .safetensors: name "
            "one of these, or module:function"
        )
    return _of_form(x, y, form, where, dtype)


def _require(given: object, where: str, key: str) -> None:
    if not given:
        raise ConfigError(f"{where}: needs {key}, which the settings do not have")


def _called(module: str, name: str) -> Loaded:
    """Call the site's own function."""
    function = own_function(f"{module}:{name}", f"{module}:{name}")
    try:
        given = function()
    except (Exception, SystemExit) as error:  # it may do anything, and its words be of patients
        raise DataError(f"{module}:{name}: raised a {type(error).__name__}: mend it") from error
    if not (isinstance(given, tuple) and len(given) == 2):
        raise DataError(f"{module}:{name}: gave a {type(given).__name__}, and is to give (x, y)")
    try:
        # Torch takes no view of an array that runs backwards.
        x, y = (
            torch.as_tensor(p.copy() if isinstance(p, np.ndarray) else p).detach() for p in given
        )
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise DataError(f"{module}:{name}: is to give x and y as arrays of numbers") from error
    if not (_is_plain(x) and _is_plain(y)):
        raise DataError(
            f"{module}:{name}: is to give x and y as dense arrays of plain numbers: x.to_dense(), "
            "x.dequantize(), or rows of one length"
        )
    if x.is_complex() or x.dim() == 0 or y.dim() == 0:
        raise DataError(f"{module}:{name}: is to give x and y as real arrays, a sample a row")
    return x, y


def _is_plain(x: Tensor) -> bool:
    return x.layout is torch.strided and not (x.is_meta or x.is_quantized or x.is_nested)


def _pictures(folder: Path, form: SamplesTable) -> Loaded:
    channels, *sides = form.shape
    if channels != 3 or len(sides) != 2 or sides[0] != sides[1]:
        raise ConfigError(
            f"samples.shape = {list(form.shape)}: pictures come as [3, SIDE, SIDE], as in [3, 64, "
            "64]: have all sites take that, or give arrays"
        )
    x, found, names = folders.load_class_folders(folder, sides[0])
    if unknown := sorted({*names} - {*form.classes}):
        raise DataError(
            f"{folder}: the folders {', '.join(unknown):.200} are none of samples.classes "
            f"({', '.join(form.classes):.200}): rename or move them"
        )
    places = torch.tensor([form.classes.index(name) for name in names])
    return x, places[found]


def _of_form(x: Tensor, y: Tensor, form: SamplesTable, where: str, dtype: torch.dtype) -> Loaded:
    """Return samples in the types of the model; raises DataError where they are of another form."""
    if len(x) != len(y):
        raise DataError(f"{where}: {len(x)} samples and {len(y)} targets: give one for each")
    n_targets = len(form.target_columns)
    if y.numel() != n_targets * len(y):
        given = f"{where}: targets of {list(y.shape[1:])} values"
        each = "(time, event), y of two columns" if form.event else "one for each sample"
        raise DataError(f"{given}: give {each}")
    if tuple(x.shape[1:]) != form.sample_shape:
        raise DataError(
            f"{where}: a sample is {list(x.shape[1:])}, and by the settings "
            f"{list(form.sample_shape)}: give samples of that shape, floats"
        )
    if y.dtype is torch.bool:
        raise DataError(f"{where}: targets are bool values: number classes from 0")
    x = x.to(dtype)
    if not bool(torch.isfinite(x).all()):
        raise DataError(f"{where}: a sample has a value that is not finite: mend it")
    if not form.classes:
        y = (y.double() / form.units.get(form.target, 1.0)).to(dtype).reshape(len(y), n_targets)
        if not bool(torch.isfinite(y).all()):
            raise DataError(f"{where}: a target is not finite: mend it")
        if form.event and not bool(((y[:, 1] == 0) | (y[:, 1] == 1)).all()):
            raise DataError(
                f"{where}: {form.event!r:.60} has values that are neither 1, for an event, nor 0, "
                "for the end of observation: mend it"
            )
        return x, y
    labels = y.to(torch.int64).reshape(len(y))
    if y.is_floating_point() and not bool((y.reshape(len(y)) == labels).all()):
        raise DataError(f"{where}: labels are no whole numbers: number classes from 0")
    y = labels
    if len(y) and not (int(y.min()) >= 0 and int(y.max()) < len(form.classes)):
        raise DataError(
            f"{where}: labels from {int(y.min())} to {int(y.max())}, and {len(form.classes)} "
            "classes count from 0: number them as samples.classes does"
        )
    return x, y
