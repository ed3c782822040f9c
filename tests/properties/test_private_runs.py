"""Runs with differential privacy: what they spend is written down first, bounded, and said."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch
from click.testing import CliRunner
from on_the_wire import nothing_is_handed_over
from torch import nn

import securefl
from securefl.build import job as job_module
from securefl.errors import ConfigError, RunFolderError
from securefl.federation.client import Client
from securefl.privacy.accountants import epsilon
from securefl.privacy.events import Gaussian, Level, SampledGaussian, WithoutPrivacy
from securefl.privacy.history import History
from securefl.privacy.odometer import Odometer, Spending
from securefl.report import finish
from securefl.report.finish import pictures
from securefl_cli.main import main

DELTA = 1e-3
BASE = (
    "algorithm.weights=uniform",
    "algorithm.local_steps=2",
    "exchange.encrypt=none",
    "train.lr=0.05",
    "train.batch_size=4",
    "data.clients=4",
    f"privacy.delta={DELTA}",
    "privacy.noise=seeded",
    "privacy.sigma=8.0",
    "privacy.clip=0.1",
)
LEVELS = {
    "client": (*BASE, "privacy.level=client", "algorithm.name=fedavg", "run.rounds=4"),
    "record": (
        *BASE,
        "privacy.level=record",
        "privacy.records=12",
        "algorithm.name=fixbn",
        "algorithm.switch=2",
        "privacy.statistics_sigma=0.05",
        "privacy.releases=2",
        "run.rounds=4",
    ),
}
OF_ROUND = {
    "client": lambda done: [Gaussian(8.0, 2)],  # parameters and statistics
    "record": lambda done: [
        SampledGaussian(8.0, 4 / 12, 2),
        *([Gaussian(0.05)] if done in {0, 2} else []),
    ],
}
"""By hand: what the round after so many releases."""


def config(level, *settings):
    return securefl.load_config(None, [*LEVELS[level], *settings])


def task():
    """Four clients with sixteen records, and a BN layer."""
    rng = torch.Generator().manual_seed(1)
    sets = [(torch.randn(16, 4, generator=rng), torch.arange(16) % 3) for _ in range(5)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)]
    return securefl.Task(nn.Sequential(*layers), sets[:4], sets[4])


def spent(level, *rounds):
    """ε of these rounds, by hand."""
    return epsilon([event for done in rounds for event in OF_ROUND[level](done)], DELTA)


def history(folder):
    return History.from_json((folder / "privacy.json").read_bytes())


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def stop_after(n):
    """Ctrl-C between two rounds."""

    def on_round(found):
        if found.round == n:
            raise KeyboardInterrupt

    return on_round


def interrupted_in_round(number, made, folder):
    """Ctrl-C while the second client of a round sends what it has."""
    contribute, seen = Client.contribute, []

    def interrupted(client, run, round_number, spec, tensors, times=1, state="", *, model=""):
        seen.append(round_number)
        if seen.count(number) == 2:
            raise KeyboardInterrupt
        return contribute(client, run, round_number, spec, tensors, times, state, model=model)

    with pytest.MonkeyPatch.context() as patch:
        nothing_is_handed_over(patch)
        patch.setattr(Client, "contribute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            securefl.run(made, task(), out=folder)


@pytest.fixture(params=LEVELS)
def level(request):
    return request.param


# --- what is written down, and when ---


@pytest.mark.usefixtures("quick")
def test_a_round_is_charged_before_anybody_sends_anything(tmp_path, level, monkeypatch):
    """Whatever happens then, what it was about to tell is in privacy.json."""
    contribute, seen = Client.contribute, set()

    def looked(client, run, round_number, spec, tensors, times=1, state="", *, model=""):
        counts = history(tmp_path / "run").counts(Level(level))
        expected = History()
        for done in range(round_number):
            for event in OF_ROUND[level](done):
                expected = expected.plus(Level(level), event)
        assert counts == expected.counts(Level(level))
        seen.add(round_number)
        return contribute(client, run, round_number, spec, tensors, times, state, model=model)

    nothing_is_handed_over(monkeypatch)
    monkeypatch.setattr(Client, "contribute", looked)
    result = securefl.run(config(level), task(), out=tmp_path / "run")
    assert seen == {1, 2, 3, 4}
    assert history(tmp_path / "run") == result.history
    assert result.history.epsilon(Level(level), DELTA) == spent(level, 0, 1, 2, 3)
    assert not result.stopped


@pytest.mark.usefixtures("quick")
def test_epsilon_over_a_restart_is_the_uninterrupted_one(tmp_path, level):
    """Stopped between rounds twice: the same float, the same model, the same bounds by round."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    securefl.run(config(level), task(), out=whole)
    with pytest.raises(KeyboardInterrupt):
        securefl.run(config(level), task(), out=parts, on_round=stop_after(1))
    assert history(parts).epsilon(Level(level), DELTA) == spent(level, 0)
    with pytest.raises(KeyboardInterrupt):
        securefl.resume(parts, task(), on_round=stop_after(3))
    result = securefl.resume(parts, task())
    assert result.history.epsilon(Level(level), DELTA) == spent(level, 0, 1, 2, 3)
    assert [m["epsilon"] for m in metrics(parts)] == [m["epsilon"] for m in metrics(whole)]
    for name in ("privacy.json", "privacy.md", "model.safetensors"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()


@pytest.mark.usefixtures("quick")
def test_a_round_that_is_interrupted_in_its_middle_counts_twice(tmp_path, level):
    """What some clients had sent was told, and the round is played again."""
    folder = tmp_path / "run"
    interrupted_in_round(2, config(level), folder)
    assert len(metrics(folder)) == 1
    assert history(folder).epsilon(Level(level), DELTA) == spent(level, 0, 1)
    result = securefl.resume(folder, task())
    assert result.history.epsilon(Level(level), DELTA) == spent(level, 0, 1, 1, 2, 3)
    assert metrics(folder)[-1]["epsilon"] == spent(level, 0, 1, 1, 2, 3)
    assert metrics(folder)[1]["epsilon"] >= spent(level, 0, 1, 1)


@pytest.mark.usefixtures("quick")
def test_a_first_round_that_is_interrupted_counts_too(tmp_path):
    """There is no checkpoint yet, but there is a history."""
    folder = tmp_path / "run"
    interrupted_in_round(1, config("client"), folder)
    assert not (folder / "checkpoint.safetensors").exists()
    result = securefl.resume(folder, task())
    assert result.history.epsilon(Level.CLIENT, DELTA) == spent("client", 0, 0, 1, 2, 3)


# --- a history that is not there ---


def lost(folder, _older):
    (folder / "privacy.json").unlink()


def older(folder, before):
    (folder / "privacy.json").write_bytes(before)


def with_less_noise(folder, _older):
    text = (folder / "privacy.json").read_text()
    (folder / "privacy.json").write_text(text.replace('"steps": 6', '"steps": 5'))


def half(folder, _older):
    content = (folder / "privacy.json").read_bytes()
    (folder / "privacy.json").write_bytes(content[: len(content) // 2])


def of_another_run(folder, _older):
    (folder / "privacy.json").write_text(History().plus(Level.CLIENT, Gaussian(9.0, 8)).to_json())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("damage", [lost, older, with_less_noise, half, of_another_run])
def test_a_run_whose_spending_is_not_known_does_not_go_on(tmp_path, damage):
    """Missing, older, changed, cut off or another's: nothing changes, and why is said."""
    folder, kept = tmp_path / "run", []

    def on_round(found):
        kept.append((folder / "privacy.json").read_bytes())
        if found.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        securefl.run(config("client"), task(), out=folder, on_round=on_round)
    damage(folder, kept[0])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(
        RunFolderError, match=r"privacy history.* start a new run on the assumption"
    ):
        securefl.resume(folder, task())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (folder / "privacy.json").write_bytes(kept[2])
    assert len(securefl.resume(folder, task()).metrics) == 4


# --- the budget ---


def test_a_budget_stops_the_run_before_it_is_exceeded(tmp_path, monkeypatch):
    """After the last round that fits; model, pictures and words are there, resuming says why."""
    monkeypatch.setattr(finish, "pictures", pictures)  # `quick` leaves them out
    folder, two = tmp_path / "run", spent("client", 0, 1)
    three = spent("client", 0, 1, 2)
    budget = f"privacy.budget={(two + three) / 2}"
    result = securefl.run(config("client", budget), task(), out=folder)
    assert [m.round for m in result.metrics] == [1, 2]
    assert result.metrics[-1].epsilon == two
    assert result.stopped.startswith("stopped after round 2 of 4: the next would take ε to ")
    assert f"{three:.6g}, above privacy.budget = " in result.stopped
    for name in ("model.safetensors", "accuracy.png", "traffic.png", "privacy.md"):
        assert (folder / name).stat().st_size > 100
    with pytest.raises(RunFolderError, match=r"is stopped after round 2 of 4: .*privacy\.budget"):
        securefl.resume(folder, task())
    assert history(folder) == result.history
    shown = CliRunner().invoke(main, ["run", "--resume", str(folder)])
    assert shown.exit_code
    said = securefl.run(config("client", f"privacy.budget={two}"), task())
    assert [m.round for m in said.metrics] == [1, 2]  # just as much is within


@pytest.mark.usefixtures("quick")
def test_a_round_that_counts_twice_takes_its_part_of_the_budget(tmp_path):
    """The interrupted run ends a round earlier than without the interruption."""
    folder = tmp_path / "run"
    budget = f"privacy.budget={spent('client', 0, 1, 2)}"
    interrupted_in_round(2, config("client", budget), folder)
    result = securefl.resume(folder, task())
    assert [m.round for m in result.metrics] == [1, 2]
    assert result.history.epsilon(Level.CLIENT, DELTA) == spent("client", 0, 1, 1)
    assert "stopped after round 2 of 4" in result.stopped
    assert (folder / "model.safetensors").exists()


@pytest.mark.usefixtures("quick")
def test_an_interruption_may_use_a_budget_up(tmp_path):
    """Then resuming writes the model of the last round, and plays none."""
    folder = tmp_path / "run"
    budget = f"privacy.budget={spent('client', 0, 1)}"
    interrupted_in_round(2, config("client", budget), folder)
    result = securefl.resume(folder, task())
    assert len(result.metrics) == 1
    assert result.history.epsilon(Level.CLIENT, DELTA) == spent("client", 0, 1)
    assert "stopped after round 1 of 4" in result.stopped
    assert (folder / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("asked", "way_out"),
    [
        ([], "take a larger privacy.sigma .* or a larger budget"),
        (["selection.name=data-share", "selection.fraction=0.9"], "leave that, or the budget, out"),
    ],
)
def test_a_budget_for_no_round_is_refused_before_anything_is_written(tmp_path, asked, way_out):
    """With the ε of one round, or that it is infinite, and what to change."""
    with pytest.raises(ConfigError, match=rf"budget = 0\.01: after one round ε.*{way_out}"):
        securefl.run(config("client", "privacy.budget=0.01", *asked), task(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- what it says ---


@pytest.mark.usefixtures("quick")
def test_the_epsilon_of_every_round_is_a_bound(tmp_path):
    """That of the next of some twenty marks, never less than the truth; exact at the last."""
    made = config("client", "run.rounds=41", "privacy.sigma=40.0", "algorithm.local_steps=1")
    with pytest.raises(KeyboardInterrupt):
        securefl.run(made, task(), out=tmp_path / "run", on_round=stop_after(17))
    securefl.resume(tmp_path / "run", task())
    said = [m["epsilon"] for m in metrics(tmp_path / "run")]
    assert len(said) == 41

    def exact(n):
        return epsilon([Gaussian(40.0, 2 * n)], DELTA)

    assert said == sorted(said)
    for n in (1, 2, 3, 16, 17, 18, 19, 40):
        mark = min(41, 3 * math.ceil(n / 3))
        assert said[n - 1] == exact(mark) >= exact(n)
    assert said[-1] == exact(41)


def test_a_round_after_which_the_budget_ends_the_run_has_its_exact_epsilon():
    """Also where it is none of the marks: the rounds after it will not be."""

    def exact(n):
        return epsilon([Gaussian(40.0, n)], DELTA)

    spending = Spending(Level.CLIENT, DELTA, 41, lambda done: (Gaussian(40.0),), exact(20))
    meter = Odometer(spending)
    assert meter.last_round == 20
    for done in range(20):
        meter.charge(done)
        if done >= 18:
            assert meter.epsilon(done + 1) == exact(20)
    assert "stopped after round 20 of 41" in meter.stopped(20)


@pytest.mark.usefixtures("quick")
def test_a_stage_without_privacy_makes_epsilon_infinite_in_words(tmp_path):
    """Clients tell how many records they have: so say page, metrics and command line."""
    folder = tmp_path / "run"
    told = ["selection.name=data-share", "selection.fraction=0.9"]
    result = securefl.run(config("client", *told), task(), out=folder)
    assert any(isinstance(event, WithoutPrivacy) for event in result.history.client)
    page = (folder / "privacy.md").read_text()
    words = 'ε is infinite for all that one client contributes: selection.name = "data-share"'
    assert words in page
    assert "| numbers of records | none | no |" in page
    assert [m["epsilon"] for m in metrics(folder)] == [None] * 4
    shown = CliRunner().invoke(main, ["privacy", "show", str(folder)])
    assert shown.exit_code == 0
    assert words in shown.output


def rows(folder):
    """The table of privacy.md, by release."""
    lines = (folder / "privacy.md").read_text().splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    return {row[0]: dict(zip(cells[0], row, strict=True)) for row in cells[2:]}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("encrypt", "updates", "statistics"),
    [("none", "no", "no"), ("statistics", "no", "yes"), ("model", "yes", "yes")],
)
def test_the_server_is_said_to_read_what_travels_in_the_clear(
    tmp_path, encrypt, updates, statistics
):
    """Each client's own share of the noise is all that hides it there."""
    securefl.run(config("client", f"exchange.encrypt={encrypt}"), task(), out=tmp_path / "run")
    found = rows(tmp_path / "run")
    assert set(found) == {
        "updates of parameters, momentum and control",
        "BN statistics, where there are any",
    }
    for release, expected in zip(found, (updates, statistics), strict=True):
        assert found[release]["Server"].split(":")[0] == expected
        assert found[release]["Authority"] == found[release]["Outside reader"] == "yes"
        assert found[release]["Noise"] == "σ = 8 on the sum, in shares"
        assert found[release]["Other clients"] == "yes: each alone"
    page = (tmp_path / "run" / "privacy.md").read_text()
    assert "the noise follows from run.seed, and whoever knows that takes it off" in page


@pytest.mark.usefixtures("quick")
def test_the_page_speaks_of_records_at_record_level(tmp_path):
    """Noise of DP-SGD is whole at each client, that of statistics is shared."""
    securefl.run(config("record"), task(), out=tmp_path / "run")
    gradients, statistics = rows(tmp_path / "run").values()
    assert {gradients[who] for who in ("Server", "Authority", "Outside reader")} == {"yes"}
    assert statistics["Server"].startswith("no: in the clear")
    page = (tmp_path / "run" / "privacy.md").read_text()
    assert f"ε = {spent('record', 0, 1, 2, 3):.3g} (PLD; RDP " in page
    assert "Protected: one record of one client, but for what the table says `no` of." in page


# --- the command line ---

DIGITS = (
    *("--set", "algorithm.weights=uniform", "--set", "privacy.delta=1e-4"),
    *("--algorithm", "fedavg", "--encrypt", "none", "--set", "algorithm.local_steps=1"),
)


def settings(*options):
    """As `privacy cost` takes them."""
    return [part for option in options for part in ("--set", option)]


JOB = (
    "algorithm.weights=uniform",
    "algorithm.name=fedavg",
    "exchange.encrypt=none",
    "privacy.delta=1e-4",
    "privacy.level=client",
)


def cost(*options):
    done = CliRunner().invoke(main, ["privacy", "cost", *options])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(("target", "rounds"), [(0.7, 7), (3.1, 1), (2.0, 30)])
def test_the_sigma_for_an_epsilon_gives_that_epsilon_back(target, rounds):
    """As it is printed: with it a run of that budget plays all of its rounds."""
    job = settings(*JOB, f"run.rounds={rounds}")
    found = cost("--target-epsilon", str(target), *job)
    sigma = float(re.search(r"privacy\.sigma = ([0-9.e+]+)", found).group(1))
    spent_ = epsilon([Gaussian(sigma, 2 * rounds)], 1e-4)
    assert 0.999 * target < spent_ <= target
    again = cost(*job, "--set", f"privacy.sigma={sigma}")
    for said in (found, again):
        assert f"ε = {spent_:.3g} (PLD; RDP " in said
        assert "updates of" in said


def test_the_guard_is_asked_once_for_all_sigmas_of_a_search(monkeypatch):
    """It takes seconds, and no σ has a say in its answer."""
    asked, guard = [], job_module.require_independent_records
    monkeypatch.setattr(
        job_module, "require_independent_records", lambda *of: (asked.append(of), guard(*of))
    )
    cost("--target-epsilon", "3", *settings(*JOB, "run.rounds=1"))
    assert len(asked) == 1


def test_the_cost_of_no_privacy_is_said():
    """There is no ε of it."""
    done = CliRunner().invoke(main, ["privacy", "cost"])
    assert done.exit_code == 2
    assert 'privacy.level = "none": nothing is noisy, so ε is infinite' in done.stderr


def test_a_private_run_from_the_command_line(tmp_path):
    """`--privacy LEVEL:KEY=VALUE,...`; the progress says ε, and so does the last line."""
    privacy = "record:sigma=2.0,records=250,statistics_sigma=5.0,noise=seeded,delta=1e-4"
    options = ["--algorithm", "fixbn", "--privacy", privacy, "--rounds", "2", "--encrypt", "none"]
    options += ["--set", "algorithm.weights=uniform", "--set", "algorithm.local_steps=1"]
    options += ["--set", "privacy.statistics_clip=1.5"]
    done = CliRunner().invoke(main, ["run", *options, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    private = securefl.load_config(tmp_path / "run" / "config.json").privacy
    assert (private.level, private.sigma, private.records) == ("record", 2.0, 250)
    spent_ = epsilon([SampledGaussian(2.0, 32 / 250, 2), Gaussian(5.0)], 1e-4)
    assert re.search(rf"round 2/2 .* ε ≤ {spent_:.3g}\n", done.stderr)
    assert f"ε = {spent_:.3g} (PLD; RDP " in done.stdout
    assert "for one record of one client." in done.stdout
    shown = CliRunner().invoke(main, ["privacy", "show", str(tmp_path / "run")])
    assert f"ε = {spent_:.3g} (PLD; RDP " in shown.output


def test_a_run_that_its_budget_stops_says_so_on_the_command_line(tmp_path):
    """And that its ε is infinite, where it is."""
    two, three = (epsilon([Gaussian(9.0, 2 * n)], 1e-4) for n in (2, 3))
    privacy = f"client:sigma=9.0,budget={(two + three) / 2}"
    done = CliRunner().invoke(
        main, ["run", *DIGITS, "--privacy", privacy, "--rounds", "4", "--out", str(tmp_path / "r")]
    )
    assert done.exit_code == 0, done.output
    assert "The run stopped after round 2 of 4: the next would take ε to" in done.stdout
    assert "round 2/4" in done.stderr
    told = ["--select", "data-share:fraction=0.9", "--privacy", "client:sigma=9.0"]
    done = CliRunner().invoke(
        main, ["run", *DIGITS, *told, "--rounds", "1", "--out", str(tmp_path / "s")]
    )
    assert done.exit_code == 0, done.output
    assert "ε infinite" in done.stderr
    assert "ε is infinite for all that one client contributes" in done.stdout


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ("records:sigma=1", r"privacy\.level = "),
        ("client:sigmas=1.0", r"privacy\.sigmas"),
        ("client:sigma", r"--privacy"),
        ("record:sigma=1.0", r"privacy\.level = .record. with algorithm\.name = .fedtan."),
    ],
)
def test_privacy_that_is_not_written_as_its_help_says(tmp_path, privacy, message):
    """Exit code 2, a reason, and no folder."""
    out = tmp_path / "run"
    made = ["--privacy", privacy, "--set", "algorithm.weights=uniform", "--out", str(out)]
    done = CliRunner().invoke(main, ["run", *made])
    assert done.exit_code == 2
    assert re.search(message, done.stderr), done.stderr
    assert not out.exists()
