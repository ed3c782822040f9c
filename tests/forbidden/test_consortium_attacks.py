"""Who is no client of the consortium does not become one by any file, and no secret travels."""

from __future__ import annotations

import base64
import pickle
import shutil
import textwrap
from datetime import timedelta

import pytest
from consortium_files import PASSPHRASE, joined, make_consortium, revoke
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from key_folders import rewritten

from securefl.crypto.artefact import digest
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
from securefl.exchange.sums import Sealed
from securefl.federation.message import Expected, encode_message, header_for, split_message
from securefl_keys import layout
from securefl_keys.bundle import CARDS, Bundle, BundledFile, Manifest, load_bundle, require_sound
from securefl_keys.certificate_form import Holder, pem_of
from securefl_keys.certificates import (
    CertificateFile,
    holder_certificate,
    issue,
    make_authority,
    read_authority,
)
from securefl_keys.export import bundle_texts, export
from securefl_keys.identity import listed, load_identity
from securefl_keys.membership import JoinApproval, approve
from securefl_keys.request import read_request
from securefl_keys.roster import ROSTER_FORMAT, RosterFile, listing, load_roster
from securefl_keys.signed_file import now
from securefl_keys.signer import open_signer
from securefl_keys.verification import verify

pytestmark = pytest.mark.usefixtures("cheap_guesses")
EVE = Holder("eve", "client")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    return make_consortium(tmp_path_factory.mktemp("foreign"))


def problems_of(*arguments, **options):
    return "\n".join(verify(*arguments, **options).problems)


def message_of(name, key):
    expected = Expected("ab" * 32, 1, "layer/mean", "number/float64", "", 1, 1)
    header = header_for(expected, name, Sealed(b"12345678"))
    return split_message(encode_message(header, b"12345678", key), 8)[0], expected


def test_a_client_of_the_roster_is_believed(consortium):
    """What alice signs with her identity passes the roles' roster, and not as bob's."""
    alice = load_identity(consortium.root / "alice", "of alice")
    roster = load_roster(consortium.bundle("server"), consortium.ca.fingerprint).identities()
    roster.check(*message_of("alice", alice.private_key))
    with pytest.raises(SignatureRefused):
        roster.check(*message_of("bob", alice.private_key))


def test_a_revoked_client_is_refused(consortium):
    """Its messages, its identity and a request with its old key: each by its own error."""
    alice = load_identity(consortium.root / "alice", "of alice")
    roster = revoke(consortium.keys, "alice")
    assert roster.file.epoch == 2
    with pytest.raises(SignatureRefused):
        roster.identities().check(*message_of("alice", alice.private_key))
    with pytest.raises(CertificateRevoked):
        roster.member("alice")
    with pytest.raises(CertificateRevoked):
        listed(consortium.root / "alice", roster)
    with pytest.raises(CertificateRevoked):
        revoke(consortium.keys, "alice")
    request = read_request((consortium.root / "alice/identity.csr").read_text())
    with pytest.raises(RequestRefused, match="its key was revoked"):
        approve(consortium.keys, [JoinApproval(request, consortium.root / "again.crt")], PASSPHRASE)


def test_a_revoked_client_joins_again_with_a_new_key(consortium):
    """The new identity is listed, the old one still refused as revoked."""
    revoke(consortium.keys, "alice")
    new = joined(consortium.keys, consortium.root / "new", "alice", "new")
    roster = load_roster(consortium.keys)
    assert listed(new, roster).name == "alice"
    with pytest.raises(CertificateRevoked):
        listed(consortium.root / "alice", roster)


def test_an_expired_certificate_is_refused(consortium):
    """After its 398 days a client is named as expired, and the others' roster still works."""
    roster = load_roster(consortium.keys, at=now() + timedelta(days=399))
    alice = load_identity(consortium.root / "alice", "of alice")
    with pytest.raises(CertificateExpired, match="alice's certificate"):
        roster.member("alice")
    with pytest.raises(SignatureRefused):
        roster.identities().check(*message_of("alice", alice.private_key))
    with pytest.raises(CertificateExpired):
        load_roster(consortium.keys, at=now() + timedelta(days=3651))
    with pytest.raises(CertificateExpired):
        load_roster(consortium.keys, at=now() - timedelta(hours=2))
    assert "zoë k" in problems_of(consortium.keys, at=now() + timedelta(days=399)).lower()


