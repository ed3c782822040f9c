"""What users bring: numpy, clients by name, other types; the rest is refused with a way out."""

from __future__ import annotations

import json
import shutil
import threading
from functools import partial
from importlib.metadata import version

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import securefl
from securefl import Task
from securefl.algorithms.normalisation.fedtan import FedTAN
from securefl.errors import ConfigError, DataError, RunFolderError
from securefl.runs.folder_reader import read_run
from securefl.runs.task_record import task_record
from securefl.types import State
from securefl_cli.main import main

RNG = np.random.default_rng(0)
X, LABELS = RNG.normal(size=(12, 4)), RNG.integers(0, 3, 12)
HOSPITALS = ("Charité", "UCLH", "Mayo Clinic")


def model(n_in=4, n_out=3):
    """One BN layer between two linear ones."""
    return nn.Sequential(nn.Linear(n_in, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, n_out))


def hospitals(x=X, y=LABELS):
    """The same data for each, as numpy has them: float64 and int64."""
    return dict.fromkeys(HOSPITALS, (x, y))


def trained(task, *more, **options):
    settings = ["run.rounds=1", "algorithm.name=fedavg", "exchange.encrypt=none", *more]
    return securefl.run(securefl.load_config(None, settings), task, **options)


@pytest.mark.usefixtures("quick")
def test_clients_by_name_are_called_so_everywhere(tmp_path):
    """In the ledger, in the scores of each, and in the folder's files."""
    task = Task(model(), hospitals(), (X, LABELS), client_tests=hospitals())
    result = trained(task, "algorithm.name=fedbn", out=tmp_path / "run")
    assert set(result.ledger.upload_bytes()) == set(HOSPITALS)
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    scores = json.loads(line)["clients"]
    assert tuple(scores) == tuple(result.clients) == tuple(result.client_models) == HOSPITALS
    assert result.score == pytest.approx(np.mean([of["score"] for of in scores.values()]))


def test_tests_by_name_may_come_in_another_order():
    """Each client is tested on its own."""
    tests = {name: (X + i, LABELS) for i, name in reversed(list(enumerate(HOSPITALS)))}
    task = Task(model(), hospitals(), (X, LABELS), client_tests=tests)
    for i, (x, _) in enumerate(task.client_tests):
        assert torch.equal(x, torch.from_numpy(X + i).float())
    with pytest.raises(ConfigError, match="client_tests are of UCLH, and clients are Charité, UC"):
        Task(model(), hospitals(), (X, LABELS), client_tests={"UCLH": (X, LABELS)})


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.float32])
@pytest.mark.parametrize("whole", [np.int64, np.int32, np.uint8])
def test_numbers_of_other_types_are_cast_to_the_models(dtype, whole):
    """Arrays and Datasets alike, without a step by hand."""
    x, y = X.astype(dtype), LABELS.astype(whole)
    arrays = Task(model(), hospitals(x, y), (x, y))
    pairs = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    datasets = Task(arrays.model, dict.fromkeys(HOSPITALS, pairs), pairs)
    one, other = (trained(task, "run.engine=sequential") for task in (arrays, datasets))
    assert {values.dtype for values in arrays.clients[0]} == {torch.float32, torch.int64}
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_order_of_bytes_does_not_matter():
    """As files of other machines have them."""
    swapped = (X.astype(">f8"), LABELS.astype(">i4"))
    (x, y), *_ = Task(model(), hospitals(*swapped), swapped).clients
    assert torch.equal(x, torch.from_numpy(X).float())
    assert torch.equal(y, torch.from_numpy(LABELS))


class Records(Dataset):
    """Samples as `form` makes them of x and y."""

    def __init__(self, form):
        self.form = form

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return self.form(torch.from_numpy(X[index]), int(LABELS[index]))


class Endless(IterableDataset):
    """Has no length."""

    def __iter__(self):
        return iter([(torch.ones(4), 0)])


class Counted(Endless):
    """Has a length, and still no index."""

    def __len__(self):
        return 1


class Unsized(Dataset):
    """Has samples by index, and no length."""

    def __getitem__(self, index):
        return torch.ones(4), 0


