"""`data.quality` and `data.public`: who is of low quality, what is nobody's, and what stays."""

from __future__ import annotations

import hashlib
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from standard_files import write_cifar10

import securefl
from securefl.data import cifar, federation
from securefl.data.digits import load_digits
from securefl.data.federation import load_federation
from securefl.data.public import content_digests
from securefl.data.quality import Quality
from securefl.data.samples import samples
from securefl.errors import ConfigError, DataError
from securefl.settings.data import LowQuality
from securefl.settings.load import load_config
from securefl.task import configured_task

pytestmark = pytest.mark.shapes

MIXED = "data.quality={irrelevant=0.1, blurred=0.2, salt-and-pepper=0.1, polluted=0.1, noisy=0.2}"
FEDPROF, FNR = "selection.name=fedprof", "fnr.name=matched"


def task_of(*given_settings):
    return configured_task(load_config(settings=["data.partition=iid", *given_settings]))


def digests(data):
    return content_digests(samples(data, "some data"))


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# Quality


def test_the_settings_know_every_low_quality_by_its_name():
    """A kind of low quality that is added to the library must be added to the settings."""
    assert set(get_args(LowQuality)) == set(Quality) - {Quality.NORMAL}


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("partition", ["iid", "sizes:0.2", "dominant:0.4", "dirichlet:5"])
def test_clients_are_of_low_quality_at_their_shares_and_what_is_tested_is_normal(model, partition):
    """The others hold what they hold without the setting, and so do all keep their labels."""
    common = ["data.clients=20", f"data.partition={partition}", f"model.name={model}"]
    clean, task = task_of(*common), task_of(*common, MIXED)
    counts = {name: task.qualities.count(name) for name in set(task.qualities)}
    low = {"irrelevant": 2, "blurred": 4, "salt-and-pepper": 2, "polluted": 2, "noisy": 4}
    assert counts == low | {"normal": 6}
    assert same(task.test, clean.test)
    for spoilt, before, quality in zip(task.clients, clean.clients, task.qualities, strict=True):
        assert torch.equal(spoilt[0], before[0]) == (quality == "normal")
        assert torch.equal(spoilt[1], before[1])
        assert task.model(spoilt[0]).shape == (len(spoilt[1]), 10)


def test_who_is_of_low_quality_hangs_on_the_seed():
    """The same seed gives the same clients, bit for bit; without the setting nobody is asked."""
    one, again, other = (task_of(MIXED, "data.clients=20", f"run.seed={s}") for s in (1, 1, 2))
    assert one.qualities == again.qualities != other.qualities
    assert all(same(a, b) for a, b in zip(one.clients, again.clients, strict=True))
    assert not task_of().qualities


def test_colour_images_can_be_of_low_quality(tmp_path, monkeypatch):
    """CIFAR-10's too, by patches of photographs in colour."""
    write_cifar10(tmp_path)
    monkeypatch.setattr(cifar, "CIFAR10_SHA1", {})
    files = ["data.dataset=cifar10", f"data.root='{tmp_path}'", "data.clients=3"]
    task = task_of(*files, "data.quality={irrelevant=0.34, noisy=0.33}", "model.name=cnn")
    assert sorted(task.qualities) == ["irrelevant", "noisy", "normal"]
    assert {tuple(x.shape[1:]) for x, _ in task.clients} == {(3, 32, 32)}


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        (["data.quality={blured=0.2}"], r"data\.quality\.blured: no such key; known here: 'irrel"),
        (["data.quality={normal=0.2}"], r"normal: no such key; .*'polluted' or 'noisy'"),
        (["data.quality={blurred=1.2}"], r"data\.quality\.blurred = 1\.2: .* equal to 1"),
        (["data.quality={blurred=nan}"], r"data\.quality\.blurred = nan"),
        (["data.quality={blurred=-0.1}"], r"data\.quality\.blurred = -0\.1: .* equal to 0"),
        (["data.quality={blurred=0.7, noisy=0.6}"], "sum to 1.3; together at most 1"),
        ([MIXED, "data.feature_noise=0.1"], "data.quality and data.feature_noise both spoil"),
        ([MIXED, "data.corruptions=['fog']"], "data.quality and data.corruptions both spoil"),
        ([MIXED, "data.dataset=folders", "data.root=x"], '"folders": its clients are its domains'),
        ([MIXED, "data.dataset=cifar10-c", "data.root=x"], "a data set that a partition deals"),
    ],
)
def test_qualities_that_have_no_meaning_are_refused(given_settings, message):
    """The message names the key, why, and what there is."""
    with pytest.raises(ConfigError, match=message):
        load_config(settings=given_settings)


# Public samples


