"""The server can neither read nor make a ciphertext, and no secret ever becomes a copy."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys

import pytest
import tenseal as ts
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from reachability import reachable

from securefl.build.simulation import simulated
from securefl.crypto.card_secret import CardSecret
from securefl.crypto.cards import SUITE, CardKey
from securefl.crypto.one_time import CipherSum, KeySum, OneTimeKey
from securefl.errors import KeyFileError
from securefl.exchange.card_keys import card_about
from securefl.exchange.officer import KeySet, Officer, OneTimeOpener
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.one_time_match import OneTimeProfileSealer
from securefl.exchange.sums import Sender
from securefl.federation.authority import Authority, CheckingOfficer
from securefl.federation.client import Client
from securefl.types import Kind, MessageSpec

SECRETS_OF_OFFICERS = (
    CardSecret,
    MLKEM768PrivateKey,
    X25519PrivateKey,
    KeySet,
    Officer,
    OneTimeOpener,
    KeySum,
    Authority,
    CheckingOfficer,
)
NEVER_AT_THE_SERVER = (
    *SECRETS_OF_OFFICERS,
    OneTimeKey,
    OneTimeSealer,
    Sender,
    OneTimeProfileSealer,
    Client,
    Ed25519PrivateKey,
    ts.Context,
)


def keys_among(things):
    """What of it encrypts, decrypts or signs, or could with a key that it might be given."""
    return [thing for thing in things if isinstance(thing, NEVER_AT_THE_SERVER)]


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
    assert any(isinstance(thing, OneTimeAdder) for thing in things)
    assert keys_among(things) == []


def test_a_server_that_has_received_ciphertexts_reaches_no_key(federate):
    """Neither the sum of real contributions nor the request to the authority holds a key."""
    federation = federate()
    arriving = federation.collect()
    things = reachable([federation.server, arriving, arriving.request()])
    assert any(isinstance(thing, CipherSum) for thing in things)
    assert keys_among(things) == []


def test_a_client_reaches_no_officers_secret(federate):
    """Clients have secrets of their own, and of the officers what makes cards."""
    federation = federate()
    federation.collect()
    things = reachable(federation.clients["client-1"])
    assert any(isinstance(thing, CardKey) for thing in things)
    assert [thing.name for thing in things if isinstance(thing, Sender)] == ["client-1"]
    assert not any(isinstance(thing, SECRETS_OF_OFFICERS) for thing in things)
    assert not any(isinstance(thing, ts.Context) for thing in things)


PLANTED = {
    "KeySet": lambda keys, _: keys,
    "CardSecret": lambda keys, _: lambda: keys.secrets[0],
    "Officer": lambda keys, _: {"kept": keys.opener().officers[0]},
    "OneTimeKey": lambda *_: [OneTimeKey.of([bytes(32)], b"", "client-1", b"")],
    "KeySum": lambda *_: (KeySum.of([OneTimeKey.of([bytes(32)], b"", "client-1", b"")]),),
    "Sender": lambda *_: {"client-1": Sender("client-1", bytes(32))},
    "OneTimeSealer": lambda keys, _: OneTimeSealer(keys.public),
    "OneTimeProfileSealer": lambda keys, _: OneTimeProfileSealer(keys.public),
    "Ed25519PrivateKey": lambda _, federation: federation.clients["client-1"],
    "Context": lambda *_: ts.context(ts.SCHEME_TYPE.CKKS, 2048, coeff_mod_bit_sizes=[30, 20]),
}


@pytest.mark.parametrize("plant", PLANTED)
def test_the_search_for_keys_would_find_one(tiny_config, tiny_task, key_set, federate, plant):
    """The same search does find keys: in what holds all roles, and beside a server."""
    parts = composed(tiny_config, tiny_task, key_set).parts
    found = {type(key).__name__ for key in keys_among(reachable(parts))}
    assert {"CardSecret", "Officer", "Authority", "OneTimeSealer", "Client"} <= found
    planted = PLANTED[plant](key_set, federate())
    kinds = {kind for key in keys_among(reachable([parts.server, planted])) for kind in _names(key)}
    assert plant in kinds


def _names(thing):
    return [kind.__name__ for kind in type(thing).__mro__]


def test_what_makes_cards_opens_none(federate):
    """A server has the officers' public keys and all cards, and reads no secret in them."""
    federation = federate()
    public = federation.keys.public
    sender = federation.clients["client-1"].sender(federation.run, public.key_id)
    cards, (key,) = public.cards(federation.run, sender), public.keys
    about = card_about(federation.run, "client-1")
    assert federation.keys.secrets[0].secrets_in(
        public.card_of(cards, 0)[0], 1, about
    ) == public.secrets(sender)
    assert sender.secret not in cards
    with pytest.raises(TypeError):
        SUITE.decrypt(cards, key._key, info=about)
    for part in (public, key):
        assert not [name for name in dir(part) if name.endswith("_in") or "open" in name]


