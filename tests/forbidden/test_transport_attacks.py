"""No certificate for TLS makes anybody a member but the one whose identity the roster lists now."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import grpc
import pytest
from consortium_files import PASSPHRASE, SERVER, joined, make_consortium, revoke
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from securefl.errors import (
    CertificateExpired,
    CertificateRefused,
    CertificateRevoked,
    ForeignAuthority,
    KeyFileError,
    UnknownClient,
)
from securefl_keys import certificates
from securefl_keys.bundle import RosterTrust, VerifiedBundle, process_identity
from securefl_keys.certificate_form import (
    Holder,
    is_p256,
    key_id_of,
    pem_blocks,
    pem_of,
    require_issued,
)
from securefl_keys.certificates import (
    CertificateFile,
    holder_certificate,
    issue,
    issue_file,
    issue_transport,
    transport_holder,
    transport_key,
)
from securefl_keys.identity import listed, load_identity
from securefl_keys.roster import VerifiedRoster, load_roster
from securefl_keys.signed_file import now
from securefl_keys.signer import open_signer
from securefl_keys.verification import verify

pytestmark = pytest.mark.usefixtures("cheap_guesses")

FOLDERS = {"client": "alice", "server": SERVER, "authority": "keys/authority"}
PASSPHRASES = {"client": "of alice", "server": f"of {SERVER}", "authority": PASSPHRASE}


def file_in(folder):
    return CertificateFile.parse((folder / "identity.crt").read_text())


def transport_in(folder):
    return file_in(folder).transport


def process(consortium, role):
    folder = consortium.root / FOLDERS[role]
    return process_identity(folder, PASSPHRASES[role], consortium.ca, role)


@pytest.fixture
def signer(consortium):
    return open_signer(consortium.keys, PASSPHRASE, now())


@pytest.fixture
def roster(consortium):
    return load_roster(consortium.keys)


@pytest.mark.parametrize("shown", FOLDERS)
@pytest.mark.parametrize("needed", FOLDERS)
def test_a_transport_certificate_passes_for_its_own_role_alone(consortium, roster, shown, needed):
    """Each of the three, where each of the three roles is needed."""
    certificate = transport_in(consortium.root / FOLDERS[shown])
    if shown == needed:
        found = RosterTrust(roster).transport_holder(certificate, needed)
        assert found == {"client": "alice", "server": SERVER}.get(shown, "authority")
    else:
        with pytest.raises(CertificateRefused, match=f"not for {needed} as needed"):
            RosterTrust(roster).transport_holder(certificate, needed)


def test_a_transport_certificate_says_whose_it_is(consortium):
    """Role as a host, holder, and the key id of the identity; the use is of one end."""
    uses = {
        "client": ExtendedKeyUsageOID.CLIENT_AUTH,
        "server": ExtendedKeyUsageOID.SERVER_AUTH,
        "authority": ExtendedKeyUsageOID.CLIENT_AUTH,
    }
    for role, folder in FOLDERS.items():
        file = file_in(consortium.root / folder)
        found = {e.value.oid: e.value for e in file.transport.extensions}
        names = [name.value for name in found[x509.SubjectAlternativeName.oid]]
        identity = key_id_of(file.identity.public_key())
        name = folder.rpartition("/")[2]
        assert names == [
            f"{role}.securefl",
            f"urn:securefl:{role}:{name}",
            f"urn:securefl:identity:{identity}",
        ]
        assert list(found[x509.ExtendedKeyUsage.oid]) == [uses[role]]
        assert transport_holder(file.transport, consortium.ca).identity == identity


def test_an_identity_certificate_is_none_for_tls_and_the_other_way_round(consortium, roster):
    """The two blocks of a file do not pass for each other."""
    file = file_in(consortium.root / "alice")
    with pytest.raises(CertificateRefused, match="not P-256"):
        roster.transport_holder_of(file.identity, "client")
    with pytest.raises(CertificateRefused, match="not Ed25519"):
        roster.holder_of(file.transport, "client")
    with pytest.raises(CertificateRefused):
        transport_holder(consortium.ca.certificate, consortium.ca)


@pytest.mark.parametrize("role", ["client", "server"])
def test_a_revoked_identity_has_no_transport_certificate(consortium, role):
    """Nothing else is revoked: the roster lists no transport certificate."""
    old = transport_in(consortium.root / FOLDERS[role])
    revoked = revoke(consortium.keys, FOLDERS[role])
    with pytest.raises(CertificateRevoked):
        revoked.transport_holder_of(old, role)
    joined(consortium.keys, consortium.root / "new", FOLDERS[role], "new", role)
    again = load_roster(consortium.keys)
    with pytest.raises(CertificateRevoked):
        again.transport_holder_of(old, role)
    new = transport_in(consortium.root / "new" / FOLDERS[role])
    assert again.transport_holder_of(new, role).name == FOLDERS[role]


def test_what_was_found_of_a_certificate_holds_for_its_bytes_and_authority_alone(
    consortium, tmp_path, monkeypatch
):
    """A server asks again and again about a caller: signatures are checked once, the rest anew."""
    checked, foreign = [], make_consortium(tmp_path / "foreign").ca

    def counted(certificate, *about):
        checked.extend([certificate] * is_p256(certificate.public_key()))  # none of an identity
        require_issued(certificate, *about)

    monkeypatch.setattr(certificates, "require_issued", counted)
    certificates.transport_holder.cache_clear()
    certificate = transport_in(consortium.root / "alice")
    for _ in range(3):
        again = x509.load_der_x509_certificate(certificate.public_bytes(Encoding.DER))
        roster = load_roster(consortium.keys)
        assert roster.transport_holder_of(again, "client").name == "alice"
    assert len(checked) == 1
    der = certificate.public_bytes(Encoding.DER)
    changed = x509.load_der_x509_certificate(der[:-1] + bytes([der[-1] ^ 1]))
    for _ in range(2):
        with pytest.raises(ForeignAuthority):
            roster.transport_holder_of(changed, "client")
    with pytest.raises(ForeignAuthority):
        transport_holder(certificate, foreign)
    assert len(checked) == 4
    with pytest.raises(CertificateRevoked):
        revoke(consortium.keys, "alice").transport_holder_of(certificate, "client")
    assert len(checked) == 4


def bound_to(signer, holder, key):
    """The transport certificate of an identity that the authority has issued to this key."""
    keys = key.public_key(), transport_key(key).public_key()
    return issue_file(signer.ca, signer.key, holder, keys, now()).transport


def test_a_transport_certificate_of_another_identity_is_refused(roster, signer):
    """The authority has signed it for alice's name, and the roster lists another key of hers."""
    key = Ed25519PrivateKey.generate()
    with pytest.raises(UnknownClient, match="another identity key"):
        roster.transport_holder_of(bound_to(signer, Holder("alice", "client"), key), "client")
    with pytest.raises(UnknownClient, match="no member"):
        roster.transport_holder_of(bound_to(signer, Holder("eve", "client"), key), "client")


