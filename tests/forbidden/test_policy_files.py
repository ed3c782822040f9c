"""What the authority may open is what the consortium signed, in words that anybody can read."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner
from consortium_files import PASSPHRASE, make_consortium

from securefl.crypto.artefact import encoded
from securefl.errors import (
    ConfigError,
    FileSignatureRefused,
    ForeignAuthority,
    KeyFileError,
    OpeningRefused,
    WrongPassphrase,
)
from securefl.exchange.policy import OpeningRule, Policy
from securefl_cli.keys import keys
from securefl_keys.bundle import load_bundle
from securefl_keys.consortium import init_folder
from securefl_keys.export import export
from securefl_keys.policy import DEFAULT, POLICY_FORMAT, PolicyFile, load_policy, read_policy
from securefl_keys.rotation import sign_policy
from securefl_keys.signed_file import now
from securefl_keys.signer import open_signer

pytestmark = pytest.mark.usefixtures("cheap_guesses")
TOML = """
min_contributions = 5
openings_per_run = 100

[[rules]]
names = "layer*/mean"
precision_bits = 20

[[rules]]
names = "update/*"
precision_bits = 24
"""
STATED = Policy(5, 100, (OpeningRule("layer*/mean", 20), OpeningRule("update/*", 24)))
WORDS = """Policy version {} of consortium Nord:
Totals of at least 5 contributions are opened, at most 100 in a run.
Opened are messages by their names, the first line that fits:
  layer*/mean  to 20 bits after the leading one
  update/*  to 24 bits after the leading one
Nothing else is opened.
"""


@pytest.fixture(autouse=True)
def _passphrase(monkeypatch):
    monkeypatch.setenv("SECUREFL_PASSPHRASE", PASSPHRASE)


@pytest.fixture
def written(tmp_path):
    (tmp_path / "policy.toml").write_text(TOML)
    return tmp_path / "policy.toml"


def run(*arguments):
    return CliRunner().invoke(keys, [str(argument) for argument in arguments])


def said(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_a_policy_is_signed_as_the_next_version(consortium, written):
    """The command prints it in words, the file and new bundles state it, and verify agrees."""
    told = said("policy", consortium.keys, "--sign", written)
    assert told.startswith(WORDS.format(2))
    assert load_policy(consortium.keys).policy() == STATED
    assert said("policy", consortium.keys) == WORDS.format(2)
    said("verify", consortium.keys)
    export(consortium.keys, "server", consortium.root / "new", PASSPHRASE)
    bundle = load_bundle(consortium.root / "new", "server")
    assert (bundle.manifest.policy_version, bundle.policy().policy()) == (2, STATED)
    assert said("policy", consortium.root / "new") == WORDS.format(2)


def test_keys_are_made_with_a_policy(tmp_path, written):
    """From the beginning it is version 1, and `keys show` ends with its words."""
    said("init", tmp_path / "keys", "--consortium", "Nord", "--policy", written)
    assert said("show", tmp_path / "keys").endswith("\n" + WORDS.format(1))


def test_a_policy_is_a_consortiums(tmp_path, written):
    """Without a consortium nobody would sign it."""
    result = run("init", tmp_path / "keys", "--policy", written)
    assert result.exit_code == 2
    assert "--consortium" in result.stderr
    assert not (tmp_path / "keys").exists()


def test_the_default_in_words(consortium):
    """Without a file it names the messages of the algorithms, and nothing else is opened."""
    told = said("policy", consortium.keys)
    assert load_policy(consortium.keys).policy() == DEFAULT
    assert "at least 3 contributions" in told
    assert "  */gradient  to 32 bits after the leading one\n" in told
    assert "  *  " not in told


LOOSE = {
    "two contributions": ("min_contributions = 5", "min_contributions = 2", "min_contributions"),
    "none": ("min_contributions = 5", "min_contributions = 0", "min_contributions"),
    "a yes": ("min_contributions = 5", "min_contributions = true", "min_contributions"),
    "a missing key": ("openings_per_run = 100", "", "openings_per_run"),
    "no opening": ("openings_per_run = 100", "openings_per_run = 0", "openings_per_run"),
    "an unknown key": ("openings_per_run", "openings_per_runs", "no such key"),
    "an unknown key of a rule": ('names = "update/*"', 'name = "update/*"', "names"),
    "noise, as policies of older releases had it": (
        "openings_per_run = 100",
        "openings_per_run = 100\nflooding = { statistical_bits = 30, releases = 4096 }",
        "flooding",
    ),
    "too much precision": ("precision_bits = 20", "precision_bits = 33", "precision_bits"),
    "an empty name": ('"update/*"', '""', "names"),
    "no TOML": ("[[rules]]", "[[rules", "not valid TOML"),
}


