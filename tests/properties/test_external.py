"""A finished run's model on data that did not train it, from Python and from the command line."""

from __future__ import annotations

import copy
import shutil
import warnings

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import TensorDataset

import securefl
from securefl.data.arrays import load_arrays
from securefl.data.corruptions import corrupt
from securefl.data.digits import load_digits
from securefl.data.folders import load_class_folders
from securefl.errors import ConfigError, DataError, RunFolderError
from securefl.evaluation.evaluate import UntrainedStatistics
from securefl.evaluation.named_data import named_data
from securefl.runs.folder_reader import read_config
from securefl_cli.main import main

SETTINGS = ("run.rounds=2", "algorithm.name=fedavg", "exchange.encrypt=none", "run.seed=3")
LEFT_OUT = ('data.corruptions=["fog","contrast","impulse_noise"]', "data.leave_out=fog")


def invoke(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory):
    """A run of the mlp on flat digits that has left out the client with fog."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    config = securefl.load_config(None, [*SETTINGS, *LEFT_OUT])
    securefl.run(config, out=folder)
    return folder


@pytest.fixture
def broken_run(digits_run, tmp_path):
    """A copy to damage."""
    return shutil.copytree(digits_run, tmp_path / "broken")


@pytest.fixture
def trained(digits_run):
    return securefl.load_trained(digits_run)


def normal(n=40, seed=5):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=rng), torch.randint(3, (n,), generator=rng)


# evaluate


def test_a_runs_folder_gives_the_model_of_its_last_round(tmp_path):
    """On the test data its accuracy is the last one of the run; no client was left out."""
    result = securefl.run(securefl.load_config(None, SETTINGS), out=tmp_path / "run")
    trained = securefl.load_trained(tmp_path / "run")
    assert trained.config == result.config
    assert securefl.evaluate(tmp_path / "run", trained.task.test).accuracy == result.accuracy
    assert securefl.evaluate(trained.model, trained.task.test).accuracy == result.accuracy
    with pytest.raises(ConfigError, match=r"left no client out.*data\.leave_out"):
        named_data("external", trained.config, trained.task)


def test_one_batch_of_everything_is_scored_as_in_training_mode(tiny_task):
    """With the statistics of the data themselves, whatever τ is."""
    model, (x, y) = tiny_task().model, normal()
    expected = copy.deepcopy(model).train()(x).argmax(1)
    score = securefl.evaluate(model, (x, y), adapt_bn=0.7, batch_size=len(x))
    assert score.accuracy == pytest.approx(float((expected == y).float().mean()))


def test_batches_come_in_the_order_given(tiny_task):
    """Each further one moves the statistics before it is normalised."""
    model, (x, y) = tiny_task().model, normal()
    bn, outputs, mu, var = model[1], [], None, None
    with torch.no_grad():
        for h in model[0](x).split(16):
            mean = h.mean(0)
            mu = mean if mu is None else 0.5 * mu + 0.5 * mean
            square = (h - mu).square().mean(0)
            var = square if var is None else 0.5 * var + 0.5 * square
            outputs.append(model[2:](bn.weight * (h - mu) / (var + bn.eps).sqrt() + bn.bias))
    expected = nn.functional.cross_entropy(torch.cat(outputs), y)
    score = securefl.evaluate(model, (x, y), adapt_bn=0.5, batch_size=16)
    assert score.loss == pytest.approx(float(expected), rel=1e-5)
    backwards = securefl.evaluate(model, (x.flip(0), y.flip(0)), adapt_bn=0.5, batch_size=16)
    assert backwards.loss != pytest.approx(score.loss, rel=1e-5)


def test_labels_score_and_do_nothing_else(tiny_task):
    """The same inputs with other labels give the same outputs."""
    model, (x, y) = tiny_task().model, normal()
    seen = []

    def loss(output, labels):
        seen[-1].append(output)
        return nn.functional.cross_entropy(output, labels)

    for labels in (y, (y + 1) % 3):
        seen.append([])
        data = TensorDataset(x, labels)
        securefl.evaluate(model, data, adapt_bn=0.9, batch_size=8, loss=loss, metric=lambda *_: 0.0)
    assert len(seen[0]) == 1 + 5  # a few samples are tried first
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


@pytest.mark.parametrize("adapt_bn", [None, 0.9])
@pytest.mark.parametrize("training", [True, False])
def test_the_callers_model_stays_as_it_was(tiny_task, training, adapt_bn):
    """Its tensors, and the mode that it is in."""
    model = copy.deepcopy(tiny_task().model).train(training)
    before = copy.deepcopy(model.state_dict())
    securefl.evaluate(model, normal(), adapt_bn=adapt_bn)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training is training for module in model.modules())


def test_a_client_of_another_distribution_gains(tiny_task):
    """Shifted and stretched inputs: the global statistics fail, the client's own do not."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(400, 4, generator=rng)
    y = (x[:, 0] > 0).long()
    clients = [(x[i : i + 100], y[i : i + 100]) for i in (0, 100, 200)]
    settings = ["run.rounds=20", "train.lr=0.2", "train.lr_drops=[0.5, 0.75]"]
    settings += ["algorithm.name=fedavg", "exchange.encrypt=none"]
    task = tiny_task(clients=clients, test=(x[300:], y[300:]))
    model = securefl.run(securefl.load_config(None, settings), task).model
    elsewhere = (4 * x[300:] + 10, y[300:])
    assert securefl.evaluate(model, (x[300:], y[300:])).accuracy > 0.9
    assert securefl.evaluate(model, elsewhere).accuracy < 0.7
    assert securefl.evaluate(model, elsewhere, adapt_bn=0.9).accuracy > 0.85


