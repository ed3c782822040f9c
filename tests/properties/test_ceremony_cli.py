"""A consortium of three clients is made with `securefl keys`, and each folder says who may what."""

from __future__ import annotations

import base64
import re
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from key_folders import load_client, load_server

from securefl.errors import ConfigError, KeyFileError, RequestRefused
from securefl_cli.keys import keys
from securefl_cli.main import main
from securefl_keys import sealed_file
from securefl_keys.identity import load_identity, open_ca_key
from securefl_keys.roster import load_roster

PASSPHRASE = "correct horse battery staple"
CLIENTS = ["alice", "bob", "carol"]
FINGERPRINT = r"(?:[0-9a-f]{4} ){15}[0-9a-f]{4}"


@pytest.fixture(scope="module", autouse=True)
def _cheap_guesses():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "KDF_COST", sealed_file.KdfCost(1, 1, 8))
        yield


def run(*arguments, passphrase=PASSPHRASE, **options):
    """Each command takes the passphrase out of its environment, so each is given it anew."""
    env = {"SECUREFL_PASSPHRASE": passphrase}
    return CliRunner(env=env).invoke(keys, [str(argument) for argument in arguments], **options)


def said(*arguments, **options):
    result = run(*arguments, **options)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def fingerprint_in(text):
    return re.search(FINGERPRINT, text)[0]


def joins(root, *names, role="client"):
    """What the terminals of these members and of the consortium said."""
    asked = said("join", "request", *names, "--role", role, "--out", root)
    aloud = re.findall(FINGERPRINT, asked)
    requests = [root / name / "identity.csr" for name in names]
    heard = [option for each in aloud for option in ("--fingerprint", each)]
    return asked, said("join", "approve", *requests, "--keys", root / "keys", *heard)


@pytest.fixture
def ceremony(tmp_path):
    """Folder and transcript after three clients and a server have joined and have their bundles."""
    told = [said("init", tmp_path / "keys", "--consortium", "Nord")]
    told += joins(tmp_path, *CLIENTS)
    told += joins(tmp_path, "hub", role="server")
    told.append(said("export", "--keys", tmp_path / "keys", "--out", tmp_path / "bundles"))
    return tmp_path, told


def test_the_transcript_of_a_ceremony(ceremony):
    """Each command says what was made, what stays, what is sent to whom, and what is next."""
    root, told = ceremony
    assert "Fingerprint of Nord: " in told[0]
    assert "securefl run" not in told[0], "the next step is the others' requests"
    assert told[1].count("Fingerprint of client ") == 3
    assert f"{root}/carol/identity.key: stays here\n" in told[1]
    assert told[2] == "".join(
        f"{name} is a client in roster version 2.\n{root}/{name}/identity.crt: send it back to "
        f"{name}\n"
        for name in CLIENTS
    ) + (f"Next: securefl keys export --keys {root}/keys --out …\n")
    assert told[4].startswith("hub is a server in roster version 3.\n")
    assert told[5].splitlines()[:3] == [
        f"{root}/bundles/client: for the client; 5 files, roster version 3, no secret",
        f"{root}/bundles/server: for the server; 5 files, roster version 3, no secret",
        f"{root}/bundles/authority: for the authority; 5 files, roster version 3, no secret",
    ]
    assert PASSPHRASE not in "".join(told)


def test_each_folder_of_a_ceremony_is_in_order(ceremony):
    """Verify finds nothing wrong, with init's fingerprint, and tells who can what."""
    root, told = ceremony
    authority = fingerprint_in(told[0])
    client = said("verify", root / "bundles/client", "--identity", root / "bob", "--ca", authority)
    assert client.splitlines() == [
        "A bundle for the role client, epoch 1.",
        f"Consortium Nord: {authority}",
        "Roster version 3: clients alice, bob, carol; servers hub",
        "It can encrypt what it sends, and make cards that the authority alone opens.",
        "It can tell the consortium's files from forged ones.",
        "It can sign contributions as bob.",
        "It cannot decrypt anything: no secret key is in this folder.",
        "Not looked into: what is sealed. --open does, with its passphrase.",
    ]
    server = said("verify", root / "bundles/server", "--identity", root / "hub")
    assert "It cannot decrypt anything: no secret key is in this folder." in server
    assert "It can show that it is the server hub." in server
    assert "Compare this fingerprint aloud, or give it with --ca." in server
    own = root / "keys/authority"
    opens = said("verify", root / "bundles/authority", "--identity", own)
    assert "no secret key is in it" in opens
    assert "It can show that it is the authority." in opens
    assert "approve and revoke clients, servers and officers" in said("verify", root / "keys")
    assert "Problem" not in said("show", root / "keys")