@pytest.mark.parametrize("what", LOOSE)
def test_a_policy_that_is_none_is_not_signed(consortium, written, tmp_path, what):
    """The message names the key; neither a new folder nor an old one gets it."""
    right, wrong, key = LOOSE[what]
    written.write_text(TOML.replace(right, wrong, 1))
    before = (consortium.keys / "consortium/policy.json").read_bytes()
    for arguments in (
        ("policy", consortium.keys, "--sign", written),
        ("init", tmp_path / "keys", "--consortium", "Nord", "--policy", written),
    ):
        result = run(*arguments)
        assert isinstance(result.exception, ConfigError)
        assert str(written) in str(result.exception)
        assert key in str(result.exception)
    assert (consortium.keys / "consortium/policy.json").read_bytes() == before
    assert not (tmp_path / "keys").exists()


def test_a_suggestion_for_a_mistyped_key(written):
    """As for all settings."""
    written.write_text(TOML.replace("openings_per_run", "openings_per_rum"))
    with pytest.raises(ConfigError, match=r"did you mean.*openings_per_run"):
        read_policy(written)


def test_no_policy_from_python_is_looser(consortium, tmp_path):
    """The bounds hold for policies that were never TOML, too."""
    loose = Policy(min_contributions=2)
    with pytest.raises(ConfigError, match="min_contributions = 2"):
        sign_policy(consortium.keys, loose, PASSPHRASE)
    with pytest.raises(ConfigError, match="min_contributions = 2"):
        init_folder(tmp_path / "keys", PASSPHRASE, consortium="Nord", policy=loose)
    assert load_policy(consortium.keys).version == 1
    assert not (tmp_path / "keys").exists()


def test_a_looser_policy_is_refused_even_when_signed(consortium):
    """A signed file is read within the same bounds: an authority's key does not lift them."""
    signer = open_signer(consortium.keys, PASSPHRASE, now())
    unsigned = load_policy(consortium.keys).model_copy(update={"min_contributions": 2})
    signature = encoded(signer.key.sign(unsigned.to_be_signed()))
    text = unsigned.model_copy(update={"signature": signature}).text()
    with pytest.raises(KeyFileError, match="min_contributions"):
        PolicyFile.verified(text, consortium.ca)


def test_a_changed_policy_is_refused(consortium):
    """By every command that reads it."""
    path = consortium.keys / "consortium/policy.json"
    path.write_text(path.read_text().replace('"min_contributions": 3', '"min_contributions": 4'))
    with pytest.raises(FileSignatureRefused):
        load_policy(consortium.keys)
    assert isinstance(run("policy", consortium.keys).exception, FileSignatureRefused)
    with pytest.raises(FileSignatureRefused):
        export(consortium.keys, "client", consortium.root / "new", PASSPHRASE)
    for command in ("show", "verify"):
        result = run(command, consortium.keys)
        assert result.exit_code == 1
        assert "changed since it was signed" in result.stdout
        assert "are opened" not in result.stdout


def test_a_foreign_consortiums_policy_is_refused(consortium, tmp_path, written):
    """Also where it is to be replaced: a version of its own is not counted on from."""
    foreign = make_consortium(tmp_path / "foreign")
    shutil.copy(foreign.keys / "consortium/policy.json", consortium.keys / "consortium/policy.json")
    for refused in (
        lambda: load_policy(consortium.keys),
        lambda: sign_policy(consortium.keys, STATED, PASSPHRASE),
    ):
        with pytest.raises(ForeignAuthority):
            refused()


def test_an_older_policy_does_not_go_with_a_newer_list(consortium):
    """One from before, put back into a bundle, is not the one that was signed."""
    before = (consortium.keys / "consortium/policy.json").read_bytes()
    sign_policy(consortium.keys, STATED, PASSPHRASE)
    export(consortium.keys, "authority", consortium.root / "new", PASSPHRASE)
    (consortium.root / "new/consortium/policy.json").write_bytes(before)
    with pytest.raises(FileSignatureRefused):
        load_bundle(consortium.root / "new", "authority")


def test_only_who_has_the_passphrase_signs(consortium, written):
    """Another passphrase changes nothing; nor does a folder without the key."""
    with pytest.raises(WrongPassphrase):
        sign_policy(consortium.keys, STATED, "wrong")
    assert load_policy(consortium.keys).version == 1
    result = run("policy", consortium.bundle("server"), "--sign", written)
    assert isinstance(result.exception, KeyFileError)
    assert "only the folder in which the keys were made" in str(result.exception)


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_policy_says_what_to_do(consortium, version):
    """Older folders are told apart from damaged ones."""
    path = consortium.keys / "consortium/policy.json"
    older = {"format": f"securefl-policy/{version}"}
    path.write_text(json.dumps(json.loads(path.read_text()) | older))
    with pytest.raises(KeyFileError, match=f"of another SecureFL.*reads {POLICY_FORMAT}.*anew"):
        load_policy(consortium.keys)
    told = run("show", consortium.keys).stdout
    assert "of another SecureFL" in told


def test_the_first_rule_that_fits_counts():
    """And a name that none fits is not opened."""
    assert STATED.rule_for("layer3/mean").precision_bits == 20
    with pytest.raises(OpeningRefused):
        STATED.rule_for("layer3/variance")