@pytest.mark.parametrize(
    ("data", "options", "error", "rule"),
    [
        (normal(), {"adapt_bn": 1.0}, ConfigError, "tau = 1.0: must be at least 0 and below 1"),
        (normal(), {"batch_size": 0}, ConfigError, "batch_size = 0: must be at least 1"),
        (normal(33), {"adapt_bn": 0.0}, DataError, "one value per channel"),
        ((normal()[0] / 0, normal()[1]), {"adapt_bn": 0.9}, DataError, "NaN or infinity"),
        (normal(1), {}, DataError, "at least two"),
        (normal()[0], {}, DataError, "the data: Tensor; give "),
    ],
)
def test_what_cannot_be_evaluated_is_refused(tiny_task, data, options, error, rule):
    """One clear error each."""
    with pytest.raises(error, match=rule):
        securefl.evaluate(tiny_task().model, data, **options)


# The folder of a run


def test_a_run_with_a_task_of_its_own_is_loaded_with_it(tmp_path, tiny_config, tiny_task):
    """The settings do not know its model; with the task it is that of the run."""
    task = tiny_task()
    settings = {"algorithm": {"name": "fedavg"}, "exchange": {"encrypt": "none"}}
    result = securefl.run(tiny_config(**settings), task, out=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"securefl\.load_trained\('.*', task\)"):
        securefl.evaluate(tmp_path / "run", task.test)
    model = securefl.load_trained(tmp_path / "run", task).model
    assert securefl.evaluate(model, task.test).accuracy == result.accuracy


def test_a_run_of_the_settings_takes_no_task(digits_run, tiny_task):
    """Its model would be another one."""
    with pytest.raises(ConfigError, match="had no task of its own"):
        securefl.load_trained(digits_run, tiny_task())


def test_an_unfinished_run_has_no_model_yet(broken_run):
    """The message says how to go on."""
    (broken_run / "model.safetensors").unlink()
    with pytest.raises(RunFolderError, match="securefl run --resume"):
        securefl.load_trained(broken_run)


@pytest.mark.parametrize("n_bytes", [0, 7, 300, -1])
def test_a_model_file_that_is_cut_short_is_refused(broken_run, n_bytes):
    """Whatever is left of it."""
    path = broken_run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:n_bytes])
    with pytest.raises(RunFolderError, match=r"model\.safetensors: damaged"):
        securefl.load_trained(broken_run)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("1.running_mean"),
        lambda tensors: tensors.update(more=torch.zeros(3)),
        lambda tensors: tensors.update({"1.weight": torch.zeros(31)}),
        lambda tensors: tensors.update({"1.weight": tensors["1.weight"].double()}),
    ],
    ids=["one less", "one more", "another shape", "another type"],
)
def test_another_model_than_the_settings_make_is_refused(broken_run, change):
    """Every tensor must be there, in its shape and type, and no other."""
    tensors = load_file(broken_run / "model.safetensors")
    change(tensors)
    save_file(tensors, broken_run / "model.safetensors")
    with pytest.raises(RunFolderError, match="another model"):
        securefl.load_trained(broken_run)


