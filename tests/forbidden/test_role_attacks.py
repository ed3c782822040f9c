"""A certificate is for one role: a server is no client, a client no server, and so on."""

from __future__ import annotations

import shutil
from datetime import timedelta

import pytest
from consortium_files import CLIENTS, PASSPHRASE, SERVER, joined, make_consortium, revoke
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID

from securefl.errors import (
    CertificateExpired,
    CertificateRefused,
    CertificateRevoked,
    ForeignAuthority,
    SignatureRefused,
    UnknownClient,
)
from securefl.exchange.sums import Sealed
from securefl.federation.message import Expected, encode_message, header_for, split_message
from securefl_keys.certificate_form import AUTHORITY, Holder, pem_of
from securefl_keys.certificates import CertificateFile, holder_certificate, issue
from securefl_keys.identity import listed, load_identity, seal_identity_key
from securefl_keys.roster import ROSTER_FORMAT, RosterFile, VerifiedRoster, listing, load_roster
from securefl_keys.signed_file import now
from securefl_keys.signer import open_signer
from securefl_keys.verification import verify

pytestmark = pytest.mark.usefixtures("cheap_guesses")


@pytest.fixture
def signer(consortium):
    return open_signer(consortium.keys, PASSPHRASE, now())


def certificate_in(folder):
    return CertificateFile.parse((folder / "identity.crt").read_text()).identity


def message_of(name, key):
    expected = Expected("ab" * 32, 1, "layer/mean", "number/float64", "", 1, 1)
    header = header_for(expected, name, Sealed(b"12345678"))
    return split_message(encode_message(header, b"12345678", key), 8)[0], expected


def roster_of(signer, *certificates):
    fields = {"format": ROSTER_FORMAT, "epoch": 1, "version": 9, "revoked": ()}
    text = RosterFile.signing(
        signer.ca, signer.key, now(), certificates=listing(certificates), **fields
    )
    return VerifiedRoster.parse(text, signer.ca, now())


def test_the_roster_lists_members_by_role(consortium):
    """Clients and servers stand in it by name; the authority does not."""
    roster = load_roster(consortium.keys)
    roles = {name: member.role for name, member in roster.members.items()}
    assert roles == dict.fromkeys(CLIENTS, "client") | {SERVER: "server"}


def test_a_servers_signature_is_no_contribution(consortium):
    """What the server signs with its own certified key is not believed, as itself or as alice."""
    hub = load_identity(consortium.root / SERVER, f"of {SERVER}")
    roster = load_roster(consortium.keys).identities()
    for name in (SERVER, "alice"):
        with pytest.raises(SignatureRefused):
            roster.check(*message_of(name, hub.private_key))
    own = load_identity(consortium.keys / "authority", PASSPHRASE)
    with pytest.raises(SignatureRefused):
        roster.check(*message_of(own.name, own.private_key))


FOLDERS = {"client": "alice", "server": SERVER, "authority": "keys/authority"}


@pytest.mark.parametrize("shown", FOLDERS)
@pytest.mark.parametrize("needed", FOLDERS)
def test_a_certificate_passes_for_its_own_role_alone(consortium, shown, needed):
    """Each of the three certificates, where each of the three roles is needed."""
    roster, certificate = (
        load_roster(consortium.keys),
        certificate_in(consortium.root / FOLDERS[shown]),
    )
    if shown == needed:
        assert roster.holder_of(certificate, needed).role == needed
    else:
        with pytest.raises(CertificateRefused, match=f"not for {needed} as needed"):
            roster.holder_of(certificate, needed)


def test_a_certificate_says_what_its_key_is_for(consortium):
    """In TLS, too: the extended key usage of each role."""
    uses = {
        role: list(
            certificate_in(consortium.root / folder)
            .extensions.get_extension_for_class(x509.ExtendedKeyUsage)
            .value
        )
        for role, folder in FOLDERS.items()
    }
    client, server = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
    assert uses == {"client": [client], "server": [server, client], "authority": [server]}


def test_a_certificate_with_anothers_key_usage_is_refused(consortium, signer):
    """A client's name with a server's extended key usage is for no role, whoever signed it."""
    key = Ed25519PrivateKey.generate().public_key()
    as_client, as_server = (
        issue(consortium.ca, signer.key, Holder("eve", role), key, now())
        for role in ("client", "server")
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(as_client.subject)
        .issuer_name(as_client.issuer)
        .public_key(key)
        .serial_number(as_client.serial_number)
        .not_valid_before(as_client.not_valid_before_utc)
        .not_valid_after(as_client.not_valid_after_utc)
    )
    for of_client, of_server in zip(as_client.extensions, as_server.extensions, strict=True):
        usage = isinstance(of_client.value, x509.ExtendedKeyUsage)
        mixed = of_server if usage else of_client
        builder = builder.add_extension(mixed.value, mixed.critical)
    with pytest.raises(CertificateRefused, match="for no role"):
        holder_certificate(builder.sign(signer.key, None), consortium.ca)


