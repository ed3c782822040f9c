"""What the authority may open is what the consortium signed, in words that anybody can read."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from click.testing import CliRunner
from consortium_files import PASSPHRASE, make_consortium

from securefl.errors import (
    ConfigError,
    FileSignatureRefused,
    ForeignAuthority,
    KeyFileError,
    OpeningRefused,
    WrongPassphrase,
)
from securefl.exchange.policy import Flooding, OpeningRule, Policy
from securefl_cli.keys import keys
from securefl_keys import sealed_file
from securefl_keys.base64_text import encoded
from securefl_keys.bundle import load_bundle
from securefl_keys.export import export
from securefl_keys.folder import init_folder
from securefl_keys.policy import DEFAULT, POLICY_FORMAT, PolicyFile, load_policy, read_policy
from securefl_keys.policy_signing import sign_policy
from securefl_keys.signed_file import now
from securefl_keys.signer import open_signer

TOML = """
min_contributions = 5
openings_per_run = 100
flooding = { statistical_bits = 30, releases = 4096 }

[[rules]]
names = "layer*/mean"
precision_bits = 20

[[rules]]
names = "update/*"
precision_bits = 24
"""
STATED = Policy(
    5, 100, Flooding(30, 4096), (OpeningRule("layer*/mean", 20), OpeningRule("update/*", 24))
)
WORDS = """Policy version {} of consortium Nord:
Totals of at least 5 contributions are opened, at most 100 in a run.
Noise hides the key in what is opened: 30 bits, for 4,096 released values; then the key is rotated.
Its standard deviation is … on a total of {} clients.
Opened are messages by their names, the first line that fits:
  layer*/mean  to 20 bits after the point
  update/*  to 24 bits after the point
Nothing else is opened.
"""


@pytest.fixture(scope="module", autouse=True)
def _cheap_guesses():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "KDF_COST", sealed_file.KdfCost(1, 1, 8))
        yield


@pytest.fixture(autouse=True)
def _passphrase(monkeypatch):
    monkeypatch.setenv("SECUREFL_PASSPHRASE", PASSPHRASE)


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    return make_consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture
def made(unchanged, tmp_path):
    shutil.copytree(unchanged.root, tmp_path / "made")
    return type(unchanged)(tmp_path / "made", unchanged.ca)


@pytest.fixture
def written(tmp_path):
    (tmp_path / "policy.toml").write_text(TOML)
    return tmp_path / "policy.toml"


def run(*arguments):
    return CliRunner().invoke(keys, [str(argument) for argument in arguments])


def said(*arguments):
    """What it said, without the width of the noise, which the parameters of the key decide."""
    result = run(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return re.sub(r"deviation is \d\S*", "deviation is …", result.stdout)


def test_a_policy_is_signed_as_the_next_version(made, written):
    """The command prints it in words, the file and new bundles state it, and verify agrees."""
    told = said("policy", made.keys, "--sign", written)
    assert told.startswith(WORDS.format(2, 5))
    assert load_policy(made.keys).policy() == STATED
    assert said("policy", made.keys) == WORDS.format(2, 5)
    said("verify", made.keys)
    export(made.keys, "server", made.root / "new", PASSPHRASE)
    bundle = load_bundle(made.root / "new", "server")
    assert (bundle.manifest.policy_version, bundle.policy().policy()) == (2, STATED)
    assert said("policy", made.root / "new") == WORDS.format(2, 5)


def test_keys_are_made_with_a_policy(tmp_path, written):
    """From the beginning it is version 1, and `keys show` ends with its words."""
    said("init", tmp_path / "keys", "--consortium", "Nord", "--policy", written)
    assert said("show", tmp_path / "keys").endswith("\n" + WORDS.format(1, 5))


def test_a_policy_is_a_consortiums(tmp_path, written):
    """Without a consortium nobody would sign it."""
    result = run("init", tmp_path / "keys", "--policy", written)
    assert result.exit_code == 2
    assert "--consortium" in result.stderr
    assert not (tmp_path / "keys").exists()


def test_the_default_in_words(made):
    """Without a file it names the messages of the algorithms, and nothing else is opened."""
    told = said("policy", made.keys)
    assert load_policy(made.keys).policy() == DEFAULT
    assert "at least 3 contributions" in told
    assert "40 bits, for 1,073,741,824 released values" in told
    assert "  */gradient  to 24 bits after the point\n" in told
    assert "  *  " not in told


def test_no_flooding_is_said_as_such(made, tmp_path, written):
    """TOML has no null; the word is as in other settings."""
    table = "{ statistical_bits = 30, releases = 4096 }"
    written.write_text(TOML.replace(table, '"none"'))
    assert "No noise is added" in said("policy", made.keys, "--sign", written)
    assert load_policy(made.keys).policy().flooding is None


LOOSE = {
    "two contributions": ("min_contributions = 5", "min_contributions = 2", "min_contributions"),
    "none": ("min_contributions = 5", "min_contributions = 0", "min_contributions"),
    "a yes": ("min_contributions = 5", "min_contributions = true", "min_contributions"),
    "a missing key": ("openings_per_run = 100", "", "openings_per_run"),
    "no opening": ("openings_per_run = 100", "openings_per_run = 0", "openings_per_run"),
    "an unknown key": ("openings_per_run", "openings_per_runs", "no such key"),
    "an unknown key of a rule": ('names = "update/*"', 'name = "update/*"', "names"),
    "an unknown key of the noise": ("statistical_bits", "bits", "flooding"),
    "little noise": ("statistical_bits = 30", "statistical_bits = 8", "statistical_bits"),
    "too much precision": ("precision_bits = 20", "precision_bits = 27", "precision_bits"),
    "an empty name": ('"update/*"', '""', "names"),
    "no TOML": ("[[rules]]", "[[rules", "not valid TOML"),
}