def test_alices_identity_is_not_carried_to_another_role(consortium, roster, signer):
    """Her own key, certified as a server's: the roster lists her as a client."""
    key = load_identity(consortium.root / "alice", "of alice").private_key
    with pytest.raises(UnknownClient, match="another identity key"):
        roster.transport_holder_of(bound_to(signer, Holder("alice", "server"), key), "server")


@pytest.mark.parametrize("role", FOLDERS)
def test_an_expired_transport_certificate_is_refused(consortium, roster, role):
    """Too late, and too early."""
    certificate = transport_in(consortium.root / FOLDERS[role])
    for at in (now() + timedelta(days=3651), now() - timedelta(hours=2)):
        then = VerifiedRoster(roster.ca, roster.file, roster.members, at)
        with pytest.raises(CertificateExpired, match="for TLS is valid from"):
            then.transport_holder_of(certificate, role)


def test_the_door_looks_at_the_clock_of_the_moment(consortium, monkeypatch):
    """A bundle that was loaded in time refuses who has expired since."""
    bundle = VerifiedBundle.load(consortium.bundle("server"), "server")
    certificate = transport_in(consortium.root / "alice")
    assert bundle.transport_holder(certificate, "client") == "alice"
    later = now() + timedelta(days=399)
    monkeypatch.setattr("securefl_keys.bundle.now", lambda: later)
    with pytest.raises(CertificateExpired):
        bundle.transport_holder(certificate, "client")


