"""Addresses, paths and passphrase files of the roles may come from the environment."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from processes import SERVER, federations

from securefl_cli.main import main
from securefl_cli.serve import serve_key_sums, serve_openings, serve_rounds
from securefl_cli.site import join

PAGE = (Path(__file__).parents[2] / "docs/operations.md").read_text()
ROLES = {
    "server": ("server serve", serve_rounds),
    "authority": ("authority serve", serve_openings),
    "officer": ("officer serve", serve_key_sums),
    "site": ("site join", join),
}
VARIABLES = {
    role: {p.envvar: p for p in command.params if p.envvar} for role, (_, command) in ROLES.items()
}


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    """Whatever the tests' own environment holds."""
    for variable in {name for found in VARIABLES.values() for name in found}:
        monkeypatch.delenv(variable, raising=False)


def test_the_page_has_a_row_for_each_variable_and_names_its_option_and_roles():
    rows = re.findall(r"^\| `(SECUREFL_\w+)` \| `([^`]+)`[^|]* \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 12
    for variable, option, roles in rows:
        having = [role for role, found in VARIABLES.items() if variable in found]
        assert roles == ("all" if having == list(ROLES) else ", ".join(having))
        for role in having:
            assert VARIABLES[role][variable].opts == [option.replace("CONFIG.toml", "config_file")]
    assert {name for found in VARIABLES.values() for name in found} == {row[0] for row in rows}


@pytest.mark.parametrize("role", ROLES)
def test_help_shows_them(role):
    command, _ = ROLES[role]
    shown = CliRunner().invoke(main, [*command.split(), "--help"]).output
    assert set(re.findall(r"SECUREFL_\w+", shown)) - {"SECUREFL_PASSPHRASE"} == set(VARIABLES[role])


@pytest.mark.parametrize("role", ROLES)
def test_no_other_option_comes_from_there(role, monkeypatch):
    """No flag, no consent and no setting: what others could slip in unseen."""
    _, command = ROLES[role]
    files_and_addresses = {
        *("config_file", "listen", "server", "bundle", "identity", "directory"),
        *("passphrase_file", "data", "out", "metrics", "health", "log"),
    }
    assert {p.name for p in VARIABLES[role].values()} <= files_and_addresses
    assert "auto_envvar_prefix" not in main.context_settings
    for param in command.params:
        monkeypatch.setenv(f"SECUREFL_{param.name.upper()}", "7")
    for param in command.params:
        if not param.envvar:
            assert param.value_from_envvar(click.Context(command)) is None


@pytest.mark.parametrize("role", ["authority", "officer", "site"])
def test_an_option_goes_before_the_environment(role, monkeypatch):
    """Which goes before the default."""
    command, _ = ROLES[role]
    where = ["--keys"] if role == "authority" else ["--bundle", "none", "--identity"]
    monkeypatch.setenv("SECUREFL_SERVER", "no address")
    from_there = CliRunner().invoke(main, [*command.split(), *where, "none"])
    assert from_there.exit_code == 2
    assert "'no address': write HOST:PORT" in from_there.output
    given = CliRunner().invoke(main, [*command.split(), *where, "none", "--server", "mistyped"])
    assert "'mistyped': write HOST:PORT" in given.output


def test_what_is_missing_is_named_with_its_variable():
    missing = CliRunner().invoke(main, ["site", "join"])
    assert missing.exit_code == 2
    assert "SECUREFL_BUNDLE" in missing.output


@pytest.mark.slow
def test_all_roles_run_by_the_environment_alone(tmp_path):
    """No command has more than its name."""
    with federations(tmp_path / "site") as make:
        here = make(encrypt="model", algorithm="fedavg")

        def started(name, command, **variables):
            own = {"CONFIG": here.job, "PASSPHRASE_FILE": here.passphrase_file(name), **variables}
            env = {f"SECUREFL_{key}": str(value) for key, value in own.items()}
            return here.start(name, *command.split(), env=env)

        def member(role, name):
            return {"BUNDLE": here.folder / "bundles" / role, "IDENTITY": here.folder / name}

        own = {"LISTEN": here.server_at, "OUT": here.folder / "run", **member("server", SERVER)}
        server = started(SERVER, "server serve", **own)
        there = {"SERVER": here.server_at}
        authority = started("authority", "authority serve", KEYS=here.keys, **there)
        sites = [started(n, "site join", **member("client", n), **there) for n in here.names]
        assert [process.ended() for process in (server, *sites)] == [0, 0, 0, 0], server.text()
        assert authority.interrupt() == 130
        assert [m.round for m in here.record.metrics] == [1, 2]
        assert here.openings.read_text().count("\n") > 1
