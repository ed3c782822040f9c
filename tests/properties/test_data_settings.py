"""The table `[data]` reaches every data set, and says who trains and who is tested on what."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from standard_files import (
    write_camelyon,
    write_cifar10,
    write_cifar10_c,
    write_cifar100,
    write_isic2019,
    write_ixi_tiny,
    write_medmnist,
    write_mnist,
    write_picture,
)

import securefl
from securefl.data import cifar, folders, gas_turbine, isic2019, ixi_tiny, medmnist, mnist
from securefl.data.catalogue import CIFAR10_C, DATA_SETS, Inputs, Targets
from securefl.data.cifar import load_cifar10_c
from securefl.data.corruptions import CORRUPTIONS, corrupt
from securefl.data.digits import load_digits
from securefl.data.domains import leave_out_choices
from securefl.data.medmnist import MEDMNIST
from securefl.errors import ConfigError, DataError
from securefl.federation.ledger import AUTHORITY, SERVER
from securefl.settings.data import PARTIES
from securefl.settings.load import load_config
from securefl.settings.tables import Config
from securefl.task import configured_task

pytestmark = pytest.mark.shapes

FOUR = ["gaussian_noise", "shot_noise", "fog", "contrast"]
COLOURS = {"amazon": (255, 0, 0), "dslr": (0, 255, 0), "webcam": (0, 0, 255)}


def configure(model="mlp", seed=0, dtype="float32", **data):
    """Settings of these data; partition iid unless said otherwise."""
    return load_config(
        settings=[f"run.seed={seed}", f'model.name="{model}"', f'model.dtype="{dtype}"']
        + [f"data.{key}={toml(value)}" for key, value in ({"partition": "iid"} | data).items()]
    )


def toml(value):
    return f"'{value}'" if not isinstance(value, (int, float, list)) else repr(value)


def task_of(**settings):
    return configured_task(configure(**settings))


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def same_tasks(one, other):
    """Bit for bit the same data and model."""
    for name in ("clients", "client_tests"):
        pairs = zip(getattr(one, name), getattr(other, name), strict=True)
        if not all(same(a, b) for a, b in pairs):
            return False
    return same(one.test, other.test) and same(one.model.parameters(), other.model.parameters())


def write_twelve(root, dataset):
    """Twelve images in the data set's standard files."""
    labels = [i % 3 + 1 for i in range(12)]
    if dataset in {"mnist", "fashion-mnist"}:
        write_mnist(root, labels=labels, n_images=12)
    elif dataset.startswith("emnist"):
        parts = (f"{dataset}-train", f"{dataset}-test")
        write_mnist(root, parts, labels, n_images=12)
    elif dataset == "cifar10":
        write_cifar10(root)
    elif dataset == "cifar100":
        write_cifar100(root)
    elif dataset in MEDMNIST:
        write_medmnist(root, dataset, MEDMNIST[dataset].n_channels, [i % 2 for i in range(12)])


def write_folders(root, n=5):
    """Three domains of one colour each, two classes of `n` pictures."""
    for domain, colour in COLOURS.items():
        for i in range(n):
            write_picture(root / domain / "bike" / f"{i}.png", colour)
            write_picture(root / domain / "mug" / f"{i}.png", colour)


# Every data set


@pytest.fixture
def any_content(monkeypatch):
    """Twelve images are none of those whose content, or number, is known."""
    unknown = {name: replace(form, md5=()) for name, form in MEDMNIST.items()}
    monkeypatch.setattr(medmnist, "MEDMNIST", unknown)
    monkeypatch.setattr(mnist, "MNIST_SHA256", {})
    monkeypatch.setattr(mnist, "FASHION_MNIST_SHA256", {})
    monkeypatch.setattr(mnist, "EMNIST_SIZES", {})
    monkeypatch.setattr(folders, "CAMELYON17_SIZES", {})
    for known in ("CIFAR10_SHA1", "CIFAR100_SHA1", "CIFAR10_C_MD5"):
        monkeypatch.setattr(cifar, known, {})


DEALT = [
    name
    for name, line in DATA_SETS.items()
    if line.files and not line.by_domain and line.targets is Targets.CLASSES
]