def test_a_folder_that_is_no_runs_folder_is_refused(tmp_path):
    """With its name."""
    with pytest.raises(RunFolderError, match="is no run's folder"):
        securefl.evaluate(tmp_path, normal())


# Data by name


def test_the_runs_own_test_data_are_those_of_its_seed(trained):
    """`test` is what every round was tested on."""
    x, y = named_data("test", trained.config, trained.task)["test"]
    split = load_digits(seed=3)
    assert torch.equal(x, split.test_x)
    assert torch.equal(y, split.test_y)


def test_a_corruption_changes_the_test_images_the_same_way_every_time(trained):
    """Flat digits are corrupted as the images that they are."""
    name = "test:impulse_noise:4"
    (first, y), (second, _) = (
        named_data(name, trained.config, trained.task)[name] for _ in range(2)
    )
    split = load_digits(seed=3)
    images = split.test_x.reshape(-1, 1, 8, 8).numpy()
    expected = corrupt(images, "impulse_noise", 4, np.random.default_rng(3))
    assert torch.equal(first, torch.from_numpy(expected).reshape(-1, 64))
    assert torch.equal(first, second)
    assert torch.equal(y, split.test_y)


def test_external_clients_are_those_that_the_run_left_out(trained):
    """All, or one by its name."""
    for name in ("external", "external:fog"):
        found = named_data(name, trained.config, trained.task)
        assert list(found) == ["external:fog"]
        assert found["external:fog"] is trained.task.external["fog"]


@pytest.mark.parametrize("shape", [(-1, 64), (-1, 1, 8, 8)], ids=["flat", "images"])
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_file_of_the_runs_test_data_is_the_runs_test_data(trained, tmp_path, suffix, shape):
    """In double precision as numpy saves it, flat or as images."""
    split = load_digits(seed=3)
    x, y = split.test_x.double().reshape(shape), split.test_y
    path = tmp_path / f"digits{suffix}"
    if suffix == ".npz":
        np.savez(path, x=x.numpy(), y=y.numpy())
    else:
        save_file({"x": x, "y": y}, path)
    found_x, found_y = named_data(str(path), trained.config, trained.task)[str(path)]
    assert torch.equal(found_x, split.test_x)
    assert torch.equal(found_y, split.test_y)


def test_pictures_in_class_folders_become_the_models_inputs(trained, tmp_path):
    """Grey where the model sees grey, flat where it is an mlp, and no longer class by class."""
    split = load_digits(seed=3)
    for label in range(10):
        (tmp_path / str(label)).mkdir()
    for i, (image, label) in enumerate(zip(split.test_x[:60], split.test_y[:60], strict=True)):
        pixels = (255 * image.reshape(8, 8)).round().to(torch.uint8).numpy()
        Image.fromarray(pixels).convert("RGB").save(tmp_path / str(int(label)) / f"{i:03}.png")
    x, y = named_data(str(tmp_path), trained.config, trained.task)[str(tmp_path)]
    given = {(tuple((255 * a).round().int().tolist()), int(b)) for a, b in zip(x, y, strict=True)}
    assert given == {
        (tuple((255 * image).round().int().tolist()), int(label))
        for image, label in zip(split.test_x[:60], split.test_y[:60], strict=True)
    }
    assert y.tolist() != sorted(y.tolist())


def test_a_domains_folder_scores_as_that_external_client(tmp_path):
    """Colour pictures and a convolutional model: the folder and `external:NAME` are the same."""
    rng = np.random.default_rng(0)
    for domain in ("amazon", "dslr", "webcam"):
        for label in ("bike", "mug"):
            folder = tmp_path / "office" / domain / label
            folder.mkdir(parents=True)
            for i in range(8):
                pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    data = ["data.dataset=folders", f"data.root={tmp_path / 'office'}", "data.side=8"]
    settings = [*SETTINGS, *data, "data.leave_out=dslr", "model.name=cnn", "model.width=4"]
    securefl.run(securefl.load_config(None, settings), out=tmp_path / "run")
    arguments = ["--data", tmp_path / "office/dslr", "--data", "external:dslr"]
    result = invoke("evaluate", tmp_path / "run", *arguments)
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines() if line.endswith("%")]
    assert len(rows) == 2
    assert rows[0][-3:] == rows[1][-3:]


