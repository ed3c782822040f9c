"""Each class that holds a secret, found in real objects, is not copied, pickled or shown."""

from __future__ import annotations

import base64
import copy
import dataclasses
import pickle
import traceback
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from itertools import chain

import numpy as np
import pytest
from consortium_files import CLIENTS, PASSPHRASE, SERVER
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey
from reachability import reachable

from securefl.build.simulation import simulated
from securefl.crypto.blind import ContentKey
from securefl.crypto.card_secret import CardSecret
from securefl.crypto.one_time import KeySum, OneTimeKey
from securefl.exchange.card_keys import Quorum
from securefl.exchange.officer import KeySet, Officer, OneTimeOpener
from securefl.io.uncopyable import Held
from securefl_keys.authority_keys import FolderKeeper, load_all, load_authority_keys
from securefl_keys.bundle import process_identity
from securefl_keys.identity import load_identities, load_identity
from securefl_keys.roster import load_roster
from securefl_keys.signed_file import now
from securefl_keys.signer import open_signer

pytestmark = pytest.mark.usefixtures("cheap_guesses", "quick")

PACKAGES = (
    "securefl.crypto",
    "securefl.exchange",
    "securefl.federation",
    "securefl.network",
    "securefl_keys",
)
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
PRIVATE = (
    Ed25519PrivateKey,
    EllipticCurvePrivateKey,
    MLKEM768PrivateKey,
    X25519PrivateKey,
    MLKEM768X25519PrivateKey,
)
DEGREES = 2048, 4096
"""Lengths of one-time keys."""


def attributes(thing):
    """All that an object has in slots or by name, containers and what is in them."""
    slots = chain.from_iterable(getattr(c, "__slots__", ()) for c in type(thing).__mro__)
    todo = [getattr(thing, name, None) for name in slots if name != "__weakref__"]
    todo += getattr(thing, "__dict__", {}).values()
    while todo:
        part = todo.pop()
        yield part
        if isinstance(part, dict):
            todo += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple | set | frozenset):
            todo += part


def is_secret(part, known):
    """True of key material, of known bytes and texts, and of what opens cards, totals or scores."""
    if isinstance(part, np.ndarray):
        return part.dtype == np.int64 and part.ndim == 1 and len(part) in DEGREES
    if isinstance(part, bytes | str):
        return part in known
    return isinstance(part, (*PRIVATE, CardSecret, KeySum, OneTimeKey, Officer, OneTimeOpener))


def holders(roots, known, packages=PACKAGES):
    """One object of each class of ours that holds a secret itself, by the class's name."""
    found = {}
    for thing in reachable(roots):
        module = type(thing).__module__
        ours = any(module == p or module.startswith(f"{p}.") for p in packages)
        if ours and any(is_secret(part, known) for part in attributes(thing)):
            found[f"{module}.{type(thing).__name__}"] = thing
    return found


@pytest.fixture(scope="module")
def everything(federate, tiny_config, tiny_task, made_consortium):
    """Objects of a run and of a key folder, and the secrets in them as bytes and texts."""
    federation = federate(KeySet.ephemeral(Quorum(2, 3)))
    keys, opened = federation.keys, federation.collect()
    federation.authority.open(opened.request())
    senders = [c.sender(federation.run, keys.public.key_id) for c in federation.clients.values()]
    key = OneTimeKey.of(keys.public.secrets(senders[0]), b"about", "client-1", b"nonce")
    content = ContentKey.sealing(b"content", b"message", b"[]")
    selection = {"name": "fedprof", "fraction": 0.8}
    settings = {"exchange": {"encrypt": "model", "officers": 3}, "selection": selection}
    task = tiny_task()
    rounds = simulated(
        tiny_config(**settings), replace(task, public=(task.test[0] + 1, task.test[1]))
    )
    rounds.step()
    folder = made_consortium.keys
    keeper = FolderKeeper(folder, PASSPHRASE)
    parties = {"authority": (folder / "authority", PASSPHRASE)} | {
        name: (made_consortium.root / name, f"of {name}") for name in (*CLIENTS, SERVER)
    }
    made = [
        federation,
        opened,
        key,
        KeySum.of([key]),
        content,
        rounds,
        load_all(folder, PASSPHRASE),
        load_authority_keys(folder, PASSPHRASE),
        open_signer(folder, PASSPHRASE, now()),
        load_identities(folder, [made_consortium.root / "alice"], "of alice"),
        keeper,
        keeper.now(),
        *(load_identity(*party) for party in parties.values()),
        process_identity(*parties["alice"], load_roster(folder).ca, "client"),
    ]
    known = {PASSPHRASE, *(passphrase for _, passphrase in parties.values()), content._key}
    for sender in senders:
        known |= {sender.secret, *keys.public.secrets(sender)}
    return made, known