@pytest.mark.usefixtures("any_content")
@pytest.mark.parametrize("dataset", DEALT)
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_a_data_set_of_files_is_dealt_to_clients_that_its_model_can_learn(tmp_path, dataset, model):
    """All training images reach a client; the perceptron gets them flat, in colour too."""
    write_twelve(tmp_path, dataset)
    task = task_of(dataset=dataset, root=tmp_path, model=model, clients=3)
    channels, side = (3, 32) if dataset.startswith("cifar") else (1, 28)
    channels = MEDMNIST[dataset].n_channels if dataset in MEDMNIST else channels
    shape = (channels * side**2,) if model == "mlp" else (channels, side, side)
    assert [tuple(x.shape[1:]) for x, _ in task.clients] == [shape] * 3
    assert sum(len(y) for _, y in task.clients) == (10 if dataset.startswith("cifar") else 12)
    for x, _ in [*task.clients, task.test]:
        assert task.model(x).shape[0] == len(x)
    assert not task.client_tests
    assert not task.external


def test_there_are_as_many_clients_as_names():
    """Where both are given, they agree."""
    assert load_config(None, ['data.names=["a", "b", "c"]']).data.clients == 3
    assert load_config(None, ["data.names=[]"]).data.clients == 5
    with pytest.raises(ConfigError, match=r"data\.clients = 5 and data\.names has 2 names: leave"):
        load_config(None, ['data.names=["a", "b"]', "data.clients=5"])


def test_a_name_that_is_no_clients_is_named_with_its_key():
    """The ledger has the server's messages under that name; the settings have the same names."""
    for name in (SERVER, AUTHORITY):
        with pytest.raises(ConfigError, match=rf"data\.names: '{name}' is another party's name"):
            load_config(None, [f'data.names=["b", "{name}", "c"]'])
    assert {SERVER, AUTHORITY} == PARTIES


def test_fashion_mnist_has_checksums_of_its_own(tmp_path, monkeypatch):
    """Its files are called as MNIST's, so that one is not taken for the other."""
    write_mnist(tmp_path)
    for dataset in ("mnist", "fashion-mnist"):
        with pytest.raises(DataError, match="its content is not this data set's"):
            task_of(dataset=dataset, root=tmp_path)
    name = "train-images-idx3-ubyte"
    digest = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    monkeypatch.setattr(mnist, "FASHION_MNIST_SHA256", {name: digest})
    with pytest.raises(
        DataError, match=r'is of fashion-mnist; set data\.dataset = "fashion-mnist"'
    ):
        task_of(dataset="mnist", root=tmp_path)


def test_without_settings_clients_have_the_digits_as_they_are():
    """Five clients hold all of scikit-learn's training digits; all share the test digits."""
    task, digits = configured_task(Config()), load_digits()
    rows = torch.cat([x for x, _ in task.clients])
    assert sorted(rows.tolist()) == sorted(digits.train_x.tolist())
    assert same(task.test, (digits.test_x, digits.test_y))
    assert not task.client_tests


def write_hours(root):
    """Two hours of each year."""
    lines = [
        ",".join((*gas_turbine.INPUTS, *gas_turbine.TARGETS)),
        "1," * 10 + "1",
        "2," * 10 + "2",
    ]
    for year in gas_turbine.YEARS:
        (root / f"gt_{year}.csv").write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("dataset", "write", "rule"),
    [
        ("emnist-letters", write_twelve, r"12 \+ 12 .* of letters, .* 124800 \+ 20800"),
        ("camelyon17", write_camelyon, r"4 samples of camelyon17, .* has 455954"),
        ("isic2019", write_isic2019, r"3 \+ 1 samples of center-0, .* has 9930 \+ 2483"),
        ("ixi-tiny", write_ixi_tiny, r"2 \+ 2 samples of Guys, .* has 249 \+ 62"),
        ("gas-turbine", write_hours, r"7 \+ 3 samples of gas-turbine, .* has 25713 \+ 11020"),
    ],
)
def test_a_data_set_without_digests_has_its_published_number_of_samples(
    tmp_path, monkeypatch, dataset, write, rule
):
    """By hospital and centre, where it comes so. One that lacks a domain is none, either."""
    monkeypatch.setattr(ixi_tiny, "SHAPE", (4, 5, 4))
    write(tmp_path, *([dataset] if write is write_twelve else []))
    model = "unet" if dataset == "ixi-tiny" else "mlp"
    with pytest.raises(DataError, match=rf"{tmp_path}: {rule}; get all"):
        task_of(dataset=dataset, root=tmp_path, model=model)
    monkeypatch.setattr(isic2019, "SIZES", {"center-1": (1, 1)})
    if dataset == "isic2019":
        with pytest.raises(DataError, match=r"0 samples of center-1, .* has 1 \+ 1"):
            task_of(dataset=dataset, root=tmp_path)


