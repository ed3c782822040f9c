"""`--json` of each command that prints results: JSON alone on stdout, with what the table says."""

import json

import pytest
from click.testing import CliRunner

import securefl
from securefl_cli.main import main


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs, one of which selects clients and one that adds noise, and a key folder."""
    folder = tmp_path_factory.mktemp("made")
    few = ("run.rounds=2", "exchange.encrypt=none")
    chosen = securefl.load_config(settings=(*few, "selection.name=random"))
    noisy = ("algorithm.name=fixbn", "algorithm.weights=uniform", "privacy.level=client")
    securefl.run(chosen, out=folder / "chosen")
    securefl.run(securefl.load_config(settings=("run.rounds=2", *noisy)), out=folder / "noisy")
    (folder / "passphrase").write_text("long enough to be one")
    options = ["--consortium", "Nord", "--passphrase-file", str(folder / "passphrase")]
    made = CliRunner().invoke(main, ["keys", "init", str(folder / "keys"), *options])
    assert made.exit_code == 0, made.output
    return folder


def found_by(*command):
    done = CliRunner().invoke(main, [*map(str, command), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output

    def refused(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(done.stdout, parse_constant=refused)


def test_runs(made):
    chosen, noisy = made / "chosen", made / "noisy"
    one, other = found_by("compare", chosen, noisy, "--html", made / "both.html")
    assert one["last"]["round"] == other["last"]["round"] == 2
    assert other["the_server_could_read"].startswith("nothing")
    assert len(one["upload_bytes"]) > 0
    assert found_by("status", chosen)["state"] == "complete"
    clients = found_by("profiles", chosen)["clients"]
    assert sum(client["times_selected"] for client in clients) > 0
    (row,) = found_by("evaluate", chosen)
    assert row["score"] == pytest.approx(one["last"]["score"])
    assert row["adapted"] is None


def test_privacy(made):
    spent = found_by("privacy", "show", made / "noisy")
    assert spent["epsilon"] > 0
    assert spent["protections"][0]["release"]
    assert found_by("privacy", "show", made / "chosen")["epsilon"] is None  # infinite
    records = ("--records", 6000, "--batch", 64, "--rounds", 50)
    planned = found_by("privacy", "plan", "--sigma", 1, "--delta", "1e-5", *records)
    assert planned["epsilon"]["PLD"] <= planned["epsilon"]["RDP"]
    wanted = ("--target-epsilon", 3, "--set", "run.rounds=5")
    level = ("--set", "privacy.level=client", "--set", "algorithm.weights=uniform")
    cost = found_by("privacy", "cost", *wanted, *level, "--set", "algorithm.name=fixbn")
    assert cost["epsilon"] <= 3


def test_keys_data_and_recipes(made):
    shown = found_by("keys", "show", made / "keys")
    assert {"ca.crt", "authority.crt"} & {
        file["path"].rpartition("/")[2] for file in shown["files"]
    }
    assert shown["certificates"][0]["dates"]
    assert any(of["name"] == "digits" for of in found_by("data", "list"))
    assert "fedtan-table3" in found_by("reproduce", "--list")
