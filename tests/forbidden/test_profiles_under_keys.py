"""`securefl run --keys` with encrypted profiles: a key folder serves them as it serves sums."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from click.testing import CliRunner

from securefl_cli.main import main
from securefl_keys.consortium import init_folder

pytestmark = pytest.mark.usefixtures("no_hang", "quick")

PASSPHRASE = "correct horse battery staple"
FAST = ["--rounds", "2", "--clients", "5", "--set", "algorithm.local_steps=1"]
FEDPROF = ["--select", "fedprof:alpha=10,fraction=0.6"]
BOTH = ["--encrypt", "statistics,profiles"]
ALONE = ["--encrypt", "profiles"]
SUMS = ["--encrypt", "statistics"]
SCORES_OF_THIS_RUN = 5 + 3
THEOREM_1 = ["--select", "fedprof:alpha=theorem1,fraction=0.6"]


@pytest.fixture(scope="module")
def made(tmp_path_factory, cheap_guesses):
    """A key folder."""
    folder = tmp_path_factory.mktemp("keys") / "keys"
    init_folder(folder, PASSPHRASE)
    return folder


@pytest.fixture
def keys(made, tmp_path, monkeypatch):
    """A copy of it, and two passphrases' files."""
    monkeypatch.delenv("SECUREFL_PASSPHRASE", raising=False)
    shutil.copytree(made, tmp_path / "keys")
    (tmp_path / "phrase").write_text(f"{PASSPHRASE}\n")
    (tmp_path / "wrong").write_text("another one\n")
    return tmp_path


def run(keys, *settings, phrase="phrase", out="run"):
    under = ["--keys", keys / "keys", "--passphrase-file", keys / phrase, "--out", keys / out]
    return CliRunner().invoke(main, ["run", *FAST, *map(str, [*settings, *under])])


def rows(keys, name, out="run"):
    return [json.loads(line) for line in (keys / out / name).read_text().splitlines()]


def scores(keys, out="run"):
    """Clients whose scores were opened, by the log."""
    opened = [row for row in rows(keys, "openings.jsonl", out) if row["name"] == "profile/score"]
    assert not any(row["refused"] for row in opened)
    return [client for row in opened for client in row["signers"]]


def assert_refused(keys, result, message):
    """One line of error, and nothing is written."""
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.output
    assert not (keys / "run").exists()


@pytest.mark.parametrize(
    "settings",
    [[*FEDPROF, *BOTH], [*FEDPROF, *ALONE], [*FEDPROF, "--encrypt", "model"]],
    ids=["both", "profiles", "model"],
)
def test_a_key_folder_serves_profiles(keys, settings):
    """Five scores at first and three in round 2, under the folder's key; as often as one likes."""
    key_id = json.loads((keys / "keys/clients/public.key").read_text())["key_id"]
    for out in ("run", "again"):
        result = run(keys, *settings, out=out)
        assert result.exit_code == 0, result.output
        assert "ephemeral" not in result.stderr
        assert len(scores(keys, out)) == SCORES_OF_THIS_RUN
        assert {row["key_id"] for row in rows(keys, "openings.jsonl", out)} == {key_id}
        sent = {e["form"] for e in rows(keys, "ledger.jsonl", out) if e["name"] == "profile"}
        assert sent == {"ciphertext"}


def test_a_run_leaves_the_key_folder_as_it_was(keys):
    """Nothing is counted, and no key wears out."""
    before = {path: path.read_bytes() for path in (keys / "keys").rglob("*") if path.is_file()}
    assert run(keys, *FEDPROF, *BOTH).exit_code == 0
    after = {path: path.read_bytes() for path in (keys / "keys").rglob("*") if path.is_file()}
    assert before == after


def test_an_interrupted_run_goes_on_under_its_keys(keys, monkeypatch):
    """`--resume` takes the folder again, and opens the scores that are left to open."""
    command = sys.modules["securefl_cli.run"]  # `securefl_cli.main.run` is the function of its name
    progress = command.progress_bar

    class Stopping:
        def __enter__(self):
            return self

        def on_phase(self, _name):
            pass

        def on_round(self, _metrics):
            raise KeyboardInterrupt

        def __exit__(self, *_):
            return False

    monkeypatch.setattr(command, "progress_bar", lambda *_, **__: Stopping())
    assert run(keys, *FEDPROF, *BOTH).exit_code == 130
    assert len(scores(keys)) == 5
    monkeypatch.setattr(command, "progress_bar", progress)
    under = ["--keys", keys / "keys", "--passphrase-file", keys / "phrase"]
    again = ["run", "--resume", keys / "run", *under]
    result = CliRunner().invoke(main, [str(word) for word in again])
    assert result.exit_code == 0, result.output
    assert len(scores(keys)) == SCORES_OF_THIS_RUN


@pytest.mark.parametrize(
    "settings", [[*FEDPROF, *SUMS], [*THEOREM_1, *SUMS], [*THEOREM_1, "--encrypt", "model"]]
)
def test_what_sends_no_sealed_profile_opens_no_score(keys, settings):
    """Sums alone, and Theorem 1, which asks for none, are served."""
    result = run(keys, *settings)
    assert result.exit_code == 0, result.output
    assert scores(keys) == []


@pytest.mark.parametrize("encrypt", [BOTH, ALONE])
def test_theorem_1_has_no_profiles_to_encrypt(keys, encrypt):
    """Who asks for it would believe that something is sealed."""
    assert_refused(keys, run(keys, *THEOREM_1, *encrypt), "send no profile")


@pytest.mark.parametrize("encrypt", [BOTH, ALONE])
def test_another_passphrase_opens_nothing(keys, encrypt):
    """Neither sums nor profiles."""
    refused = run(keys, *FEDPROF, *encrypt, phrase="wrong")
    assert_refused(keys, refused, "passphrase")
    assert "another one" not in refused.output
    assert PASSPHRASE not in refused.output


@pytest.mark.parametrize("file", ["authority/secret.key", "clients/public.key"])
def test_a_folder_that_lacks_a_key_is_refused(keys, file):
    """The line names the one that is missing."""
    (keys / "keys" / file).unlink()
    assert_refused(keys, run(keys, *FEDPROF, *ALONE), file)


def test_a_setting_of_the_earlier_match_is_unknown(keys):
    """There is one form of a match."""
    refused = run(keys, *FEDPROF, *ALONE, "--set", "selection.match=linear")
    assert_refused(keys, refused, "match")


def test_keys_without_encryption_are_a_misunderstanding(keys):
    """Said, not ignored."""
    refused = run(keys, *FEDPROF, "--encrypt", "none")
    assert_refused(keys, refused, "nothing would be encrypted")
