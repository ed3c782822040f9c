"""`securefl keys` makes a key folder and tells what is wrong with one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from securefl.errors import ConfigError, KeyFileError
from securefl_cli.keys import keys
from securefl_cli.passphrase import read_passphrase
from securefl_keys.authority_keys import load_all
from securefl_keys.consortium import init_folder

pytestmark = pytest.mark.usefixtures("cheap_guesses")
PASSPHRASE = "correct horse battery staple"


@pytest.fixture(autouse=True)
def _no_passphrase(monkeypatch):
    monkeypatch.delenv("SECUREFL_PASSPHRASE", raising=False)


@pytest.fixture
def terminal(monkeypatch):
    on_one = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("securefl_cli.passphrase.sys", on_one)


@pytest.fixture
def made(tmp_path):
    init_folder(tmp_path / "keys", PASSPHRASE)
    return tmp_path / "keys"


def run(*arguments, **options):
    return CliRunner().invoke(keys, [str(argument) for argument in arguments], **options)


@pytest.mark.parametrize("ending", ["", "\n", "\r\n", "\nsecond line\n"])
def test_init_takes_the_first_line_of_a_file(tmp_path, ending):
    """The first line of the file is the passphrase, without its line end."""
    file = tmp_path / "passphrase.txt"
    file.write_bytes(f"{PASSPHRASE}{ending}".encode())
    result = run("init", tmp_path / "keys", "--passphrase-file", file)
    assert result.exit_code == 0
    load_all(tmp_path / "keys", PASSPHRASE)


def test_init_takes_the_environment(tmp_path, monkeypatch):
    """Without a file, the environment's passphrase seals the key."""
    monkeypatch.setenv("SECUREFL_PASSPHRASE", PASSPHRASE)
    assert run("init", tmp_path / "keys").exit_code == 0
    load_all(tmp_path / "keys", PASSPHRASE)


def test_a_file_goes_before_the_environment(tmp_path, monkeypatch):
    """What the command line names is stronger than what surrounds it."""
    monkeypatch.setenv("SECUREFL_PASSPHRASE", "the environment's")
    (tmp_path / "file").write_text("the file's")
    assert read_passphrase(tmp_path / "file", confirm=True) == "the file's"


@pytest.mark.usefixtures("terminal")
def test_init_asks_twice_at_a_terminal(tmp_path):
    """A passphrase typed twice alike seals the key, and is not echoed."""
    result = run("init", tmp_path / "keys", input=f"{PASSPHRASE}\n{PASSPHRASE}\n")
    assert result.exit_code == 0
    assert PASSPHRASE not in result.output
    assert result.stdout.count("Passphrase") == 1  # what a guess at it costs
    load_all(tmp_path / "keys", PASSPHRASE)


@pytest.mark.usefixtures("terminal")
def test_a_mistyped_passphrase_makes_no_key(tmp_path):
    """Two different passphrases are asked for again, and nothing is made meanwhile."""
    result = run("init", tmp_path / "keys", input="one\nanother\n")
    assert result.exit_code == 1
    assert "do not match" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("terminal")
def test_an_existing_key_is_asked_for_once(monkeypatch):
    """Opening asks one time."""
    asked = []
    monkeypatch.setattr("click.prompt", lambda _, **options: asked.append(options) or PASSPHRASE)
    assert read_passphrase(None, confirm=False) == PASSPHRASE
    assert asked[0]["hide_input"]
    assert not asked[0]["confirmation_prompt"]


def test_without_a_terminal_both_ways_are_named(tmp_path):
    """A script that gives no passphrase is told of the file and of the environment."""
    result = run("init", tmp_path / "keys")
    assert isinstance(result.exception, ConfigError)
    assert "--passphrase-file" in str(result.exception)
    assert "SECUREFL_PASSPHRASE" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [None, b"", b"\nsecond line", b"\xff\xfe"])