def test_another_authoritys_transport_certificate_is_foreign(consortium, roster, tmp_path):
    """Of a consortium of the same name and members, and one that alice signs herself."""
    foreign = make_consortium(tmp_path / "foreign")
    with pytest.raises(ForeignAuthority):
        roster.transport_holder_of(transport_in(foreign.root / "alice"), "client")
    alice = load_identity(consortium.root / "alice", "of alice")
    identity = holder_certificate(file_in(consortium.root / SERVER).identity, consortium.ca)
    stolen = transport_key(alice.private_key).public_key()
    forged = issue_transport(consortium.ca, alice.private_key, identity, stolen)
    with pytest.raises(ForeignAuthority):
        roster.transport_holder_of(forged, "server")


def with_names(signer, original, names):
    """The same certificate, signed by the authority, with other alternative names."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(original.subject)
        .issuer_name(original.issuer)
        .public_key(original.public_key())
        .serial_number(original.serial_number)
        .not_valid_before(original.not_valid_before_utc)
        .not_valid_after(original.not_valid_after_utc)
    )
    for extension in original.extensions:
        changed = isinstance(extension.value, x509.SubjectAlternativeName)
        value = x509.SubjectAlternativeName(names) if changed else extension.value
        builder = builder.add_extension(value, extension.critical)
    return builder.sign(signer.key, None)


DNS, URI = x509.DNSName, x509.UniformResourceIdentifier
OWN, BOUND = URI("urn:securefl:client:alice"), URI("urn:securefl:identity:" + "ab" * 32)
NAMES = {
    "no identity": [DNS("client.securefl"), OWN],
    "an identity without a key": [DNS("client.securefl"), OWN, URI("urn:securefl:identity:")],
    "a key id in capitals": [
        *(DNS("client.securefl"), OWN),
        URI("urn:securefl:identity:" + "AB" * 32),
    ],
    "two identities": [DNS("client.securefl"), OWN, BOUND, BOUND],
    "the server's host": [DNS("server.securefl"), OWN, BOUND],
    "a second host": [DNS("client.securefl"), DNS("server.securefl"), OWN, BOUND],
    "another's name": [DNS("client.securefl"), URI("urn:securefl:client:bob"), BOUND],
    "another order": [OWN, DNS("client.securefl"), BOUND],
}


@pytest.mark.parametrize("what", NAMES)
def test_a_transport_certificate_has_its_names_and_no_other(consortium, signer, what):
    """Whoever signed it: what the authority never issues is not read."""
    original = transport_in(consortium.root / "alice")
    good = with_names(signer, original, [DNS("client.securefl"), OWN, BOUND])
    assert transport_holder(good, consortium.ca).identity == "ab" * 32
    with pytest.raises(CertificateRefused):
        transport_holder(with_names(signer, original, NAMES[what]), consortium.ca)


@pytest.mark.parametrize("curve", [ec.SECP384R1(), ec.SECP256K1()], ids=lambda c: c.name)
def test_a_transport_key_on_another_curve_is_refused(consortium, signer, curve):
    """Also where the authority has signed it."""
    identity = holder_certificate(file_in(consortium.root / "alice").identity, consortium.ca)
    key = ec.generate_private_key(curve).public_key()
    with pytest.raises(CertificateRefused, match="not P-256"):
        transport_holder(issue_transport(signer.ca, signer.key, identity, key), consortium.ca)


def test_anothers_transport_certificate_in_my_file_is_found(consortium, roster):
    """By who opens the key, by who only looks, and by the process."""
    alice, bob = (consortium.root / name for name in ("alice", "bob"))
    mixed = CertificateFile(file_in(alice).identity, file_in(bob).transport)
    (alice / "identity.crt").write_text(mixed.text)
    with pytest.raises(CertificateRefused, match="for TLS is not of alice's key"):
        load_identity(alice, "of alice")
    with pytest.raises(CertificateRefused, match="for TLS is not of alice's key"):
        process(consortium, "client")
    with pytest.raises(CertificateRefused, match="is of client bob"):
        listed(alice, roster)
    assert any("is of client bob" in p for p in verify(consortium.bundle("client"), alice).problems)


def test_my_transport_key_bound_to_another_identity_is_found(consortium, signer):
    """The right key and the right authority, but the identity is bob's."""
    alice = consortium.root / "alice"
    key = transport_key(load_identity(alice, "of alice").private_key).public_key()
    bob = holder_certificate(file_in(consortium.root / "bob").identity, consortium.ca)
    wrong = issue_transport(signer.ca, signer.key, bob, key)
    (alice / "identity.crt").write_text(CertificateFile(file_in(alice).identity, wrong).text)
    assert load_identity(alice, "of alice").transport == wrong
    with pytest.raises(CertificateRefused, match="is of client bob"):
        process(consortium, "client")