MASKED = np.ma.array(X, mask=np.eye(4, dtype=bool)[[0] * 12])


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ({"x": X, "y": LABELS}, "a dict with the keys 'x', 'y'; give the pair"),
        (
            Records(lambda x, y: {"image": x, "label": y}),
            "sample 0: a dict with the keys 'image', 'label'",
        ),
        (Records(lambda x, y: (x, x, y)), "sample 0: 3 values; give .*several inputs: put"),
        (Records(lambda x, y: ((x, x), y)), r"sample 0: x is 2 values; put them side by side"),
        (Records(lambda x, _: x), "sample 0: Tensor; give"),
        (Records(lambda _, y: ("a.png", y)), "sample 0: x is str; give a tensor"),
        (((X, X), LABELS), r"x is 2 arrays; put them side by side in one x \(torch.cat"),
        ((X, X, LABELS), "3 values; give .*several inputs: put them side by side"),
        ((X.tolist(), LABELS), r"x is list; give a tensor or a numpy array: torch.as_tensor"),
        ((X.astype(str), LABELS), "x holds <U32; give numbers"),
        ((torch.tensor(1.0), LABELS), "x is one number; give an entry for each sample"),
        (DataLoader(TensorDataset(torch.ones(4, 4))), "a DataLoader; give its data set, loader.d"),
        (Endless(), "Endless has no samples by index; give a Dataset, or"),
        (Counted(), "Counted has no samples by index; give a Dataset, or"),
        (Unsized(), "Unsized has no length; give a Dataset with __len__"),
        (
            Records(lambda _, y: (MASKED[0], y)),
            "sample 0: x is an array with 1 masked values; give",
        ),
        (Records(lambda _, y: 1 / 0), r"sample 0: its Dataset raised ZeroDivisionError \(division"),
        ((MASKED, LABELS), r"x is an array with 12 masked values; give them values, x\.filled"),
        ((torch.from_numpy(X).to_sparse(), LABELS), r"x is a sparse_coo tensor; .*x\.to_dense"),
        (None, "NoneType; give"),
    ],
)
def test_data_that_cannot_be_taken_name_the_client_and_the_way_out(data, rule):
    """Before anything else happens: when the task is made."""
    with pytest.raises(DataError, match=rf"^UCLH: .*{rule}"):
        Task(model(), hospitals() | {"UCLH": data}, (X, LABELS))


class Late(Records):
    """Has a sample of its own form behind those that are tried."""

    def __getitem__(self, index):
        x, y = torch.from_numpy(X[index]), int(LABELS[index])
        return self.form(x, y) if index == 7 else (x, y)


@pytest.mark.parametrize(
    ("form", "rule"),
    [
        (lambda x, y: (x[:3], y), r"x is torch.float32 \(3,\), and that of sample 0 is .*\(4,\)"),
        (lambda x, _: (x, 0.5), r"y is torch.float32 \(\), and that of sample 0 is torch.int64"),
        (lambda x, y: (x, x, y), r"3 values; give \(x, y\)"),
        (lambda x, _: (x, 7), r"label 7, and the model has 3 outputs: labels are 0\.\.2; count"),
        (lambda *_: 1 / 0, r"its Dataset raised ZeroDivisionError \(division by zero\); mend"),
    ],
)
@pytest.mark.parametrize("whose", ["client", "test"])
def test_a_later_sample_that_cannot_be_taken_names_owner_and_index(form, rule, whose):
    """Where it is fetched, since nobody reads a whole data set before."""
    clients = hospitals() | ({"UCLH": Late(form)} if whose == "client" else {})
    task = Task(model(), clients, Late(form) if whose == "test" else (X, LABELS))
    owner = "UCLH" if whose == "client" else "the test data"
    with pytest.raises(DataError, match=rf"^{owner}: sample 7: {rule}"):
        trained(task, "run.engine=sequential", "train.batch_size=12")


