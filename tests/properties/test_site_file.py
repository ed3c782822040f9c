"""What a site's files may hold, and what becomes of those that hold something else."""

import sys
import tomllib

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from securefl.data import tables
from securefl.data.site_file import doubts, load_site
from securefl.errors import ConfigError, DataError
from securefl.settings.load import load_config
from securefl.settings.samples import SamplesTable
from securefl_cli.main import main

FORM = SamplesTable(
    columns=("age", "smokes", "pressure"),
    levels={"smokes": ("no", "yes")},
    missing=("pressure", "smokes"),
    target="ill",
    classes=("no", "yes"),
    most=10,
)
HEAD = "name,age,smokes,pressure,ill\n"
GOOD = HEAD + "a,61,no,120.5,yes\nb,52,yes,,no\nc,4e1,,99,no\n"
READ = [[61, 1, 0, 120.5, 0, 0], [52, 0, 1, 0, 1, 0], [40, 0, 0, 99, 0, 1]]
PICTURES = SamplesTable(shape=(3, 8, 8), classes=("cat", "dog"), most=10)
ARRAYS = SamplesTable(shape=(2,), classes=("cat", "dog"), most=10)


def loaded(folder, form=FORM, content=GOOD, site='train = "own.csv"\ntest = "own.csv"\n'):
    """The samples of a site whose table has this content."""
    data = content if isinstance(content, bytes) else content.encode()
    (folder / "own.csv").write_bytes(data)
    (folder / "site.toml").write_text(site)
    return load_site(folder / "site.toml", form, 0, torch.float64)


SAME = {
    "as it is": GOOD,
    "Windows' line ends": GOOD.replace("\n", "\r\n"),
    "a byte order mark": "\ufeff" + GOOD,
    "spaces": GOOD.replace(",", " , "),
    "quotes": GOOD.replace("a,", '"a, the ""first"",\nof all",'),
    "in another order": "ill,pressure,age,smokes\nyes,120.5,61,no\nno,NA,52,yes\nno,99,40,?\n",
    "lines without anything": GOOD + "\n\n",
}


@pytest.mark.parametrize("content", SAME.values(), ids=SAME)
def test_a_table_is_read_by_its_columns(tmp_path, content):
    split = loaded(tmp_path, content=content)
    assert split.train_x.tolist() == READ
    assert split.train_y.tolist() == [1, 0, 0]
    assert split.train_x.shape[1:] == FORM.sample_shape
    assert FORM.form_said == (
        "Inputs, in order: age, smokes = no (0 or 1), smokes = yes (0 or 1), pressure (0 where "
        "missing), pressure is missing (0 or 1), smokes is missing (0 or 1). Standardisation is "
        "inside. Output: logits of no, yes."
    )


