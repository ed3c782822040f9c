"""Who asks to join gets one role and a name that nobody has, for a key of its own, and no more."""

from __future__ import annotations

import pytest
from consortium_files import PASSPHRASE, joined
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
from securefl_keys.certificate_form import Holder
from securefl_keys.identity import load_identity, make_identities
from securefl_keys.membership import JoinApproval, approve
from securefl_keys.request import make_request, read_request

pytestmark = pytest.mark.usefixtures("cheap_guesses")


@pytest.mark.parametrize("name", ["alice", "ALICE", "ａｌｉｃｅ"])
def test_a_name_is_given_once(consortium, tmp_path, name):
    """Nor one that an eye or an ear takes for it."""
    with pytest.raises(RequestRefused, match="lists 'alice' already"):
        joined(consortium.keys, tmp_path / "twin", name, "twin")
    assert not list(tmp_path.glob("twin/*/identity.crt"))


@pytest.mark.parametrize("role", ["client", "server"])
def test_a_name_is_given_once_among_all_roles(consortium, tmp_path, role):
    """No server has a client's name, no client a server's, and none the authority's."""
    for name in ("hub", "bob"):
        with pytest.raises(RequestRefused, match="already"):
            joined(consortium.keys, tmp_path / "twin", name, "twin", role)
    with pytest.raises(RequestRefused, match="the authority's own name"):
        joined(consortium.keys, tmp_path / "twin", "Authority", "twin", role)


def test_a_key_is_given_one_name(consortium, tmp_path):
    """Bob's key does not become another client's."""
    key = load_identity(consortium.root / "bob", "of bob").private_key
    for role in ("client", "server"):
        request = read_request(make_request(Holder("bobby", role), key))
        with pytest.raises(RequestRefused, match="its key is that of client 'bob'"):
            approve(consortium.keys, [JoinApproval(request, tmp_path / "bobby.crt")], PASSPHRASE)


@pytest.mark.parametrize(
    "name", ["", " alice", "a\nb", "a\x1b[2J", "../up", "a\u202eb", "x" * 65, "e\u0301"]
)
def test_a_name_must_be_fit_to_show(tmp_path, name):
    """Control characters, path parts, invisible and overlong names get no request."""
    with pytest.raises(RequestRefused, match="cannot be a name"):
        make_identities(tmp_path / "new", ["fine", name], "client", "passphrase")
    assert not (tmp_path / "new").exists()


def csr(subject, key, algorithm=None, extensions=(), *, critical=False):
    name = x509.Name([x509.NameAttribute(oid, value) for oid, value in subject])
    builder = x509.CertificateSigningRequestBuilder(subject_name=name)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM).decode()


def test_a_request_asks_for_a_name_and_no_more():
    """Foreign key types, other subjects, wishes for a CA, and hidden control characters."""
    key, common = Ed25519PrivateKey.generate(), (NameOID.COMMON_NAME, "eve")
    ca = x509.BasicConstraints(ca=True, path_length=None)
    curve = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(RequestRefused, match="not Ed25519"):
        read_request(csr([common], curve, hashes.SHA256()))
    with pytest.raises(RequestRefused, match="something else"):
        read_request(csr([common], key, extensions=[ca]))
    with pytest.raises(RequestRefused, match="more than a name"):
        read_request(csr([common, (NameOID.ORGANIZATION_NAME, "x")], key))
    for bad in ("e\nve", "e\x1bve", "\u202eeve"):
        with pytest.raises(RequestRefused, match="cannot be a name"):
            read_request(csr([(NameOID.COMMON_NAME, bad)], key))
    with pytest.raises(RequestRefused, match="no signing request"):
        read_request("hello")


def uris(*texts):
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(text) for text in texts])