@pytest.mark.usefixtures("quick")
def test_a_later_sample_of_a_narrower_type_is_cast_as_the_first():
    """Each by itself, floats and whole numbers alike."""
    for form in (lambda x, y: (x.double(), np.uint8(y)), lambda x, y: (x.int(), y)):
        x, _ = Task(model(), {"UCLH": Late(form)}, (X, LABELS)).clients[0][7]
        assert x.dtype is torch.float32


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ((X[:, :3], LABELS), r'x of shape \(3,\), float32: layer "0", Linear\(in_features=4.*'),
        ((X.astype(np.int64), LABELS), r"float32|int64.*Linear"),
        ((X, LABELS + 1), r"label 3, and the model has 3 outputs: labels are 0\.\.2; count them"),
        ((X, LABELS - 1), "label -1, and the model has 3 outputs"),
        ((X, LABELS[:, None]), r"cross_entropy does not take outputs .*\(4, 3\) and .*\(4, 1\)"),
        ((X, LABELS[:5]), "12 inputs but 5 labels"),
    ],
)
@pytest.mark.parametrize("whose", ["client", "test"])
def test_data_that_the_model_does_not_take_name_client_layer_and_shape(data, rule, whose):
    """Before the first round, where torch's own words would name none of them."""
    clients = hospitals() | ({"UCLH": data} if whose == "client" else {})
    task = Task(model(), clients, data if whose == "test" else (X, LABELS))
    owner = "UCLH" if whose == "client" else "the test data"
    with pytest.raises(DataError, match=rf"^{owner}: .*({rule})"):
        trained(task)


def test_a_label_that_the_loss_leaves_out_is_no_wrong_one():
    """-100, and what a loss of one's own setting ignores."""
    y = LABELS.copy()
    y[0] = -100
    trained(Task(model(), hospitals(y=y), (X, LABELS)))
    y[0] = 7
    loss = nn.CrossEntropyLoss(ignore_index=7)
    trained(Task(model(), hospitals(y=y), (X, LABELS), loss))


def test_a_loss_must_be_one_number():
    """A value for each sample would end the first round in torch's own words."""
    each = Task(model(), hospitals(), (X, LABELS), nn.CrossEntropyLoss(reduction="none"))
    with pytest.raises(DataError, match=r"it must be one number, the mean over a batch"):
        trained(each)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65, "tab\t", 7])
def test_names_that_cannot_name_a_client_are_refused(name):
    """They go into files, messages and certificates."""
    with pytest.raises(ConfigError, match="cannot name a client: take printable text"):
        Task(model(), {name: (X, LABELS)}, (X, LABELS))


def test_names_of_roles_and_other_names_in_the_settings_are_refused():
    """Nobody is two parties, and nobody has two names."""
    with pytest.raises(ConfigError, match="and none 'server' or 'authority'"):
        trained(Task(model(), {"server": (X, LABELS), "b": (X, LABELS)}, (X, LABELS)))
    with pytest.raises(ConfigError, match=r"the task and data\.names name other clients"):
        trained(Task(model(), hospitals(), (X, LABELS)), 'data.names=["a", "b", "c"]')


@pytest.mark.parametrize("metric", ["accuracy", None])
def test_a_model_class_is_no_model(metric):
    """An instance is."""
    with pytest.raises(ConfigError, match="must be a torch module; give an instance"):
        Task(nn.Linear, hospitals(), (X, LABELS), metric=metric)


@pytest.mark.parametrize(
    ("made", "rule"),
    [
        (
            lambda: nn.Sequential(nn.LazyLinear(6), nn.Linear(6, 3)),
            r'layer "0", LazyLinear, has no size yet; call the model once with a few samples',
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 6), nn.LazyBatchNorm1d(), nn.Linear(6, 3)),
            r'layer "1", LazyBatchNorm1d, has no size yet',
        ),
        (lambda: torch.jit.script(model()), r"it is a script of torch\.jit, .*; give the module"),
    ],
)
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_model_that_cannot_be_copied_or_looked_into_is_refused(made, rule):
    """Before the copy, which torch refuses in words of its own."""
    with pytest.raises(ConfigError, match=rf"^model: {rule}"):
        Task(made(), hospitals(), (X, LABELS))
    with pytest.raises(ConfigError, match=rf"^model: {rule}"):
        securefl.evaluate(made(), (X, LABELS))


