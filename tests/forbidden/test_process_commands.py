"""The commands of the three processes: their help, their refusals, and what the server loads."""

import subprocess
import sys

import pytest
from click.testing import CliRunner
from processes import Site

from securefl_cli.main import main

COMMANDS = [
    ["authority"],
    ["authority", "serve"],
    ["server"],
    ["server", "serve"],
    ["client"],
    ["client", "join"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_loads_no_torch(command):
    script = (
        "import sys\n"
        "from securefl_cli.main import main\n"
        f"try: main({[*command, '--help']!r})\n"
        "except SystemExit as end: code = end.code\n"
        "else: code = 0\n"
        "print('LOADED', sorted({'torch', 'tenseal', 'sklearn'} & set(sys.modules)))\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "LOADED []" in done.stdout
    assert "Example" in done.stdout


def test_the_server_and_the_client_load_no_module_with_a_secret_key():
    script = (
        "import sys\n"
        "import securefl.net.server, securefl.net.client, securefl_cli.serve\n"
        "import securefl_keys.key_files\n"
        "print([m for m in sys.modules if 'secret' in m and 'securefl' in m])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path / "site", encrypt="none")


def refused(*args):
    done = CliRunner().invoke(main, list(map(str, args)))
    assert done.exit_code == 2, done.output
    return done.output


def test_encryption_without_parameters_is_refused_before_anything_is_written(site):
    out = site.folder / "run"
    said = refused(
        *("server", "serve", site.job, "--set", 'exchange.encrypt="statistics"'),
        *(*site.identity("server"), "--roster", site.roster, "--out", out),
    )
    assert "need --parameters and --authority" in said
    assert not out.exists()


def test_a_client_of_another_index_than_its_certificates_is_refused(site):
    said = refused("client", "join", site.job, *site.identity("client-1"), "--index", 2)
    assert "give client-2's" in said


def test_an_identity_key_that_others_may_read_is_refused(site):
    (site.folder / "client-1.key").chmod(0o644)
    said = refused("client", "join", site.job, *site.identity("client-1"))
    assert "chmod" in said


def test_a_roster_of_another_size_than_the_settings_is_refused(site):
    (site.roster / "client-3.pem").unlink()
    said = refused(
        *("server", "serve", site.job, *site.identity("server"), "--roster", site.roster),
        *("--out", site.folder / "run"),
    )
    assert "the roster has 2 clients and the settings 3" in said


def test_an_address_that_is_none_is_refused(site):
    said = refused(
        *("client", "join", site.job, *site.identity("client-1"), "--server", "localhost")
    )
    assert "write HOST:PORT" in said