ASKED = {
    "another's name": [uris("urn:securefl:client:bob")],
    "to be the authority": [uris("urn:securefl:authority:eve")],
    "an unknown role": [uris("urn:securefl:owner:eve")],
    "two roles": [uris("urn:securefl:client:eve", "urn:securefl:server:eve")],
    "one role twice": [uris("urn:securefl:client:eve", "urn:securefl:client:eve")],
    "a host": [x509.SubjectAlternativeName([x509.DNSName("urn:securefl:client:eve")])],
    "more": [uris("urn:securefl:client:eve"), x509.BasicConstraints(ca=True, path_length=None)],
    "otherwise written": [uris("urn:securefl:client:%65ve")],
}


@pytest.mark.parametrize("what", ASKED)
def test_a_request_asks_for_one_role_under_its_own_name(what):
    """Any other set of extensions is refused, also where it only says more."""
    key, common = Ed25519PrivateKey.generate(), (NameOID.COMMON_NAME, "eve")
    with pytest.raises(RequestRefused, match="something else"):
        read_request(csr([common], key, extensions=ASKED[what]))


def test_a_request_names_its_role():
    """Without a role it gets no certificate; with one, in one form only, it has that role."""
    key, common = Ed25519PrivateKey.generate(), (NameOID.COMMON_NAME, "eve")
    with pytest.raises(RequestRefused, match=r"names no role.*make it anew"):
        read_request(csr([common], key))
    asked = uris("urn:securefl:server:eve")
    assert read_request(csr([common], key, extensions=[asked])).role == "server"
    with pytest.raises(RequestRefused, match="something else"):
        read_request(csr([common], key, extensions=[asked], critical=True))


def test_the_role_in_a_request_cannot_be_swapped():
    """A client's request that was turned into a server's under way is not its own any more."""
    text = make_request(Holder("eve", "client"), Ed25519PrivateKey.generate())
    der = x509.load_pem_x509_csr(text.encode()).public_bytes(Encoding.DER)
    swapped = der.replace(b"urn:securefl:client:eve", b"urn:securefl:server:eve")
    assert swapped != der
    forged = x509.load_der_x509_csr(swapped).public_bytes(Encoding.PEM).decode()
    with pytest.raises(RequestRefused, match="not signed by the key"):
        read_request(forged)


def test_nobody_joins_as_the_authority(tmp_path):
    """Its identity is made with the consortium, so no request for it can be made either."""
    with pytest.raises(RequestRefused, match="made with the consortium"):
        make_identities(tmp_path, ["eve"], "authority", "passphrase")
    assert list(tmp_path.iterdir()) == []


def test_a_request_under_anothers_key_is_refused():
    """Eve cannot ask for a certificate of a public key whose secret she has not."""
    alice, eve = (
        make_request(Holder(n, "client"), Ed25519PrivateKey.generate()) for n in ("alice", "eve")
    )
    a, e = (bytearray(x509.load_pem_x509_csr(t.encode()).public_bytes(Encoding.DER))
            for t in (alice, eve))  # fmt: skip
    a[-64:] = e[-64:]
    forged = x509.load_der_x509_csr(bytes(a)).public_bytes(Encoding.PEM).decode()
    with pytest.raises(RequestRefused, match="not signed by the key"):
        read_request(forged)


@pytest.mark.parametrize(
    "name",
    [
        "alice\ufe0f",
        "alice\u034f",
        "alice\u3164",
        "alice\u2800",
        "al\u0456ce",
        "\u0430uthority",
        "alice\u200d",
        "ali\u0441e",
    ],
    ids=ascii,
)
def test_a_name_that_an_eye_takes_for_another_is_none(name, tmp_path):
    """Of letters of two scripts, or with what nobody sees."""
    with pytest.raises(RequestRefused, match="one script"):
        make_identities(tmp_path, [name], "client", "a passphrase")


@pytest.mark.parametrize(
    "name", ["Zoë K", "Северная больница", "東京ひらカタ", "दिल्ली", "St. Mary (A)"]
)
def test_names_of_any_one_script_are_names(name, tmp_path):
    """With digits and what stands between words."""
    make_identities(tmp_path, [name, f"{name} 2"], "client", "a passphrase")