@settings(deadline=None, max_examples=15)
@given(
    n=st.integers(10, 1000),
    seed=st.integers(0, 1000),
    reader=st.sampled_from([FEDPROF, FNR, "fnr.name=server"]),
    partition=st.sampled_from(["iid", "classes:2", "dirichlet:5", "sizes:0.2"]),
)
def test_public_samples_are_nobodys(n, seed, reader, partition):
    """So many training digits, as they come; clients hold all others, the test stays whole."""
    task = task_of(reader, f"data.public={n}", f"run.seed={seed}", f"data.partition={partition}")
    digits = load_digits(seed)
    public, test = digests(task.public), digests(task.test)
    held = [digest for data in task.clients for digest in digests(data)]
    assert len(public) == n
    assert not set(public) & {*held, *test}
    assert sorted(public + held) == sorted(digests((digits.train_x, digits.train_y)))
    assert same(task.test, (digits.test_x, digits.test_y))


@pytest.mark.parametrize(
    "spoiling",
    [MIXED, "data.feature_noise=0.3", "data.corruptions=['fog','brightness','contrast']"],
)
def test_public_samples_are_of_normal_quality(spoiling):
    """What clients do to theirs changes neither which samples are public, nor their values."""
    task, clean = (task_of(FEDPROF, "model.name=cnn", *more) for more in ([spoiling], []))
    assert same(task.public, clean.public)
    assert not all(same(a, b) for a, b in zip(task.clients, clean.clients, strict=True))


def test_the_models_form_is_the_public_samples_form():
    """Flat for a perceptron, images for a convolution, in the model's type."""
    for model, shape in (("mlp", (180, 64)), ("cnn", (180, 1, 8, 8))):
        task = task_of(FNR, f"model.name={model}", "model.dtype=float64")
        assert task.public[0].shape == shape
        assert task.public[0].dtype == torch.float64


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("owner", ["train", "test"])
def test_public_samples_that_somebody_holds_stop_the_run(monkeypatch, when, owner):
    """Whatever takes them wrongly, or a client's spoilt ones that turn into public ones."""
    carve, spoil = federation.carve_public, federation.spoilt_clients

    def carved(split, n, seed):
        public, rest = carve(split, n, seed)
        return (getattr(rest, f"{owner}_x")[:5], public[1][:5]), rest

    def spoilt(clients, shares, rng):
        others, qualities = spoil(clients, shares, rng)
        digits = carve(load_digits().as_images(), 180, 0)[0]
        return [digits, *others[1:]], qualities

    if when == "before":
        monkeypatch.setattr(federation, "carve_public", carved)
        message = f"5 of the {'training' if owner == 'train' else 'test'} data"
    else:
        monkeypatch.setattr(federation, "spoilt_clients", spoilt)
        message = "180 of client-1"
    with pytest.raises(DataError, match=f"samples are also public: {message}"):
        securefl.run(load_config(settings=["exchange.encrypt=none"]), task_of(FEDPROF, MIXED))


@pytest.mark.parametrize(
    ("given_settings", "digest"),
    [
        ([], "38ff77355b2d74e2"),
        (["run.seed=3", "data.partition=dominant:0.6", "data.clients=10"], "dfde84368eee4dea"),
        (["data.partition=dirichlet:0.5", "data.feature_noise=0.3"], "1ee5d92465e6b706"),
    ],
)
def test_what_reads_no_public_samples_has_the_clients_that_it_always_had(given_settings, digest):
    """Bit for bit those of the version before public samples: nothing is set aside."""
    task = configured_task(load_config(settings=given_settings))
    assert task.public is None
    found = hashlib.sha256()
    for x, y in [*task.clients, task.test]:
        found.update(x.numpy().tobytes() + y.numpy().tobytes())
    assert found.hexdigest()[:16] == digest


@pytest.mark.parametrize("dataset", ["cifar10-c", "folders", "camelyon17"])
@pytest.mark.parametrize("reader", [FEDPROF, FNR])
def test_domains_have_no_public_samples(dataset, reader):
    """No partition deals them; a task of one's own can have some."""
    name = reader.partition("=")[2]
    with pytest.raises(ConfigError, match=rf'"{name}": a public set is .* Task\(public=…\)'):
        load_config(settings=[f"data.dataset={dataset}", "data.root=x", reader])
    data = load_config(settings=[f"data.dataset={dataset}", "data.root=x"]).data
    with pytest.raises(ConfigError, match="public samples are set aside of data that a partition"):
        load_federation(data, 0, torch.float32, 10)


def test_a_number_of_public_samples_is_set_aside_whoever_reads_them():
    """So that a run with FNR-FL and one without are of the same data."""
    read, unread = task_of(FNR, "data.public=60"), task_of("data.public=60")
    assert len(unread.public[1]) == 60
    for mine, theirs in zip(read.clients, unread.clients, strict=True):
        assert torch.equal(mine[0], theirs[0])
    assert task_of().public is None


def test_more_public_samples_than_there_are_is_refused():
    """The message says how many could be taken."""
    with pytest.raises(DataError, match=r"1430 public samples of 1437 .* take 10 to 1427"):
        task_of(FNR, "data.public=1430")
