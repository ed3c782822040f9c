"""Both keys of a request are compared aloud, and each block is read in one form only."""

from __future__ import annotations

import pytest
from consortium_files import CLIENTS, PASSPHRASE
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.serialization import Encoding

from securefl.errors import (
    RequestRefused,
)
from securefl_keys.certificate_form import Holder, alternative_name, key_id_of, pem_blocks, subject
from securefl_keys.certificates import ORDER, CertificateFile
from securefl_keys.identity import make_identities
from securefl_keys.membership import JoinApproval, approve
from securefl_keys.request import make_request, read_request
from securefl_keys.roster import load_roster

pytestmark = pytest.mark.usefixtures("cheap_guesses")

DNS, URI = x509.DNSName, x509.UniformResourceIdentifier


def csr(holder, key, algorithm=None, extensions=None):
    builder = x509.CertificateSigningRequestBuilder(subject_name=subject(holder.name))
    for extension in [alternative_name(holder)] if extensions is None else extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM).decode()


EVE = Holder("eve", "client")


def low(make):
    """A request whose signature is in the one form, of those that `make` gives."""
    while True:
        request = x509.load_pem_x509_csr((text := make()).encode())
        if decode_dss_signature(request.signature)[1] <= ORDER // 2:
            return text


def test_a_swapped_or_missing_second_block_has_another_fingerprint():
    """Who stands between cannot give alice another transport key: the ear tells it."""
    identity, thief = Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())
    honest = make_request(EVE, identity)
    first, second = pem_blocks(honest)
    aloud = read_request(honest).fingerprint
    swapped = read_request(first + low(lambda: csr(EVE, thief, hashes.SHA256())))
    assert swapped.transport_key == thief.public_key()
    dropped = read_request(first)
    assert (dropped.transport_key, dropped.fingerprint) == (None, key_id_of(dropped.public_key))
    other = read_request(pem_blocks(make_request(EVE, Ed25519PrivateKey.generate()))[0] + second)
    assert len({aloud, swapped.fingerprint, dropped.fingerprint, other.fingerprint}) == 4


def test_a_request_of_an_older_release_gets_one_certificate(consortium, tmp_path):
    """By today's fingerprint of one key; nobody makes up a transport key for it."""
    request = read_request(csr(EVE, Ed25519PrivateKey.generate()))
    approve(consortium.keys, [JoinApproval(request, tmp_path / "eve.crt")], PASSPHRASE)
    assert CertificateFile.parse((tmp_path / "eve.crt").read_text()).transport is None


def test_the_first_block_is_that_of_older_releases():
    """Byte for byte: Ed25519 signs the same text the same way."""
    key = Ed25519PrivateKey.generate()
    assert pem_blocks(make_request(EVE, key))[0] == csr(EVE, key)


def p256(holder=EVE, extensions=None):
    key = ec.generate_private_key(ec.SECP256R1())
    return low(lambda: csr(holder, key, hashes.SHA256(), extensions))


def uris(*texts):
    return x509.SubjectAlternativeName([URI(text) for text in texts])


SECOND = {
    "another curve": lambda: csr(EVE, ec.generate_private_key(ec.SECP384R1()), hashes.SHA256()),
    "a curve of the same size": lambda: csr(
        EVE, ec.generate_private_key(ec.SECP256K1()), hashes.SHA256()
    ),
    "RSA": lambda: csr(EVE, rsa.generate_private_key(65537, 2048), hashes.SHA256()),
    "Ed25519": lambda: csr(EVE, Ed25519PrivateKey.generate()),
    "another hash": lambda: csr(EVE, ec.generate_private_key(ec.SECP256R1()), hashes.SHA384()),
    "another's name": lambda: p256(Holder("bob", "client")),
    "another's URI": lambda: p256(extensions=[uris("urn:securefl:client:bob")]),
    "another role": lambda: p256(Holder("eve", "server")),
    "no role": lambda: p256(extensions=[]),
    "a host": lambda: p256(extensions=[x509.SubjectAlternativeName([DNS("server.securefl")])]),
    "more": lambda: p256(
        extensions=[alternative_name(EVE), x509.BasicConstraints(ca=True, path_length=None)]
    ),
    "a third block": lambda: p256() + p256(),
    "words": lambda: "-----BEGIN nothing",
    "white space": lambda: p256() + "\n",
}


