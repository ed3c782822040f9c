"""Certificates are renewed for the key that they are of, and for no other."""

from __future__ import annotations

import re
from contextlib import contextmanager
from datetime import timedelta

import pytest
from click.testing import CliRunner
from consortium_files import PASSPHRASE, SERVER, revoke
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from processes import PASSPHRASE as AUTHORITYS
from processes import SERVER as HUB
from processes import Loop, Site, passphrase_of
from test_transport_attacks import of_older_release

from securefl.errors import (
    CertificateExpired,
    CertificateRevoked,
    KeyFileError,
    RequestRefused,
    UnknownClient,
)
from securefl_cli.main import main
from securefl_keys import certificates
from securefl_keys.certificate_form import Holder, pem_blocks
from securefl_keys.certificates import MEMBER_LIFETIME, CertificateFile
from securefl_keys.identity import load_identity
from securefl_keys.membership import SOON, JoinApproval, dates_in, renew, write_request
from securefl_keys.request import make_request, read_request
from securefl_keys.roster import VerifiedRoster, load_roster
from securefl_keys.signed_file import now
from securefl_keys.verification import verify

pytestmark = pytest.mark.usefixtures("cheap_guesses")
DAY = timedelta(days=1)
LATER = now() + 300 * DAY


def file_in(folder):
    return CertificateFile.parse((folder / "identity.crt").read_text())


def renewed(consortium, name, at=LATER):
    """The roster after this member's certificates were renewed, in its own folder."""
    folder = consortium.root / name
    request = write_request(folder, f"of {name}")
    return renew(consortium.keys, [JoinApproval(request, folder / "identity.crt")], PASSPHRASE, at)


@pytest.mark.parametrize("name", ["alice", SERVER])
def test_a_renewed_certificate_takes_the_place_of_the_old_one(consortium, name):
    """Once in the roster, in the same place, of the same key and role; only dates are others."""
    before, old = load_roster(consortium.keys), file_in(consortium.root / name)
    after, new = renewed(consortium, name), file_in(consortium.root / name)
    assert list(after.members) == list(before.members)
    assert after.file.version == before.file.version + 1
    assert after.members[name].certificate == new.identity != old.identity
    assert after.members[name].key_id == before.members[name].key_id
    for block in (new.identity, new.transport):
        assert abs(block.not_valid_after_utc - LATER - MEMBER_LIFETIME) < DAY
    others = [n for n in before.members if n != name]
    assert [after.members[n].certificate for n in others] == [
        before.members[n].certificate for n in others
    ]


def test_the_old_certificate_is_taken_until_it_ends(consortium):
    """Of the same key: a process that holds it goes on, and is refused on the day after."""
    old = file_in(consortium.root / "alice")
    after = renewed(consortium, "alice")
    new, end = file_in(consortium.root / "alice"), old.identity.not_valid_after_utc
    for at in (LATER, end - DAY):
        then = VerifiedRoster(after.ca, after.file, after.members, at)
        assert then.holder_of(old.identity, "client").name == "alice"
        assert then.transport_holder_of(old.transport, "client").name == "alice"
    then = VerifiedRoster(after.ca, after.file, after.members, end + DAY)
    for shown, ask in ((old.identity, then.holder_of), (old.transport, then.transport_holder_of)):
        with pytest.raises(CertificateExpired, match="renew it: securefl keys renew request"):
            ask(shown, "client")
    assert then.holder_of(new.identity, "client").name == "alice"
    assert then.transport_holder_of(new.transport, "client").name == "alice"


def test_an_expired_certificate_can_be_renewed(consortium):
    """Nobody is revoked for having been late, and no other key is needed."""
    end = file_in(consortium.root / "alice").identity.not_valid_after_utc
    late = end + 9 * DAY
    with pytest.raises(CertificateExpired):
        load_roster(consortium.keys, at=late).member("alice")
    assert renewed(consortium, "alice", late).member("alice").name == "alice"


def test_revocation_is_of_all_certificates_of_a_key(consortium):
    """Of the old and of the new; and nobody is renewed who was revoked."""
    old = file_in(consortium.root / "alice")
    renewed(consortium, "alice", now())
    new = file_in(consortium.root / "alice")
    roster = revoke(consortium.keys, "alice")
    for file in (old, new):
        with pytest.raises(CertificateRevoked):
            roster.holder_of(file.identity, "client")
        with pytest.raises(CertificateRevoked):
            roster.transport_holder_of(file.transport, "client")
    with pytest.raises(CertificateRevoked):
        renewed(consortium, "alice", now())