def test_an_unknown_client_is_named_as_such(consortium):
    """A name that never joined is neither expired nor revoked."""
    roster = load_roster(consortium.keys)
    with pytest.raises(UnknownClient):
        roster.member("mallory")
    with pytest.raises(UnknownClient):
        revoke(consortium.keys, "mallory")


@pytest.mark.parametrize("file", ["ca.crt", "roster.json", "policy.json", "manifest.json"])
def test_a_foreign_consortiums_file_is_refused(consortium, foreign, file):
    """Each file of another consortium, of the same name and clients, is found in a bundle."""
    shutil.copy(
        foreign.bundle("client") / "consortium" / file, consortium.bundle("client/consortium")
    )
    assert problems_of(consortium.bundle("client"))
    with pytest.raises((ForeignAuthority, FileSignatureRefused)):
        load_bundle(consortium.bundle("client"), "client", consortium.ca.fingerprint)


def test_a_whole_foreign_bundle_is_told_by_its_fingerprint(consortium, foreign):
    """It is consistent with itself, so that only the fingerprint tells it."""
    assert not problems_of(foreign.bundle("client"))
    assert "as you expected" in problems_of(
        foreign.bundle("client"), authority=consortium.ca.fingerprint
    )
    with pytest.raises(ForeignAuthority):
        listed(foreign.root / "alice", load_roster(consortium.keys))


def test_an_older_roster_does_not_go_with_a_newer_list(consortium):
    """A roster from before a revocation, put back into a bundle, is not the one that was signed."""
    before = (consortium.keys / "consortium/roster.json").read_bytes()
    revoke(consortium.keys, "alice")
    export(consortium.keys, "server", consortium.root / "new", PASSPHRASE)
    (consortium.root / "new/consortium/roster.json").write_bytes(before)
    with pytest.raises(FileSignatureRefused):
        load_bundle(consortium.root / "new", "server")


@pytest.mark.parametrize("changed", ["another key", "another epoch", "another role"])
@pytest.mark.parametrize("role", CARDS)
def test_a_list_goes_with_the_key_that_it_names(consortium, foreign, role, changed):
    """Though the certificate authority itself has signed the digest of another file."""
    signer, path = open_signer(consortium.keys, PASSPHRASE, now()), CARDS[role]
    texts = bundle_texts(consortium.keys, role, signer)
    require_sound(Bundle.of(texts, None, now()), role)
    if changed == "another role":
        path = layout.BUNDLED_CERTIFICATE
        texts[path] = (consortium.root / "alice/identity.crt").read_text()
    elif changed == "another key":
        texts[path] = (foreign.keys / path).read_text()
    else:
        texts[path] = rewritten(consortium.keys / path, epoch=2)
    content = texts[path].encode()
    listed = Manifest.verified(texts[layout.MANIFEST], signer.ca)
    entry = BundledFile(path=str(path), n_bytes=len(content), sha256=digest(content))
    files = tuple(entry if file.path == str(path) else file for file in listed.files)
    texts[layout.MANIFEST] = listed.signed_anew(signer.ca, signer.key, now(), files=files)
    why = {
        "another key": "of another key than the signed list names",
        "another epoch": "of epoch 2, the signed list names",
        "another role": "alice's certificate is for the role client, not for authority as needed",
    }
    with pytest.raises(KeyFileError, match=f"{path}: {why[changed]}"):
        require_sound(Bundle.of(texts, None, now()), role)