def test_a_card_key_takes_no_secret_one(key_set):
    """Who is given the secret half in the place of the public one refuses it."""
    (secret,) = key_set.secrets
    with pytest.raises(KeyFileError, match="a card key of 96 bytes"):
        CardKey(secret.to_secret_bytes(), secret.origin)
    text = secret.public.to_json()
    again = CardKey.from_json(text)
    assert again.key_id == secret.key_id
    assert not any(isinstance(thing, SECRETS_OF_OFFICERS) for thing in reachable(again))


IMPORTED = {
    "securefl.federation.survey": ["securefl.crypto", "securefl.exchange.officer", "tenseal"],
    "securefl.federation.round": [
        "securefl.crypto.one_time",
        "securefl.exchange.officer",
        "tenseal",
    ],
    "securefl.exchange.one_time": ["securefl.exchange.officer", "securefl.exchange.officer"],
    "securefl.exchange.one_time_match": [
        "securefl.exchange.officer",
        "securefl.exchange.officer",
    ],
    "securefl.federation.client": ["securefl.exchange.officer", "securefl.exchange.officer"],
    "securefl.federation.cards": ["securefl.exchange.officer", "securefl.exchange.officer"],
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
    assert "securefl.crypto.card_secret" not in loaded[module]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_secret_key_cannot_be_pickled(key_set, protocol):
    """No pickle protocol writes a secret key, alone or within what holds it."""
    (secret,), opener = key_set.secrets, key_set.opener()
    for holder in (secret, key_set, opener, opener.officers[0], [secret]):
        with pytest.raises(TypeError):
            pickle.dumps(holder, protocol)


def test_a_secret_key_cannot_be_copied(key_set):
    """Neither copy, deepcopy nor dataclasses.asdict makes a second secret key."""
    (secret,), opener = key_set.secrets, key_set.opener()
    for copied in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            copied(secret)
    for holder in (key_set, opener, opener.officers[0]):
        for copied in (copy.deepcopy, dataclasses.asdict):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                copied(holder)


def test_no_text_shows_a_secret(federate):
    """Printing any holder of a secret shows a key id at most."""
    federation = federate()
    federation.collect()
    (secret,) = federation.keys.secrets
    wanted = f"CardSecret(key_id={secret.key_id[:16]}…)"
    for text in (repr(secret), str(secret), f"{secret}"):
        assert text == wanted
    client, opener = federation.clients["client-1"], federation.authority.opener
    sender = client.sender(federation.run, secret.key_id)
    hidden = [*client._senders.values(), *opener.officers[0]._secrets.values()]
    assert sender in hidden
    texts = [repr(thing) for thing in (federation.keys, opener, opener.officers[0], client, sender)]
    for of in (sender.secret, *federation.keys.public.secrets(sender), secret.to_secret_bytes()):
        for text in texts:
            assert of.hex() not in text
            assert repr(bytes(of)) not in text
    assert repr(sender) == "Sender(name='client-1')"
    assert "secret" not in repr(federation.keys)
    assert "signing_key" not in repr(client)
    assert len(repr(federation.authority)) < 100


@pytest.mark.parametrize("part", ["public", "public.keys[0]"])
def test_copying_a_public_part_does_not_crash(part):
    """A deep copy of what a server or a client holds works or is refused; the process survives."""
    code = (
        "import copy\n"
        "from securefl.exchange.officer import KeySet\n"
        f"part = KeySet.ephemeral().{part}\n"
        "try: copy.deepcopy(part)\n"
        "except TypeError: pass\n"
    )
    assert run_alone(code).returncode == 0
