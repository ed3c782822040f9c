"""`securefl run --keys` with encrypted profiles: what a key folder serves, and what it does not."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from click.testing import CliRunner
from key_folders import MATCH_FILES, MATCH_SECRET, count_of
from securefl.crypto.match_params import LINEAR, SQUARE
from securefl.exchange.match_flood import MAX_RELEASES
from securefl_keys.releases import ReleasesFile

from securefl_cli.main import main
from securefl_keys.folder import init_folder

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
def folders(tmp_path_factory, cheap_guesses):
    """Key folders for the linear form and for squares; making them takes long."""
    root = tmp_path_factory.mktemp("keys")
    init_folder(root / "linear", PASSPHRASE, match=LINEAR)
    init_folder(root / "square", PASSPHRASE, match=SQUARE)
    return root


@pytest.fixture
def keys(folders, tmp_path, monkeypatch):
    """A copy of each folder, one without match files, and two passphrases' files."""
    monkeypatch.delenv("SECUREFL_PASSPHRASE", raising=False)
    for name in ("linear", "square"):
        shutil.copytree(folders / name, tmp_path / name)
    shutil.copytree(folders / "linear", tmp_path / "sums")
    for file in MATCH_FILES:
        (tmp_path / "sums" / file).unlink()
    (tmp_path / "phrase").write_text(f"{PASSPHRASE}\n")
    (tmp_path / "wrong").write_text("another one\n")
    return tmp_path


def run(keys, folder, *settings, phrase="phrase", out="run"):
    under = ["--keys", keys / folder, "--passphrase-file", keys / phrase, "--out", keys / out]
    return CliRunner().invoke(main, ["run", *FAST, *map(str, [*settings, *under])])


def released(keys, folder="linear"):
    directory = keys / folder
    return json.loads((directory / count_of(directory)).read_text())["n_released"]


def assert_refused(keys, result, message):
    """One line of error, and nothing is written."""
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.output
    assert not (keys / "run").exists()


@pytest.mark.parametrize(
    ("folder", "settings"),
    [
        ("linear", [*FEDPROF, *BOTH]),
        ("linear", [*FEDPROF, *ALONE]),
        ("linear", [*FEDPROF, "--encrypt", "model"]),
        ("square", [*FEDPROF, *ALONE, "--set", "selection.match=full"]),
        ("square", [*FEDPROF, *ALONE, "--set", "selection.match=plain-variance"]),
    ],
    ids=["both", "profiles", "model", "full", "plain variance"],
)
def test_a_key_folder_serves_profiles_and_counts_them(keys, folder, settings):
    """Five scores at first and three in round 2; the next run of the same key counts on."""
    result = run(keys, folder, *settings)
    assert result.exit_code == 0, result.output
    assert "ephemeral" not in result.stderr
    assert released(keys, folder) == SCORES_OF_THIS_RUN
    entries = [json.loads(x) for x in (keys / "run/ledger.jsonl").read_text().splitlines()]
    sent = {e["form"] for e in entries if e["name"] in {"profile", "profile/means"}}
    assert sent == {"ciphertext"}
    if settings == [*FEDPROF, *BOTH]:
        assert run(keys, folder, *settings, out="again").exit_code == 0
        assert released(keys, folder) == 2 * SCORES_OF_THIS_RUN


def test_an_interrupted_run_goes_on_under_its_keys(keys, monkeypatch):
    """`--resume` takes the folder again, and counts the scores that are left to open."""
    command = sys.modules["securefl_cli.run"]  # `securefl_cli.main.run` is the function of its name
    progress = command.progress_bar

    class Stopping:
        def __enter__(self):
            def advance(_metrics):
                raise KeyboardInterrupt

            return advance

        def __exit__(self, *_):
            return False

    monkeypatch.setattr(command, "progress_bar", lambda *_, **__: Stopping())
    assert run(keys, "linear", *FEDPROF, *BOTH).exit_code == 130
    assert released(keys) == 5
    monkeypatch.setattr(command, "progress_bar", progress)
    under = ["--keys", keys / "linear", "--passphrase-file", keys / "phrase"]
    again = ["run", "--resume", keys / "run", *under]
    result = CliRunner().invoke(main, [str(word) for word in again])
    assert result.exit_code == 0, result.output
    assert released(keys) == SCORES_OF_THIS_RUN