@pytest.mark.parametrize(("role", "name"), [("client", "hub"), ("server", "bob")])
def test_an_identity_does_not_go_with_another_roles_bundle(ceremony, role, name):
    """A server that holds a client's bundle is told so, and the other way round."""
    root, _ = ceremony
    result = run("verify", root / "bundles" / role, "--identity", root / name)
    assert result.exit_code == 1
    said_of = result.stdout
    found = re.search(
        rf"Problem: {name} is (\w+) by its certificate.* bundle of role {role}", said_of
    )
    assert found
    assert said_of.splitlines()[-1].endswith(f"verify the bundle of role {found[1]}")


def test_bundles_are_key_folders_of_their_role(ceremony):
    """What loads a role's part of a key folder loads it from the role's bundle."""
    root, _ = ceremony
    public = load_client(root / "bundles/client")
    assert public.key_id == load_server(root / "bundles/server").key_id
    with pytest.raises(KeyFileError, match="missing"):
        load_client(root / "bundles/server")


def test_one_role_is_exported_alone(ceremony):
    """With --role the named folder is the bundle itself."""
    root, _ = ceremony
    told = said("export", "--keys", root / "keys", "--role", "server", "--out", root / "one")
    assert told.startswith(f"{root}/one: for the server; 5 files")
    names = {path.name for path in (root / "one/consortium").iterdir()}
    assert names == {"authority.crt", "ca.crt", "manifest.json", "policy.json", "roster.json"}


@pytest.mark.parametrize("gone", ["server/public.key", "clients/public.key"])
def test_all_roles_are_exported_or_none(ceremony, gone):
    """A file that one role lacks leaves no bundle of another."""
    root, _ = ceremony
    (root / "keys" / gone).write_text("damaged")
    before = sorted(root.iterdir())
    result = run("export", "--keys", root / "keys", "--out", root / "new")
    assert isinstance(result.exception, KeyFileError)
    assert sorted(root.iterdir()) == before


@pytest.mark.usefixtures("quick")
def test_the_last_command_runs_an_encrypted_job(ceremony):
    """With the consortium's keys three clients train a round, and the authority opens totals."""
    root, _ = ceremony
    job = ("run", "--clients", "3", "--partition", "classes:4", "--rounds", "1")
    places = ("--keys", root / "keys", "--out", root / "run")
    runner = CliRunner(env={"SECUREFL_PASSPHRASE": PASSPHRASE})
    result = runner.invoke(main, [str(argument) for argument in (*job, *places)])
    assert result.exit_code == 0, result.output
    assert (root / "run/openings.jsonl").read_text().count(load_client(root / "keys").key_id)