@pytest.mark.parametrize("what", SECOND)
def test_a_second_block_asks_for_the_same_with_a_p256_key(what):
    """Other keys, other names, a third block: refused in words."""
    first = csr(EVE, Ed25519PrivateKey.generate())
    assert read_request(first + p256()).transport_key is not None
    said = r"eve: (the second block, for TLS: \w|it has 3 blocks)"
    text = first + SECOND[what]()
    with pytest.raises(RequestRefused, match=None if what == "words" else said):
        read_request(text)


def sequence(body):
    """In DER, which has one form for each length."""
    n = len(body)
    if n < 128:
        return b"\x30" + bytes([n]) + body
    length = n.to_bytes(1 if n < 256 else 2, "big")
    return b"\x30" + bytes([0x80 + len(length)]) + length + body


def assembled(signed, signature):
    """A P-256 request of these parts."""
    bits = b"\x03" + bytes([len(signature) + 1]) + b"\x00" + signature
    algorithm = bytes.fromhex("300a06082a8648ce3d040302")
    return x509.load_der_x509_csr(sequence(signed + algorithm + bits))


def test_nobody_turns_a_request_into_another_of_the_same_keys():
    """ECDSA's (r, -s) verifies as well as (r, s): of the two, one is read."""
    first, second = pem_blocks(make_request(EVE, Ed25519PrivateKey.generate()))
    request = x509.load_pem_x509_csr(second.encode())
    r, s = decode_dss_signature(request.signature)
    assert assembled(request.tbs_certrequest_bytes, request.signature) == request
    twin = assembled(request.tbs_certrequest_bytes, encode_dss_signature(r, ORDER - s))
    assert twin.is_signature_valid
    assert twin.public_key() == request.public_key()
    with pytest.raises(RequestRefused, match="second block"):
        read_request(first + twin.public_bytes(Encoding.PEM).decode())


def test_a_compressed_point_is_another_form():
    """The same key, written otherwise, and signed so: refused."""
    key = ec.generate_private_key(ec.SECP256R1())
    plain = x509.load_pem_x509_csr(low(lambda: csr(EVE, key, hashes.SHA256())).encode())
    numbers = key.public_key().public_numbers()
    x, y = (n.to_bytes(32, "big") for n in (numbers.x, numbers.y))
    point = bytes.fromhex("03420004") + x + y
    short = bytes.fromhex("032200") + bytes([2 + numbers.y % 2]) + x
    signed = plain.tbs_certrequest_bytes
    assert signed.count(point) == 1
    parts = signed[3:] if signed[1] == 0x81 else signed[4:]
    info = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d030107")
    parts = parts.replace(info + point, b"\x30\x39" + info[2:] + short)
    signed, signature = sequence(parts), b""
    while not signature or decode_dss_signature(signature)[1] > ORDER // 2:
        signature = key.sign(signed, ec.ECDSA(hashes.SHA256()))
    twin = assembled(signed, signature)
    assert twin.is_signature_valid
    assert twin.public_key() == key.public_key()
    first = csr(EVE, Ed25519PrivateKey.generate())
    with pytest.raises(RequestRefused, match="not in its one form"):
        read_request(first + twin.public_bytes(Encoding.PEM).decode())


def test_members_of_several_requests_get_each_their_own(consortium):
    """Each certificate file is of the request's two keys."""
    folder = consortium.root / "more"
    requests = make_identities(folder, ["dora", "ella"], "client", "theirs")
    approve(
        consortium.keys,
        [JoinApproval(r, folder / r.name / "identity.crt") for r in requests],
        PASSPHRASE,
    )
    for request in requests:
        file = CertificateFile.parse((folder / request.name / "identity.crt").read_text())
        assert file.transport.public_key() == request.transport_key
        assert file.identity.public_key() == request.public_key
    assert len(CLIENTS) + 2 == len(load_roster(consortium.keys).clients())