def test_a_parquet_file_is_read_as_a_table_is(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet  # noqa: PLC0415

    columns = {
        "age": [61, 52, 40],
        "smokes": ["no", "yes", None],
        "pressure": [120.5, None, 99.0],
        "ill": ["yes", "no", "no"],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "own.parquet")
    split = loaded(tmp_path, site='train = "own.parquet"\ntest = "own.parquet"\n')
    assert split.train_x.tolist() == READ
    (tmp_path / "own.parquet").write_bytes(b"PAR1 and something else PAR1")
    with pytest.raises(DataError, match="is no Parquet file"):
        loaded(tmp_path, site='train = "own.parquet"\n')


def test_a_share_is_set_aside_for_tests_and_is_the_same_each_time(tmp_path):
    site = 'train = "own.csv"\ntest = 0.4\n'
    split, again = loaded(tmp_path, site=site), loaded(tmp_path, site=site)
    assert len(split.test_y) == 1
    assert torch.equal(split.train_x, again.train_x)
    both = torch.cat([split.train_x, split.test_x]).tolist()
    assert sorted(both) == sorted(READ)


def test_numbers_are_targets_where_there_are_no_classes(tmp_path):
    form = SamplesTable(columns=("age",), target="pressure", units={"pressure": 10}, most=10)
    split = loaded(tmp_path, form, "age,pressure\n61,120.5\n52,99\n")
    assert split.train_y.tolist() == [[12.05], [9.9]]


COUNTED = SamplesTable(columns=("a b", "c"), levels={"c": ("x", "y")}, target="t", most=10)
RANGE = 2.0**23
"""Largest mean or variance that a short message holds."""


def table(values, targets=(1.0, 2.0, 3.0)):
    return "a b,c,t\n" + "".join(f"{v!r},x,{t}\n" for v, t in zip(values, targets, strict=True))


TOO = {
    "large": (table([1.6e5, 3.6e5, 2.6e5]), '"a b" = 1e5'),
    "far": (table([9e6, 9e6 + 4e3, 9e6 + 2e3]), '"a b" = 1e3'),
    "small": (table([2e-4, 4e-4, 3e-4]), '"a b" = 1e-4'),
    "large a target": (table([1, 2, 3], (3e4, 5e4, 7e4)), "t = 1e4"),
    "small a target": (table([1, 2, 3], (3e-4, 1e-4, 2e-4)), "t = 1e-4"),
    "large, and too small a target": (
        table([1.6e5, 3.6e5, 2.6e5], (3e-4, 1e-4, 2e-4)),
        '"a b" = 1e5, t = 1e-4',
    ),
}


@pytest.mark.parametrize(("content", "units"), TOO.values(), ids=TOO)
def test_a_column_in_a_unit_that_does_not_suit_it_is_refused_with_one_that_does(
    tmp_path, content, units
):
    """The unit in the message is taken as it stands there, and the column is then of size one."""
    site = 'train = "own.csv"\ntest = "own.csv"\n'
    (tmp_path / "own.csv").write_text(content)
    (tmp_path / "site.toml").write_text(site)

    def load(form):
        return load_site(tmp_path / "site.toml", form, 0, torch.float32, RANGE)

    with pytest.raises(DataError, match="have all sites set samples") as refused:
        load(COUNTED)
    line = f"samples.units = {{ {units} }}"
    assert line in str(refused.value)
    found = tomllib.loads(line)["samples"]["units"]
    form = SamplesTable(**{**dict(COUNTED), "units": found})
    split = load(form)
    if "a b" in found:
        assert split.train_x[:, 0].tolist() == pytest.approx(
            [float(line.split(",")[0]) / found["a b"] for line in content.splitlines()[1:]]
        )


def test_a_column_that_differs_too_little_for_the_models_precision_is_refused(tmp_path):
    content = table([1.7e9, 1.7e9 + 1, 1.7e9 + 2])
    with pytest.raises(DataError, match=r"too little for 64 bits: .* years since 2000; or mend"):
        loaded(tmp_path, COUNTED, table([1e16, 1e16 + 8, 1e16]))
    assert len(loaded(tmp_path, COUNTED, content).train_y) == 3


@pytest.mark.parametrize("values", [[7.0, 7.0, 7.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
def test_a_column_that_is_the_same_for_all_or_nearly_is_no_error(tmp_path, values):
    """A site may have nobody whom it tells apart."""
    assert len(loaded(tmp_path, COUNTED, table(values)).train_y) == 3


def test_arrays_of_another_size_are_refused_by_their_channel(tmp_path):
    x = np.stack([np.arange(3.0), np.arange(3.0) * 1e-5], axis=1)
    np.savez(tmp_path / "own.npz", x=x, y=np.zeros(3, int))
    with pytest.raises(DataError, match=r"'x\[:, 1\]' goes .* arrays that are divided by 1e-5"):
        loaded(tmp_path, ARRAYS, site='train = "own.npz"\ntest = "own.npz"\n')


def test_units_are_of_columns_of_numbers_and_of_a_target_that_is_one():
    with pytest.raises(ValueError, match=r"samples\.units: c, d is no column of numbers"):
        SamplesTable(columns=("a", "c"), levels={"c": ("x", "y")}, units={"c": 1, "d": 1}, most=9)
    with pytest.raises(ValueError, match=r"samples\.units: ill is no column of numbers"):
        SamplesTable(columns=("a",), target="ill", classes=("x", "y"), units={"ill": 2}, most=9)


NUMBERS = SamplesTable(shape=(2, 1), most=10)
X = np.arange(6.0).reshape(3, 2, 1)


@pytest.mark.parametrize("y", [[0.5, -1.0, 2.0], [3, 0, -7], [[0.5], [1.5], [2.5]]])
def test_arrays_have_a_number_for_each_sample_where_there_are_no_classes(tmp_path, y):
    np.savez(tmp_path / "own.npz", x=X, y=np.array(y))
    split = loaded(tmp_path, NUMBERS, site='train = "own.npz"\ntest = "own.npz"\n')
    assert split.train_x.tolist() == X.tolist()
    assert split.train_y.tolist() == np.array(y, dtype=float).reshape(3, 1).tolist()
    assert split.train_y.dtype is torch.float64


@pytest.mark.parametrize(
    ("y", "why"),
    [
        (np.ones((3, 2)), r"float64 values of shape \(3, 2\); give one number per sample"),
        (np.array(1.0), "give one number per sample"),
        (np.ones(3) > 0, "holds bool values"),
        (np.ones(3) * 1j, "holds complex128 values"),
        (np.array([1.0, np.nan, 2.0]), "a target is not finite"),
        (np.ones(2), "for 2 labels in y"),
    ],
)
def test_arrays_of_other_targets_are_refused(tmp_path, y, why):
    np.savez(tmp_path / "own.npz", x=X, y=y)
    with pytest.raises(DataError, match=why):
        loaded(tmp_path, NUMBERS, site='train = "own.npz"\n')


RECORDS = [
    *("privacy.level=record", "privacy.records=30", "algorithm.weights=uniform"),
    "samples.standardise=false",
]


def survival(**form):
    return SamplesTable(target="days", event="dead", most=10, **form)


@pytest.mark.parametrize("content", ["days,age,dead\n306,74,1\n1010,56,0\n", None])
def test_survival_has_a_time_and_an_event(tmp_path, content):
    """Of a table by their columns' names, of arrays in this order; times come as they are."""
    wanted = [[306.0, 1.0], [1010.0, 0.0]]
    if content:
        split = loaded(tmp_path, survival(columns=("age",)), content)
        assert split.train_x.tolist() == [[74.0], [56.0]]
    else:
        np.savez(tmp_path / "own.npz", x=X[:2], y=np.array(wanted))
        split = loaded(
            tmp_path, survival(shape=(2, 1)), site='train = "own.npz"\ntest = "own.npz"\n'
        )
    assert split.train_y.tolist() == wanted


def test_survival_of_another_form_is_refused(tmp_path):
    """By its column, and where a setting has no meaning with it."""
    with pytest.raises(DataError, match="'dead' has values that are neither 1, for an event, nor"):
        loaded(tmp_path, survival(columns=("age",)), "days,age,dead\n306,74,2\n1010,56,1\n")
    with pytest.raises(DataError, match="has no column dead"):
        loaded(tmp_path, survival(columns=("age",)), "days,age\n306,74\n1010,56\n")
    np.savez(tmp_path / "own.npz", x=X, y=np.ones(3))
    with pytest.raises(DataError, match="give 2 numbers per sample"):
        loaded(tmp_path, survival(shape=(2, 1)), site='train = "own.npz"\n')
    for form, why in (
        ({"classes": ("a", "b")}, 'samples.event = "dead" with samples.classes: an event has'),
        ({"units": {"days": 30}}, "samples.units: days is no column of numbers"),
    ):
        with pytest.raises(ValueError, match=why):
            survival(columns=("age",), **form)
    base = ["data.names=['a', 'b']", "samples.columns=['age']", "samples.event=dead"]
    for setting, why in (
        (["run.metric=r2"], 'by .samples. targets are times of events: take "c-index"'),
        (["run.metric=dice"], '"dice": needs a class for each pixel or voxel: '),
        (["fnr.name=matched"], "class by class, and the targets are times of events"),
        (RECORDS, 'with samples.event = "dead": targets are times of events, whose loss'),
    ):
        with pytest.raises(ConfigError, match=why):
            load_config(settings=[*base, "samples.most=9", "algorithm.name=fixbn", *setting])


def test_pictures_have_no_numbers(tmp_path):
    form = SamplesTable(shape=(3, 8, 8), most=10)
    with pytest.raises(ConfigError, match=r"needs samples\.classes"):
        loaded(tmp_path, form, site='train = "."\n')


@pytest.mark.parametrize("form", [NUMBERS, SamplesTable(shape=(2, 1), classes=("a", "b"), most=9)])
def test_a_function_gives_one_target_for_each_sample(tmp_path, monkeypatch, form):
    code = "import numpy as np\ndef two(): return np.ones((3, 2, 1)), np.ones((3, 2), dtype=int)\n"
    (tmp_path / "two_targets_of_tests.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DataError, match=r"targets of \[2\] values: give one for each sample"):
        loaded(tmp_path, form, site='train = "two_targets_of_tests:two"')


WRONG = {
    "no such column": (GOOD.replace("age", "years"), "has no column age; it has name, years"),
    "no line of names": (GOOD.removeprefix(HEAD), "it has no other line of names"),
    "an underscore": (GOOD.replace("52", "5_2"), "'5_2' is no finite number"),
    "a column twice": (GOOD.replace("name", "age"), "'age' twice"),
    "a word for a number": (GOOD.replace("52", "old"), "'age', sample 2: 'old' is no finite"),
    "infinity": (GOOD.replace("52", "inf"), "sample 2: 'inf' is no finite number"),
    "an unknown value": (GOOD.replace("no,120", "pipe,120"), "'pipe' is none of no, yes"),
    "an unknown class": (GOOD.replace("120.5,yes", "120.5,maybe"), "'ill', sample 1: 'maybe'"),
    "an empty field": (GOOD.replace("52", ""), "'age', sample 2: empty: fill it"),
    "a field too many": (GOOD.replace("52", "5,2"), "sample 2 has 6 fields, and the first line 5"),
    "no line": (HEAD, "has no line of values"),
    "nothing": ("", "is empty: save the table anew"),
    "other bytes": (b"\xff\xfe\x00", "is no CSV file of UTF-8"),
    "an open quote": (GOOD + '"', "is no CSV file"),
    "too many": (HEAD + "a,61,no,1,yes\n" * 11, "11 samples to train on, and samples.most = 10"),
}


@pytest.mark.parametrize(("content", "why"), WRONG.values(), ids=WRONG)
def test_another_table_is_refused_in_words(tmp_path, content, why):
    """Which show no field but the one at fault."""
    with pytest.raises(DataError) as refused:
        loaded(tmp_path, content=content)
    assert why in str(refused.value)
    assert "120.5" not in str(refused.value)


def test_a_word_for_nothing_is_a_level_where_it_is_named(tmp_path):
    """`none` is a value of this column, and empty in others."""
    levels = {"smokes": ("none", "some")}
    form = SamplesTable(columns=("smokes",), levels=levels, target="n", most=9)
    split = loaded(tmp_path, form, "smokes,n\nnone,1\nsome,2\n")
    assert split.train_x.tolist() == [[1, 0], [0, 1]]


SITES = {
    "no such file": ('train = "none.csv"', DataError, "none.csv: No such file"),
    "a sheet": ('train = "own.xlsx"', DataError, "no .csv, .parquet, .npz or .safetensors"),
    "no train": ("test = 0.2", ConfigError, "site.toml: train: is missing, and has no default"),
    "an unknown key": ('train = "own.csv"\nsecret = 1', ConfigError, "secret: no such key"),
    "a byte order mark": ('\ufefftrain = "own.csv"\ntest = 1.0', ConfigError, "test = 1.0: input"),
    "a share of all": (
        'train = "own.csv"\ntest = 1.0',
        ConfigError,
        "test = 1.0: input should be less than 1",
    ),
    "a space": (
        'train = " own.csv"',
        ConfigError,
        "must be text of 1 to 200 characters, none of them a control, that begins and ends with",
    ),
    "no module": ('train = "nowhere_at_all:data"', ConfigError, "nowhere_at_all:data: cannot be"),
    "no TOML": ("train =", ConfigError, "not valid TOML"),
    "a folder of pictures": ('train = "."', ConfigError, "needs samples.shape"),
}


@pytest.mark.parametrize(("site", "error", "why"), SITES.values(), ids=SITES)
def test_another_site_file_is_refused_in_words(tmp_path, site, error, why):
    with pytest.raises(error) as refused:
        loaded(tmp_path, site=site)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        (np.zeros((3, 3)), np.zeros(3, int), "a sample is [3], and by the settings [2]"),
        (np.zeros((3, 2)), np.array([0, 1, 2]), "labels from 0 to 2, and 2 classes"),
        (np.full((3, 2), np.nan), np.zeros(3, int), "not finite"),
        (np.zeros((2, 2)), np.zeros(3, int), "for 3 labels"),
    ],
)
def test_other_arrays_are_refused_in_words(tmp_path, x, y, why):
    np.savez(tmp_path / "own.npz", x=x, y=y)
    with pytest.raises(DataError) as refused:
        loaded(tmp_path, ARRAYS, site='train = "own.npz"')
    assert why in str(refused.value)


@pytest.mark.parametrize("y", [[0.0, 1.0, 0.0], [[0], [1], [0]], [[0.0], [1.0], [0.0]]])
def test_labels_of_an_array_may_be_what_a_functions_may_be(tmp_path, y):
    """Whole numbers of any type, in a column or not."""
    np.savez(tmp_path / "own.npz", x=np.ones((3, 2)), y=np.array(y))
    split = loaded(tmp_path, ARRAYS, site='train = "own.npz"\ntest = "own.npz"\n')
    assert split.train_y.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        (np.ones((3, 2)) * 1j, np.zeros(3, int), "x holds complex128 values"),
        (np.ones((3, 2)), np.array([0, 0.5, 1]), "labels are no whole numbers"),
        (np.ones((3, 2)), np.zeros(3, bool), "y holds bool values"),
        (np.ones((3, 2)), np.array([0, -1, 1]), "labels from -1 to 1, and 2 classes count from 0"),
    ],
)
def test_arrays_of_no_samples_or_labels_are_refused(tmp_path, x, y, why):
    np.savez(tmp_path / "own.npz", x=x, y=y)
    with pytest.raises(DataError, match=why):
        loaded(tmp_path, ARRAYS, site='train = "own.npz"')


def test_pictures_lie_in_folders_of_their_classes(tmp_path):
    """Their labels are places in the settings' classes, whichever folders a site has."""
    folder = tmp_path / "scans" / "dog"
    folder.mkdir(parents=True)
    Image.new("RGB", (9, 5), "red").save(folder / "1.png")
    site = 'train = "scans"\ntest = "scans"\n'
    split = loaded(tmp_path, PICTURES, site=site)
    assert split.train_x.shape == (1, 3, 8, 8)
    assert split.train_y.tolist() == [1]
    folder.rename(folder.parent / "wolf")
    with pytest.raises(DataError, match=r"folders wolf are none of samples\.classes"):
        loaded(tmp_path, PICTURES, site=site)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_grey_pictures_of_16_bits_are_those_of_8(tmp_path, dtype):
    """To half a level of 256."""
    folder = tmp_path / "scans" / "cat"
    folder.mkdir(parents=True)
    ramp = np.linspace(0, np.iinfo(dtype).max, 64).astype(dtype).reshape(8, 8)
    Image.fromarray(ramp).save(folder / "1.png")
    x = loaded(tmp_path, PICTURES, site='train = "scans"\ntest = "scans"\n').train_x[0]
    assert x.flatten(1).tolist() == pytest.approx(
        np.tile(np.linspace(0, 1, 64), (3, 1)), abs=1 / 255
    )


def test_a_site_that_is_tested_on_what_it_trains_on_is_told_so(tmp_path):
    """Also over another path to the same file; a run goes on, as it does with any test samples."""
    site = tmp_path / "site.toml"
    for name in ("own.csv", "others.csv"):
        (tmp_path / name).touch()
    (tmp_path / "link.csv").symlink_to("own.csv")
    for same in ("own.csv", "./own.csv", "link.csv", str(tmp_path / "own.csv")):
        site.write_text(f'train = "own.csv"\ntest = "{same}"\n')
        assert f"test = '{same}': these are the training samples, and scores" in doubts(site)
    site.write_text('train = "own:read"\ntest = "own:read"\n')
    assert "these are the training samples" in doubts(site)
    for other in ('"others.csv"', '"none.csv"', '"own:read"', "0.2"):
        site.write_text(f'train = "own.csv"\ntest = {other}\n')
        assert doubts(site) == ""


def test_files_beside_pictures_are_counted_in_words(tmp_path):
    """A site finds out that half of its scans are of another kind."""
    folder = tmp_path / "scans" / "cat"
    folder.mkdir(parents=True)
    Image.new("RGB", (9, 5)).save(folder / "1.PNG")
    (tmp_path / "site.toml").write_text('train = "scans"\n')
    assert doubts(tmp_path / "site.toml") == ""
    for name in ("2.tif", "3.TIF", "notes", ".hidden"):
        (folder / name).touch()
    words = doubts(tmp_path / "site.toml")
    assert "scans: 3 files are passed over (2 .tif, 1 without an ending): pictures" in words
    table = "samples.shape=[3, 8, 8]", 'samples.classes=["cat", "dog"]', "samples.most=9"
    config = (*table, 'data.names=["north", "b", "c"]', "exchange.encrypt=none")
    Image.new("RGB", (9, 5)).save(folder / "4.png")
    options = [part for setting in config for part in ("--set", setting)]
    site = ["--data", str(tmp_path / "site.toml"), "--name", "north"]
    done = CliRunner().invoke(main, ["site", "review", *options, *site])
    assert "3 files are passed over" in done.stderr, done.output


def test_a_function_of_the_site_gives_samples(tmp_path, monkeypatch):
    (tmp_path / "own_reader_of_tests.py").write_text(
        "import numpy as np\n"
        "def both(): return np.ones((3, 2)), np.array([0, 1, 1])\n"
        "def one(): return np.ones((3, 2))\n"
        "def words(): return np.ones((3, 2)), ['a', 'b', 'c']\n"
        "def halves(): return np.ones((3, 2)), np.array([0, 0.5, 1])\n"
        "def fails(): raise ValueError('patient Mueller')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        split = loaded(tmp_path, ARRAYS, site='train = "own_reader_of_tests:both"\ntest = 0.3\n')
        assert split.train_x.tolist() == [[1.0, 1.0]] * 2
        wrong = {
            "one": "is to give",
            "words": "arrays of numbers",
            "halves": "no whole numbers",
            "fails": "raised a ValueError: mend it$",
        }
        for name, why in wrong.items():
            with pytest.raises(DataError, match=why):
                loaded(tmp_path, ARRAYS, site=f'train = "own_reader_of_tests:{name}"')
    finally:
        sys.modules.pop("own_reader_of_tests", None)


COLUMNS = 'samples.columns=["age"]'
TABLE = (COLUMNS, "samples.most=9", 'data.names=["a", "b", "c"]')
CLASH = {
    "no names": ((COLUMNS, "samples.most=9"), "without data.names"),
    "a data set": ((*TABLE, "data.partition=iid"), "data.partition = 'iid' with [samples]"),
    "columns and shape": ((*TABLE, "samples.shape=[2]"), "give one of the two"),
    "neither": (("samples.most=9",), "give one of the two"),
    "no bound": ((COLUMNS,), "samples.most"),
    "a level of no column": ((*TABLE, 'samples.levels={sex = ["f", "m"]}'), "sex is not in"),
    "one class": ((*TABLE, 'samples.classes=["a"]'), "name two at least"),
    "a class twice": ((*TABLE, 'samples.classes=["a", "a"]'), "samples.classes: a twice"),
    "a target that is read": ((*TABLE, "samples.target=age"), "name each column once"),
    "public samples for nobody": ((*TABLE, f"samples.public={'a' * 64}"), "reads public samples"),
    "no digest": ((*TABLE, "fnr.name=server", "samples.public=public.csv"), "samples.public"),
    "class norms of numbers": ((*TABLE, "fnr.name=server"), 'set fnr.name = "none"'),
    "a quorum of more": ((*TABLE, "sites.quorum=4"), "there are 3 clients"),
    "nobody alone": ((*TABLE, "algorithm.name=centralised"), "nobody has the data"),
}


@pytest.mark.parametrize(("settings", "why"), CLASH.values(), ids=CLASH)
def test_settings_that_do_not_go_with_own_data_are_refused(settings, why):
    with pytest.raises(ConfigError) as refused:
        load_config(None, ["exchange.encrypt=none", *settings])
    assert why in str(refused.value)


BROKEN = {
    "no Python": ("def f(:", ConfigError, "importing MODULE raised a SyntaxError in line 1"),
    "an error": (
        "raise RuntimeError('Smith')",
        ConfigError,
        "importing MODULE raised a RuntimeErr",
    ),
    "a key": ("import os; os.environ['DB of Smith']", ConfigError, "raised a KeyError: mend it"),
    "an end": ("raise SystemExit('Smith')", ConfigError, "raised a SystemExit"),
    "no package": ("import nowhere_at_all", ConfigError, "cannot be had (no module nowhere_at"),
    "no such function": ("", ConfigError, "f is missing): name a function"),
    "no function": ("f = 3", ConfigError, "f is a int): name a function"),
    "it raises": ("def f(): raise ValueError('Smith')", DataError, "f: raised a ValueError"),
    "it ends": ("def f(): raise SystemExit('Smith')", DataError, "f: raised a SystemExit"),
    "sparse": ("def f(): return torch.ones(3, 2).to_sparse(), torch.zeros(3)", DataError, "dense"),
    "without values": (
        "def f(): return torch.ones(3, 2, device='meta'), torch.zeros(3)",
        DataError,
        "as dense arrays",
    ),
    "quantised": (
        "def f(): return torch.quantize_per_tensor(torch.ones(3, 2), 1, 0, torch.qint8), [1, 0, 1]",
        DataError,
        "of plain numbers",
    ),
    "nested": (
        "def f(): return torch.nested.nested_tensor([torch.ones(2)] * 3), torch.zeros(3)",
        DataError,
        "of plain numbers",
    ),
    "words": ("def f(): return [[1, 2]], ['Smith']", DataError, "as arrays of numbers"),
    "large": ("def f(): return [[1, 2]], [10**400]", DataError, "as arrays of numbers"),
}


@pytest.mark.filterwarnings("ignore:.*(quant|nested):UserWarning")
@pytest.mark.filterwarnings("ignore:.*quant:DeprecationWarning")
@pytest.mark.parametrize(("code", "error", "why"), BROKEN.values(), ids=BROKEN)
def test_code_that_fails_is_refused_without_a_word_of_its_own(
    tmp_path, monkeypatch, request, code, error, why
):
    module = f"broken_of_tests_{[*BROKEN].index(request.node.callspec.id)}"
    (tmp_path / f"{module}.py").write_text(f"import torch; {code}" if "def" not in code else code)
    if "torch" in code:
        (tmp_path / f"{module}.py").write_text(f"import torch\n{code}")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(error) as refused:
        loaded(tmp_path, ARRAYS, site=f'train = "{module}:f"\n')
    assert why.replace("MODULE", module) in str(refused.value)
    assert "Smith" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        "torch.ones(3, 2, requires_grad=True), torch.tensor([0, 1, 0])",
        "torch.ones(3, 2), torch.tensor([0, 1, 0], dtype=torch.uint16)",
        "torch.ones(3, 2), torch.tensor([0, 1, 0], dtype=torch.uint64)",
        "torch.ones(3, 2, dtype=torch.uint16), torch.tensor([[0.0], [1.0], [0.0]])",
        "[[1, 1], [1, 1], [1, 1]], [0, 1, 0]",
        "np.ones((3, 2))[::-1], np.array([0, 1, 0])[::-1]",
    ],
)
def test_a_function_gives_arrays_of_any_numbers(tmp_path, monkeypatch, request, given):
    module = f"numbers_of_tests_{abs(hash(request.node.callspec.id))}"
    (tmp_path / f"{module}.py").write_text(f"import numpy as np, torch\ndef f(): return {given}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    site = f'train = "{module}:f"\ntest = "{module}:f"\n'
    split = loaded(tmp_path, ARRAYS, site=site)
    assert split.train_x.tolist() == [[1, 1]] * 3
    assert split.train_y.tolist() == [0, 1, 0]


def stored(folder, columns):
    """The samples of a site whose Parquet file has these columns, beside those of `GOOD`."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet  # noqa: PLC0415

    good = {"age": [61, 52, 40], "smokes": ["no", "yes", None], "pressure": [120.5, None, 99.0]}
    table = pyarrow.table({**good, "ill": ["yes", "no", "no"], **columns(pyarrow)})
    parquet.write_table(table, folder / "own.parquet")
    return loaded(folder, site='train = "own.parquet"\ntest = "own.parquet"\n')


@pytest.mark.parametrize(
    "kind",
    [
        "timestamp('ns')",
        "time64('ns')",
        "duration('ns')",
        "date32()",
        "binary()",
        "list_(pyarrow.int8())",
    ],
)
def test_a_parquet_column_of_neither_numbers_nor_text_is_refused(tmp_path, kind):
    def columns(pyarrow):
        of = eval(f"pyarrow.{kind}", {"pyarrow": pyarrow})
        values = [b"\xff"] * 3 if "binary" in kind else [10**9 + 1] * 3
        if "date32" in kind:
            values = [10**6] * 3
        if "list_" in kind:
            values = [[1]] * 3
        return {"age": pyarrow.array(values, type=of)}

    with pytest.raises(DataError, match="column 'age'"):
        stored(tmp_path, columns)


def test_a_parquet_file_of_text_that_is_none_is_refused(tmp_path):
    def columns(pyarrow):
        bad = pyarrow.array([b"yes", b"\xff", b"no"], type=pyarrow.binary())
        return {"ill": bad.view(pyarrow.string())}

    with pytest.raises(DataError, match="column 'ill' is of string, and a value of it is neither"):
        stored(tmp_path, columns)


def write_rows(path, n, word="no"):
    """Write so many equal rows, a few kilobytes."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet  # noqa: PLC0415

    zeros = np.zeros(n, np.int8)
    table = {"age": zeros, "pressure": zeros}
    table |= {
        name: pyarrow.DictionaryArray.from_arrays(zeros, [word]) for name in ("smokes", "ill")
    }
    parquet.write_table(pyarrow.table(table), path, compression="zstd")
    return path


def test_millions_of_equal_rows_in_a_small_parquet_file_are_refused_unread(tmp_path, monkeypatch):
    """By what the file says of itself; by what comes of it where that is a lie."""
    path = write_rows(tmp_path / "own.parquet", 3_000_000)
    assert path.stat().st_size < 100_000
    site = 'train = "own.parquet"\ntest = 0.2\n'
    with pytest.raises(DataError, match=r"3000000 samples, and at most 13 .* larger samples\.most"):
        loaded(tmp_path, site=site)
    content = bytearray(path.read_bytes())
    said = bytes.fromhex("809bee02")  # 3 million, as the footer has it
    assert content.count(said) == 1
    path.write_bytes(content.replace(said, bytes.fromhex("94808000")))  # ten, as long
    with pytest.raises(DataError, match="65536 samples, and at most 13 "):
        loaded(tmp_path, site=site)
    write_rows(path, 10)
    assert len(loaded(tmp_path, site=site).train_y) == 8
    with pytest.raises(DataError, match="11 samples, and at most 10 are"):
        tables.load_table(write_rows(path, 11), FORM, most=10)
    # One long word of many rows is there once, and counts as often as in a CSV file.
    monkeypatch.setattr(tables, "_MAX_BYTES", 1 << 22)
    with pytest.raises(DataError, match="unpacks to 20000020 bytes, at most 4194304"):
        tables.load_table(write_rows(path, 10, "n" * 10**6), FORM)


def test_whole_numbers_beside_missing_ones_are_levels_as_they_are_written(tmp_path):
    """Where some are missing, columns of integers are stored as floats."""
    form = SamplesTable(
        columns=("k",), levels={"k": ("0", "1")}, missing=("k",), target="n", most=9
    )
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet  # noqa: PLC0415

    table = pyarrow.table({"k": [0.0, 1.0, float("nan")], "n": [1.0, 2.5, 3.0]})
    parquet.write_table(table, tmp_path / "own.parquet")
    split = loaded(tmp_path, form, site='train = "own.parquet"\ntest = "own.parquet"\n')
    assert split.train_x.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
