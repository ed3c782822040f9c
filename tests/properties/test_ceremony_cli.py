"""A consortium of three clients is made with `securefl keys`, and each folder says who may what."""

from __future__ import annotations

import base64
import re
import stat
import subprocess
import sys

import pytest
from click.testing import CliRunner

from securefl.errors import ConfigError, KeyFileError, RequestRefused
from securefl_cli.keys import keys
from securefl_cli.main import main
from securefl_keys import sealed_file
from securefl_keys.identity import load_identity
from securefl_keys.loading import load_client, load_server
from securefl_keys.roster import load_roster
from securefl_keys.sealed_identity import open_ca_key

PASSPHRASE = "correct horse battery staple"
CLIENTS = ["alice", "bob", "carol"]


@pytest.fixture(scope="module", autouse=True)
def _cheap_guesses():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "KDF_COST", sealed_file.KdfCost(1, 1, 8))
        yield


@pytest.fixture(autouse=True)
def _passphrase(monkeypatch):
    monkeypatch.setenv("SECUREFL_PASSPHRASE", PASSPHRASE)


def run(*arguments, **options):
    return CliRunner().invoke(keys, [str(argument) for argument in arguments], **options)


def said(*arguments, **options):
    result = run(*arguments, **options)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def fingerprint_in(text):
    return re.search(r"(?:[0-9a-f]{4} ){15}[0-9a-f]{4}", text)[0]


@pytest.fixture
def ceremony(tmp_path):
    """Folder and transcript after three clients have joined and each role has its bundle."""
    told = [said("init", tmp_path / "keys", "--consortium", "Nord")]
    for name in CLIENTS:
        asked = said("join", "request", name, "--out", tmp_path / name)
        request = tmp_path / name / "identity.csr"
        aloud = fingerprint_in(asked)
        told += [
            asked,
            said("join", "approve", request, "--keys", tmp_path / "keys", "--fingerprint", aloud),
        ]
    for role in ("client", "server", "authority"):
        out = tmp_path / f"for-{role}"
        told.append(said("export", "--keys", tmp_path / "keys", "--role", role, "--out", out))
    return tmp_path, told


def test_the_transcript_of_a_ceremony(ceremony):
    """Each command says what was made, what stays, what is sent to whom, and what is next."""
    root, told = ceremony
    assert "Fingerprint of Nord: " in told[0]
    assert told[2] == (
        "alice is client 1 in roster version 2.\n"
        f"{root}/alice/identity.crt: send it back to alice\n"
        f"Next: securefl keys export --keys {root}/keys --role client --out …\n"
    )
    assert f"{root}/carol/identity.key: stays here\n" in told[5]
    assert told[7].splitlines()[0] == (
        f"{root}/for-client: for the client; 5 files, roster version 4, no secret"
    )
    assert "4 files" in told[9]
    assert PASSPHRASE not in "".join(told)


def test_each_folder_of_a_ceremony_is_in_order(ceremony):
    """Verify finds nothing wrong, with init's fingerprint, and tells who can what."""
    root, told = ceremony
    authority = fingerprint_in(told[0])
    client = said("verify", root / "for-client", "--identity", root / "bob", "--ca", authority)
    assert client.splitlines() == [
        "A bundle for the role client, epoch 1.",
        f"Consortium Nord: {authority}",
        "Roster version 4: alice, bob, carol",
        "It can encrypt what it sends.",
        "It can tell the consortium's files from forged ones.",
        "It can sign contributions as bob.",
        "It cannot decrypt anything: no secret key is in this folder.",
    ]
    server = said("verify", root / "for-server")
    assert "It cannot decrypt or encrypt anything: no key is in this folder." in server
    assert "Compare this fingerprint aloud, or give it with --ca." in server
    assert "no secret key is in it" in said("verify", root / "for-authority")
    assert "approve and revoke clients" in said("verify", root / "keys")
    assert "Problem" not in said("show", root / "keys")


def test_bundles_are_key_folders_of_their_role(ceremony):
    """What loads a role's part of a key folder loads it from the role's bundle."""
    root, _ = ceremony
    assert load_client(root / "for-client").key_id == load_server(root / "for-server").key_id
    with pytest.raises(KeyFileError, match="missing"):
        load_client(root / "for-server")


@pytest.mark.usefixtures("quick")
def test_the_sixth_command_runs_an_encrypted_job(ceremony):
    """With the consortium's keys three clients train a round, and the authority opens totals."""
    root, _ = ceremony
    job = ("run", "--clients", "3", "--partition", "classes:4", "--rounds", "1")
    places = ("--keys", root / "keys", "--out", root / "run")
    result = CliRunner().invoke(main, [str(argument) for argument in (*job, *places)])
    assert result.exit_code == 0, result.output
    assert (root / "run/openings.jsonl").read_text().count(load_client(root / "keys").key_id)