def another_key(consortium):
    return make_request(Holder("alice", "client"), Ed25519PrivateKey.generate())


def another_role(consortium):
    key = load_identity(consortium.root / "alice", "of alice").private_key
    return make_request(Holder("alice", "server"), key)


def another_name(consortium):
    key = load_identity(consortium.root / "alice", "of alice").private_key
    return make_request(Holder("eve", "client"), key)


def no_transport_key(consortium):
    return pem_blocks((consortium.root / "alice/identity.csr").read_text())[0]


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        (another_key, RequestRefused, "a renewal keeps both"),
        (another_role, RequestRefused, "a renewal keeps both"),
        (another_name, UnknownClient, "no member"),
        (no_transport_key, RequestRefused, "without a key for TLS"),
    ],
)
def test_a_renewal_is_of_the_key_and_the_role_that_the_roster_lists(consortium, asked, error, said):
    """And nothing is changed where one of two is refused."""
    before = (consortium.keys / "consortium/roster.json").read_bytes()
    wrong = JoinApproval(read_request(asked(consortium)), consortium.root / "wrong.crt")
    right = JoinApproval(
        write_request(consortium.root / "bob", "of bob"), consortium.root / "b.crt"
    )
    with pytest.raises(error, match=said):
        renew(consortium.keys, [right, wrong], PASSPHRASE)
    assert (consortium.keys / "consortium/roster.json").read_bytes() == before
    assert not list(consortium.root.glob("*.crt"))


def test_a_transport_key_of_somebody_elses_shows_in_the_fingerprint(consortium):
    """Alice's first block before the second of who carried it: not what is read aloud."""
    mallory = Ed25519PrivateKey.generate()
    hers = pem_blocks((consortium.root / "alice/identity.csr").read_text())[0]
    theirs = pem_blocks(make_request(Holder("alice", "client"), mallory))[1]
    aloud = write_request(consortium.root / "alice", "of alice").fingerprint
    (consortium.root / "way.csr").write_text(hers + theirs)
    given = ["keys", "renew", "approve", consortium.root / "way.csr", "--keys", consortium.keys]
    done = CliRunner(env={"SECUREFL_PASSPHRASE": PASSPHRASE}).invoke(
        main, [*map(str, given), "--fingerprint", aloud]
    )
    assert done.exit_code == 2
    assert "not the fingerprint that was given" in done.output
    assert not (consortium.root / "way.crt").exists()


@pytest.mark.parametrize("there", ["bob/identity.crt", "notes.txt"])
def test_only_a_certificate_of_the_same_key_is_written_over(consortium, there):
    """Not another member's, and no file of somebody's."""
    (consortium.root / "notes.txt").write_text("mine")
    before = (consortium.root / there).read_bytes()
    request = write_request(consortium.root / "alice", "of alice")
    with pytest.raises(KeyFileError, match="is no certificate of alice's key"):
        renew(consortium.keys, [JoinApproval(request, consortium.root / there)], PASSPHRASE)
    assert (consortium.root / there).read_bytes() == before


def test_the_authority_has_nothing_to_renew(consortium):
    """Its certificates end with its CA's."""
    with pytest.raises(RequestRefused, match="nobody joins as authority"):
        write_request(consortium.keys / "authority", PASSPHRASE)


def test_a_renewal_gives_a_member_of_an_older_release_its_certificate_for_tls(consortium):
    """Verify names what is missing, and that it is there afterwards."""
    of_older_release(consortium.root / "alice")
    of_older_release(consortium.keys / "authority")
    (found,) = verify(consortium.bundle("client"), consortium.root / "alice").notes
    assert "alice/identity.crt: has no certificate for TLS" in found
    assert "renew it: securefl keys renew request" in found
    (own,) = verify(consortium.keys).notes
    assert "authority/identity.crt: has no certificate for TLS" in own
    told = CliRunner().invoke(main, ["keys", "verify", str(consortium.keys)])
    assert (told.exit_code, f"Note: {own}" in told.output) == (0, True)
    renewed(consortium, "alice", now())
    after = verify(consortium.keys, consortium.root / "alice")
    assert after.problems == after.notes == ()