def test_numbers_of_samples_are_those_of_the_page():
    """Of all centres and hospitals together."""
    page = (Path(__file__).parents[2] / "docs/data-sets.md").read_text()
    for sizes in (isic2019.SIZES, ixi_tiny.SIZES, gas_turbine.SIZES):
        train, test = (sum(of) for of in zip(*sizes.values(), strict=True))
        said = (f"{n:,}".replace(",", " ") if n >= 10_000 else f"{n}" for n in (train, test))
        assert f"| {' + '.join(said)} |" in page


@pytest.mark.usefixtures("any_content")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_images_have_the_models_type(tmp_path, dtype):
    """Files give float32; a model in float64 gets float64."""
    write_cifar10(tmp_path)
    task = task_of(dataset="cifar10", root=tmp_path, model="cnn", dtype=dtype)
    assert {x.dtype for x, _ in [*task.clients, task.test]} == {getattr(torch, dtype)}
    assert next(task.model.parameters()).dtype == getattr(torch, dtype)


@pytest.mark.parametrize(
    "dataset", [name for name, data_set in DATA_SETS.items() if data_set.files]
)
def test_a_missing_root_or_file_is_answered_with_what_to_put_where(tmp_path, dataset):
    """Without `root` the settings are refused, with an empty one the folder is named."""
    with pytest.raises(ConfigError, match=f'"{dataset}" needs data.root, the folder with'):
        configure(dataset=dataset)
    model = "unet" if DATA_SETS[dataset].inputs is Inputs.VOLUMES else "mlp"
    with pytest.raises(DataError, match=f"{tmp_path}.* put "):
        task_of(dataset=dataset, root=tmp_path, model=model)


# Domains


@pytest.mark.usefixtures("any_content")
def test_every_corruption_of_cifar10_c_is_a_client_that_tests_on_its_own_fifth(tmp_path):
    """Twelve photographs for training and three for testing, the same ones in each corruption."""
    write_cifar10_c(tmp_path, ["fog", "snow"], list(range(10)) + [0] * 5)
    settings = {"dataset": "cifar10-c", "root": tmp_path, "severity": 4, "model": "cnn"}
    task = task_of(corruptions=["snow", "fog"], **settings)
    published = load_cifar10_c(tmp_path, ["snow", "fog"], 4)
    rows = {tuple(x.flatten().tolist()): i for i, x in enumerate(published["snow"][0])}
    rows |= {tuple(x.flatten().tolist()): i for i, x in enumerate(published["fog"][0])}
    found = []
    for (x, y), (test_x, test_y) in zip(task.clients, task.client_tests, strict=True):
        assert (len(y), len(test_y)) == (12, 3)
        indices = [rows[tuple(one.flatten().tolist())] for one in torch.cat([x, test_x])]
        assert sorted(indices) == list(range(15))
        assert torch.equal(torch.cat([y, test_y]), published["snow"][1][indices])
        found.append(indices)
    assert found[0] == found[1]
    assert torch.equal(task.clients[0][0][0], published["snow"][0][found[0][0]])
    assert torch.equal(task.test[0], torch.cat([x for x, _ in task.client_tests]))
    other = task_of(corruptions=["snow", "fog"], seed=1, **settings)
    assert not same(task.clients[0], other.clients[0])


@pytest.mark.usefixtures("any_content")
def test_cifar10_c_has_fifteen_clients_unless_corruptions_are_named(tmp_path):
    """UniFed's three, four, three and five, by family; domains need no file."""
    config = configure(dataset="cifar10-c", root=tmp_path)
    families = list(CIFAR10_C.values())
    assert [families.count(family) for family in leave_out_choices(config.data)] == [3, 4, 3, 5]
    write_cifar10_c(tmp_path, CIFAR10_C, [0, 1, 2] * 2)
    assert len(configured_task(config).clients) == 15
    left = task_of(dataset="cifar10-c", root=tmp_path, leave_out="digital")
    assert len(left.clients) == len(left.client_tests) == 10
    assert list(left.external) == [name for name, kind in CIFAR10_C.items() if kind == "digital"]
    assert {len(y) for _, y in left.external.values()} == {6}
    with pytest.raises(ConfigError, match=r'"gaussian_blur" must be one of gaussian_noise, '):
        task_of(dataset="cifar10-c", root=tmp_path, corruptions=["gaussian_blur"])


