"""Who is no client of the consortium does not become one by any file, and no secret travels."""

from __future__ import annotations

import pickle
import shutil
from datetime import timedelta

import pytest
from consortium_files import PASSPHRASE, joined, make_consortium, revoke
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefl.errors import (
    CertificateExpired,
    CertificateRefused,
    CertificateRevoked,
    FileSignatureRefused,
    ForeignAuthority,
    KeyFileError,
    RequestRefused,
    SignatureRefused,
    UnknownClient,
    WrongPassphrase,
)
from securefl.roles import wire
from securefl_keys import sealed_file
from securefl_keys.bundle import load_bundle
from securefl_keys.certificate_text import pem_of
from securefl_keys.certificates import holder_certificate, issue, make_authority, read_authority
from securefl_keys.export import export
from securefl_keys.holders import Holder
from securefl_keys.identity import listed, load_identity
from securefl_keys.membership import Approval, approve
from securefl_keys.request import read_request
from securefl_keys.roster import ROSTER_FORMAT, RosterFile, listing, load_roster
from securefl_keys.signed_file import now
from securefl_keys.signer import open_signer
from securefl_keys.verification import verify

EVE = Holder("eve", "client")


@pytest.fixture(scope="module", autouse=True)
def _cheap_guesses():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "KDF_COST", sealed_file.KdfCost(1, 1, 8))
        yield


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    return make_consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    return make_consortium(tmp_path_factory.mktemp("foreign"))


@pytest.fixture
def made(unchanged, tmp_path):
    shutil.copytree(unchanged.root, tmp_path / "made")
    return type(unchanged)(tmp_path / "made", unchanged.ca)


def problems_of(*arguments, **options):
    return "\n".join(verify(*arguments, **options).problems)


def message_of(name, key):
    expected = wire.Expected("ab" * 32, 1, "layer/mean", "number/float64", "", 1, 1)
    header = wire.describe(expected, name, b"12345678")
    return wire.split(wire.encode(header, b"12345678", key), 8)[0], expected


def test_a_client_of_the_roster_is_believed(made):
    """What alice signs with her identity passes the roles' roster, and not as bob's."""
    alice = load_identity(made.root / "alice", "of alice")
    roster = load_roster(made.bundle("server"), made.ca.fingerprint).identities()
    roster.check(*message_of("alice", alice.private_key))
    with pytest.raises(SignatureRefused):
        roster.check(*message_of("bob", alice.private_key))


def test_a_revoked_client_is_refused(made):
    """Its messages, its identity and a request with its old key: each by its own error."""
    alice = load_identity(made.root / "alice", "of alice")
    roster = revoke(made.keys, "alice")
    assert roster.file.epoch == 2
    with pytest.raises(SignatureRefused):
        roster.identities().check(*message_of("alice", alice.private_key))
    with pytest.raises(CertificateRevoked):
        roster.member("alice")
    with pytest.raises(CertificateRevoked):
        listed(made.root / "alice", roster)
    with pytest.raises(CertificateRevoked):
        revoke(made.keys, "alice")
    request = read_request((made.root / "alice/identity.csr").read_text())
    with pytest.raises(RequestRefused, match="its key was revoked"):
        approve(made.keys, [Approval(request, made.root / "again.crt")], PASSPHRASE)


def test_a_revoked_client_joins_again_with_a_new_key(made):
    """The new identity is listed, the old one still refused as revoked."""
    revoke(made.keys, "alice")
    new = joined(made.keys, made.root / "new", "alice", "new")
    roster = load_roster(made.keys)
    assert listed(new, roster).name == "alice"
    with pytest.raises(CertificateRevoked):
        listed(made.root / "alice", roster)


def test_an_expired_certificate_is_refused(made):
    """After its 398 days a client is named as expired, and the others' roster still works."""
    roster = load_roster(made.keys, at=now() + timedelta(days=399))
    alice = load_identity(made.root / "alice", "of alice")
    with pytest.raises(CertificateExpired, match="alice's certificate"):
        roster.member("alice")
    with pytest.raises(SignatureRefused):
        roster.identities().check(*message_of("alice", alice.private_key))
    with pytest.raises(CertificateExpired):
        load_roster(made.keys, at=now() + timedelta(days=3651))
    with pytest.raises(CertificateExpired):
        load_roster(made.keys, at=now() - timedelta(hours=2))
    assert "zoë k" in problems_of(made.keys, at=now() + timedelta(days=399)).lower()


def test_an_unknown_client_is_named_as_such(made):
    """A name that never joined is neither expired nor revoked."""
    roster = load_roster(made.keys)
    with pytest.raises(UnknownClient):
        roster.member("mallory")
    with pytest.raises(UnknownClient):
        revoke(made.keys, "mallory")