def test_all_dates_are_shown(consortium):
    """Of the CA, of the authority's two certificates, of each member; an own folder has two."""
    found = list(dates_in(consortium.keys, now()))
    assert [(d.whose, d.use) for d in found] == [
        ("consortium Nord", "signs all others"),
        ("authority", "signing"),
        ("authority", "TLS"),
        *((f"client {name}", "signing") for name in ("alice", "bob", "Zoë K")),
        (f"server {SERVER}", "signing"),
    ]
    told = CliRunner().invoke(main, ["keys", "show", str(consortium.keys)]).output
    last = file_in(consortium.root / "alice").identity.not_valid_after_utc
    assert re.search(rf"client alice +signing +.* to {last:%Y-%m-%d}, 397 days left", told)
    own = CliRunner().invoke(main, ["keys", "show", str(consortium.root / "alice")]).output
    assert [line.split()[2] for line in own.splitlines()] == ["signing", "TLS"]
    assert own.count(f"to {last:%Y-%m-%d}, 397 days left") == 2
    of_older_release(consortium.root / "alice")
    (_, missing) = dates_in(consortium.root / "alice", now())
    assert missing.told(now()) == "none"
    assert (
        found[3].told(last + 3 * DAY)
        == f"{found[3].first:%Y-%m-%d} to {last:%Y-%m-%d}, ended 3 days ago"
    )


def commands(site, name, *arguments):
    """What the terminals of a member and of the authority say, of a renewal by the commands."""
    asked = ["keys", "renew", "request", site.folder / name]
    said = CliRunner(env={"SECUREFL_PASSPHRASE": passphrase_of(name)}).invoke(
        main, list(map(str, asked))
    )
    aloud = re.search(r"(?:[0-9a-f]{4} ){15}[0-9a-f]{4}", said.output)[0]
    given = ["keys", "renew", "approve", site.folder / name / "identity.csr"]
    given += ["--keys", site.keys, "--fingerprint", aloud]
    done = CliRunner(env={"SECUREFL_PASSPHRASE": AUTHORITYS}).invoke(main, list(map(str, given)))
    assert done.exit_code == 0, done.output
    return done.output


@contextmanager
def short_lived(lifetime):
    """Within, members' certificates are issued for so long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "MEMBER_LIFETIME", lifetime)
        yield


@pytest.fixture
def soon(tmp_path):
    """A federation in which all members' certificates end within days."""
    with short_lived(9 * DAY):
        site = Site(tmp_path / "site", rounds=3, reproducible=False)
    yield site
    site.stop()


@pytest.mark.usefixtures("quick")
def test_who_was_renewed_takes_part_and_so_does_who_still_has_the_old(soon):
    """Carol with her new certificate under everybody's old bundles; bob is renewed meanwhile, and
    so is the server, whose processes show their old ones to parties that have the new roster.
    """
    told = commands(soon, "carol")
    assert re.search(r"carol is a client until \d{4}-\d\d-\d\d, in roster version 6", told)
    loop = Loop(soon)
    loop.before_round({2: lambda: (commands(soon, "bob"), commands(soon, HUB))})
    record = loop.run()
    assert [m.dropped for m in record.metrics] == [(), (), ()]
    assert set(loop.ended.values()) == {None}
    assert loop.has_said("Epoch 1, roster version 8")
    again = load_roster(soon.keys)
    assert again.members[HUB].certificate.not_valid_after_utc > now() + 300 * DAY


@pytest.mark.full
def test_a_role_says_at_its_start_that_its_certificate_ends_soon(soon):
    """With the command; one that was renewed says nothing."""
    process = soon.client("carol", "--wait", "0")
    assert process.ended() == 1
    assert re.search(
        r"The certificate of carol ends on .* UTC, 8 days left: securefl keys renew request \S+",
        process.text(),
    )
    commands(soon, "carol")
    process = soon.client("carol", "--wait", "0")
    assert process.ended() == 1
    assert "days left" not in process.text()
    assert timedelta(days=9) < SOON


def test_an_expired_identity_is_told_the_way_out_before_it_calls_anybody(tmp_path):
    """With code 2; the same command works after a renewal."""
    minute = timedelta(minutes=1)
    with short_lived(20 * minute):
        site = Site(tmp_path / "site", earlier={"carol": 30 * minute})
    arguments = ["site", "join", site.job, *site.member("carol", "client"), "--wait", "0"]
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exit_code == 2
    assert "carol's certificate is valid from" in done.output
    assert "renew it: securefl keys renew request" in done.output
    commands(site, "carol")
    process = site.client("carol", "--wait", "0")
    assert process.ended() == 1
    assert "nobody answers" in process.text()