def test_a_roster_does_not_list_the_authority(consortium, signer):
    """Nor a member by its name: it would be believed as one of them."""
    with pytest.raises(CertificateRefused, match="lists the authority"):
        roster_of(signer, certificate_in(consortium.keys / "authority"))
    key = Ed25519PrivateKey.generate().public_key()
    twin = issue(consortium.ca, signer.key, Holder("AUTHORITY", "client"), key, now())
    with pytest.raises(CertificateRefused, match="lists the authority"):
        roster_of(signer, twin)


@pytest.mark.parametrize("name", ["alice", "ALICE", "other"])
def test_a_roster_lists_a_name_and_a_key_once_among_all(consortium, signer, name):
    """A server with a client's name, or with its key, is refused in a signed roster too."""
    alice = certificate_in(consortium.root / "alice")
    same = alice.public_key() if name == "other" else Ed25519PrivateKey.generate().public_key()
    server = issue(consortium.ca, signer.key, Holder(name, "server"), same, now())
    with pytest.raises(CertificateRefused, match="twice"):
        roster_of(signer, alice, server)


def test_an_identity_whose_certificate_is_for_another_role_is_refused(consortium, signer):
    """The key's header says client, the certificate of the same key and name says server."""
    folder = consortium.root / "alice"
    key = load_identity(folder, "of alice").private_key
    swapped = issue(consortium.ca, signer.key, Holder("alice", "server"), key.public_key(), now())
    (folder / "identity.crt").write_text(pem_of(swapped))
    with pytest.raises(CertificateRefused, match="for the role server"):
        listed(folder, roster_of(signer, swapped))


def test_only_the_roster_makes_a_member(consortium, signer):
    """A certificate of the right role that the roster does not list, or lists no more."""
    key = Ed25519PrivateKey.generate().public_key()
    eve = issue(consortium.ca, signer.key, Holder("eve", "server"), key, now())
    with pytest.raises(UnknownClient):
        signer.roster.holder_of(eve, "server")
    again = issue(consortium.ca, signer.key, Holder(SERVER, "server"), key, now())
    with pytest.raises(UnknownClient, match="another certificate"):
        signer.roster.holder_of(again, "server")
    hub = certificate_in(consortium.root / SERVER)
    revoked = revoke(consortium.keys, SERVER)
    with pytest.raises(CertificateRevoked):
        revoked.holder_of(hub, "server")


def test_a_revoked_client_does_not_come_back_as_a_server(consortium):
    """Its name may join again, under a new key; its old certificate stays revoked."""
    old = certificate_in(consortium.root / "alice")
    revoke(consortium.keys, "alice")
    joined(consortium.keys, consortium.root / "new", "alice", "new", "server")
    roster = load_roster(consortium.keys)
    assert roster.members["alice"].role == "server"
    with pytest.raises(CertificateRevoked):
        roster.holder_of(old, "client")


def test_the_authority_is_known_by_its_certificate(consortium, made_consortium, tmp_path):
    """By this consortium's, for as long as that lasts; a foreign one's is foreign."""
    certificate = certificate_in(consortium.keys / "authority")
    later = load_roster(consortium.keys, at=now() + timedelta(days=3649))
    assert later.holder_of(certificate, "authority").name == AUTHORITY.name
    with pytest.raises(CertificateExpired):
        VerifiedRoster(later.ca, later.file, later.members, now() + timedelta(days=3651)).holder_of(
            certificate, "authority"
        )
    foreign = make_consortium(tmp_path / "foreign")
    with pytest.raises(ForeignAuthority):
        load_roster(foreign.keys).holder_of(certificate, "authority")


def test_verify_finds_a_changed_identity_of_the_authority(consortium):
    """Another's certificate, or none, in the place of the authority's."""
    assert not verify(consortium.keys).problems
    shutil.copy(consortium.root / "alice/identity.crt", consortium.keys / "authority/identity.crt")
    assert any(
        "identity.crt: it is alice's" in problem for problem in verify(consortium.keys).problems
    )
    (consortium.keys / "authority/identity.crt").unlink()
    assert any("identity.crt" in problem for problem in verify(consortium.keys).problems)


def test_a_clients_identity_in_the_authoritys_place_is_found(consortium):
    """Even with its certificate, and sealed under the right passphrase."""
    key = load_identity(consortium.root / "alice", "of alice").private_key
    sealed = seal_identity_key(key, Holder("alice", "client"), PASSPHRASE)
    (consortium.keys / "authority/identity.key").write_text(sealed)
    shutil.copy(consortium.root / "alice/identity.crt", consortium.keys / "authority/identity.crt")
    assert any(
        "not for authority as needed" in problem for problem in verify(consortium.keys).problems
    )
