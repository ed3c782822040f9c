"""`--json` of each command that prints results: JSON alone on stdout, with what the table says."""

import json

import click
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


WITHOUT = {
    **dict.fromkeys(("card", "completion", "export", "report", "schema"), "writes its result"),
    **dict.fromkeys(("nvflare export", "keys export", "keys init"), "writes files"),
    **dict.fromkeys(("keys officers card", "keys officers set"), "writes files"),
    **dict.fromkeys(("keys join request", "keys join approve"), "writes files"),
    **dict.fromkeys(("keys renew request", "keys renew approve"), "writes files"),
    **dict.fromkeys(("keys revoke", "keys rotate"), "writes files"),
    **dict.fromkeys(("authority serve", "officer serve", "server serve"), "goes on, and logs"),
    **dict.fromkeys(("site join", "track", "watch"), "goes on, and logs"),
}
"""Commands that have no --json, and why."""


def commands(of, path=()):
    """Yield the names and options of all commands below one."""
    if not isinstance(of, click.Group):
        yield " ".join(path), {param.name for param in of.params}
        return
    for name in of.list_commands(None):
        yield from commands(of.get_command(None, name), (*path, name))


def test_each_command_has_it_or_a_reason():
    without = {name for name, options in commands(main) if "as_json" not in options}
    assert without == WITHOUT.keys()


def test_a_run_says_what_it_printed(made):
    out, sealed = made / "said", ("--rounds", 2, "--model", "mlp", "--algorithm", "fedavg")
    said = found_by("run", *sealed, "--out", out)
    assert (said["folder"], said["report"]) == (str(out), str(out / "report.html"))
    assert (out / "report.html").is_file()
    assert {k: said[k] for k in ("last", "best")} == {
        k: found_by("compare", out)[0][k] for k in ("last", "best")
    }
    assert said["openings"] == found_by("status", out)["openings"] > 0
    assert (said["passed"], said["epsilon"], said["stopped"]) == (0, None, "")


def test_the_demo(made):
    out = made / "demo"
    said = found_by("demo", "--rounds", 1, "--out", out)
    names = {of.pop("run"): of for of in said["runs"]}
    assert list(names) == ["FedAvg + BN", "FedAvg + GN", "FedTAN, encrypted", "centralised"]
    (sealed,) = found_by("compare", out / "fedtan-encrypted")
    found = names["FedTAN, encrypted"]
    assert found["last"]["score"] == sealed["last"]["score"]
    assert found["upload_bytes"] == sealed["upload_bytes"]
    assert (
        found["the_server_could_read"]
        == "nothing; only totals of gradients, parameters, statistics"
    )
    assert said["openings"] == found_by("status", out / "fedtan-encrypted")["openings"] > 0
    assert (said["folder"], said["picture"]) == (str(out), str(out / "demo.png"))
    assert (out / "demo.png").is_file()
    refused = CliRunner().invoke(main, ["demo", "--sites", "--prepare", "--json"])
    assert (refused.exit_code, refused.stdout) == (2, "")


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
    policy = found_by("keys", "policy", made / "keys")
    assert policy["consortium"] == "Nord"
    assert policy["rules"][0].keys() == {"names", "precision_bits"}
    sound = found_by("keys", "verify", made / "keys")
    assert (sound["consortium"], sound["problems"]) == ("Nord", [])
    assert sound["can"]
    wrong = CliRunner().invoke(
        main, ["keys", "verify", str(made / "keys"), "--ca", "ab" * 32, "--json"]
    )
    assert (wrong.exit_code, json.loads(wrong.stdout)["can"]) == (1, [])
    leaving = found_by("site", "review")
    assert {"1/mean", "update/parameters"} <= {of["name"] for of in leaving["outgoing"]}
    assert (leaving["epsilon"], leaving["asks_size"]) == (None, False)
    assert any(of["name"] == "digits" for of in found_by("data", "list"))
    assert "fedtan-table3" in found_by("reproduce", "--list")