class Locked(nn.CrossEntropyLoss):
    """Has what no copy can have."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def test_a_loss_that_cannot_be_copied_is_refused():
    """Before anything is trained."""
    with pytest.raises(ConfigError, match=r"^loss: it cannot be copied .*lock.*keep out of it"):
        trained(Task(model(), hospitals(), (X, LABELS), Locked(), metric="accuracy"))


def test_a_compiled_model_is_refused_where_its_forward_is_interrupted():
    """FedTAN exchanges within it; FedAvg trains it as it is."""
    compiled, fedtan = torch.compile(model(), backend="eager"), FedTAN()
    with pytest.raises(ConfigError, match=r"FedTAN exchanges .* as it was before torch\.compile"):
        fedtan(State(0, {}), compiled)


# Metrics


def several(n):
    """`n` labels for each sample, 0.0 or 1.0, that the first features tell."""
    return (X[:, :n] > 0).astype(np.float64)


@pytest.mark.parametrize("n_labels", [1, 3])
@pytest.mark.parametrize(
    "loss", [functional.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss()]
)
def test_labels_of_their_own_logits_are_scored_by_label_accuracy(n_labels, loss):
    """One logit or several: a share of right labels, which R² of logits is not."""
    y = several(n_labels)
    sure = nn.Linear(4, n_labels)
    with torch.no_grad():
        sure.weight.copy_(50 * torch.eye(4)[:n_labels])
        sure.bias.zero_()
    score = securefl.evaluate(sure, (X, y), loss=loss)
    assert (score.metric, score.accuracy) == ("label-accuracy", 1.0)
    wrong = y.copy()
    wrong[0] = 1 - wrong[0]
    assert securefl.evaluate(sure, (X, wrong), loss=loss).accuracy == pytest.approx(11 / 12)


@pytest.mark.usefixtures("quick")
def test_a_run_is_scored_by_the_metric_of_its_task():
    """By name, or by a function of all outputs and targets, which gives the run its name."""

    def worst_error(outputs, targets):
        assert outputs.shape == targets.shape == (12, 1)
        return -float((outputs - targets).abs().max())

    named = {"model": model(n_out=1), "clients": hospitals(y=X[:, :1]), "test": (X, X[:, :1])}
    result = trained(Task(**named, loss=nn.MSELoss(), metric=worst_error))
    assert result.metric == "worst_error"
    assert result.score < 0
    assert f"worst_error {result.score:.3f}" in repr(result)
    assert trained(Task(**named, loss=nn.HuberLoss())).metric == "r2"
    ours = lambda outputs, y: ((outputs - y) ** 2).mean()  # noqa: E731
    assert trained(Task(**named, loss=ours, metric="r2")).metric == "r2"
    with pytest.raises(DataError, match=r"loss <lambda>, .* is not certain: give one, Task\("):
        trained(Task(**named, loss=ours))
    with pytest.raises(ConfigError, match="metric = 'auroc': must be one of accuracy, label-acc"):
        Task(**named, metric="auroc")


def test_no_accuracy_is_outside_of_0_and_1():
    """Not by a function of that name either, nor by soft labels, nor by one output."""

    def accuracy(outputs, targets):
        return 100 * float((outputs.argmax(1) == targets).float().mean())

    net = model()
    with torch.no_grad():
        net[-1].bias += torch.tensor([0.0, 9.0, 0.0])
    with pytest.raises(
        DataError, match=r"metric accuracy: gave .*a share of right answers, 0\.\.1"
    ):
        securefl.evaluate(net, (X, np.ones(12, int)), metric=accuracy)
    bce = functional.binary_cross_entropy_with_logits
    with pytest.raises(DataError, match="is not certain: give one"):
        securefl.evaluate(model(n_out=1), (X, np.full((12, 1), 0.3)), loss=bce)
    with pytest.raises(DataError, match="of two classes or more"):
        securefl.evaluate(model(n_out=1), (X, np.zeros(12, int)))


@pytest.mark.parametrize(
    ("left_out", "loss"),
    [
        (-100, functional.cross_entropy),
        (2, nn.CrossEntropyLoss(ignore_index=2)),
        (2, partial(functional.cross_entropy, ignore_index=2)),
    ],
)
@pytest.mark.parametrize("metric", [None, "accuracy"])
def test_labels_that_the_loss_leaves_out_are_left_out_of_the_accuracy(left_out, loss, metric):
    """They are neither right nor wrong."""
    net = model().eval()
    with torch.no_grad():
        net[-1].bias += torch.tensor([9.0, 0.0, 0.0])
    y = np.array([0, 0, 0, 1] + [left_out] * 8)
    assert securefl.evaluate(net, (X, y), loss=loss, metric=metric).accuracy == 0.75


@pytest.mark.parametrize("value", [torch.tensor([0.5]), torch.tensor(0.5), np.float32(0.5)])
def test_a_metric_may_give_a_tensor_of_one_element(value):
    """It is taken as the number that it holds."""
    score = securefl.evaluate(model(), (X, LABELS), metric=lambda *_: value)
    assert score.value == 0.5


@pytest.mark.parametrize("value", [None, torch.ones(12), "much", {"auc": 1.0}])
def test_a_metric_that_gives_no_number_is_told_to(value):
    """The message says that it must be one, and what came."""
    with pytest.raises(ConfigError, match=r"metric <lambda>: gave .*must return one number"):
        securefl.evaluate(model(), (X, LABELS), metric=lambda *_: value)


# Results


@pytest.mark.usefixtures("quick")
def test_a_result_reads_in_ten_lines():
    """Its tensors and its ledger are there to be read, and not to be printed."""
    task = Task(model(), hospitals(), (X, LABELS))
    result = trained(task, "run.rounds=3")
    for value in (result, task):
        assert len(repr(value).splitlines()) <= 10
        assert len(repr(value)) < 1000
    assert f"accuracy {100 * result.accuracy:.1f} %" in repr(result)


def test_the_api_can_be_listed():
    """`dir(securefl)` has every name that the package gives, and no module that it loaded."""
    assert {name for name in dir(securefl) if name[0] != "_"} == set(securefl.__all__)
    assert securefl.__version__ == version("securefl")
    assert "__version__" in dir(securefl)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("algorithm", ["fedbn", "silobn", "local-affine", "fedavg"])
def test_each_clients_model_is_the_one_that_it_was_scored_by(algorithm):
    """The global tensors, with what the client keeps laid over; the run's score is their mean."""
    shifted = {name: (X * (1 + i), LABELS) for i, name in enumerate(HOSPITALS)}
    task = Task(model(), shifted, (X, LABELS), client_tests=shifted)
    result = trained(task, f"algorithm.name={algorithm}", "run.rounds=3")
    assert bool(result.client_models) == (algorithm != "fedavg")
    for name in HOSPITALS:
        own = result.client_models.get(name, result.model)
        score = securefl.evaluate(own, shifted[name])
        assert score.value == result.clients[name].score
        assert score.loss == pytest.approx(result.clients[name].loss)
    assert result.loss == pytest.approx(np.mean([of.loss for of in result.clients.values()]))
    if algorithm != "fedavg":
        one, other, _ = (own[1].weight for own in result.client_models.values())
        assert torch.equal(one, other) == (algorithm == "silobn")


