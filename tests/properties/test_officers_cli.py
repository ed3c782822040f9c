"""A consortium sets officers with `securefl keys officers`, and each step says what is next."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner
from key_folders import load_client

from securefl.errors import CertificateRefused, ConfigError, KeyFileError
from securefl_cli.keys import keys
from securefl_keys import sealed_file
from securefl_keys.roster import load_officers
from securefl_keys.signed_file import now

PASSPHRASE = "correct horse battery staple"
OFFICERS = ("olga", "otto")


@pytest.fixture(autouse=True)
def _cheap_guesses(monkeypatch):
    monkeypatch.setattr(sealed_file, "KDF_COST", sealed_file.KdfCost(1, 1, 8))


def run(*arguments):
    runner = CliRunner(env={"SECUREFL_PASSPHRASE": PASSPHRASE, "COLUMNS": "100"})
    return runner.invoke(keys, [str(argument) for argument in arguments])


def said(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


@pytest.fixture
def made(tmp_path):
    """Folder of a consortium with a client and two officers, none of them in force."""
    said("init", tmp_path / "keys", "--consortium", "Nord")
    for names, role in ((("alice",), "client"), (OFFICERS, "officer")):
        asked = said("join", "request", *names, "--role", role, "--out", tmp_path)
        aloud = re.findall(r"(?:[0-9a-f]{4} ){15}[0-9a-f]{4}", asked)
        requests = [tmp_path / name / "identity.csr" for name in names]
        heard = [option for each in aloud for option in ("--fingerprint", each)]
        told = said("join", "approve", *requests, "--keys", tmp_path / "keys", *heard)
    assert "olga is an officer in roster version 3." in told
    return tmp_path


def cards(made, epoch):
    files = [made / f"{name}-{epoch}.json" for name in OFFICERS]
    for name, file in zip(OFFICERS, files, strict=True):
        said("officers", "card", made / name, "--epoch", epoch, "--out", file)
    return files


@pytest.fixture
def panel(made):
    told = said("officers", "set", made / "keys", "--threshold", 2, *cards(made, 2))
    assert told.startswith("2 of 3 officers open sums: authority, olga, otto.\nEpoch 2.\n")
    return made


def test_the_card_key_says_what_stays_and_what_is_sent(made):
    """The secret stays; the public file goes to the authority."""
    out = made / "card.json"
    told = said("officers", "card", made / "olga", "--epoch", 2, "--out", out)
    assert f"{made}/olga/card-2.key: stays here\n" in told
    assert f"{out}: send it to the authority\n" in told
    assert "card key of epoch 2: " in said("show", made / "olga")
    assert PASSPHRASE not in told + out.read_text()


def test_until_officers_are_set_an_officers_bundle_adds_up_nothing(made):
    """Approved alone, it says so, and what comes next."""
    said("export", "--keys", made / "keys", "--out", made / "bundles")
    told = said("verify", made / "bundles/officer", "--identity", made / "olga")
    assert "can add up keys" not in told
    assert (
        "It cannot add up keys of sums: no officers are set, and the authority opens sums alone."
    ) in told
    assert "It can make a card key with its identity, by which the authority sets officers" in told


def test_show_and_verify_name_the_officers(panel):
    """In their order, with their key ids, in folder and bundles; export has their bundle."""
    told = said("show", panel / "keys")
    assert "2 of 3 officers open sums: authority, olga, otto" in told
    for officer in load_officers(panel / "keys", now()).officers:
        assert f"  {officer.name}  {officer.card.key_id}" in told
    assert re.search(r"officer otto +signing", told)
    told = said("verify", panel / "keys")
    assert "Roster version 4: clients alice; officers olga, otto\n" in told
    assert "2 of 3 officers open sums: authority, olga, otto.\n" in told
    assert "It can add up keys of sums as the first officer, with the passphrase." in told
    told = said("export", "--keys", panel / "keys", "--out", panel / "bundles")
    assert f"{panel}/bundles/officer: for the officer; 6 files" in told
    told = said("verify", panel / "bundles/officer", "--identity", panel / "olga")
    assert "It can show that it is the officer olga." in told
    assert "It can add up keys of sums, with a card secret that is in no bundle." in told
    assert "It cannot open a sum without other officers." in told
    told = said("verify", panel / "bundles/client")
    assert "It can encrypt what it sends, and make cards that the officers alone open." in told


UNROUNDED = (
    "The server puts their answers together and reads what is opened, unrounded if it likes.\n"
    "Fewer than 2 of them learn nothing.\n"
    "The server reads single clients with 2 of them, or with 1 that lie to the others.\n"
)


def test_the_policy_says_what_officers_make_of_it(panel):
    """Numbers and names before anybody signs, after it, and in every bundle; of one, nothing."""
    said("export", "--keys", panel / "keys", "--out", panel / "bundles")
    written = panel / "policy.toml"
    written.write_text(
        "min_contributions = 3\nopenings_per_run = 9\n[[rules]]\nnames = 'a'\nprecision_bits = 9\n"
    )
    signed = said("policy", panel / "keys", "--sign", written)
    assert "\n  a  to 9 bits after the leading one\nNothing else is opened.\n\n2 of 3" in signed
    shown = [said("show", panel / "keys"), signed, said("policy", panel / "keys")]
    bundles = [panel / "bundles" / role for role in ("client", "server", "authority", "officer")]
    for told in (*shown, *(said(what, of) for of in bundles for what in ("show", "policy"))):
        assert "\n2 of 3 officers open sums: authority, olga, otto, by their card keys\n" in told
        assert UNROUNDED in told
    said("officers", "set", panel / "keys")
    for what in ("show", "policy"):
        told = said(what, panel / "keys")
        assert "Nothing else is opened.\n" in told
        assert "officers" not in told.partition("Policy version")[2]
        assert "unrounded" not in told
    said("officers", "set", panel / "keys", "--threshold", 3, *cards(panel, 4))
    told = said("policy", panel / "keys")
    assert "\n3 of 3 officers open sums" in told
    assert told.endswith("\nThe server reads single clients with 3 of them.\n")


@pytest.mark.parametrize("role", ["client", "server", "authority", "officer"])
def test_show_finds_nothing_wrong_with_a_bundle_until_a_secret_lies_in_it(panel, role):
    """No bundle has the authority's own files; a secret among them is one too many."""
    said("export", "--keys", panel / "keys", "--out", panel / "bundles")
    bundle = panel / "bundles" / role
    told = said("show", bundle)
    assert "2 of 3 officers open sums: authority, olga, otto" in told
    assert "secret" not in told
    (bundle / "authority").mkdir(exist_ok=True)
    shutil.copy(panel / "keys/authority/secret.key", bundle / "authority")
    result = run("show", bundle)
    assert result.exit_code == 1
    assert "Problem: authority/secret.key: a secret key in a bundle: delete it" in result.stdout