@pytest.mark.parametrize("n", [0, 3])
def test_a_file_has_one_or_two_certificates(consortium, n):
    """None, or a third one, is refused; so are two in the wrong order by their kinds of key."""
    first, second = pem_blocks((consortium.root / "alice/identity.crt").read_text())
    with pytest.raises(KeyFileError, match=r"no certificate|holds 3"):
        CertificateFile.parse("".join([first, second, second][:n]))
    (consortium.root / "alice/identity.crt").write_text(second + first)
    with pytest.raises(CertificateRefused, match="not Ed25519"):
        load_identity(consortium.root / "alice", "of alice")


@pytest.mark.parametrize("role", FOLDERS)
def test_a_process_has_its_transport_key_in_memory_alone(consortium, role):
    """It goes with the certificate, is shown nowhere, pickled nowhere, and in no file."""
    own = process(consortium, role)
    key = load_pem_private_key(own.transport_key_pem(), None)
    certificate = x509.load_pem_x509_certificate(own.transport_pem)
    assert key.public_key() == certificate.public_key() == own.transport.public_key()
    assert x509.load_pem_x509_certificate(own.ca_pem) == consortium.ca.certificate
    assert "EllipticCurve" not in repr(own)
    with pytest.raises(TypeError):
        pickle.dumps(own)
    raw = key.private_numbers().private_value.to_bytes(32, "big")
    for path in consortium.root.rglob("*"):
        if path.is_file():
            assert raw not in path.read_bytes()
            assert b"BEGIN PRIVATE" not in path.read_bytes()


def of_older_release(folder):
    """The file as releases before transport certificates wrote it."""
    (folder / "identity.crt").write_text(pem_of(file_in(folder).identity))


def test_a_folder_of_an_older_release_says_what_to_do(consortium):
    """It is still an identity; what needs TLS names the way out."""
    of_older_release(consortium.root / "alice")
    own = process(consortium, "client")
    assert (own.name, own.transport, own.transport_key) == ("alice", None, None)
    for needed in (lambda: own.transport_pem, own.transport_key_pem):
        with pytest.raises(
            KeyFileError, match=r"alice: .*older releases: .*renew request.*join approve"
        ):
            needed()
    assert not verify(consortium.bundle("client"), consortium.root / "alice").problems