@pytest.mark.usefixtures("quick")
def test_a_result_is_evaluated_by_its_own_loss_and_metric():
    """Without naming them again."""
    task = Task(model(n_out=1), hospitals(y=several(1)), (X, several(1)), nn.BCEWithLogitsLoss())
    result = trained(task)
    score = securefl.evaluate(result, (X, several(1)))
    assert (score.metric, score.value) == (result.metric, result.score)


# The folder of a run on one's own task


class Net(nn.Module):
    """A user's own class."""

    def __init__(self):
        super().__init__()
        self.layers = model()

    def forward(self, x):
        return self.layers(x)


@pytest.fixture(scope="module")
def own_run(tmp_path_factory):
    """A finished run of a user's own task, and the task."""
    folder, task = tmp_path_factory.mktemp("own") / "run", Task(Net(), hospitals(), (X, LABELS))
    trained(task, out=folder)
    (folder / "traffic.png").touch()  # which ends a run; `quick` draws none
    return folder, task


def test_the_folder_of_an_own_task_says_what_was_run(own_run):
    """And nothing of the digits and the mlp, which were not."""
    folder, task = own_run
    settings = json.loads((folder / "config.json").read_text())
    assert not {"data", "model"} & settings.keys()
    assert settings["run"]["name"] == "fedavg-Net"
    found = json.loads((folder / "task.json").read_text())
    assert found["model"]["name"].endswith("test_own_data.Net")
    assert found["model"]["n_parameters"] == sum(p.numel() for p in task.model.parameters())
    assert found["loss"] == "cross_entropy"
    assert tuple(found["clients"]) == HOSPITALS
    one = found["clients"]["UCLH"]
    assert (one["n_samples"], one["x"], one["y"]) == (12, "float32 (4,)", "int64 ()")
    assert len(one["sha256"]) == len(found["model"]["sha256"]) == 64
    assert (folder / "task.json").stat().st_mode & 0o077 == 0
    assert read_run(folder).config.name == "fedavg-Net"


