"""FedProf's tasks as settings: Table 2's numbers, section 5.1's qualities, and their twins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from securefl.data.digits import load_digits
from securefl.data.quality import Quality, assign_qualities
from securefl.errors import ConfigError
from securefl.settings.load import load_config
from securefl.task import configured_task

pytestmark = pytest.mark.shapes

FOLDER = Path(__file__).parents[2] / "examples" / "fedprof"
TASKS = ("gasturbine", "emnist", "cifar10")
SENSORS = {"polluted": 5, "noisy": 20}
COUNTS = {
    "gasturbine": SENSORS,
    "emnist": {"irrelevant": 75, "blurred": 100, "salt-and-pepper": 125},
    "cifar10": {"irrelevant": 1, "blurred": 2, "salt-and-pepper": 2},
    "gasturbine-twin": SENSORS,
    "emnist-twin": {"irrelevant": 8, "blurred": 10, "salt-and-pepper": 12},
    "cifar10-twin": {"irrelevant": 1, "blurred": 2, "salt-and-pepper": 2},
}


def load(name, *settings):
    return load_config(FOLDER / f"{name}.toml", settings)


def test_the_folder_holds_the_tasks_and_their_twins():
    """Nothing else, so that what follows is about all of them."""
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.toml" for name in COUNTS}


@pytest.mark.parametrize(
    ("name", "clients", "fraction", "alpha", "epochs", "batch_size", "lr", "decay"),
    [
        ("gasturbine", 50, 0.2, 10, 2, 8, 5e-3, 0.994),
        ("emnist", 500, 0.05, 10, 5, 32, 5e-3, 0.99),
        ("cifar10", 10, 0.5, 25, 6, 16, 1e-2, 0.999),
    ],
)
def test_a_task_has_table_2s_numbers(name, clients, fraction, alpha, epochs, batch_size, lr, decay):
    """Clients, C, α, E, batch size, learning rate and its decay; devices; profiles are sealed."""
    config = load(name, "data.root=x")
    selection, train = config.selection, config.train
    assert config.data.clients == clients
    assert (selection.name, selection.fraction, selection.alpha) == ("fedprof", fraction, alpha)
    assert config.algorithm.local_epochs == epochs
    assert (train.batch_size, train.lr, train.lr_decay) == (batch_size, lr, decay)
    assert train.lr_drops == ()
    assert config.devices.preset == name
    assert config.exchange.encrypt == ("profiles",)


@pytest.mark.parametrize("name", COUNTS)
def test_qualities_are_those_of_section_5_1(name):
    """So many clients of each kind of low quality; the others are normal."""
    data = load(name, *([] if "twin" in name else ["data.root=x"])).data
    shares = {Quality(quality): share for quality, share in data.quality.items()}
    found = assign_qualities(data.clients, shares, np.random.default_rng(0))
    assert {quality: found.count(Quality(quality)) for quality in COUNTS[name]} == COUNTS[name]
    assert set(found) == {*shares, Quality.NORMAL}


@pytest.mark.parametrize("name", TASKS)
def test_a_twin_differs_by_its_data_and_what_they_need(name):
    """Skew, qualities, α, E, decay and devices are its task's."""
    task, twin = load(name, "data.root=x"), load(f"{name}-twin")
    assert twin.data.partition == task.data.partition
    assert twin.data.quality == task.data.quality
    assert twin.selection.alpha == task.selection.alpha
    assert twin.algorithm == task.algorithm
    assert twin.train.lr_decay == task.train.lr_decay
    assert twin.devices == task.devices
    assert twin.exchange == task.exchange


@pytest.mark.parametrize("name", TASKS)
def test_a_twins_clients_have_all_digits_that_are_not_public(name):
    """Each once, the same for the same seed; clean where they are of normal quality or tested."""
    config = load(f"{name}-twin", "run.seed=3")
    task, again = (configured_task(config) for _ in range(2))
    digits = load_digits(3)
    assert len(task.clients) == len(task.qualities) == config.data.clients
    labels = torch.cat([task.public[1], *(y for _, y in task.clients)])
    assert torch.equal(labels.bincount(), digits.train_y.bincount())
    assert torch.equal(task.test[0].flatten(1), digits.test_x)
    assert all(
        torch.equal(a, b) for (a, _), (b, _) in zip(task.clients, again.clients, strict=True)
    )
    clean = {row.numpy().tobytes() for row in digits.train_x}
    for (x, _), quality in zip(task.clients, task.qualities, strict=True):
        kept = sum(row.numpy().tobytes() in clean for row in x.flatten(1))
        assert kept == (len(x) if quality == "normal" else 0)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_without_its_files_says_what_to_put_where(name):
    """The folder is the user's: `--data-root`."""
    with pytest.raises(ConfigError, match=r"needs data\.root, the folder with"):
        load(name)
