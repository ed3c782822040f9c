"""The command line, as its users meet it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

from securefl.runs.folder_reader import read_run
from securefl.settings.load import load_config
from securefl_cli.main import main

pytestmark = pytest.mark.usefixtures("cheap_guesses")
QUICK = ["--rounds", "2", "--set", "algorithm.local_steps=1"]
FILES = {
    ".lock",
    "config.json",
    "environment.json",
    "metrics.jsonl",
    "ledger.jsonl",
    "openings.jsonl",
    "incidents.jsonl",
    "checkpoint.safetensors",
    "model.safetensors",
    "best.safetensors",
    "accuracy.png",
    "traffic.png",
    "report.html",
}


def invoke(*arguments, **kwargs):
    return CliRunner().invoke(main, [str(a) for a in arguments], **kwargs)


def test_a_run_leaves_all_evidence_in_its_folder(tmp_path):
    """Settings, versions, metrics by round, ledger, openings, model and plots."""
    result = invoke("run", *QUICK, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES
    rows = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2]
    assert all(0 <= row["accuracy"] <= 1 for row in rows)
    keys, first, *_ = result.stderr.splitlines()
    assert keys.startswith("No --keys given: using ephemeral keys, which end")
    assert first.startswith("Learning rate: 0.5 to the end: 2 rounds are too few")
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["seed"] == 0
    assert environment["sessions"][0]["tenseal"] == "0.3.18"
    model = load_file(tmp_path / "run" / "model.safetensors")
    assert sum(t.numel() for name, t in model.items() if "num_batches" not in name) == 2380
    for plot in ("accuracy.png", "traffic.png"):
        assert (tmp_path / "run" / plot).read_bytes().startswith(b"\x89PNG")


def test_the_resolved_settings_run_again(tmp_path):
    """A run's own config.json, given back to the command, makes the same model."""
    settings = ["--encrypt", "none", "--seed", "5"]
    invoke("run", *QUICK, *settings, "--out", tmp_path / "one")
    result = invoke("run", tmp_path / "one/config.json", "--out", tmp_path / "two")
    assert result.exit_code == 0, result.output
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert models[0] == models[1]


def test_options_go_over_the_file_and_set_over_options(tmp_path):
    """CONFIG.toml, then --rounds, then --set: the last word wins."""
    toml = tmp_path / "job.toml"
    toml.write_text('[run]\nrounds = 9\nseed = 7\n[exchange]\nencrypt = "none"\n')
    result = invoke("run", toml, "--rounds", "5", "--set", "run.rounds=1", "--out", tmp_path / "r")
    assert result.exit_code == 0, result.output
    config = load_config(tmp_path / "r/config.json")
    assert (config.run.rounds, config.run.seed) == (1, 7)