def test_secrets_are_closed_to_others(ceremony):
    """Identity keys and the authority's key are 0600, in folders of 0700."""
    root, _ = ceremony
    for path in [root / "keys/authority/ca.key", *(root / n / "identity.key" for n in CLIENTS)]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_no_secret_lies_in_clear(ceremony):
    """No file of the ceremony holds a raw Ed25519 secret, in bytes, hex or base64."""
    root, _ = ceremony
    sealed = (root / "keys/authority/ca.key").read_text()
    secrets = [
        open_ca_key(sealed, PASSPHRASE),
        *(load_identity(root / name, PASSPHRASE).private_key for name in CLIENTS),
    ]
    raw = [key.private_bytes_raw() for key in secrets]
    forms = [f for r in raw for f in (r, r.hex().encode(), base64.b64encode(r)[:40])]
    files = [path for path in root.rglob("*") if path.is_file()]
    assert len(files) > 30
    for path in files:
        content = path.read_bytes()
        assert not [form for form in forms if form in content], path
        assert PASSPHRASE.encode() not in content


def test_the_terminal_asks_whether_the_fingerprint_was_heard(tmp_path):
    """Name and fingerprint are shown and asked about; without a yes nobody joins."""
    said("init", tmp_path / "keys", "--consortium", "Nord")
    aloud = fingerprint_in(said("join", "request", "alice", "--out", tmp_path / "alice"))
    approve = ("join", "approve", tmp_path / "alice/identity.csr", "--keys", tmp_path / "keys")
    refused = run(*approve, input="n\n")
    assert refused.exit_code == 1
    assert f"Name: alice\nFingerprint: {aloud}\n" in refused.stderr
    assert not (tmp_path / "alice/identity.crt").exists()
    assert load_roster(tmp_path / "keys").members == {}
    said(*approve, input="y\n")
    assert list(load_roster(tmp_path / "keys").members) == ["alice"]


@pytest.mark.parametrize(("heard", "error"), [("ab" * 32, RequestRefused), ("ab12", ConfigError)])
def test_another_fingerprint_is_not_approved(tmp_path, heard, error):
    """A request with another key than was read aloud gets no certificate."""
    said("init", tmp_path / "keys", "--consortium", "Nord")
    said("join", "request", "alice", "--out", tmp_path / "alice")
    result = run(
        "join", "approve", tmp_path / "alice/identity.csr", "--keys", tmp_path / "keys",
        "--fingerprint", heard,
    )  # fmt: skip
    assert isinstance(result.exception, error)
    assert load_roster(tmp_path / "keys").members == {}


def test_a_revoked_client_is_out(ceremony):
    """The new roster lacks it, a rotation is said to be due, and its identity no longer passes."""
    root, _ = ceremony
    told = said("revoke", "alice", "--keys", root / "keys")
    assert "alice is revoked; roster version 5 lists bob, carol." in told
    assert "A rotation is due" in told
    result = run("verify", root / "keys", "--identity", root / "alice")
    assert result.exit_code == 1
    assert re.search("Problem: .*'alice' was revoked", result.stdout)
    assert "rotation is due" in result.stdout


def test_verify_exits_with_1_for_a_foreign_consortium(ceremony):
    """Another fingerprint than expected is a problem, and nothing is said to be possible."""
    root, _ = ceremony
    result = run("verify", root / "for-client", "--ca", "00" * 32)
    assert result.exit_code == 1
    assert "It can" not in result.stdout
    assert "Problem: consortium/ca.crt: of authority" in result.stdout


def test_a_folder_without_consortium_says_how_to_get_one(tmp_path):
    """Keys made without a consortium serve as before, and joining names the option."""
    said("init", tmp_path / "keys")
    assert "Nobody has signed it." in said("verify", tmp_path / "keys")
    said("join", "request", "alice", "--out", tmp_path / "alice")
    unchecked = run("verify", tmp_path / "keys", "--identity", tmp_path / "alice")
    assert unchecked.exit_code == 1
    assert "alice: not checked" in unchecked.stdout
    result = run(
        "join", "approve", tmp_path / "alice/identity.csr", "--keys", tmp_path / "keys", input="y\n"
    )
    assert isinstance(result.exception, KeyFileError)
    assert "--consortium NAME" in str(result.exception)


@pytest.mark.parametrize(
    "command", ["join", "join request", "join approve", "export", "verify", "revoke"]
)
def test_help_has_an_example_and_loads_no_torch(command):
    """Help appears without the seconds that torch and TenSEAL take to load."""
    script = (
        "import sys; from click.testing import CliRunner; from securefl_cli.keys import keys;"
        f"print(CliRunner().invoke(keys, {[*command.split(), '--help']}).output);"
        "print(sorted({'torch', 'tenseal', 'rich', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert f"\n    securefl keys {command} " in done.stdout
    assert done.stdout.endswith("[]\n")