def test_an_older_authority_gets_its_transport_certificate_with_an_approval(consortium):
    """Of the same identity, whose block and key stay as they are; once is enough."""
    own = consortium.keys / "authority"
    before, key = file_in(own), (own / "identity.key").read_bytes()
    of_older_release(own)
    joined(consortium.keys, consortium.root / "new", "dora", "new")
    after, text = file_in(own), (own / "identity.crt").read_text()
    assert (after.identity, (own / "identity.key").read_bytes()) == (before.identity, key)
    assert after.transport.not_valid_after_utc == before.identity.not_valid_after_utc
    found = load_roster(consortium.keys).transport_holder_of(after.transport, "authority")
    assert found.name == process(consortium, "authority").name
    assert not verify(consortium.keys, passphrase=PASSPHRASE).problems
    joined(consortium.keys, consortium.root / "newer", "ella", "new")
    assert (own / "identity.crt").read_text() == text


def test_an_authority_under_another_key_gets_none(consortium):
    """Its sealed key is not that of its certificate: nobody joins, and nothing is written."""
    own = consortium.keys / "authority"
    of_older_release(own)
    (own / "identity.crt").write_text(pem_of(file_in(consortium.root / "alice").identity))
    with pytest.raises(CertificateRefused):
        joined(consortium.keys, consortium.root / "new", "dora", "new")
    assert "dora" not in load_roster(consortium.keys).members
    assert not (consortium.root / "new/dora/identity.crt").exists()


@contextmanager
def served(own):
    """A gRPC server's address; it answers with the peer's certificate."""
    methods = {
        "ask": grpc.unary_unary_rpc_method_handler(
            lambda _, context: context.auth_context()["x509_pem_cert"][0]
        )
    }
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", methods),))
    pair = [(own.transport_key_pem(), own.transport_pem)]
    credentials = grpc.ssl_server_credentials(pair, own.ca_pem, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def asked(address, own, host="server.securefl"):
    """The certificate that the server has seen; raises grpc.RpcError."""
    credentials = grpc.ssl_channel_credentials(
        own.ca_pem, own.transport_key_pem(), own.transport_pem
    )
    options = [("grpc.ssl_target_name_override", host)]
    with grpc.secure_channel(address, credentials, options) as channel:
        return channel.unary_unary("/test/ask")(b"", timeout=10)


@pytest.mark.parametrize("role", ["client", "authority"])
def test_grpc_connects_with_transport_certificates(consortium, roster, role):
    """BoringSSL takes P-256 keys under an Ed25519 authority; the roster does the rest."""
    caller = process(consortium, role)
    with served(process(consortium, "server")) as address:
        seen = x509.load_pem_x509_certificate(asked(address, caller))
    assert RosterTrust(roster).transport_holder(seen, role) == caller.name


def test_a_client_is_no_server_to_grpc(consortium):
    """Its certificate is not for that end, by its use and by its host; nor is a server a client."""
    alice, hub = process(consortium, "client"), process(consortium, "server")
    with served(alice) as address:
        for host in ("server.securefl", "client.securefl"):
            with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
                asked(address, alice, host)
    with served(hub) as address:
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            asked(address, hub)
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            asked(address, alice, "client.securefl")


def test_a_foreign_consortium_is_no_peer_to_grpc(consortium, tmp_path):
    """On neither side."""
    foreign = make_consortium(tmp_path / "foreign")
    eve = process(foreign, "client")
    with served(process(consortium, "server")) as address, pytest.raises(grpc.RpcError):
        asked(address, eve)
    with served(process(foreign, "server")) as address, pytest.raises(grpc.RpcError):
        asked(address, process(consortium, "client"))


def test_an_identity_is_issued_without_a_transport_certificate_where_none_is_asked(signer):
    """`issue` and `issue_file` agree on the identity's part."""
    eve = Holder("eve", "client")
    key = Ed25519PrivateKey.generate().public_key()
    at = now()
    file = issue_file(signer.ca, signer.key, eve, (key, None), at)
    plain = issue(signer.ca, signer.key, eve, key, at)
    assert file.transport is None
    assert list(file.identity.extensions) == list(plain.extensions)
    assert file.text == pem_of(file.identity)