def test_an_external_folder_tests_on_all_its_pictures_and_trains_nobody(tmp_path):
    """The domains' colours tell whose picture is where; classes come mixed, not one by one."""
    write_folders(tmp_path, n=20)
    settings = {"dataset": "folders", "root": tmp_path, "side": 8, "model": "cnn"}
    assert leave_out_choices(configure(**settings).data) == ["amazon", "dslr", "webcam"]
    task = task_of(leave_out="dslr", **settings)
    assert list(task.external) == ["dslr"]
    x, y = task.external["dslr"]
    assert x.shape == (40, 3, 8, 8)
    assert x.mean(dim=(0, 2, 3)).tolist() == [0, 1, 0]
    assert y.bincount().tolist() == [20, 20]
    assert len(set(y[:20].tolist())) == 2
    for data in (task.clients, task.client_tests):
        assert [tuple(x.mean(dim=(0, 2, 3)).tolist()) for x, _ in data] == [(1, 0, 0), (0, 0, 1)]
    assert [len(y) for _, y in [*task.clients, *task.client_tests]] == [32, 32, 8, 8]
    assert same(task.external["dslr"], task_of(leave_out="dslr", **settings).external["dslr"])


def test_the_model_does_not_depend_on_who_is_left_out(tmp_path):
    """A class that only the left-out domain has is a class of the model all the same."""
    write_folders(tmp_path)
    write_picture(tmp_path / "dslr" / "phone" / "1.png", (0, 255, 0))
    for name in COLOURS:
        model = task_of(dataset="folders", root=tmp_path, leave_out=name, model="cnn").model
        assert model[-1].out_features == 3


@pytest.mark.usefixtures("any_content")
def test_every_hospital_of_camelyon17_is_a_client(tmp_path):
    """Three with twelve patches, or with the six that `n_per_center` keeps."""
    write_camelyon(tmp_path, [0, 1, 4] * 12)
    settings = {"dataset": "camelyon17", "root": tmp_path, "side": 16, "model": "cnn"}
    assert leave_out_choices(configure(**settings).data) == ["center-0", "center-1", "center-4"]
    task = task_of(leave_out="center-4", **settings)
    assert [len(y) for _, y in [*task.clients, *task.client_tests]] == [9, 9, 3, 3]
    assert task.external["center-4"][0].shape == (12, 3, 16, 16)
    few = task_of(n_per_center=6, **settings)
    assert [len(y) for _, y in [*few.clients, *few.client_tests]] == [4, 4, 4, 2, 2, 2]


def test_a_domain_too_small_to_hold_some_out_is_named(tmp_path):
    """A fifth of five pictures is one: no client can be tested, or train, on a single one."""
    write_folders(tmp_path, n=3)
    assert len(task_of(dataset="folders", root=tmp_path).clients) == 3
    (tmp_path / "webcam/mug/0.png").unlink()
    with pytest.raises(DataError, match=r"domain webcam: 5 images; .* at least 6"):
        task_of(dataset="folders", root=tmp_path)


# Corruptions and noise of dealt data


def test_a_client_trains_and_is_tested_under_its_own_corruption():
    """Brightness draws nothing at random: it can be repeated here, image for image."""
    names = ["brightness", "contrast", "pixelate"]
    clean = task_of(clients=6, model="cnn")
    task = task_of(clients=6, model="cnn", corruptions=names, severity=5)
    assert same(task.test, clean.test)
    assert len(task.client_tests) == 6
    rng = np.random.default_rng(0)
    for k in range(6):
        for data, before in (
            (task.clients[k], clean.clients[k]),
            (task.client_tests[k], clean.test),
        ):
            expected = corrupt(before[0].numpy(), names[k % 3], 5, rng)
            np.testing.assert_array_equal(data[0].numpy(), expected)
            assert torch.equal(data[1], before[1])
            assert not torch.equal(data[0], before[0])


def test_random_corruptions_differ_between_clients_and_from_training_to_test():
    """Noise is drawn anew: what is added to one client's images is not added to another's."""
    clean, task = task_of(clients=2), task_of(clients=2, corruptions=["gaussian_noise"])
    added = [
        spoilt[0][:300] - before[0][:300]
        for spoilt, before in zip(
            [*task.clients, task.client_tests[0]], [*clean.clients, clean.test], strict=True
        )
    ]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        inside = (added[i] != 0) & (added[j] != 0)
        correlation = np.corrcoef(added[i][inside].numpy(), added[j][inside].numpy())[0, 1]
        assert abs(correlation) < 0.5