# The command


def test_the_command_prints_both_accuracies_beside_each_other(digits_run, trained):
    """For each data set: samples, the global statistics, the adapted ones, and the difference."""
    names = ["test", "external", "test:contrast:5"]
    arguments = [x for name in names for x in ("--data", name)]
    result = invoke("evaluate", digits_run, *arguments, "--adapt-bn", "0.9", "--batch-size", "60")
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    fog = trained.task.external["fog"]
    own = securefl.evaluate(trained.model, fog).accuracy
    adapted = securefl.evaluate(trained.model, fog, adapt_bn=0.9, batch_size=60).accuracy
    assert lines["external:fog"] == [
        "360",
        f"{100 * own:.1f}",
        "%",
        f"{100 * adapted:.1f}",
        "%",
        f"{100 * (adapted - own):+.1f}",
    ]
    assert lines["test"][0] == lines["test:contrast:5"][0] == "360"


def test_without_adaptation_there_is_one_accuracy(digits_run):
    """And `test` is what is meant where nothing is said."""
    result = invoke("evaluate", digits_run)
    assert result.exit_code == 0, result.output
    assert "Adapted" not in result.stdout
    assert result.stdout.splitlines()[-1].split()[:2] == ["test", "360"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "tset"], "tset: no such file or folder; the run itself has test, test:"),
        (["--data", "a" * 5000], "File name too long"),
        (["--data", "test:fog"], "write test:CORRUPTION:SEVERITY"),
        (["--data", "test:fog:six"], "write test:CORRUPTION:SEVERITY"),
        (["--data", "test:fog:6"], "severity = 6"),
        (["--data", "test:smog:3"], 'corruption = "smog": must be one of'),
        (["--data", "external:rain"], '"external:rain": no such client; this run left out fog'),
        (["--adapt-bn", "1"], "'--adapt-bn': 1.0 is not in the range 0<=x<1"),
        (["--adapt-bn", "nan"], "tau = nan"),
        (["--batch-size", "0"], "0 is not in the range"),
        (["--data", "empty"], "empty: no pictures; put them under empty/class"),
        (["--data", "three"], "three: 3 class folders for a model of 10 classes"),
        (["--data", "wide.npz"], r"samples of shape (63,); the model takes (64,)"),
        (["--data", "whole.npz"], "x holds uint8; give floats"),
        (["--data", "labels.npz"], "label 10; the model's are 0..9"),
        (["--data", "nan.npz"], "NaN or infinity"),
        (["--data", "one.npz"], "1 samples"),
    ],
)
def test_wrong_data_are_one_clear_line(digits_run, tmp_path, monkeypatch, arguments, message):
    """It names the data and the way out; nothing is printed besides."""
    monkeypatch.chdir(tmp_path)
    x, y = np.full((10, 64), 0.5), np.arange(10)
    np.savez("wide.npz", x=x[:, 1:], y=y)
    np.savez("whole.npz", x=x.astype(np.uint8), y=y)
    np.savez("labels.npz", x=x, y=y + 1)
    np.savez("nan.npz", x=x * np.nan, y=y)
    np.savez("one.npz", x=x[:1], y=y[:1])
    (tmp_path / "empty").mkdir()
    for label in "abc":
        (tmp_path / "three" / label).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "three" / label / "1.png")
    result = invoke("evaluate", digits_run, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not result.stdout


@pytest.mark.parametrize("algorithm", ["fedbn", "silobn", "local-affine", "fedavg"])
def test_where_the_server_learns_no_statistics_a_note_says_so(tmp_path, algorithm):
    """Exactly where the BN layers still hold what they were made with."""
    settings = [*SETTINGS, f"algorithm.name={algorithm}", *LEFT_OUT]
    securefl.run(securefl.load_config(None, settings), out=tmp_path / "run")
    bn = securefl.load_trained(tmp_path / "run").model[1]
    untrained = not bn.running_mean.any() and torch.equal(bn.running_var, torch.ones_like(bn.bias))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        securefl.evaluate(tmp_path / "run", securefl.load_trained(tmp_path / "run").task.test)
    assert [w.category for w in caught] == [UntrainedStatistics] * untrained
    result = invoke("evaluate", tmp_path / "run", "--data", "external", "--adapt-bn", "0.9")
    assert result.exit_code == 0, result.output
    assert untrained == (algorithm in {"fedbn", "silobn"})
    assert ("statistics are those from before training" in result.stderr) == untrained
    assert "Note" not in result.stdout


def test_leave_one_out_says_so_too(tmp_path):
    """Below its table, on stderr."""
    (tmp_path / "job.toml").write_text('[algorithm]\nname = "fedbn"\n')
    sets = [s for text in (*SETTINGS[::2], LEFT_OUT[0]) for s in ("--set", text)]
    result = invoke("leave-one-out", tmp_path / "job.toml", *sets, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[-1].startswith("Note: fedbn keeps BN at its clients")


# What a message names


def test_a_file_that_cannot_be_evaluated_is_named(digits_run, tmp_path):
    """One of several on the command line."""
    good, bad = tmp_path / "good.npz", tmp_path / "bad.npz"
    x, y = np.zeros((4, 64), dtype="f4"), np.zeros(4, dtype=int)
    np.savez(good, x=x, y=y)
    np.savez(bad, x=x / np.float32("nan"), y=y)
    result = invoke("evaluate", digits_run, "--data", good, "--data", bad)
    assert result.exit_code == 2
    assert result.stderr == f"Error: {bad}: inputs hold NaN or infinity; clean them first\n"


def test_an_external_client_that_cannot_be_evaluated_is_named(tmp_path, tiny_config, tiny_task):
    """Leave-one-out scores many of them."""
    x, y = normal(8)
    tasks = {"north": tiny_task(external={"hospital-7": (x / 0, y)})}
    config = tiny_config(exchange={"encrypt": "none"}, algorithm={"name": "fedavg"})
    with pytest.raises(DataError, match="hospital-7: inputs hold NaN"):
        securefl.leave_one_out(config, tmp_path, tasks=tasks)


def test_a_file_that_is_no_picture_is_named_and_nothing_inside_the_program(tmp_path):
    """A text with a picture's name."""
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "a.jpg").write_text("no picture at all")
    with pytest.raises(DataError) as error:
        load_class_folders(tmp_path, 8)
    path = tmp_path / "class" / "a.jpg"
    assert str(error.value) == f"{path}: is no picture that can be used (no JPEG, PNG or BMP)"


def test_the_case_of_a_files_ending_does_not_count(tmp_path):
    """A disk of another system may have written it in capitals."""
    np.savez(tmp_path / "a.npz", x=np.ones((3, 2), dtype="f4"), y=np.arange(3))
    save_file({"x": torch.ones(3, 2), "y": torch.arange(3)}, tmp_path / "b.SafeTensors")
    (tmp_path / "a.npz").rename(tmp_path / "A.NPZ")
    for name in ("A.NPZ", "b.SafeTensors"):
        x, y = load_arrays(tmp_path / name)
        assert torch.equal(x, torch.ones(3, 2))
        assert y.tolist() == [0, 1, 2]


def test_blanks_between_names_do_not_count(tmp_path):
    """People write a blank after a comma."""
    settings = ["--rounds", "1", "--algorithm", "fedavg", "--encrypt", "none"]
    names = ["--corruptions", "fog, contrast ,impulse_noise"]
    result = invoke("run", *settings, *names, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    found = read_config(tmp_path / "run").data.corruptions
    assert found == ("fog", "contrast", "impulse_noise")


def test_a_number_in_the_place_of_a_domain_asks_for_quotes():
    """Camelyon17's hospitals have numbers, their clients have names."""
    with pytest.raises(ConfigError, match=r"data\.leave_out = 3: must be text, write it in quotes"):
        securefl.load_config(None, ["data.leave_out=3"])
