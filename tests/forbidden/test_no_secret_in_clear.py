"""Six commands of a page, and not one byte of a secret anywhere in what they leave behind."""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from securefl_keys.authority_keys import FolderKeeper, load_all
from securefl_keys.certificates import transport_key
from securefl_keys.identity import load_identity, open_ca_key
from securefl_keys.sealed_keys import SealedKey, open_secret

PAGE = Path(__file__).parents[2] / "docs/simulations.md"
PASSPHRASE = "nobody would guess these words"
CLIENTS = ("alice", "bob", "carol")
QUICK = ["--rounds", "2"]
ALL_COMMANDS = """
import json, os, sys
from securefl_cli.main import main
passphrase = os.environ["SECUREFL_PASSPHRASE"]
for number, arguments in enumerate(json.loads(sys.argv[1]), start=1):
    print("command", number, flush=True)
    os.environ["SECUREFL_PASSPHRASE"] = passphrase  # each command takes it out
    main(arguments)
"""


def commands():
    """Of its section on a consortium's keys, without their comments."""
    section = PAGE.read_text().split("## Under a consortium's keys")[1]
    block = re.search(r"```\n(.*?)```", section, re.DOTALL).group(1)
    return [shlex.split(line, comments=True) for line in block.splitlines()]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Where the commands were run, in one process, and all that they have said."""
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "SECUREFL_PASSPHRASE": PASSPHRASE, "OMP_NUM_THREADS": "1"}
    programs, given = zip(*((program, rest) for program, *rest in commands()), strict=True)
    assert set(programs) == {"securefl"}
    *ceremony, run = given
    assert run[0] == "run"
    done = subprocess.run(
        [sys.executable, "-c", ALL_COMMANDS, json.dumps([*ceremony, [*run, *QUICK]])],
        cwd=folder,
        env=environment,
        input="y\n" * len(CLIENTS),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    (folder / "said.txt").write_text(done.stdout)
    return folder


@pytest.fixture(scope="module")
def secrets(site):
    """Every secret of the ceremony, in each of the forms in which it could be written."""
    keys, found = site / "my-keys", {"passphrase": PASSPHRASE.encode()}
    card = card_secret(keys).to_secret_bytes()
    found |= {f"cards from byte {at}": card[at : at + 32] for at in (0, 32, 64)}
    seeds = {name: load_identity(site / name, PASSPHRASE).private_key for name in CLIENTS}
    seeds["authority"] = load_identity(keys / "authority", PASSPHRASE).private_key
    seeds["ca"] = open_ca_key((keys / "authority/ca.key").read_text(), PASSPHRASE)
    for name, key in seeds.items():
        found[f"{name} seed"] = key.private_bytes_raw()
        found[f"{name} PEM"] = key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        ).splitlines()[1]
        number = transport_key(key).private_numbers().private_value
        found[f"{name} transport key"] = number.to_bytes(32, "big")
    sealed = SealedKey.parse((keys / "authority/secret.key").read_text())
    found["key-encryption key"] = sealed.kdf.derive(PASSPHRASE)
    return {
        (name, form): written
        for name, secret in found.items()
        for form, written in forms(secret).items()
    }


def card_secret(keys):
    return load_all(keys, PASSPHRASE).secrets[0]


def forms(secret):
    """Raw, as hexadecimal digits, and in base64 at each of the three alignments."""
    encoded = {
        f"base64 at {shift}": base64.b64encode(bytes(shift) + secret)[8:-8] for shift in range(3)
    }
    return {"raw": secret, "hex": secret.hex().encode(), **encoded}


def found_in(content, secrets):
    return [which for which, secret in secrets.items() if secret in content]


def test_six_commands_set_up_a_consortium_and_run_an_encrypted_job(site):
    """As the page prints them; the run is the clients', under the consortium's keys."""
    assert len(commands()) <= 6
    said = (site / "said.txt").read_text()
    assert "sign contributions as alice" in said
    openings = (site / "runs/first/openings.jsonl").read_text()
    assert '"signers": ["alice", "bob", "carol"]' in openings
    assert f'"key_id": "{load_all(site / "my-keys", PASSPHRASE).public.key_id}"' in openings


def test_no_command_sends_a_file_that_holds_a_secret(site, secrets):
    """What goes from one party to another: requests, certificates and bundles."""
    sent = [*site.glob("*/identity.csr"), *site.glob("*/identity.crt")]
    sent += [path for path in (site / "bundles").rglob("*") if path.is_file()]
    assert len(sent) == 2 * len(CLIENTS) + 3 * 6
    for path in sent:
        assert not found_in(path.read_bytes(), secrets), path
        assert "sealed" not in path.name
        assert not re.search(rb"secret-key/|PRIVATE", path.read_bytes()), path


def test_no_byte_of_a_secret_is_on_disk_or_was_said(site, secrets):
    """In any file of the ceremony and of the run, what the commands have said included."""
    files = [path for path in site.rglob("*") if path.is_file()]
    assert len(files) > 40
    for path in files:
        assert not found_in(path.read_bytes(), secrets), path


def test_the_search_finds_what_it_looks_for(site, secrets):
    """Each secret, written in the clear in any of its forms."""
    for which, secret in secrets.items():
        assert which in found_in(b"noise" + secret + b"noise", secrets)
    key = load_identity(site / "alice", PASSPHRASE).private_key.private_bytes_raw()
    text = base64.b64encode(b'{"name": "alice", "key": "' + key + b'"}')
    assert any(name == "alice seed" for name, _ in found_in(text, secrets))


def test_secrets_are_closed_to_other_users(site):
    """Files 0600, and the folders that they lie in 0700."""
    closed = [*site.rglob("*.key")]
    closed = [path for path in closed if b"secret-key/" in path.read_bytes()]
    assert len(closed) == 3 + len(CLIENTS)
    for path in closed:
        assert path.stat().st_mode & 0o777 == 0o600, path
        assert path.parent.stat().st_mode & 0o777 == 0o700, path


def test_objects_and_tracebacks_say_nothing(site, secrets):
    """Of whatever holds a secret: its repr, and a traceback with every local variable."""
    keys = site / "my-keys"
    held = [
        load_all(keys, PASSPHRASE),
        card_secret(keys),
        load_all(keys, PASSPHRASE).opener(),
        load_identity(site / "alice", PASSPHRASE),
        FolderKeeper(keys, PASSPHRASE).now(),
    ]
    text = (keys / "authority/secret.key").read_text()
    try:
        open_secret(text.replace('"purpose": "cards"', '"purpose": "matches"'), PASSPHRASE)
    except ValueError as error:
        pytest.fail(f"not a typed error: {error}")
    except Exception as error:
        told = traceback.TracebackException.from_exception(error)
        held.append("".join(told.format()))
    for thing in held:
        assert not found_in(repr(thing).encode(), secrets)


def test_keys_cannot_be_pickled(site):
    """Neither alone nor in what holds them."""
    keys = site / "my-keys"
    held = load_all(keys, PASSPHRASE)
    for thing in (card_secret(keys), held, [held], held.opener()):
        with pytest.raises((TypeError, AttributeError)):
            pickle.dumps(thing)