@pytest.mark.parametrize("what", LOOSE)
def test_a_policy_that_is_none_is_not_signed(made, written, tmp_path, what):
    """The message names the key; neither a new folder nor an old one gets it."""
    right, wrong, key = LOOSE[what]
    written.write_text(TOML.replace(right, wrong, 1))
    before = (made.keys / "consortium/policy.json").read_bytes()
    for arguments in (
        ("policy", made.keys, "--sign", written),
        ("init", tmp_path / "keys", "--consortium", "Nord", "--policy", written),
    ):
        result = run(*arguments)
        assert isinstance(result.exception, ConfigError)
        assert str(written) in str(result.exception)
        assert key in str(result.exception)
    assert (made.keys / "consortium/policy.json").read_bytes() == before
    assert not (tmp_path / "keys").exists()


def test_a_suggestion_for_a_mistyped_key(written):
    """As for all settings."""
    written.write_text(TOML.replace("openings_per_run", "openings_per_rum"))
    with pytest.raises(ConfigError, match=r"did you mean.*openings_per_run"):
        read_policy(written)


def test_no_policy_from_python_is_looser(made, tmp_path):
    """The bounds hold for policies that were never TOML, too."""
    loose = Policy(min_contributions=2)
    with pytest.raises(ConfigError, match="min_contributions = 2"):
        sign_policy(made.keys, loose, PASSPHRASE)
    with pytest.raises(ConfigError, match="min_contributions = 2"):
        init_folder(tmp_path / "keys", PASSPHRASE, consortium="Nord", policy=loose)
    assert load_policy(made.keys).version == 1
    assert not (tmp_path / "keys").exists()


def test_a_looser_policy_is_refused_even_when_signed(made):
    """A signed file is read within the same bounds: an authority's key does not lift them."""
    signer = open_signer(made.keys, PASSPHRASE, now())
    unsigned = load_policy(made.keys).model_copy(update={"min_contributions": 2})
    signature = encoded(signer.key.sign(unsigned.to_be_signed()))
    text = unsigned.model_copy(update={"signature": signature}).text()
    with pytest.raises(KeyFileError, match="min_contributions"):
        PolicyFile.verified(text, made.ca)


def test_a_changed_policy_is_refused(made):
    """By every command that reads it."""
    path = made.keys / "consortium/policy.json"
    path.write_text(path.read_text().replace('"min_contributions": 3', '"min_contributions": 4'))
    with pytest.raises(FileSignatureRefused):
        load_policy(made.keys)
    assert isinstance(run("policy", made.keys).exception, FileSignatureRefused)
    with pytest.raises(FileSignatureRefused):
        export(made.keys, "client", made.root / "new", PASSPHRASE)
    for command in ("show", "verify"):
        result = run(command, made.keys)
        assert result.exit_code == 1
        assert "changed since it was signed" in result.stdout
        assert "are opened" not in result.stdout


def test_a_foreign_consortiums_policy_is_refused(made, tmp_path, written):
    """Also where it is to be replaced: a version of its own is not counted on from."""
    foreign = make_consortium(tmp_path / "foreign")
    shutil.copy(foreign.keys / "consortium/policy.json", made.keys / "consortium/policy.json")
    for refused in (
        lambda: load_policy(made.keys),
        lambda: sign_policy(made.keys, STATED, PASSPHRASE),
    ):
        with pytest.raises(ForeignAuthority):
            refused()


def test_an_older_policy_does_not_go_with_a_newer_list(made):
    """One from before, put back into a bundle, is not the one that was signed."""
    before = (made.keys / "consortium/policy.json").read_bytes()
    sign_policy(made.keys, STATED, PASSPHRASE)
    export(made.keys, "authority", made.root / "new", PASSPHRASE)
    (made.root / "new/consortium/policy.json").write_bytes(before)
    with pytest.raises(FileSignatureRefused):
        load_bundle(made.root / "new", "authority")


def test_only_who_has_the_passphrase_signs(made, written):
    """Another passphrase changes nothing; nor does a folder without the key."""
    with pytest.raises(WrongPassphrase):
        sign_policy(made.keys, STATED, "wrong")
    assert load_policy(made.keys).version == 1
    result = run("policy", made.bundle("server"), "--sign", written)
    assert isinstance(result.exception, KeyFileError)
    assert "only the folder in which the keys were made" in str(result.exception)


def test_a_policy_of_version_1_says_what_to_do(made):
    """Older folders are told apart from damaged ones."""
    path = made.keys / "consortium/policy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": "securefl-policy/1"}))
    with pytest.raises(KeyFileError, match=f"of another SecureFL.*reads {POLICY_FORMAT}.*anew"):
        load_policy(made.keys)
    told = run("show", made.keys).stdout
    assert "of another SecureFL" in told


def test_the_first_rule_that_fits_counts():
    """And a name that none fits is not opened."""
    assert STATED.rule_for("layer3/mean").precision_bits == 20
    with pytest.raises(OpeningRefused):
        STATED.rule_for("layer3/variance")