@pytest.mark.parametrize("settings", [BOTH, ALONE, ["--encrypt", "model"]])
def test_a_folder_without_match_files_serves_no_profiles(keys, settings):
    """The way out is a new folder; sums alone, and Theorem 1, which asks for none, are served."""
    refused = run(keys, "sums", *FEDPROF, *settings)
    assert_refused(keys, refused, "match-public.key: missing")
    assert "securefl keys init" in refused.stderr


@pytest.mark.parametrize(
    "settings", [[*FEDPROF, *SUMS], [*THEOREM_1, *SUMS], [*THEOREM_1, "--encrypt", "model"]]
)
@pytest.mark.parametrize("folder", ["sums", "linear"])
def test_what_sends_no_sealed_profile_needs_no_match_key(keys, folder, settings):
    """Nor does it count as a release."""
    result = run(keys, folder, *settings)
    assert result.exit_code == 0, result.output
    if folder == "linear":
        assert released(keys) == 0


@pytest.mark.parametrize("encrypt", [BOTH, ALONE])
def test_theorem_1_has_no_profiles_to_encrypt(keys, encrypt):
    """Who asks for it would believe that something is sealed."""
    refused = run(keys, "linear", *THEOREM_1, *encrypt)
    assert_refused(keys, refused, "send no profile")


@pytest.mark.parametrize(
    ("folder", "match", "made_with"),
    [
        ("square", "linear", "linear"),
        ("linear", "full", "full"),
        ("linear", "plain-variance", "plain-variance"),
    ],
)
def test_a_match_key_of_another_form_is_refused_before_anything(keys, folder, match, made_with):
    """The line says which command makes the right one."""
    refused = run(keys, folder, *FEDPROF, *ALONE, "--set", f"selection.match={match}")
    assert_refused(keys, refused, f"securefl keys init --match {made_with}")
    assert released(keys, folder) == 0


@pytest.mark.parametrize("encrypt", [BOTH, ALONE])
def test_another_passphrase_opens_nothing(keys, encrypt):
    """Neither the key of cards nor that of profiles."""
    refused = run(keys, "linear", *FEDPROF, *encrypt, phrase="wrong")
    assert_refused(keys, refused, "passphrase")
    assert "another one" not in refused.output
    assert PASSPHRASE not in refused.output


def test_a_key_with_too_few_scores_left_is_rotated_on_the_disk(keys):
    """Seven of eight scores are released under it, the last under the key of the next epoch."""
    directory = keys / "linear"
    count = directory / count_of(directory)
    worn = json.loads(count.read_text())["key_id"]
    count.write_text(ReleasesFile.stating(worn, MAX_RELEASES - 7))
    result = run(keys, "linear", *FEDPROF, *BOTH)
    assert result.exit_code == 0, result.output
    assert ReleasesFile.parse(count.read_text()).n_released == MAX_RELEASES
    sealed = json.loads((directory / MATCH_SECRET).read_text())
    assert (sealed["key_id"] != worn, sealed["epoch"]) == (True, 2)
    assert released(keys) == SCORES_OF_THIS_RUN - 7


@pytest.mark.parametrize("file", MATCH_FILES)
def test_a_folder_that_lacks_a_match_file_is_refused(keys, file):
    """Each of the three is needed, and the line names the one that is missing."""
    (keys / "linear" / file).unlink()
    refused = run(keys, "linear", *FEDPROF, *ALONE)
    assert_refused(keys, refused, file)


def test_a_folder_that_lacks_the_count_of_scores_is_refused(keys):
    """Nobody knows what the key has released."""
    file = count_of(keys / "linear")
    (keys / "linear" / file).unlink()
    assert_refused(keys, run(keys, "linear", *FEDPROF, *ALONE), f"{file}: missing")


def test_match_files_of_another_folder_are_refused(keys, folders):
    """A public key that is not the authority's would make every client's profile useless."""
    for file in MATCH_FILES[1:]:
        shutil.copy(folders / "square" / file, keys / "linear" / file)
        refused = run(keys, "linear", *FEDPROF, *ALONE)
        assert_refused(keys, refused, file)
        shutil.copy(folders / "linear" / file, keys / "linear" / file)


def test_keys_without_encryption_are_a_misunderstanding(keys):
    """Said, not ignored."""
    refused = run(keys, "linear", *FEDPROF, "--encrypt", "none")
    assert_refused(keys, refused, "nothing would be encrypted")