@pytest.mark.parametrize("leave_out", ["noise", "shot_noise"])
def test_clients_of_a_left_out_corruption_do_not_train(leave_out):
    """The others' images are, bit for bit, those that they have when nobody is left out."""
    settings = {"clients": 8, "corruptions": FOUR, "model": "cnn"}
    everybody, rest = task_of(**settings), task_of(leave_out=leave_out, **settings)
    gone = [n for n in FOUR if leave_out in (n, CORRUPTIONS[n].family)]
    kept = [k for k in range(8) if FOUR[k % 4] not in gone]
    assert list(rest.external) == gone
    assert len(rest.clients) == len(rest.client_tests) == len(kept)
    for k, trains, tests in zip(kept, rest.clients, rest.client_tests, strict=True):
        assert same(trains, everybody.clients[k])
        assert same(tests, everybody.client_tests[k])
    for name in gone:
        assert same(rest.external[name], everybody.client_tests[FOUR.index(name)])


def test_leave_one_out_goes_over_the_families_that_are_there():
    """Three families among four corruptions, in their order; one alone cannot be left out."""
    assert leave_out_choices(configure(corruptions=FOUR).data) == ["noise", "weather", "digital"]
    with pytest.raises(ConfigError, match="has noise: leaving one out needs two"):
        leave_out_choices(configure(corruptions=FOUR[:2]).data)
    with pytest.raises(ConfigError, match="has no domain: leaving one out needs two"):
        leave_out_choices(configure().data)


@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.5", "label-quantity:1"])
def test_feature_noise_goes_with_any_partition_and_grows_from_client_to_client(partition):
    """Client i of 5 has noise of i/5 of the strength; labels and the test stay as they are."""
    clean = task_of(partition=partition, dtype="float64")
    noisy = task_of(partition=partition, dtype="float64", feature_noise=2.0)
    assert same(clean.test, noisy.test)
    for i, (before, after) in enumerate(zip(clean.clients, noisy.clients, strict=True), start=1):
        assert torch.equal(before[1], after[1])
        added = after[0] - before[0]
        tolerance = 5 / added.numel() ** 0.5
        assert float(added.std()) / (2.0 * i / 5) == pytest.approx(1, abs=tolerance)


@pytest.mark.parametrize(
    "settings",
    [
        {"corruptions": FOUR, "leave_out": "noise"},
        {"feature_noise": 0.3, "partition": "dirichlet:0.5"},
        {},
    ],
)
def test_data_depend_on_the_seed_and_on_nothing_else(settings):
    """The same seed gives the same clients, bit for bit; another seed gives others."""
    first, again, other = (task_of(seed=seed, **settings) for seed in (3, 3, 4))
    assert same_tasks(first, again)
    assert not same_tasks(first, other)


@pytest.mark.parametrize("dataset", ["heart", "digits"])
def test_readers_see_no_key_that_the_data_set_ignores(dataset):
    """Another value of such a key is refused, or gives the same data; of each other, others."""
    others = {
        "clients": 7,
        "partition": "sizes:0.2",
        "public": 20,
        "feature_noise": 0.1,
        "corruptions": ["fog"],
        "severity": 5,
        "side": 16,
        "n_per_center": 10,
    }
    first, refused, ignored = task_of(dataset=dataset), set(), set()
    for key, value in others.items():
        try:
            again = task_of(dataset=dataset, **{key: value})
        except ConfigError:
            refused.add(key)
            continue
        if len(again.clients) == len(first.clients) and same_tasks(first, again):
            ignored.add(key)
    config = configure(dataset=dataset)
    shown = config.read_tables()["data"].keys()
    assert shown == config.tables()["data"].keys() - config.data.unread
    assert config.data.unread & others.keys() == refused | ignored
    assert not shown & {"clients", "partition"} or dataset == "digits"


@pytest.mark.usefixtures("any_content")
def test_the_noise_in_the_test_images_depends_on_the_seed_too(tmp_path):
    """MNIST's test images are the same for every seed; what is done to them is not."""
    write_twelve(tmp_path, "mnist")
    settings = {"dataset": "mnist", "root": tmp_path, "clients": 2, "corruptions": ["shot_noise"]}
    one, other = (task_of(seed=seed, **settings) for seed in (0, 1))
    assert same(one.test, other.test)
    assert not same(one.client_tests[0], other.client_tests[0])