HOLDERS = (
    "securefl.crypto.blind.ContentKey",
    "securefl.crypto.card_secret.CardSecret",
    "securefl.crypto.one_time.KeySum",
    "securefl.crypto.one_time.OneTimeKey",
    "securefl.exchange.sums.Sender",
    "securefl.exchange.officer.KeySet",
    "securefl.exchange.officer.Officer",
    "securefl.exchange.officer.OneTimeOpener",
    "securefl.federation.authority.Authority",
    "securefl.federation.client.Client",
    "securefl.federation.client.Identities",
    "securefl.federation.authority.CheckingOfficer",
    "securefl.network.identity.ProcessIdentity",
    "securefl.network.trust.MemberStanding",
    "securefl_keys.identity.Identity",
    "securefl_keys.authority_keys.FolderKeeper",
    "securefl_keys.authority_keys.AuthorityKeys",
    "securefl_keys.signer.Signer",
)


@pytest.fixture(scope="module")
def found(everything):
    """One object of each class that holds a secret."""
    return holders(*everything)


def shown_by(thing, known):
    """Ways by which an object's secrets get out of it."""
    ways = {
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
        **{f"pickle {n}": partial(pickle.dumps, protocol=n) for n in PROTOCOLS},
    }
    if dataclasses.is_dataclass(thing):
        ways |= {way.__name__: way for way in (asdict, astuple, replace)}
    found = []
    for name, way in ways.items():
        try:
            way(thing)
        except TypeError as error:
            if str(error) != f"{type(thing).__name__} cannot be pickled or copied":
                found.append(name)
        else:
            found.append(name)
    texts = [repr(thing), str(thing), f"{thing}", traceback_with(thing)]
    hidden = [secret.encode() if isinstance(secret, str) else bytes(secret) for secret in known]
    words = {
        f(s) for s in hidden for f in (repr, bytes.hex, lambda s: base64.b64encode(s).decode())
    }
    if any(word in text for text in texts for word in words):
        found.append("text")
    return found


def traceback_with(secret):
    """A traceback that shows local variables, the object among them."""
    try:
        float(secret)
    except TypeError as error:
        told = traceback.TracebackException.from_exception(error, capture_locals=True)
    return "".join(told.format())


def test_every_class_that_holds_a_secret_is_listed(found):
    """Found in real objects: what holds a key, a secret's bytes, a passphrase, or one of these."""
    assert sorted(found) == sorted(HOLDERS)


@pytest.mark.parametrize("name", HOLDERS)
def test_a_holder_of_a_secret_is_neither_copied_nor_shown(everything, found, name):
    """Not shallow, not deep, by no protocol of pickle, not field by field, and in no text."""
    _, known = everything
    assert shown_by(found[name], known) == []


@dataclass(frozen=True, slots=True)
class Planted:
    """Holder of a secret that forgets to refuse."""

    secret: bytes


@dataclass(frozen=True)
class WithoutSlots(Held):
    """Holder whose fields lie open: it was not made twice."""

    secret: bytes = field(repr=False)


def test_a_planted_holder_is_found_and_fails():
    """One that refuses nothing; and one that refuses all but being taken apart."""
    planted, known = [Planted(b"k" * 32), WithoutSlots(b"k" * 32)], {b"k" * 32}
    assert not holders(planted, {b"o" * 32}, (__name__,)).keys() & {f"{__name__}.Planted"}
    found = holders(planted, known, (__name__,))
    assert sorted(found) == [f"{__name__}.Planted", f"{__name__}.WithoutSlots"]
    every = ["copy", "deepcopy", *(f"pickle {n}" for n in PROTOCOLS), "asdict", "astuple"]
    assert shown_by(planted[0], known) == [*every, "replace", "text"]
    assert shown_by(planted[1], known) == ["asdict", "astuple", "replace"]