def test_secrets_are_closed_to_others(ceremony):
    """Identity keys and the authority's key are 0600, in folders of 0700."""
    root, _ = ceremony
    own = [root / "keys/authority" / name for name in ("ca.key", "identity.key")]
    for path in [*own, *(root / name / "identity.key" for name in (*CLIENTS, "hub"))]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_no_secret_lies_in_clear(ceremony):
    """No file of the ceremony holds a raw Ed25519 secret, in bytes, hex or base64."""
    root, _ = ceremony
    sealed = (root / "keys/authority/ca.key").read_text()
    secrets = [
        open_ca_key(sealed, PASSPHRASE),
        *(
            load_identity(root / folder, PASSPHRASE).private_key
            for folder in (*CLIENTS, "hub", "keys/authority")
        ),
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
    aloud = fingerprint_in(said("join", "request", "alice", "--out", tmp_path))
    approve = ("join", "approve", tmp_path / "alice/identity.csr", "--keys", tmp_path / "keys")
    refused = run(*approve, input="n\n")
    assert refused.exit_code == 1
    assert f"Name: alice\nRole: client\nFingerprint: {aloud}\n" in refused.stderr
    assert not (tmp_path / "alice/identity.crt").exists()
    assert load_roster(tmp_path / "keys").members == {}
    said(*approve, input="y\n")
    assert list(load_roster(tmp_path / "keys").members) == ["alice"]


@pytest.mark.parametrize(("heard", "error"), [("ab" * 32, RequestRefused), ("ab12", ConfigError)])
def test_another_fingerprint_is_not_approved(tmp_path, heard, error):
    """A request with another key than was read aloud gets no certificate."""
    said("init", tmp_path / "keys", "--consortium", "Nord")
    said("join", "request", "alice", "--out", tmp_path)
    result = run(
        "join", "approve", tmp_path / "alice/identity.csr", "--keys", tmp_path / "keys",
        "--fingerprint", heard,
    )  # fmt: skip
    assert isinstance(result.exception, error)
    assert load_roster(tmp_path / "keys").members == {}


def test_each_of_several_is_asked_about(tmp_path):
    """One no among the answers, and nobody joins; with three times yes all do, in one version."""
    said("init", tmp_path / "keys", "--consortium", "Nord")
    said("join", "request", *CLIENTS, "--out", tmp_path)
    requests = [tmp_path / name / "identity.csr" for name in CLIENTS]
    refused = run("join", "approve", *requests, "--keys", tmp_path / "keys", input="y\nn\ny\n")
    assert refused.exit_code == 1
    assert list(tmp_path.rglob("identity.crt")) == [tmp_path / "keys/authority/identity.crt"]
    said("join", "approve", *requests, "--keys", tmp_path / "keys", input="y\ny\ny\n")
    roster = load_roster(tmp_path / "keys")
    assert (list(roster.members), roster.file.version) == (CLIENTS, 2)


def test_a_passphrase_is_asked_for_once(tmp_path, monkeypatch):
    """Of three identities that are made together, and of the consortium that lets them in."""
    said("init", tmp_path / "keys", "--consortium", "Nord")
    on_one = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("securefl_cli.passphrase.sys", on_one)
    request = ("join", "request", *CLIENTS, "--out", tmp_path)
    asked = said(*request, passphrase=None, input="mine\nmine\n")
    requests = [tmp_path / name / "identity.csr" for name in CLIENTS]
    heard = [o for f in re.findall(FINGERPRINT, asked) for o in ("--fingerprint", f)]
    arguments = ("join", "approve", *requests, "--keys", tmp_path / "keys", *heard)
    said(*arguments, passphrase=None, input=f"{PASSPHRASE}\n")
    assert load_identity(tmp_path / "carol", "mine").name == "carol"


def test_as_many_fingerprints_as_requests(tmp_path):
    """Two for three are not guessed at."""
    requests = [tmp_path / name / "identity.csr" for name in CLIENTS]
    heard = ["--fingerprint", "ab" * 32] * 2
    result = run("join", "approve", *requests, "--keys", tmp_path / "keys", *heard)
    assert result.exit_code == 2
    assert "2 fingerprints for 3 requests" in result.stderr


def test_a_revoked_member_is_out(ceremony):
    """The new roster lacks it, the keys are of the next epoch, its identity no longer passes."""
    root, _ = ceremony
    for name in ("alice", "hub"):
        assert f"{name} is revoked.\n" in said("revoke", name, "--keys", root / "keys")
        result = run("verify", root / "keys", "--identity", root / name)
        assert result.exit_code == 1
        assert re.search(f"Problem: .*'{name}' was revoked", result.stdout)
    assert "Roster version 5: clients bob, carol\n" in said("verify", root / "keys")


def test_verify_exits_with_1_for_a_foreign_consortium(ceremony):
    """Another fingerprint than expected is a problem, and nothing is said to be possible."""
    root, _ = ceremony
    result = run("verify", root / "bundles/client", "--ca", "00" * 32)
    assert result.exit_code == 1
    assert "It can" not in result.stdout
    assert "Problem: consortium/ca.crt: of authority" in result.stdout


def test_a_folder_without_consortium_says_how_to_get_one(tmp_path):
    """Keys made without a consortium serve as before, and joining names the option."""
    said("init", tmp_path / "keys")
    assert "Nobody has signed it." in said("verify", tmp_path / "keys")
    said("join", "request", "alice", "--out", tmp_path)
    unchecked = run("verify", tmp_path / "keys", "--identity", tmp_path / "alice")
    assert unchecked.exit_code == 1
    assert "alice: not checked" in unchecked.stdout
    result = run(
        "join", "approve", tmp_path / "alice/identity.csr", "--keys", tmp_path / "keys", input="y\n"
    )
    assert isinstance(result.exception, KeyFileError)
    assert "--consortium NAME" in str(result.exception)


COMMANDS = ["join", "join request", "join approve", "renew", "renew request", "renew approve"]
COMMANDS += ["export", "verify", "policy", "revoke"]


@pytest.mark.parametrize("command", COMMANDS)
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