def test_a_run_trains_on_corrupted_clients():
    """From the settings to a trained model, with one family left out."""
    settings = ["run.rounds=1", 'data.corruptions=["fog", "contrast", "frost", "zoom_blur"]']
    settings += ["data.clients=8", "data.leave_out=digital", "data.partition=iid"]
    result = securefl.run(load_config(settings=[*settings, 'exchange.encrypt="none"']))
    assert {entry.sender for entry in result.ledger.entries} >= {"client-1", "client-6"}
    assert "client-7" not in {entry.sender for entry in result.ledger.entries}


# What is refused


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ({"dataset": "mnist"}, "needs data.root, the folder with train-images"),
        ({"root": "x"}, "the digits come with scikit-learn"),
        ({"feature_noise": 0.1, "corruptions": ["fog"]}, "a client has one"),
        ({"dataset": "folders", "root": "x", "feature_noise": 0.1}, "set data.feature_noise = 0"),
        ({"dataset": "folders", "root": "x", "corruptions": ["fog"]}, "are its domains"),
        ({"dataset": "camelyon17", "root": "x", "corruptions": ["fog"]}, "are its domains"),
        ({"corruptions": ["fog", "fog"]}, "fog more than once"),
        ({"corruptions": ["fog", "snow"], "clients": 1}, "data.clients = 1: 2 corruptions"),
        ({"leave_out": "noise"}, "are alike"),
        ({"n_per_center": 10}, '"camelyon17" alone'),
        ({"severity": 6}, "data.severity = 6"),
        ({"severity": 2.5}, "data.severity = 2.5"),
        ({"feature_noise": -1.0}, r"data.feature_noise = -1"),
        ({"dataset": "svhn"}, "data.dataset = 'svhn'"),
        ({"side": 4}, "data.side = 4"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_before_anything_is_read(data, rule):
    """The message names the key, its value, and what to do."""
    with pytest.raises(ConfigError, match=rule):
        configure(**data)


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ({"corruptions": ["fog", "rain"]}, '"rain" must be one of gaussian_noise, '),
        ({"corruptions": FOUR, "leave_out": "blur"}, "must be one of noise, weather, digital, gau"),
        ({"corruptions": ["fog", "snow"], "leave_out": "weather"}, "leaves nobody to train"),
        ({"partition": "slices"}, "must have the form"),
    ],
)
@pytest.mark.parametrize("dataset", ["digits", "mnist"])
def test_names_that_no_data_have_are_refused_before_files_are_read(tmp_path, data, rule, dataset):
    """The message lists the names that there are; a missing file is not yet looked for."""
    where = {} if dataset == "digits" else {"root": tmp_path}
    with pytest.raises(ConfigError, match=rule):
        task_of(dataset=dataset, **where, **data)


def test_a_domain_that_is_not_in_the_folder_is_refused_with_those_there_are(tmp_path):
    """leave_out of folders is a folder's name."""
    write_folders(tmp_path)
    with pytest.raises(ConfigError, match=r'"caltech": must be one of amazon, dslr, webcam'):
        task_of(dataset="folders", root=tmp_path, leave_out="caltech")


WITHOUT = {
    "digits": ("r2", "c-index", "label-accuracy", "dice"),
    "gas-turbine": ("accuracy", "auc", "c-index", "dice"),
    "heart": ("r2", "dice"),
}


@pytest.mark.parametrize("dataset", WITHOUT)
def test_a_metric_goes_with_the_targets_of_the_data_set_that_is_read(dataset):
    """Else it is refused before files are read; settings alone are not, for a task of one's own."""
    turbine = ("model.name=mlp", "data.root=here", "data.partition=iid")
    other = '"r2"' if dataset == "gas-turbine" else '"accuracy", .*"auc", .*'
    for metric in WITHOUT[dataset]:
        settings = [f"data.dataset={dataset}", f"run.metric={metric}"]
        config = load_config(None, [*settings, *(turbine if "gas" in dataset else ())])
        with pytest.raises(ConfigError) as refused:
            configured_task(config)
        wanted = rf'run\.metric = "{metric}": needs .*; by data\.dataset = "{dataset}" targets are '
        assert re.search(rf"{wanted}.*: take {other}, or leave it out", str(refused.value))
        assert '"dice"' not in str(refused.value).partition(": take ")[2]