def test_the_data_options_are_the_settings_of_the_data(tmp_path):
    """A list is written with commas; numbers and names arrive as such."""
    data = ["--corruptions", "fog,contrast", "--severity", "2", "--leave-out", "digital"]
    data += ["--clients", "6", "--partition", "iid", "--dataset", "digits"]
    result = invoke("run", *QUICK, *data, "--encrypt", "none", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    table = load_config(tmp_path / "run/config.json").data
    assert (table.corruptions, table.severity) == (("fog", "contrast"), 2)
    assert (table.leave_out, table.clients, table.feature_noise) == ("digital", 6, 0)


def test_without_out_the_folder_is_named_by_time_and_run(tmp_path, monkeypatch):
    """runs/<time>-<name>."""
    monkeypatch.chdir(tmp_path)
    assert invoke("run", *QUICK, "--encrypt", "none", "--name", "mine").exit_code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-mine")


def test_rounds_that_nobody_was_in_time_for_are_spoken_of(tmp_path):
    """A deadline that ciphertexts are too large for ends no run; its end is no success."""
    late = ["--algorithm", "fedavg", "--encrypt", "none", "--devices", "emnist"]
    result = invoke(
        "run", *QUICK, *late, "--set", "devices.deadline_s=1e-4", "--out", tmp_path / "run"
    )
    assert result.exit_code == 1, result.output
    assert "in 2 of 2 rounds too few clients were present" in result.stderr
    assert "nothing was trained" in result.stderr
    assert "Run folder: " in result.stdout
    assert "10 clients late for devices.deadline_s" in result.stderr
    devices = json.loads((tmp_path / "run" / "devices.json").read_text())
    assert set(devices) == {f"client-{i}" for i in range(1, 6)}
    assert all(device["clock_ghz"] > 0 for device in devices.values())


def test_a_layer_is_selected_by_its_name_be_it_a_number(tmp_path):
    """The layers of a torch Sequential are numbered."""
    options = ["--algorithm", "fedavg", "--encrypt", "none", "--select", "fedprof:layer=0"]
    assert invoke("run", *QUICK, *options, "--out", tmp_path / "run").exit_code == 0
    assert load_config(tmp_path / "run" / "config.json").selection.layer == "0"


def test_a_run_under_keys_from_a_folder(tmp_path):
    """After `keys init`, `run --keys` seals under that key."""
    (tmp_path / "phrase").write_text("a long passphrase\n")
    phrase = ["--passphrase-file", tmp_path / "phrase"]
    assert invoke("keys", "init", tmp_path / "keys", *phrase).exit_code == 0
    keyed = ["--keys", tmp_path / "keys", "--out", tmp_path / "run"]
    result = invoke("run", *QUICK, *keyed, *phrase)
    assert result.exit_code == 0, result.output
    assert "ephemeral" not in result.stderr
    environment = json.loads((tmp_path / "run/environment.json").read_text())
    assert environment["sessions"][0]["key_id"] in invoke("keys", "show", tmp_path / "keys").stdout


def test_compare_prints_a_table_and_draws_one_plot(tmp_path, monkeypatch):
    """Two runs side by side; without --out nothing is written."""
    for algorithm in ("fedavg", "fedtan"):
        out = ["--algorithm", algorithm, "--encrypt", "none", "--out", tmp_path / algorithm]
        assert invoke("run", *QUICK, *out).exit_code == 0
    runs = [tmp_path / "fedavg", tmp_path / "fedtan"]
    result = invoke("compare", *runs, "--out", tmp_path / "both.png")
    assert result.exit_code == 0, result.output
    assert "fedavg-mlp-batch" in result.stdout
    assert "fedtan-mlp-batch" in result.stdout
    for run in runs:
        best = read_run(run).best
        assert f" {100 * best.score:.1f} % ({best.round})" in result.stdout
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    assert invoke("compare", *runs).stdout in result.stdout
    assert set(tmp_path.iterdir()) == before


@pytest.mark.usefixtures("hospitals_patients")
def test_where_each_client_is_scored_the_worst_is_named(tmp_path):
    """And the best round by the value over all patients, which it was chosen by."""
    out = ("--dataset", "heart", "--algorithm", "fedavg", "--encrypt", "none", "--rounds", "3")
    result = invoke("run", *out, "--out", tmp_path / "heart")
    record = read_run(tmp_path / "heart")
    scores = record.metrics[-1].values
    worst = min(scores, key=scores.get)
    assert f"Of the clients: worst {worst} with {100 * scores[worst]:.1f} %." in result.stdout
    assert f" {100 * record.best.pooled.value:.1f} % ({record.best.round})" in result.stdout
    assert re.search(r"Accuracy of\s.*\n\s*all samples,", result.stdout)


def test_the_demo_shows_four_runs_and_draws_its_picture(tmp_path, monkeypatch):
    """What `make demo` calls, at two rounds; its table fits 80 columns, no heading broken."""
    monkeypatch.setenv("COLUMNS", "80")
    result = invoke("demo", "--rounds", "2", "--out", tmp_path / "demo")
    assert result.exit_code == 0, result.output
    for name in ("FedAvg + BN", "FedAvg + GN", "FedTAN", "centralised"):
        assert name in result.stdout
    heading = next(line for line in result.stdout.splitlines() if "The server" in line)
    assert heading.rstrip().endswith("The server could read,")
    assert max(map(len, result.stdout.split("\n\n")[0].splitlines())) <= 80
    assert "opened 9 totals, each of 5 clients" in " ".join(result.stdout.split())
    assert (tmp_path / "demo/demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "train.lt=1"], "train.lt: no such key; did you mean train.lr?"),
        (["--set", "trian.lr=1"], "trian: no such key; did you mean train?"),
        (["--set", "train.lr=-1"], "train.lr = -1"),
        (["--set", "nonsense"], "write table.key=value"),
        (["--rounds", "many"], "'--rounds': 'many' is not a valid integer"),
        (["--algorithm", "fedsgd"], "algorithm.name = 'fedsgd'"),
        (["--partition", "classes:11"], "classes:11"),
        (["--partition", "slices"], "slices"),
        (["--dataset", "mnist"], "needs data.root, the folder with train-images"),
        (
            ["--dataset", "mnist", "--data-root", "no-such"],
            "there is no such folder here; make it, with train-images",
        ),
        (["--data-root", "x"], "the digits come with scikit-learn"),
        (["--corruptions", "fog,rain"], '"rain" must be one of'),
        (["--corruptions", "fog", "--feature-noise", "0.1"], "a client has one"),
        (["--feature-noise", "mild"], "'--feature-noise': 'mild' is not a valid float"),
        (["--leave-out", "noise"], "are alike"),
        (["--clients", "2", "--partition", "iid"], "min_clients"),
        (
            ["--norm", "group", "--algorithm", "fedavg", "--encrypt", "statistics"],
            "nothing would be encrypted",
        ),
        (["--norm", "group", "--encrypt", "none"], 'model.norm = "batch"'),
        (["--norm", "weight"], "model.norm = 'weight'"),
        (["--norm", "fixup", "--encrypt", "none"], 'set model.name = "resnet20"'),
        (
            ["--algorithm", "fedavg", "--norm", "instance", "--encrypt", "none"],
            "one value alone normalises to zero",
        ),
        (["--set", "model.groups=3"], 'goes with model.norm = "group" or "group-ws"'),
        (["--set", "train.lr=true"], "train.lr = True"),
        (
            ["--select", "fedprof:alhpa=3"],
            "selection.alhpa: no such key; did you mean selection.al",
        ),
        (["--select", "fedprof:alpha"], "write NAME:KEY=VALUE"),
        (["--select", "cfcfm"], "set devices.preset"),
        (["--devices", "phone"], "devices.preset = 'phone'"),
        (["--encrypt", "statistics,profiles"], "no profile is sent"),
        (["--quality", "blurred"], "write NAME:SHARE"),
        (["--set", "run=3"], "write table.key=value"),
        (["--seed", "4294967296"], "run.seed = 4294967296"),
        (["--passphrase-file", "f"], "give both or none"),
        (["--algorithm", "centralised"], 'exchange.encrypt = "none"'),
        (["no-such-file.toml"], "no-such-file.toml: cannot be read (No such file or directory)"),
        (["--keys", "no-such-keys"], "no-such-keys: no such folder"),
        (["--keys", "k", "--encrypt", "none"], "nothing would be encrypted"),
        (["--resume", "no-such-run"], "no-such-run is no run's folder"),
        (["--resume", "r", "--rounds", "3"], "and nothing else"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_a_wrong_setting_is_one_clear_line_and_leaves_nothing(
    tmp_path, monkeypatch, arguments, message
):
    """The line names the key, the value and the way out; no folder is made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECUREFL_PASSPHRASE", "secret words")
    result = invoke("run", *arguments)
    assert result.exit_code in {1, 2}
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


def test_a_wrong_toml_file_names_its_line(tmp_path):
    """Broken TOML is one line with the place of the error."""
    (tmp_path / "job.toml").write_text("[run]\nrounds = = 3\n")
    result = invoke("run", tmp_path / "job.toml")
    assert result.exit_code == 2
    assert "not valid TOML" in result.stderr
    assert "line 2" in result.stderr


def test_a_wrong_passphrase_is_one_clear_line(tmp_path, monkeypatch):
    """Nothing is run, nothing is written, and the passphrase is not repeated."""
    monkeypatch.setenv("SECUREFL_PASSPHRASE", "the right words")
    assert invoke("keys", "init", tmp_path / "keys").exit_code == 0
    monkeypatch.setenv("SECUREFL_PASSPHRASE", "the wrong words")
    result = invoke("run", *QUICK, "--keys", tmp_path / "keys", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "the passphrase does not open" in result.stderr
    assert "wrong words" not in result.output
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_not_empty_is_not_touched(tmp_path):
    """A run never writes among other files."""
    (tmp_path / "mine.txt").write_text("mine")
    result = invoke("run", *QUICK, "--out", tmp_path)
    assert result.exit_code == 1
    assert "is not empty" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


COMMANDS = [
    [],
    ["run"],
    ["compare"],
    ["profiles"],
    ["demo"],
    ["evaluate"],
    ["leave-one-out"],
    ["keys"],
    ["keys", "init"],
    ["keys", "show"],
    ["privacy"],
    ["privacy", "plan"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_loads_no_torch(command):
    """`--help` of every command is quick: it imports neither torch nor tenseal."""
    script = (
        "import sys\n"
        "from securefl_cli.main import main\n"
        f"try: main({[*command, '--help']!r})\n"
        "except SystemExit as end: code = end.code\n"
        "else: code = 0\n"
        "heavy = {'torch', 'tenseal', 'sklearn', 'matplotlib', 'opacus', 'dp_accounting'}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)))\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "LOADED []" in done.stdout
    assert "Example" in done.stdout
