"""No changed byte of a consortium's files is believed, whatever it changes, and none takes long."""

from __future__ import annotations

import base64
import json
import random
import shutil
import textwrap
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from consortium_files import BUNDLES, CLIENTS, PASSPHRASE, make_consortium

from securefl.errors import CertificateRefused, KeyFileError, RequestRefused
from securefl_keys import sealed_file
from securefl_keys.bundle import Bundle, Manifest, load_bundle
from securefl_keys.certificate_form import pem_blocks
from securefl_keys.certificates import (
    CertificateFile,
    holder_certificate,
    read_authority,
    transport_holder,
)
from securefl_keys.identity import open_ca_key, open_identity_key
from securefl_keys.policy import PolicyFile
from securefl_keys.request import read_request
from securefl_keys.roster import VerifiedRoster
from securefl_keys.sealed_keys import open_secret
from securefl_keys.signed_file import now

MAX_PARSE_S = 5.0
"""Of processor time: more is a hang, whatever else the machine does."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "KDF_COST", sealed_file.KdfCost(1, 1, 8))
        yield make_consortium(tmp_path_factory.mktemp("consortium"))


def believed(text, ca):
    """Both certificates of a party, which says of each other what each says."""
    file = CertificateFile.parse(text)
    if file.transport is None:
        raise CertificateRefused("cut off after the first block")
    transport_holder(file.transport, ca).require_identity(holder_certificate(file.identity, ca))


def asked(text, _ca):
    """Both keys of a request."""
    if read_request(text).transport_key is None:
        raise RequestRefused("cut off after the first block: another fingerprint")


KINDS = {
    "roster": ("keys/consortium/roster.json", lambda t, ca: VerifiedRoster.parse(t, ca, now())),
    "policy": ("keys/consortium/policy.json", PolicyFile.verified),
    "manifest": ("bundles/client/consortium/manifest.json", Manifest.verified),
    "authority": ("keys/consortium/ca.crt", lambda t, _: read_authority(t, now())),
    "certificate": ("alice/identity.crt", believed),
    "server's certificate": ("hub/identity.crt", believed),
    "authority's certificate": ("keys/authority/identity.crt", believed),
    "request": ("alice/identity.csr", asked),
    "server's request": ("hub/identity.csr", asked),
}
SEALED = {
    "ca key": ("keys/authority/ca.key", open_ca_key, PASSPHRASE),
    "identity": ("alice/identity.key", open_identity_key, "of alice"),
    "authority's identity": ("keys/authority/identity.key", open_identity_key, PASSPHRASE),
    "secret key": ("keys/authority/secret.key", open_secret, PASSPHRASE),
}
BUNDLED = {
    "client": ("clients/public.key",),
    "server": ("server/public.key",),
    "authority": ("authority/public.key",),
}
"""Files of public keys, in whose bundle they are."""


def mutated(text, rng):
    """One byte changed, put in, or taken out; a stretch moved; an end cut off."""
    data, at = bytearray(text.encode()), rng.randrange(len(text.encode()))
    match rng.randrange(6):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            data[at] = rng.choice(b'0123456789abcdefABCDEF+/="{}[], \n')
        case 2:
            data.insert(at, rng.choice(b'0Aa+= \n"\\'))
        case 3:
            del data[at]
        case 4:
            del data[at:]
        case 5:
            other = rng.randrange(len(data))
            data[at], data[other] = data[other], data[at]
    return data.decode(errors="replace")


def mutations(text, seed, n):
    rng = random.Random(seed)
    for _ in range(n):
        changed = mutated(text, rng)
        if changed != text:
            yield changed


def assert_refused(parse):
    started = time.thread_time()
    with pytest.raises(KeyFileError):
        parse()
    assert time.thread_time() - started < MAX_PARSE_S


meaning = cache(json.loads)
"""Of a file, which its thousands of changed copies are compared with."""


def means_the_same(changed, text):
    try:
        return json.loads(changed) == meaning(text)
    except (ValueError, RecursionError):
        return False


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.endswith(("authority", "certificate", "request"))]
)
def test_no_bit_of_a_certificate_can_be_turned(made, kind, every):
    """Not even those around the signature, which a parser may take in more forms than one.

    Of every seven bits one is in each byte, at another place in it.
    """
    path, parse = KINDS[kind]
    blocks = pem_blocks((made.root / path).read_text())
    assert len(blocks) == (1 if kind == "authority" else 2)
    for at, block in enumerate(blocks):
        first, *lines, last = block.splitlines()
        der = base64.b64decode("".join(lines))
        for bit in range(0, 8 * len(der), every):
            turned = bytearray(der)
            turned[bit // 8] ^= 1 << bit % 8
            body = textwrap.wrap(base64.b64encode(turned).decode(), 64)
            changed = "\n".join([first, *body, last, ""])
            text = "".join([*blocks[:at], changed, *blocks[at + 1 :]])
            assert_refused(lambda text=text: parse(text, made.ca))


@pytest.mark.parametrize("role", BUNDLES)
def test_a_changed_file_in_a_bundle_is_found(made, role):
    """A change of any file of a bundle, large ones included, is a problem of that file."""
    bundle = load_bundle(made.bundle(role), role)
    rng = random.Random(role)
    for path, text in bundle.texts.items():
        for _ in range(40):
            changed = mutated(text, rng)
            if changed == text:
                continue
            tampered = replace(bundle, texts=bundle.texts | {path: changed})
            if path.name == "manifest.json":
                assert_refused(lambda c=changed: Manifest.verified(c, made.ca))
            else:
                assert str(path) in str(next(tampered.problems()))


def parsers(made):
    """Of every kind of file of a ceremony: its text, and what is to refuse a changed one."""
    for path, parse in KINDS.values():
        yield path, (made.root / path).read_text(), lambda text, parse=parse: parse(text, made.ca)
    for path, opened, passphrase in SEALED.values():
        text = (made.root / path).read_text()
        yield path, text, lambda changed, o=opened, p=passphrase: o(changed, p)
    for role, paths in BUNDLED.items():
        bundle = load_bundle(made.bundle(role), role)
        listed = {entry.path: entry for entry in bundle.manifest.files}
        for name in paths:
            path, entry = Path(name), listed[name]

            def in_bundle(text, bundle=bundle, path=path, entry=entry):
                replace(bundle, texts=bundle.texts | {path: text})._check(path, entry)

            yield f"bundles/{role}/{name}", bundle.texts[path], in_bundle


ALL_FILES = [path for path, *_ in (*KINDS.values(), *SEALED.values())]
ALL_FILES += [f"bundles/{role}/{name}" for role, names in BUNDLED.items() for name in names]
SPACED = {path for path, *_ in SEALED.values()}
"""Their white space may change."""


def test_the_kinds_are_all_that_a_ceremony_makes(made):
    """No file of any folder is left out but copies of those that are in."""
    found = {path.relative_to(made.root) for path in made.root.rglob("*") if path.is_file()}
    names = {"/".join(path.parts[-2:]) for path in found if path.suffix != ".lock"}
    covered = {"/".join(Path(path).parts[-2:]) for path in ALL_FILES}
    others = {f"{name}/identity.{end}" for name in CLIENTS for end in ("key", "csr", "crt")}
    assert names - covered - others == {"hub/identity.key", "consortium/authority.crt"}


@pytest.mark.parametrize("n", [400, pytest.param(10_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("path", ALL_FILES)
def test_a_changed_file_is_refused(made, path, n):
    """Random changes of a signed, sealed or public kind: a typed refusal each, within seconds.

    White space between tokens means nothing in sealed keys; a signature covers it.
    """
    text, parse = next((text, parse) for at, text, parse in parsers(made) if at == path)
    parse(text)
    n_changed = 0
    for changed in mutations(text, path, n):
        if path not in SPACED or not means_the_same(changed, text):
            assert_refused(lambda c=changed: parse(c))
            n_changed += 1
    assert n_changed > 0.8 * n


def test_a_bundle_with_a_changed_list_is_not_read(made, tmp_path):
    """Where the signed list itself is changed on the disk, nothing else is looked at."""
    copy = shutil.copytree(made.bundle("server"), tmp_path / "copy")
    path = copy / "consortium/manifest.json"
    path.write_text(path.read_text().replace('"role": "server"', '"role": "client"'))
    with pytest.raises(KeyFileError, match="changed since it was signed"):
        Bundle.read(copy, None, now())
