"""What is given away holds no secret, and nothing that nobody has signed."""

from __future__ import annotations

import shutil

import pytest
from consortium_files import BUNDLES, PASSPHRASE
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from securefl.errors import SecretFound
from securefl_keys.authority_keys import load_all
from securefl_keys.bundle import VerifiedBundle
from securefl_keys.export import export, export_all
from securefl_keys.key_files import require_no_secret
from securefl_keys.verification import verify

pytestmark = pytest.mark.usefixtures("cheap_guesses")


def problems_of(*arguments, **options):
    return "\n".join(verify(*arguments, **options).problems)


@pytest.mark.parametrize("secret", ["authority/secret.key", "authority/identity.key"])
@pytest.mark.parametrize("place", ["server/public.key", "consortium/policy.json"])
def test_no_secret_gets_into_a_bundle(consortium, secret, place):
    """A secret key under a public file's name stops the export, and nothing is written."""
    shutil.copy(consortium.keys / secret, consortium.keys / place)
    with pytest.raises(SecretFound):
        export(consortium.keys, "server", consortium.root / "new", PASSPHRASE)
    with pytest.raises(SecretFound):
        export_all(consortium.keys, consortium.root / "new", PASSPHRASE)
    assert not (consortium.root / "new").exists()


@pytest.mark.parametrize("folder", ["bundles/client", "keys"])
def test_a_secret_in_a_folder_that_is_given_away_is_found(consortium, folder):
    """By what it is, whatever it is called."""
    shutil.copy(
        consortium.root / "alice/identity.key", consortium.root / folder / "clients/notes.txt"
    )
    assert "secret key" in problems_of(consortium.root / folder)


def test_bundles_hold_just_these_files(consortium):
    """Nothing of the authority's own folder but its certificates and the public key of cards."""
    files = {
        path.relative_to(consortium.root / "bundles").as_posix()
        for path in (consortium.root / "bundles").rglob("*")
        if path.is_file()
    }
    own = {
        "client": {"clients/public.key"},
        "server": {"server/public.key"},
        "authority": {"authority/public.key"},
    }
    names = ("ca.crt", "authority.crt", "roster.json", "policy.json", "manifest.json")
    common = {f"consortium/{name}" for name in names}
    assert files == {f"{role}/{path}" for role, paths in own.items() for path in paths | common}


def test_every_role_is_told_the_same_key(consortium):
    """Which makes cards and opens none."""
    sound = {role: VerifiedBundle.load(consortium.bundle(role), role) for role in BUNDLES}
    own = load_all(consortium.keys, PASSPHRASE).public
    for bundle in sound.values():
        assert (bundle.card_keys.key_id, bundle.card_keys.epoch) == (own.key_id, own.epoch)
        assert not any(hasattr(key, "secrets_in") for key in bundle.card_keys.keys)


@pytest.mark.parametrize("kind", [Ed25519PrivateKey, X25519PrivateKey, MLKEM768PrivateKey])
def test_private_keys_of_other_tools_are_found(kind):
    """PEM, OpenSSH and DER, with and without a passphrase: of identities, and of cards."""
    key, locked = kind.generate(), BestAvailableEncryption(b"x")
    forms = [(Encoding.PEM, PrivateFormat.PKCS8), (Encoding.PEM, PrivateFormat.OpenSSH)]
    for encoding, form in [*forms, (Encoding.DER, PrivateFormat.PKCS8)]:
        for lock in (locked, NoEncryption()):
            if form is PrivateFormat.OpenSSH and (lock is locked or kind is not Ed25519PrivateKey):
                continue
            with pytest.raises(SecretFound):
                require_no_secret(key.private_bytes(encoding, form, lock))
    require_no_secret(b"-----BEGIN CERTIFICATE-----")


def test_a_stray_file_or_a_link_in_a_bundle_is_found(consortium):
    """Nothing travels with a bundle that nobody signed."""
    (consortium.bundle("server") / "notes.txt").write_text("hello")
    assert "notes.txt: not in the signed list" in problems_of(consortium.bundle("server"))
    (consortium.bundle("client") / "link").symlink_to("/etc/hostname")
    assert "a link or a device" in problems_of(consortium.bundle("client"))