def test_the_digests_of_a_task_are_those_of_its_values(own_run):
    """The same task has the same ones, and another value has another."""
    names = HOSPITALS
    one, again = (
        task_record(Task(own_run[1].model, hospitals(), (X, LABELS)), names) for _ in "ab"
    )
    other = task_record(Task(own_run[1].model, hospitals(X + 1e-6), (X, LABELS)), names)
    assert one == again
    assert (one.model, one.test) == (other.model, other.test)
    assert one.clients["UCLH"].sha256 != other.clients["UCLH"].sha256


@pytest.mark.parametrize(
    ("command", "call"),
    [
        (("run", "--resume"), "securefl.resume"),
        (("evaluate",), "securefl.load_trained"),
        (("audit",), "securefl.audit_run"),
    ],
)
def test_a_command_on_an_own_task_names_the_call_that_takes_it(own_run, command, call):
    """The command line cannot make a user's model and data again."""
    folder, _ = own_run
    done = CliRunner().invoke(main, [*command, str(folder)])
    assert done.exit_code == 2
    assert "this run had a task of its own" in done.stderr
    assert f"{call}({str(folder)!r}, " in done.stderr


def test_what_python_is_advised_to_call_goes_on(own_run, tmp_path):
    """Of an unfinished run's folder, the call in the message; of a finished one's, none."""
    folder, task = own_run
    with pytest.raises(RunFolderError, match=r"not empty: name another folder$"):
        trained(task, out=folder)
    half = shutil.copytree(folder, tmp_path / "half")
    for name in ("traffic.png", "model.safetensors"):
        (half / name).unlink()
    with pytest.raises(RunFolderError, match=r"securefl\.resume\('.*', task\) in Python"):
        trained(task, out=half)
    with pytest.raises(RunFolderError, match=r"not finished; go on with securefl\.resume\("):
        securefl.evaluate(securefl.load_trained(half, task), (X, LABELS))
    assert securefl.resume(half, task).config.name == "fedavg-Net"
    shown = CliRunner().invoke(main, ["compare", str(half), "--out", str(tmp_path / "a.png")])
    assert "fedavg-Net" in shown.stdout
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("no run")
    with pytest.raises(RunFolderError, match=r"not empty: name another folder$"):
        trained(task, out=tmp_path / "other")


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ((lambda: (Task(model(), hospitals(), (X, LABELS)),)), "config is Task: give Config, as"),
        ((lambda: ({"run": {}}, None)), r"config is dict: .*securefl\.load_config\(settings="),
        ((lambda: (None, model())), "task is Sequential: give Task"),
    ],
)
def test_arguments_in_the_wrong_place_are_named(given, rule):
    """Not an attribute that something else does not have."""
    with pytest.raises(ConfigError, match=rule):
        securefl.run(*given())


@pytest.mark.parametrize("clients", [(X, LABELS), [torch.ones(4, 2)], torch.ones(3, 4, 2)])
def test_one_pair_is_not_taken_for_several_clients(clients):
    """A forgotten list around them, or clients and test in the wrong order."""
    with pytest.raises(DataError, match=r"^clients: .*; give one \(x, y\) for each client"):
        Task(model(), clients, (X, LABELS))


@pytest.mark.parametrize("given", [None, (pair for pair in [(X, LABELS)])])
def test_clients_are_a_list_or_a_dict(given):
    """Nothing that has no length, such as a generator."""
    with pytest.raises(DataError, match=r"^clients is (NoneType|generator); give one \(x, y\)"):
        Task(model(), given, (X, LABELS))
    with pytest.raises(DataError, match=r"^client_tests is (NoneType|generator); give one"):
        Task(model(), hospitals(), (X, LABELS), client_tests=given)


def test_the_advice_for_a_model_without_bn_is_taken():
    """Each way out that the message names is one."""
    task = Task(nn.Linear(4, 3), hospitals(), (X, LABELS))
    with pytest.raises(
        DataError, match=r'algorithm\.name = "fedavg" with exchange\.encrypt = "model"'
    ):
        securefl.run(securefl.Config(), task)
    for encrypt in ("model", "none"):
        trained(task, "algorithm.name=fedavg", f"exchange.encrypt={encrypt}")