@pytest.mark.parametrize("file", ["ca.crt", "roster.json", "policy.json", "manifest.json"])
def test_a_foreign_consortiums_file_is_refused(made, foreign, file):
    """Each file of another consortium, of the same name and clients, is found in a bundle."""
    shutil.copy(foreign.bundle("client") / "consortium" / file, made.bundle("client/consortium"))
    assert problems_of(made.bundle("client"))
    with pytest.raises((ForeignAuthority, FileSignatureRefused)):
        load_bundle(made.bundle("client"), "client", made.ca.fingerprint)


def test_a_whole_foreign_bundle_is_told_by_its_fingerprint(made, foreign):
    """It is consistent with itself, so that only the fingerprint tells it."""
    assert not problems_of(foreign.bundle("client"))
    assert "as you expected" in problems_of(foreign.bundle("client"), authority=made.ca.fingerprint)
    with pytest.raises(ForeignAuthority):
        listed(foreign.root / "alice", load_roster(made.keys))


def test_an_older_roster_does_not_go_with_a_newer_list(made):
    """A roster from before a revocation, put back into a bundle, is not the one that was signed."""
    before = (made.keys / "consortium/roster.json").read_bytes()
    revoke(made.keys, "alice")
    export(made.keys, "server", made.root / "new", PASSPHRASE)
    (made.root / "new/consortium/roster.json").write_bytes(before)
    with pytest.raises(FileSignatureRefused):
        load_bundle(made.root / "new", "server")


def test_files_of_one_kind_do_not_pass_for_another(made):
    """A signed policy in the roster's place is no roster."""
    shutil.copy(made.keys / "consortium/policy.json", made.keys / "consortium/roster.json")
    with pytest.raises(KeyFileError, match=r"roster\.json: not such a file"):
        load_roster(made.keys)


def test_a_client_is_no_authority(made):
    """A certificate or a roster that alice signs with her own certified key is refused."""
    alice = load_identity(made.root / "alice", "of alice")
    with pytest.raises(KeyFileError, match="no certificate authority"):
        read_authority(alice.certificate_pem, now())
    eve = Ed25519PrivateKey.generate().public_key()
    certificate = issue(made.ca, alice.private_key, EVE, eve, now())
    with pytest.raises(ForeignAuthority):
        holder_certificate(certificate, made.ca)
    fields = {"format": ROSTER_FORMAT, "epoch": 1, "version": 9, "revoked": ()}
    certificates = listing([certificate])
    text = RosterFile.signing(
        made.ca, alice.private_key, now(), certificates=certificates, **fields
    )
    with pytest.raises(FileSignatureRefused):
        RosterFile.verified(text, made.ca)


def test_the_authoritys_own_certificate_is_no_client(made):
    """What the authority's key signed otherwise does not make a client."""
    with pytest.raises(CertificateRefused):
        holder_certificate(made.ca.certificate, made.ca)


def test_an_authority_with_the_same_name_is_foreign(made, tmp_path):
    """A certificate that claims the consortium's name is told by its key."""
    key = Ed25519PrivateKey.generate()
    twin = read_authority(pem_of(make_authority(made.ca.name, key, now())), now())
    with pytest.raises(ForeignAuthority):
        twin.require_fingerprint(made.ca.fingerprint)
    with pytest.raises(ForeignAuthority):
        holder_certificate(issue(twin, key, EVE, key.public_key(), now()), made.ca)


def test_an_identity_of_others_is_not_loaded(made):
    """Another passphrase, another's certificate, and a key that others may read."""
    with pytest.raises(WrongPassphrase):
        load_identity(made.root / "alice", "wrong")
    shutil.copy(made.root / "bob/identity.crt", made.root / "alice/identity.crt")
    with pytest.raises(CertificateRefused):
        load_identity(made.root / "alice", "of alice")
    with pytest.raises(CertificateRefused):
        listed(made.root / "alice", load_roster(made.keys))
    (made.root / "bob/identity.key").chmod(0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        load_identity(made.root / "bob", "of bob")
    (made.root / "Zoë K/identity.crt").unlink()
    with pytest.raises(KeyFileError, match="join approve"):
        load_identity(made.root / "Zoë K", "of Zoë K")


def test_secrets_are_not_shown_nor_pickled(made):
    """Neither identity nor signer has its key in its repr, and neither can be pickled."""
    identity = load_identity(made.root / "alice", "of alice")
    signer = open_signer(made.keys, PASSPHRASE, now())
    for holder in (identity, signer):
        assert "ed25519" not in repr(holder).lower().replace("\n", "")
        with pytest.raises(TypeError):
            pickle.dumps(holder)
