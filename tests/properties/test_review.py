"""A review of a job names what a run of it sends, and nothing else."""

import pytest
from click.testing import CliRunner

import securefl
from securefl.build.job import job_of
from securefl.build.review import review
from securefl_cli.main import main

FEW = ("run.rounds=3", "data.clients=4", "data.partition=iid", "algorithm.local_steps=1")
JOBS = {
    "fedtan, sealed": ("algorithm.name=fedtan",),
    "in the clear": ("algorithm.name=fedavg", "exchange.encrypt=none"),
    "momentum, control": (
        *("algorithm.name=fedavg", "solver.name=scaffold", "exchange.encrypt=model"),
        *("train.momentum=0.5", "train.momentum_across_rounds=global"),
    ),
    "frozen after a third": (
        *("algorithm.name=fixbn", "algorithm.switch=0.34", "exchange.encrypt=statistics"),
    ),
    "own layers": ("algorithm.name=silobn", "exchange.encrypt=none"),
    "losses": ("algorithm.name=fedavg", "exchange.encrypt=none", "selection.name=afl"),
    "sizes": (
        *("algorithm.name=fedavg", "exchange.encrypt=model", "selection.name=data-share"),
        "selection.fraction=1.0",
    ),
    "uniform": ("algorithm.name=fedavg", "exchange.encrypt=none", "algorithm.weights=uniform"),
}


@pytest.mark.parametrize("settings", JOBS.values(), ids=JOBS)
def test_it_names_what_a_run_sends(settings):
    """Each message, its size, its form, and in how many rounds a client sends it at most."""
    config = securefl.load_config(None, [*FEW, *settings])
    found = review(job_of(config, None))
    sent = {}
    for entry in securefl.run(config).ledger.entries:
        if entry.receiver == "server" and entry.sender != "authority":
            about = entry.name, entry.n_values, entry.form == "ciphertext"
            sent.setdefault(about, {}).setdefault(entry.sender, set()).add(entry.round)
    named = {(m.name, m.n_values, m.sealed): m.n_rounds for m in found.outgoing}
    assert named.keys() - {("score/mean", 11, False)} == sent.keys()
    for about, rounds_of in sent.items():
        assert max(map(len, rounds_of.values())) <= named[about]


def test_it_says_whether_the_server_learns_a_size():
    """From the weight of what travels in the clear, or since it asks."""
    shows = {
        name: review(job_of(securefl.load_config(None, [*FEW, *settings]), None)).shows_size
        for name, settings in JOBS.items()
    }
    assert {name for name, shown in shows.items() if not shown} == {
        "fedtan, sealed",
        "momentum, control",
        "uniform",
    }


def test_an_epsilon_is_that_of_all_rounds():
    settings = (
        *("algorithm.name=fedavg", "exchange.encrypt=none", "algorithm.weights=uniform"),
        *("privacy.level=record", "privacy.records=200", "model.norm=group"),
    )
    config = securefl.load_config(None, [*FEW, *settings])
    found = review(job_of(config, None))
    assert found.epsilon == pytest.approx(securefl.run(config).metrics[-1].epsilon, rel=1e-3)


def test_the_command_says_it_in_words():
    options = [part for setting in FEW for part in ("--set", setting)]
    done = CliRunner().invoke(main, ["site", "review", *options])
    assert done.exit_code == 0, done.output
    assert "update/parameters" in done.output
    assert "no ε bounds what the model tells" in done.output
    assert "asks this site" not in done.output
    afl = ["--set", "selection.name=afl", "--set", "selection.fraction=1.0"]
    done = CliRunner().invoke(main, ["site", "review", *options, *afl])
    assert "asks this site for its number of training samples, and reads it." in done.output
    assert "asks this site for the model's mean loss on its training samples" in done.output
    assert "No message shows this site's number of samples" not in done.output
    done = CliRunner().invoke(main, ["site", "review", "--name", "alice"])
    assert done.exit_code == 2
    assert "go together" in done.output
