"""Who asks to be a client gets a name that nobody has, for a key of its own, and no more."""

from __future__ import annotations

import shutil

import pytest
from consortium_files import PASSPHRASE, make_consortium
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
)
from cryptography.x509.oid import NameOID

from securefl.errors import (
    RequestRefused,
)
from securefl_keys import sealed_file
from securefl_keys.consortium import approve
from securefl_keys.identity import load_identity, make_identity
from securefl_keys.request import make_request, read_request


@pytest.fixture(scope="module", autouse=True)
def _cheap_guesses():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "KDF_COST", sealed_file.KdfCost(1, 1, 8))
        yield


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    return make_consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture
def made(unchanged, tmp_path):
    shutil.copytree(unchanged.root, tmp_path / "made")
    return type(unchanged)(tmp_path / "made", unchanged.ca)


@pytest.mark.parametrize("name", ["alice", "ALICE", "ａｌｉｃｅ"])
def test_a_name_is_given_once(made, tmp_path, name):
    """Nor one that an eye or an ear takes for it."""
    request = make_identity(tmp_path / "twin", name, "twin")
    with pytest.raises(RequestRefused, match="lists 'alice' already"):
        approve(made.keys, request, tmp_path / "twin.crt", PASSPHRASE)
    assert not (tmp_path / "twin.crt").exists()


def test_a_key_is_given_one_name(made, tmp_path):
    """Bob's key does not become another client's."""
    _, key = "bob", load_identity(made.root / "bob", "of bob").private_key
    request = read_request(make_request("bobby", key))
    with pytest.raises(RequestRefused, match="its key is that of client 'bob'"):
        approve(made.keys, request, tmp_path / "bobby.crt", PASSPHRASE)


@pytest.mark.parametrize(
    "name", ["", " alice", "a\nb", "a\x1b[2J", "../up", "a\u202eb", "x" * 65, "e\u0301"]
)
def test_a_name_must_be_fit_to_show(tmp_path, name):
    """Control characters, path parts, invisible and overlong names get no request."""
    with pytest.raises(RequestRefused, match="cannot be a name"):
        make_identity(tmp_path / "new", name, "passphrase")
    assert not (tmp_path / "new").exists()


def csr(subject, key, algorithm=None, extensions=()):
    name = x509.Name([x509.NameAttribute(oid, value) for oid, value in subject])
    builder = x509.CertificateSigningRequestBuilder(subject_name=name)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM).decode()


def test_a_request_asks_for_a_name_and_no_more():
    """Foreign key types, other subjects, wishes for a CA, and hidden control characters."""
    key, common = Ed25519PrivateKey.generate(), (NameOID.COMMON_NAME, "eve")
    ca = x509.BasicConstraints(ca=True, path_length=None)
    curve = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(RequestRefused, match="not Ed25519"):
        read_request(csr([common], curve, hashes.SHA256()))
    with pytest.raises(RequestRefused, match="more than a name"):
        read_request(csr([common], key, extensions=[ca]))
    with pytest.raises(RequestRefused, match="more than a name"):
        read_request(csr([common, (NameOID.ORGANIZATION_NAME, "x")], key))
    for bad in ("e\nve", "e\x1bve", "\u202eeve"):
        with pytest.raises(RequestRefused, match="cannot be a name"):
            read_request(csr([(NameOID.COMMON_NAME, bad)], key))
    with pytest.raises(RequestRefused, match="no signing request"):
        read_request("hello")


def test_a_request_under_anothers_key_is_refused():
    """Eve cannot ask for a certificate of a public key whose secret she has not."""
    alice, eve = (make_request(n, Ed25519PrivateKey.generate()) for n in ("alice", "eve"))
    a, e = (bytearray(x509.load_pem_x509_csr(t.encode()).public_bytes(Encoding.DER))
            for t in (alice, eve))  # fmt: skip
    a[-64:] = e[-64:]
    forged = x509.load_der_x509_csr(bytes(a)).public_bytes(Encoding.PEM).decode()
    with pytest.raises(RequestRefused, match="not signed by the key"):
        read_request(forged)