def test_files_of_one_kind_do_not_pass_for_another(consortium):
    """A signed policy in the roster's place is no roster."""
    shutil.copy(
        consortium.keys / "consortium/policy.json", consortium.keys / "consortium/roster.json"
    )
    with pytest.raises(KeyFileError, match=r"roster\.json: this is a 'securefl-policy/3' file"):
        load_roster(consortium.keys)


def test_a_client_is_no_authority(consortium):
    """A certificate or a roster that alice signs with her own certified key is refused."""
    alice = load_identity(consortium.root / "alice", "of alice")
    with pytest.raises(KeyFileError, match="no certificate authority"):
        read_authority(alice.certificate_pem, now())
    eve = Ed25519PrivateKey.generate().public_key()
    certificate = issue(consortium.ca, alice.private_key, EVE, eve, now())
    with pytest.raises(ForeignAuthority):
        holder_certificate(certificate, consortium.ca)
    fields = {"format": ROSTER_FORMAT, "epoch": 1, "version": 9, "revoked": ()}
    certificates = listing([certificate])
    text = RosterFile.signing(
        consortium.ca, alice.private_key, now(), certificates=certificates, **fields
    )
    with pytest.raises(FileSignatureRefused):
        RosterFile.verified(text, consortium.ca)


def test_the_authoritys_own_certificate_is_no_client(consortium):
    """What the authority's key signed otherwise does not make a client."""
    with pytest.raises(CertificateRefused):
        holder_certificate(consortium.ca.certificate, consortium.ca)


def test_an_authority_with_the_same_name_is_foreign(consortium, tmp_path):
    """A certificate that claims the consortium's name is told by its key."""
    key = Ed25519PrivateKey.generate()
    twin = read_authority(pem_of(make_authority(consortium.ca.name, key, now())), now())
    with pytest.raises(ForeignAuthority):
        twin.require_fingerprint(consortium.ca.fingerprint)
    with pytest.raises(ForeignAuthority):
        holder_certificate(issue(twin, key, EVE, key.public_key(), now()), consortium.ca)


def test_an_identity_of_others_is_not_loaded(consortium):
    """Another passphrase, another's certificate, and a key that others may read."""
    with pytest.raises(WrongPassphrase):
        load_identity(consortium.root / "alice", "wrong")
    shutil.copy(consortium.root / "bob/identity.crt", consortium.root / "alice/identity.crt")
    with pytest.raises(CertificateRefused):
        load_identity(consortium.root / "alice", "of alice")
    with pytest.raises(CertificateRefused):
        listed(consortium.root / "alice", load_roster(consortium.keys))
    (consortium.root / "bob/identity.key").chmod(0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        load_identity(consortium.root / "bob", "of bob")
    (consortium.root / "Zoë K/identity.crt").unlink()
    with pytest.raises(KeyFileError, match="join approve"):
        load_identity(consortium.root / "Zoë K", "of Zoë K")


def test_secrets_are_not_shown_nor_pickled(consortium):
    """Neither identity nor signer has its key in its repr, and neither can be pickled."""
    identity = load_identity(consortium.root / "alice", "of alice")
    signer = open_signer(consortium.keys, PASSPHRASE, now())
    for holder in (identity, signer):
        assert "ed25519" not in repr(holder).lower().replace("\n", "")
        with pytest.raises(TypeError):
            pickle.dumps(holder)


def test_a_certificate_of_another_algorithm_is_refused(consortium):
    """Its key's algorithm is one that nobody knows: by a refusal of its owner's identity."""
    path = consortium.root / "alice" / "identity.crt"
    der = CertificateFile.parse(path.read_text()).identity.public_bytes(Encoding.DER)
    ed25519 = bytes.fromhex("06032b6570032100")
    assert der.count(ed25519) == 1
    unknown = der.replace(ed25519, bytes.fromhex("06032b657f032100"))
    body = "\n".join(textwrap.wrap(base64.b64encode(unknown).decode(), 64))
    path.write_text(f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    with pytest.raises(CertificateRefused, match="its key is not Ed25519"):
        load_identity(path.parent, "of alice")
    assert verify(consortium.bundle("client"), path.parent).problems
