"""The server can neither read nor make a ciphertext, and the secret key never becomes a copy."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys

import numpy as np
import pytest
import tenseal as ts
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from reachability import KEY_PARTS, keyed_contexts, reachable

from securefl.build.simulation import simulated
from securefl.crypto.artefact import Artefact
from securefl.crypto.committee import OfficerKey
from securefl.crypto.committee_public import Combiner
from securefl.crypto.public import PARAMETERS_FILE, AddingContext, PublicKey
from securefl.crypto.secret import SecretKey
from securefl.errors import KeyFileError
from securefl.exchange.ckks import CkksAdder, CkksSealer
from securefl.exchange.ckks_open import CkksOpener
from securefl.exchange.keyset import KeySet
from securefl.exchange.policy import Flooding
from securefl.federation.authority import Authority
from securefl.federation.client import Client
from securefl.types import Kind, MessageSpec

NEVER_AT_THE_SERVER = (
    SecretKey,
    PublicKey,
    KeySet,
    CkksSealer,
    CkksOpener,
    Authority,
    Client,
    Ed25519PrivateKey,
    OfficerKey,
    Combiner,
)


def keys_among(things):
    """What of it could encrypt or decrypt, by type and by asking TenSEAL itself."""
    found = [thing for thing in things if isinstance(thing, NEVER_AT_THE_SERVER)]
    artefacts = [thing for thing in things if isinstance(thing, Artefact)]
    written = [artefact for artefact in artefacts if keyed_contexts([parsed(artefact)])]
    return found + keyed_contexts(things) + written


def parsed(artefact):
    return ts.context_from(artefact.context)


def artefact_with(secret, *parts):
    """A server's artefact in which someone has left these keys."""
    context = ts.context_from(secret.to_secret_bytes())
    if "galois_keys" in parts:
        context.generate_galois_keys()
    if "relin_keys" in parts:
        context.generate_relin_keys()
    content = context.serialize(**{f"save_{part}": part in parts for part in KEY_PARTS})
    return Artefact(content, secret.key_id, secret.parameters, secret.origin)


def run_alone(code):
    """A Python process of its own, which may crash."""
    return subprocess.run(  # noqa: PLW1510 -- the caller looks at how it ended
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60
    )


def composed(tiny_config, tiny_task, keys):
    """The rounds of a run, as `securefl.run` makes them."""
    return simulated(tiny_config(exchange={"encrypt": "model"}), tiny_task(), keys)


@pytest.mark.parametrize("kind", list(Kind))
def test_the_server_of_a_run_reaches_no_key(tiny_config, tiny_task, key_set, kind):
    """Nothing that a run's server, its round or its open sum leads to encrypts or decrypts."""
    rounds = composed(tiny_config, tiny_task, key_set)
    ongoing = rounds.round_of({"client-1": 1}, rounds.state)
    ongoing.begin_sum("1/mean")
    arriving = ongoing.server.start(1, MessageSpec("layer/mean", kind, 5))
    things = reachable([ongoing, arriving])
    assert any(thing is rounds.parts.server for thing in things)
    assert any(isinstance(thing, ts.Context) for thing in things)
    assert keys_among(things) == []


def test_a_server_that_has_received_ciphertexts_reaches_no_key(federate):
    """Neither the sum of real contributions nor the request to the authority holds a key."""
    federation = federate()
    arriving = federation.collect()
    things = reachable([federation.server, arriving, arriving.request()])
    assert any(isinstance(thing, ts.CKKSVector) for thing in things)
    assert keys_among(things) == []


def test_a_client_reaches_no_secret_key(federate):
    """Clients encrypt and cannot decrypt."""
    things = reachable(federate().clients["client-1"])
    assert any(isinstance(thing, PublicKey) for thing in things)
    assert not any(isinstance(thing, (SecretKey, CkksOpener)) for thing in things)
    assert not any(isinstance(thing, ts.Context) and thing.is_private() for thing in things)


@pytest.mark.parametrize("plant", [KeySet, SecretKey, PublicKey, ts.Context])
def test_the_search_for_keys_would_find_one(tiny_config, tiny_task, key_set, plant):
    """The same search does find keys: in what holds all roles, and in an adder with one inside."""
    parts = composed(tiny_config, tiny_task, key_set).parts
    assert keys_among(reachable(parts))
    planted = {
        KeySet: lambda: key_set,
        SecretKey: lambda: lambda: key_set.secret,
        PublicKey: lambda: [{"kept": key_set.public}],
        ts.Context: lambda: key_set.public._context,
    }[plant]()
    assert keys_among(reachable([parts.server, planted]))


@pytest.mark.parametrize("encrypt", [ts.ckks_vector, ts.ckks_tensor])
def test_the_servers_context_cannot_encrypt(key_set, encrypt):
    """TenSEAL itself refuses to encrypt with what the server holds."""
    with pytest.raises(ValueError, match="doesn't support encryption"):
        encrypt(key_set.adding._context, [1.0, 2.0])
    with pytest.raises(ValueError, match="doesn't support encryption"):
        key_set.adding._context.data.encryptor()
    assert key_set.adding._context.data.public_key() is None


def test_the_servers_context_cannot_decrypt(federate):
    """TenSEAL itself refuses to decrypt with what the server holds, the running sum included."""
    federation = federate()
    for part in federation.collect()._running.parts:
        with pytest.raises(ValueError, match="secret_key"):
            part._vector.decrypt()
        with pytest.raises(ValueError, match="secret_key"):
            part._vector.data.decrypt()
    context = federation.keys.adding._context
    with pytest.raises(ValueError, match="Secret key"):
        context.secret_key()
    with pytest.raises(ValueError, match="doesn't support decryption"):
        context.data.decryptor()