def test_a_file_without_a_passphrase_is_refused(tmp_path, content):
    """A file that is missing, empty or no text is named in the error."""
    file = tmp_path / "passphrase.txt"
    if content is not None:
        file.write_bytes(content)
    result = run("init", tmp_path / "keys", "--passphrase-file", file)
    assert isinstance(result.exception, ConfigError)
    assert str(file) in str(result.exception)


def test_an_empty_environment_is_refused(tmp_path, monkeypatch):
    """A variable that is set to nothing is a mistake, not a wish to be asked."""
    monkeypatch.setenv("SECUREFL_PASSPHRASE", "")
    assert isinstance(run("init", tmp_path / "keys").exception, ConfigError)


def test_init_says_who_gets_what_and_what_is_next(tmp_path, monkeypatch):
    """The output names the three folders, the key and the next command, and no passphrase."""
    monkeypatch.setenv("SECUREFL_PASSPHRASE", PASSPHRASE)
    directory = tmp_path / "my keys"
    output = run("init", directory).stdout
    for role in ("authority", "server", "clients"):
        assert str(directory / role) in output
    assert load_all(directory, PASSPHRASE).public.key_id in output
    assert f"securefl run --keys '{directory}'" in output
    assert PASSPHRASE not in output


def test_init_does_not_overwrite(made, monkeypatch):
    """An existing folder is refused with a typed error."""
    monkeypatch.setenv("SECUREFL_PASSPHRASE", PASSPHRASE)
    assert isinstance(run("init", made).exception, KeyFileError)


def test_show_lists_each_file_and_the_whole_key_id(made, monkeypatch):
    """At 80 columns each file is one line with the start of its key id, which follows whole."""
    monkeypatch.setenv("COLUMNS", "80")
    result = run("show", made)
    key_id = load_all(made, PASSPHRASE).public.key_id
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for file in (
        "authority/secret.key",
        "authority/public.key",
        "server/public.key",
        "clients/public.key",
    ):
        (line,) = [line for line in lines if line.startswith(file)]
        assert line.split()[-2:] == [key_id[:16], "1"]
    assert result.stdout.count(key_id) == 1


@pytest.mark.parametrize("target", ["server/secret.key", "clients/backup", "server/[red]x.key"])
def test_show_exits_with_1_for_a_secret_key_in_the_wrong_folder(made, target):
    """A copy of the secret key in a folder that is handed out is named, with exit code 1."""
    shutil.copy(made / "authority/secret.key", made / target)
    result = run("show", made)
    assert result.exit_code == 1
    assert f"Problem: {target}: a secret key outside authority/" in result.stdout


def test_show_lists_both_keys_of_a_mixed_folder(made, tmp_path):
    """Where files of two pairs are mixed, both key ids are shown whole."""
    other = init_folder(tmp_path / "other", PASSPHRASE)
    shutil.copy(tmp_path / "other/clients/public.key", made / "clients/public.key")
    result = run("show", made)
    assert result.exit_code == 1
    assert other.card.key_id in result.stdout
    assert "two key pairs are mixed" in result.stdout


def test_show_refuses_what_is_no_key_folder(tmp_path):
    """Another folder is a typed error that names how to make one."""
    result = run("show", tmp_path)
    assert isinstance(result.exception, KeyFileError)
    assert "securefl keys init" in str(result.exception)


@pytest.mark.parametrize("command", ["init", "show"])
def test_help_has_an_example_and_loads_no_torch(command):
    """Help appears without the seconds that torch and TenSEAL take to load."""
    script = (
        "import sys; from click.testing import CliRunner; from securefl_cli.keys import keys;"
        f"print(CliRunner().invoke(keys, ['{command}', '--help']).output);"
        "print(sorted({'torch', 'tenseal', 'rich', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert f"\n    securefl keys {command} my-keys\n" in done.stdout
    assert done.stdout.endswith("[]\n")