def test_no_advice_is_refused():
    """Of a setting that an own task does not read, or of a share that three clients do not have."""
    fnr = Task(model(), hospitals(), (X, LABELS))
    with pytest.raises(ConfigError, match=r"Task\(public=\(x, y\)\); or set fnr.name"):
        trained(fnr, "fnr.name=matched")
    fnr = Task(model(), hospitals(), (X, LABELS), public=(X + 9, LABELS))
    with pytest.raises(ConfigError, match=r"have at least 4 clients, since no share fits fewer"):
        trained(fnr, "fnr.name=matched")
    with pytest.raises(DataError, match=r"or give the model BN layers"):
        trained(Task(nn.Linear(4, 3), hospitals(), (X, LABELS)), "algorithm.name=fedtan")


@pytest.mark.parametrize("loss", ["hinge", nn.CrossEntropyLoss, None])
def test_a_loss_is_a_function(loss):
    """Neither a name nor a class."""
    with pytest.raises(ConfigError, match=r"^loss = .*a function of \(outputs, targets\)"):
        Task(model(), hospitals(), (X, LABELS), loss)


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ("keys", r"keys is str: give KeySet, .*load_all\(Path\(folder\), passph"),
    ],
)
def test_a_folder_of_keys_is_loaded_first(keys, rule):
    """The message says with which function."""
    with pytest.raises(ConfigError, match=rule):
        securefl.run(securefl.Config(), **{keys: "own-keys"})


def test_an_own_tasks_settings_do_not_train_the_digits(own_run, tmp_path):
    """Its folder's config.json names no data, and their place is not the defaults'."""
    config = own_run[0] / "config.json"
    done = CliRunner().invoke(main, ["run", str(config), "--out", str(tmp_path / "run")])
    assert done.exit_code == 2
    assert "this run had a task of its own" in done.stderr
    assert f"securefl.run(securefl.load_config({str(config)!r}), task)" in done.stderr
    assert not (tmp_path / "run").exists()


def other_tasks(net):
    """Tasks that differ from `own_run`'s, by the part that a message names."""
    one = hospitals() | {"UCLH": (X + 1, LABELS)}
    pairs = TensorDataset(torch.from_numpy(X[1:]), torch.from_numpy(LABELS[1:]))
    test = (X, LABELS)
    return {
        "client UCLH: 12 samples": Task(net, one, test),
        "client Mayo Clinic: 12 .*now 11 ": Task(net, hospitals() | {"Mayo Clinic": pairs}, test),
        "the order of clients": Task(net, dict(reversed(hospitals().items())), test),
        "the test data": Task(net, hospitals(), (X + 1, LABELS)),
        "the external client new": Task(net, hospitals(), test, external={"new": (X, LABELS)}),
        "the loss": Task(net, hospitals(), test, nn.CrossEntropyLoss()),
        "the model: Net, .*now Sequential": Task(model(), hospitals(), test),
    }


def test_another_task_than_the_runs_is_refused_by_the_part_that_differs(own_run, tmp_path):
    """Where it is resumed, loaded or audited."""
    folder, task = own_run
    half = shutil.copytree(folder, tmp_path / "half")
    (half / "model.safetensors").unlink()
    for part, other in other_tasks(task.model).items():
        for call in (
            lambda other=other: securefl.resume(half, other),
            lambda other=other: securefl.load_trained(folder, other),
            lambda other=other: securefl.audit_run(folder, task=other),
        ):
            with pytest.raises(ConfigError, match=f"another than this run's, by {part}"):
                call()
    securefl.load_trained(folder, Task(Net(), hospitals(), (X, LABELS)))
    with pytest.raises(ConfigError, match=r"by the model: Net, .*, sha256 "):
        securefl.audit_run(folder, task=Task(Net(), hospitals(), (X, LABELS)))
    with pytest.raises(
        ConfigError, match=r"effort = 'quick': must be QUICK or FULL of securefl\.a"
    ):
        securefl.audit_run(folder, "quick", task=task)
    (half / "checkpoint.safetensors").unlink()
    (half / "task.json").write_text("{}")
    with pytest.raises(RunFolderError, match=r"task\.json: damaged"):
        securefl.load_trained(half, task)


@pytest.mark.usefixtures("quick")
def test_a_dataset_is_known_by_its_number_and_form(own_run):
    """It has no digest, and need not give the same values twice."""
    pairs = TensorDataset(torch.from_numpy(X), torch.from_numpy(LABELS))
    task = Task(own_run[1].model, hospitals() | {"UCLH": pairs}, (X, LABELS))
    assert securefl.load_trained(own_run[0], task).task is task