def test_the_public_key_cannot_decrypt(key_set):
    """A client cannot read even its own ciphertext."""
    public = key_set.public
    context = public._context
    vector = public.frame.loaded(context, public.frame.from_wire(public.encrypt(np.ones(2048))))
    for decrypt in (vector.decrypt, vector.data.decrypt, context.secret_key):
        with pytest.raises(ValueError, match=r"secret_key|Secret key"):
            decrypt()
    with pytest.raises(ValueError, match="doesn't support decryption"):
        context.data.decryptor()
    assert not hasattr(public, "decrypt")
    again = PublicKey.from_json(public.to_json())
    assert not again._context.has_secret_key()


@pytest.mark.parametrize(
    "parts",
    [
        ["public_key"],
        ["secret_key"],
        ["public_key", "secret_key"],
        ["galois_keys"],
        ["relin_keys"],
    ],
    ids=" and ".join,
)
def test_an_adding_context_refuses_any_key(key_set, parts):
    """Parameters with a key inside are no server's, also in a file that says it is one."""
    artefact = artefact_with(key_set.secret, *parts)
    with pytest.raises(KeyFileError, match="key"):
        AddingContext(artefact)
    with pytest.raises(KeyFileError, match="key"):
        AddingContext.from_json(artefact.to_json(PARAMETERS_FILE))


def test_an_adding_context_takes_parameters_alone(key_set):
    """The artefact of the test above without any key is what a server gets."""
    adding = AddingContext(artefact_with(key_set.secret))
    assert keys_among(reachable(CkksAdder(adding))) == []


def test_a_clients_file_is_no_servers_file(key_set):
    """A server that is given the public key's file refuses it."""
    with pytest.raises(KeyFileError, match="parameters"):
        AddingContext.from_json(key_set.public.to_json())


def test_a_public_key_refuses_a_secret_one(key_set):
    """A client that is given the secret key refuses it."""
    with pytest.raises(KeyFileError, match="secret key"):
        PublicKey(artefact_with(key_set.secret, "public_key", "secret_key"))
    with pytest.raises(KeyFileError, match="no public key"):
        PublicKey(artefact_with(key_set.secret))


IMPORTED = {
    "securefl.federation.survey": ["securefl.crypto", "securefl.exchange.match_open", "tenseal"],
    "securefl.federation.round": [
        "securefl.crypto.contexts",
        "securefl.exchange.ckks_open",
        "tenseal",
    ],
    "securefl.federation.client": ["securefl.crypto.secret", "securefl.exchange.ckks_open"],
    "securefl.exchange.ckks": [
        "securefl.crypto.secret",
        "securefl.exchange.ckks_open",
        "securefl.crypto.committee",
    ],
}
"""In one process, one after the other: by then these are not loaded, so none of them loads them."""


@pytest.fixture(scope="module")
def loaded():
    """All modules that are loaded, by what was imported last."""
    lines = (f"import {module}; print(*sys.modules)" for module in IMPORTED)
    done = run_alone("import sys\n" + "\n".join(lines))
    assert done.returncode == 0, done.stderr
    return dict(zip(IMPORTED, map(str.split, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("module", IMPORTED)
def test_the_server_imports_no_secret_key(loaded, module):
    """Nothing that is loaded for the server, its adder or a client knows what a secret key is."""
    assert module in loaded[module]
    assert not set(IMPORTED[module]) & set(loaded[module])
    assert "securefl.crypto.secret" not in loaded[module]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_secret_key_cannot_be_pickled(key_set, protocol):
    """No pickle protocol writes a secret key, alone or within what holds it."""
    for holder in (key_set.secret, key_set, key_set.opener(Flooding(), 4), [key_set.secret]):
        with pytest.raises(TypeError):
            pickle.dumps(holder, protocol)


def test_a_secret_key_cannot_be_copied(key_set):
    """Neither copy, deepcopy nor dataclasses.asdict makes a second secret key."""
    for copied in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            copied(key_set.secret)
    for holder in (key_set, key_set.opener(Flooding(), 4)):
        for copied in (copy.deepcopy, dataclasses.asdict):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                copied(holder)


def test_no_text_shows_a_secret(federate):
    """Printing any holder of a secret shows a key id at most."""
    federation = federate()
    secret = federation.keys.secret
    wanted = f"SecretKey(key_id={secret.key_id[:16]}…)"
    for text in (repr(secret), str(secret), f"{secret}"):
        assert text == wanted
    opener = federation.authority.opener
    assert repr(opener).startswith(f"CkksOpener(secret_key={wanted}, count=MemoryCount(n_released=")
    assert repr(opener).endswith(f"flooding={Flooding()!r}, max_clients=4)")
    assert "secret" not in repr(federation.keys)
    assert "_identity" not in repr(federation.clients["client-1"])
    assert len(repr(federation.authority)) < 100


@pytest.mark.parametrize(
    "part",
    [
        "adding",
        "public",
    ],
)
def test_copying_a_public_part_does_not_crash(part):
    """A deep copy of what a server or a client holds works or is refused; the process survives."""
    code = (
        "import copy\n"
        "from securefl.exchange.keyset import KeySet\n"
        f"part = KeySet.ephemeral().{part}\n"
        "try: copy.deepcopy(part)\n"
        "except TypeError: pass\n"
    )
    assert run_alone(code).returncode == 0