def test_a_consortium_without_officers_shows_none(made):
    """Nobody is in force yet, and clients make cards for the authority alone."""
    assert "officers open sums" not in said("show", made / "keys")
    assert "officers open sums" not in said("verify", made / "keys")
    said("export", "--keys", made / "keys", "--role", "client", "--out", made / "one")
    assert "cards that the authority alone opens" in said("verify", made / "one")


def test_rotate_and_revoke_take_the_officers_card_keys(panel):
    """Without them nothing is rotated, and who lacks is named with the command."""
    result = run("rotate", panel / "keys")
    assert isinstance(result.exception, KeyFileError)
    assert "officers card DIR --epoch 3 --out FILE" in str(result.exception)
    assert "Epoch 3." in said("rotate", panel / "keys", *cards(panel, 3))
    told = said("revoke", "alice", *cards(panel, 4), "--keys", panel / "keys")
    assert told.startswith("alice is revoked.\nEpoch 4.\n")
    assert load_client(panel / "keys").quorum.officers == 3


def test_the_authority_is_alone_again_without_files(panel):
    """In the next epoch."""
    told = said("officers", "set", panel / "keys")
    assert told.startswith("The authority opens sums alone.\nEpoch 3.\n")
    assert "officers open sums" not in said("show", panel / "keys")


@pytest.mark.parametrize(
    ("options", "files"), [([], True), (["--threshold", "2"], False), (["--threshold", "0"], True)]
)
def test_the_threshold_goes_with_files(made, options, files):
    """Each alone is a slip of the keyboard."""
    given = cards(made, 2) if files else []
    result = run("officers", "set", made / "keys", *options, *given)
    assert result.exit_code == 2
    assert load_officers(made / "keys", now()) is None


def test_refusals_are_typed(made):
    """Too few are needed; a client has no card key; a file is none; epoch 1 is over."""
    files = cards(made, 2)
    refused = run("officers", "set", made / "keys", "--threshold", 1, *files).exception
    assert isinstance(refused, ConfigError)
    out = made / "x.json"
    refused = run("officers", "card", made / "alice", "--epoch", 2, "--out", out).exception
    assert isinstance(refused, CertificateRefused)
    refused = run("rotate", made / "keys", made / "keys/consortium/policy.json").exception
    assert isinstance(refused, KeyFileError)
    assert "policy.json: this is a 'securefl-policy/3' file where securefl-officer-card/1" in str(
        refused
    )
    assert run("officers", "card", made / "olga", "--epoch", 1, "--out", out).exit_code == 2


@pytest.mark.parametrize("command", ["officers", "officers card", "officers set"])
def test_help_has_an_example_and_loads_no_torch(command):
    """Help appears at once."""
    script = (
        "import sys; from click.testing import CliRunner; from securefl_cli.keys import keys;"
        f"print(CliRunner().invoke(keys, {[*command.split(), '--help']!r}).output);"
        "print(sorted({'torch', 'tenseal', 'rich', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "\n    securefl keys officers " in done.stdout
    assert done.stdout.endswith("[]\n")
