"""Officers of a consortium: no forged, old or foreign card key is listed, and no secret travels."""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import replace
from datetime import timedelta

import pytest
from consortium_files import PASSPHRASE, CrashError, cut_off_rotation, joined
from key_folders import load_client, load_server, problems_of

from securefl.crypto.card_secret import CardSecret
from securefl.errors import (
    CertificateExpired,
    CertificateRefused,
    CertificateRevoked,
    ConfigError,
    FileSignatureRefused,
    ForeignAuthority,
    KeyFileError,
    SecretFound,
    UnknownClient,
    WrongPassphrase,
)
from securefl.exchange.card_keys import ALONE, Quorum, card_about
from securefl.exchange.sums import Sender
from securefl_keys import layout, rotation
from securefl_keys.authority_keys import FolderKeeper, load_all, load_authority
from securefl_keys.bundle import (
    Manifest,
    RosterTrust,
    VerifiedBundle,
    load_bundle,
    process_identity,
)
from securefl_keys.certificate_form import ROLES
from securefl_keys.consortium import init_folder
from securefl_keys.export import _entry, export, export_all
from securefl_keys.identity import load_identity
from securefl_keys.membership import JoinApproval, renew, write_request
from securefl_keys.officer_card import OfficerCard, card_secrets, load_officer, make_card
from securefl_keys.request import read_request
from securefl_keys.roster import ListedOfficer, OfficersFile, load_officers, load_roster
from securefl_keys.rotation import rotate, set_officers
from securefl_keys.sealed_keys import open_officer_secret, open_secret
from securefl_keys.signed_file import now
from securefl_keys.signer import open_signer
from securefl_keys.verification import verify

pytestmark = pytest.mark.usefixtures("cheap_guesses")
OFFICERS = ("olga", "otto")
PANEL = ("authority", *OFFICERS)


class Folders:
    """The consortium of three clients with two officers, who are not in force yet."""

    def __init__(self, made):
        self.keys, self.root = made.keys, made.root
        for name in OFFICERS:
            joined(self.keys, self.root, name, f"of {name}", "officer")

    def card(self, name, epoch):
        """A card key that this officer makes."""
        out = self.root / f"{name}-{epoch}-{len(list(self.root.iterdir()))}.json"
        return make_card(self.root / name, epoch, f"of {name}", out)

    def cards(self, epoch):
        return [self.card(name, epoch) for name in OFFICERS]

    def export(self, name="new"):
        export_all(self.keys, self.root / name, PASSPHRASE)
        return self.root / name

    def officer(self, name, bundle):
        return load_officer(self.root / name, bundle, f"of {name}")


@pytest.fixture
def made(consortium):
    return Folders(consortium)


@pytest.fixture
def panel(made):
    """With officers in force, in epoch 2, of whom two are needed."""
    set_officers(made.keys, PASSPHRASE, made.cards(2), needed=2)
    return made


def contents(directory):
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files if path.suffix != ".lock"}


# Who is in force.


def test_every_role_is_told_the_same_officers(panel):
    """In order, the authority first; each card opens under its own officer's secret alone."""
    bundles = {role: VerifiedBundle.load(panel.export() / role, role) for role in ["client"]}
    bundles |= {r: VerifiedBundle.load(panel.root / "new" / r, r) for r in ROLES}
    (key_id,) = {bundle.card_keys.key_id for bundle in bundles.values()}
    assert {bundle.officers() for bundle in bundles.values()} == {PANEL}
    assert {bundle.card_keys.quorum for bundle in bundles.values()} == {Quorum(2, 3)}
    assert load_client(panel.keys).key_id == load_server(panel.root / "new/server").key_id == key_id
    keys, about = bundles["client"].card_keys, card_about("ab" * 32, "alice")
    cards = keys.cards("ab" * 32, Sender("alice", bytes(32)))
    secrets = [load_authority(panel.keys, PASSPHRASE)]
    secrets += [panel.officer(name, bundles["officer"])[0] for name in OFFICERS]
    opened = []
    for number, secret in enumerate(secrets):
        card, committed = keys.card_of(cards, number)
        opened.append(set(secret.secrets_in(card, len(committed), about)))
        for other in {*secrets} - {secret}:
            with pytest.raises(Exception, match="does not open"):
                other.secrets_in(card, len(committed), about)
    every = set.union(*opened)
    assert len(every) == 3
    assert all(opened[a] | opened[b] == every for a, b in ((0, 1), (1, 2), (0, 2)))
    assert all(one < every for one in opened)


def test_an_officer_knows_its_number_and_the_quorum(panel):
    """From 0, which is the authority's."""
    bundle = VerifiedBundle.load(panel.export() / "officer", "officer")
    for number, name in enumerate(OFFICERS, 1):
        secret, found, quorum = panel.officer(name, bundle)
        assert (found, quorum) == (number, Quorum(2, 3))
        assert secret.key_id == bundle.card_keys.keys[number].key_id


def test_the_order_of_the_files_is_the_officers(made):
    """In each rotation too, in whatever order it is given them."""
    set_officers(made.keys, PASSPHRASE, [made.card("otto", 2), made.card("olga", 2)], needed=3)
    assert load_officers(made.keys, now()).names == ("authority", "otto", "olga")
    rotate(made.keys, PASSPHRASE, cards=made.cards(3))
    after = load_officers(made.keys, now())
    assert (after.names, after.needed, after.epoch) == (("authority", "otto", "olga"), 3, 3)


def test_without_officers_nothing_is_as_with_them(made):
    """No file, and the authority alone, in folder and bundles; officers are members already."""
    assert not (made.keys / layout.OFFICERS).exists()
    assert RosterTrust(load_roster(made.keys)).officers() == ("authority",)
    for role in ROLES:
        bundle = VerifiedBundle.load(made.export(f"of {role}") / role, role)
        assert bundle.officers() == ("authority",)
        assert bundle.card_keys.quorum == ALONE
    assert load_all(made.keys, PASSPHRASE).public.key_id == bundle.card_keys.key_id
    assert [member.name for member in load_roster(made.keys).officers()] == [*OFFICERS]


def test_the_authority_can_be_alone_again(panel):
    """In a new epoch; the key is its own one, and simulations have it."""
    set_officers(panel.keys, PASSPHRASE, [])
    found = load_all(panel.keys, PASSPHRASE)
    assert found.public.epoch == 3
    assert load_officers(panel.keys, now()).names == ("authority",)
    assert load_client(panel.keys).key_id == load_authority(panel.keys, PASSPHRASE).key_id
    bundle = VerifiedBundle.load(panel.export() / "client", "client")
    assert bundle.officers() == ("authority",)
    assert bundle.card_keys.quorum == ALONE
    with pytest.raises(CertificateRefused, match="none of the officers in force, authority"):
        panel.officer("olga", bundle)
    rotate(panel.keys, PASSPHRASE)
    assert verify(panel.keys, passphrase=PASSPHRASE).problems == ()


def test_a_folder_with_officers_is_in_order(panel):
    """Nothing that looks at it finds a problem, with and without the passphrase."""
    assert problems_of(panel.keys) == {}
    verdict = verify(panel.keys, passphrase=PASSPHRASE)
    assert verdict.problems == ()
    assert verdict.officers == "2 of 3 officers open sums: authority, olga, otto"
    for role in ROLES:
        verdict = verify(panel.export(f"of {role}") / role)
        assert verdict.problems == ()
        assert verdict.officers.startswith("2 of 3")
    verdict = verify(panel.root / "of officer/officer", panel.root / "olga", passphrase="of olga")
    assert verdict.problems == ()
    assert "show that it is the officer olga" in verdict.can


def test_no_simulation_has_the_officers_secrets(panel):
    """It is told so, with the way out."""
    with pytest.raises(KeyFileError, match=r"no simulation has their secrets.*officers set"):
        load_all(panel.keys, PASSPHRASE)


def test_an_officer_is_known_by_its_certificates(panel):
    """For its own role alone, by its identity and in TLS."""
    trust = RosterTrust(load_roster(panel.keys))
    for name in (*OFFICERS, "alice"):
        own = load_identity(panel.root / name, f"of {name}")
        process = process_identity(panel.root / name, f"of {name}", trust.roster.ca, own.role)
        assert trust.holder(process.certificate, own.role) == name
        assert trust.transport_holder(own.transport, own.role) == name
        for role in {*ROLES} - {own.role}:
            with pytest.raises(CertificateRefused):
                trust.holder(process.certificate, role)
            with pytest.raises(CertificateRefused):
                trust.transport_holder(own.transport, role)
    assert not {*OFFICERS} & {*trust.clients().names}


def test_an_officer_is_renewed(panel):
    """With the same key, and so with the same card key."""
    write_request(panel.root / "olga", "of olga")
    request = panel.root / "olga" / layout.IDENTITY_REQUEST
    approval = JoinApproval(read_request(request.read_text()), request.with_suffix(".crt"))
    renew(panel.keys, [approval], PASSPHRASE)
    bundle = VerifiedBundle.load(panel.export() / "officer", "officer")
    assert panel.officer("olga", bundle)[1] == 1


# Forged, foreign and old card keys.


def signed_by(name, made, officer):
    """A card key that somebody signs with their identity key."""
    return OfficerCard.signing(officer, load_identity(made.root / name, f"of {name}").private_key)


def assert_refused(made, cards, error, match, **options):
    """Nothing in the key folder changes."""
    before = contents(made.keys)
    with pytest.raises(error, match=match):
        set_officers(made.keys, PASSPHRASE, cards, **{"needed": 2} | options)
    assert contents(made.keys) == before


@pytest.mark.parametrize("signer", ["otto", "alice", "hub"])
def test_a_card_key_that_somebody_else_has_signed_is_refused(made, signer):
    """Another officer, a client, a server: under olga's name."""
    olga, otto = made.cards(2)
    forged = signed_by(signer, made, olga.officer)
    assert_refused(made, [forged, otto], FileSignatureRefused, "not signed by olga")


def test_a_swapped_card_key_is_refused(made):
    """Another key under the officer's own signature of the one that it made."""
    olga, otto = made.cards(2)
    foreign = ListedOfficer.of("olga", CardSecret.generate(2).public)
    swapped = olga.model_copy(update={"officer": foreign})
    assert_refused(made, [swapped, otto], FileSignatureRefused, "not signed by olga")
    taken = olga.model_copy(update={"officer": ListedOfficer.of("olga", otto.officer.key())})
    assert_refused(made, [taken, otto], FileSignatureRefused, "not signed by olga")


def test_two_officers_of_one_card_key_are_refused(made):
    """Also where both have signed it: they would be one."""
    olga, _ = made.cards(2)
    same = signed_by("otto", made, ListedOfficer.of("otto", olga.officer.key()))
    assert_refused(made, [olga, same], KeyFileError, "must be one of each")
    assert_refused(made, [olga, olga], KeyFileError, "twice")


def test_the_authoritys_own_name_is_no_officers(made):
    """It is the first already."""
    forged = signed_by("olga", made, ListedOfficer.of("authority", CardSecret.generate(2).public))
    assert_refused(made, [forged], UnknownClient, "authority", needed=2)


@pytest.mark.parametrize("name", ["alice", "hub"])
def test_a_member_of_another_role_is_no_officer(made, name):
    """A client or a server that signs a card key of its own."""
    card = signed_by(name, made, ListedOfficer.of(name, CardSecret.generate(2).public))
    assert_refused(made, [card], CertificateRefused, "not for officer as needed")
    with pytest.raises(CertificateRefused, match=f"{name} is a .*officers alone have card keys"):
        make_card(made.root / name, 2, f"of {name}", made.root / "card.json")
    assert not (made.root / "card.json").exists()
    assert not card_secrets(made.root / name)


def test_a_stranger_is_no_officer(made, tmp_path):
    """An officer of another consortium, whose name is the same or is not."""
    init_folder(tmp_path / "other", PASSPHRASE, consortium="Süd")
    for name in ("olga", "oona"):
        joined(tmp_path / "other", tmp_path / "süd", name, f"of {name}", "officer")
    others = [
        make_card(tmp_path / "süd" / name, 2, f"of {name}", tmp_path / f"{name}.json")
        for name in ("olga", "oona")
    ]
    assert_refused(made, [others[0]], FileSignatureRefused, "not signed by olga")
    assert_refused(made, [others[1]], UnknownClient, "oona")


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_card_key_of_another_epoch_is_refused(made, epoch):
    """One that is over, and one that is to come; with the command that makes the right one."""
    cards = [made.card("olga", epoch), made.card("otto", 2)]
    assert_refused(made, cards, KeyFileError, "the next epoch is 2: .*officers card DIR --epoch 2")


def test_a_revoked_officer_is_refused(made):
    """With a card key that it has made before, or makes then."""
    early = made.card("olga", 3)
    rotate(made.keys, PASSPHRASE, revoking="olga")
    for card in (early, made.card("olga", 3)):
        assert_refused(made, [card], CertificateRevoked, "olga")


def test_an_officer_whose_certificate_has_ended_is_refused(made):
    """It is renewed first."""
    later = now() + timedelta(days=500)
    assert_refused(made, made.cards(2), CertificateExpired, "olga's certificate", at=later)


@pytest.mark.parametrize(("needed", "n"), [(1, 3), (1, 2), (4, 3), (0, 2)])
def test_no_other_quorum_is_set(made, needed, n):
    """More than half of the officers, and at most all of them."""
    assert_refused(made, made.cards(2)[: n - 1], ConfigError, "officers: must be", needed=needed)


def test_seven_officers_are_the_most(made):
    """Eight are refused before anything else is looked at."""
    card = made.card("olga", 2)
    assert_refused(made, [card] * 7, ConfigError, r"8 officers: must be 1\.\.7", needed=5)


def test_a_folder_without_a_consortium_has_no_officers(keys, made):
    """Nobody could vouch for them."""
    before = contents(keys)
    with pytest.raises(KeyFileError, match="no consortium"):
        set_officers(keys, PASSPHRASE, made.cards(2), needed=2)
    assert contents(keys) == before


# Rotation.


def test_a_rotation_needs_the_card_keys_of_all_officers(panel):
    """And names who lacks, with the command."""
    before = contents(panel.keys)
    olga = panel.card("olga", 3)
    with pytest.raises(KeyFileError, match=r"epoch 3 lack of otto: .*officers card DIR --epoch 3"):
        rotate(panel.keys, PASSPHRASE, cards=[olga])
    with pytest.raises(KeyFileError, match="lack of olga, otto"):
        rotate(panel.keys, PASSPHRASE, revoking="alice")
    assert contents(panel.keys) == before
    rotate(panel.keys, PASSPHRASE, revoking="alice", cards=[olga, panel.card("otto", 3)])
    assert "alice" not in load_roster(panel.keys).members
    assert load_officers(panel.keys, now()).epoch == 3
    assert verify(panel.keys, passphrase=PASSPHRASE).problems == ()


def test_a_rotation_changes_no_officers(panel, made):
    """One more, one twice, or some where there are none: `officers set` does that."""
    joined(panel.keys, panel.root, "oona", "of oona", "officer")
    before = contents(panel.keys)
    for more in ([panel.card("oona", 3)], [panel.card("olga", 3)]):
        with pytest.raises(KeyFileError, match="change officers with: securefl keys officers set"):
            rotate(panel.keys, PASSPHRASE, cards=[*panel.cards(3), *more])
    assert contents(panel.keys) == before
    set_officers(panel.keys, PASSPHRASE, [])
    with pytest.raises(KeyFileError, match="officers in force are none beside the authority"):
        rotate(panel.keys, PASSPHRASE, cards=panel.cards(4))


def test_an_officer_in_force_is_not_revoked_at_once(panel):
    """It is left out first; then it is revoked like any member."""
    cards = panel.cards(3)
    for given in ([], cards, cards[1:]):
        with pytest.raises(KeyFileError, match=r"olga is an officer in force: .*officers set DIR"):
            rotate(panel.keys, PASSPHRASE, revoking="olga", cards=given)
    assert "olga" in load_roster(panel.keys).members
    set_officers(panel.keys, PASSPHRASE, cards[1:], needed=2)
    rotate(panel.keys, PASSPHRASE, revoking="olga", cards=[panel.card("otto", 4)])
    assert load_officers(panel.keys, now()).names == ("authority", "otto")
    assert [entry.name for entry in load_roster(panel.keys).file.revoked] == ["olga"]
    with pytest.raises(CertificateRevoked):
        load_roster(panel.keys).member("olga")


def test_another_key_id_in_each_epoch(panel):
    """Each officer's key is a new one."""
    before = load_client(panel.keys)
    rotate(panel.keys, PASSPHRASE, cards=panel.cards(3))
    after = load_client(panel.keys)
    assert not {key.key_id for key in before.keys} & {key.key_id for key in after.keys}
    assert before.key_id != after.key_id


def test_new_officers_that_were_cut_off_are_finished(made, monkeypatch):
    """Their list changes with all other files, or none does."""
    finish, cards = rotation.finish_locked, made.cards(2)

    def crash(directory):
        if (directory / ".next").exists():
            raise CrashError
        finish(directory)

    monkeypatch.setattr(rotation, "finish_locked", crash)
    with pytest.raises(CrashError):
        set_officers(made.keys, PASSPHRASE, cards, needed=2)
    monkeypatch.undo()
    assert load_officers(made.keys, now()) is None
    bundle = VerifiedBundle.load(made.export() / "officer", "officer")
    assert bundle.officers() == PANEL
    assert made.officer("otto", bundle)[1] == 2


def test_without_their_cards_no_rotation_is_begun(panel):
    """Nothing is left ready for a next command to finish."""
    with pytest.raises(KeyFileError, match="lack of"):
        cut_off_rotation(panel.keys)
    assert not (panel.keys / ".next").exists()


# An officer's own folder.


def test_secrets_of_epochs_before_are_deleted(panel):
    """Once the next is in force, and not before: the one in force is needed meanwhile."""
    folder = panel.root / "olga"
    before = VerifiedBundle.load(panel.export("two") / "officer", "officer")
    cards = panel.cards(3)
    assert panel.officer("olga", before)[1] == 1
    assert card_secrets(folder).keys() == {2, 3}
    rotate(panel.keys, PASSPHRASE, cards=cards)
    after = VerifiedBundle.load(panel.export("three") / "officer", "officer")
    assert panel.officer("olga", after)[0].origin.epoch == 3
    assert card_secrets(folder).keys() == {3}
    with pytest.raises(KeyFileError, match=r"card-2\.key: missing"):
        panel.officer("olga", before)
    assert card_secrets(folder).keys() == {3}


def test_a_card_key_that_is_made_twice_is_one(made):
    """The public file was lost; its secret stays, and nothing is overwritten."""
    first, again = made.card("olga", 2), made.card("olga", 2)
    assert first == again
    out = made.root / "card.json"
    out.write_text("mine")
    with pytest.raises(KeyFileError, match=f"{out} exists"):
        make_card(made.root / "olga", 3, "of olga", out)
    assert out.read_text() == "mine"


def test_an_officers_secret_is_closed_and_sealed(panel):
    """0600, under the identity's passphrase; no other secret key serves for it, nor it for one."""
    path = panel.root / "olga/card-2.key"
    assert path.stat().st_mode & 0o777 == 0o600
    bundle = VerifiedBundle.load(panel.export() / "officer", "officer")
    with pytest.raises(WrongPassphrase):
        load_officer(panel.root / "olga", bundle, "another")
    with pytest.raises(KeyFileError, match="not a sealed secret key of authority for cards"):
        open_secret(path.read_text(), "of olga")
    text = path.read_text()
    shutil.copy(panel.keys / layout.AUTHORITY_KEY, path)
    with pytest.raises(KeyFileError, match="not a sealed secret key of officer for cards"):
        panel.officer("olga", bundle)
    path.write_text(text)
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        panel.officer("olga", bundle)


@pytest.mark.parametrize("how", ["another key", "another epoch", "none"])
def test_another_secret_than_the_listed_ones_is_refused(panel, how):
    """It opens no card that anybody makes; the way out is a new card key."""
    bundle = VerifiedBundle.load(panel.export() / "officer", "officer")
    path = panel.root / "olga/card-2.key"
    path.unlink()
    if how == "another key":
        panel.card("olga", 2)
    if how == "another epoch":
        panel.card("olga", 3)
        path.with_name("card-3.key").rename(path)
    said = {"another key": "the consortium lists", "another epoch": "of epoch 3"}
    with pytest.raises(KeyFileError, match=said.get(how, "officers card DIR --epoch 3")):
        panel.officer("olga", bundle)


def test_who_is_no_officer_in_force_loads_no_secret(panel):
    """A client, and an officer that was not set."""
    joined(panel.keys, panel.root, "oona", "of oona", "officer")
    panel.card("oona", 2)
    bundle = VerifiedBundle.load(panel.export() / "officer", "officer")
    for name in ("oona", "alice"):
        with pytest.raises(CertificateRefused, match="none of the officers in force"):
            panel.officer(name, bundle)


def test_no_secret_of_an_officer_gets_into_a_bundle(panel):
    """Under any public file's name; nothing is written."""
    for place in (layout.OFFICERS, layout.POLICY, layout.AUTHORITY_PUBLIC_KEY):
        kept = (panel.keys / place).read_bytes()
        shutil.copy(panel.root / "olga/card-2.key", panel.keys / place)
        for role in ("officer", "authority"):
            with pytest.raises(SecretFound):
                export(panel.keys, role, panel.root / "one", PASSPHRASE)
        (panel.keys / place).write_bytes(kept)
    assert not (panel.root / "one").exists()
    sealed = [path.read_text() for path in panel.root.glob("*/card-*.key")]
    sealed = [json.loads(text)["ciphertext"] for text in sealed]
    assert len(sealed) == 2
    for path, content in contents(panel.export()).items():
        assert b"secret-key/" not in content, path
        assert not any(text.encode() in content for text in sealed), path
    for path in panel.root.glob("*.json"):
        assert not any(text in path.read_text() for text in sealed), path


def test_no_byte_of_an_officers_secret_is_anywhere(panel):
    """In no file of any party, raw, as digits or in base64, also of the next epoch's key."""
    panel.card("olga", 3)
    panel.export()
    stretches = []
    for path in panel.root.glob("*/card-*.key"):
        text = path.read_text()
        secret = open_officer_secret(text, f"of {path.parent.name}").to_secret_bytes()
        stretches += [secret[at : at + 32] for at in (0, 32, 64)]
    assert len(stretches) == 9
    written = [form for stretch in stretches for form in forms(stretch)]
    files = contents(panel.root)
    assert len(files) > 40
    for path, content in files.items():
        assert not any(form in content for form in written), path
    leaked = base64.b64encode(b'{"name": "olga", "key": "' + stretches[0])
    assert any(form in leaked for form in written)


def forms(secret):
    """Raw, as hexadecimal digits, and in base64 at each of the three alignments."""
    encoded = [base64.b64encode(bytes(shift) + secret)[8:-8] for shift in range(3)]
    return [secret, secret.hex().encode(), *encoded]


# The signed list.


def test_each_changed_byte_of_the_list_is_refused(panel):
    """In the key folder and in a bundle, with the file named."""
    bundle = load_bundle(panel.export() / "client", "client")
    text = bundle.texts[layout.OFFICERS]
    for at in range(0, len(text), 7):
        changed = text[:at] + ("1" if text[at] != "1" else "2") + text[at + 1 :]
        with pytest.raises(KeyFileError):
            OfficersFile.verified(changed, bundle.ca)
        texts = bundle.texts | {layout.OFFICERS: changed}
        assert str(layout.OFFICERS) in str(next(replace(bundle, texts=texts).problems()))
    (panel.keys / layout.OFFICERS).write_text(text.replace('"needed": 2', '"needed": 3'))
    for use in (load_client, lambda keys: export_all(keys, panel.root / "no", PASSPHRASE)):
        with pytest.raises(KeyFileError, match=r"officers\.json: changed since it was signed"):
            use(panel.keys)
    assert "changed since it was signed" in str(verify(panel.keys).problems)


def test_each_changed_byte_of_a_card_key_is_refused(made):
    """Whoever carries it."""
    card = made.card("olga", 2)
    text, member = card.text(), load_roster(made.keys).member("olga")
    assert OfficerCard.parse(text) == card
    for at in range(0, len(text), 3):
        changed = text[:at] + ("1" if text[at] != "1" else "2") + text[at + 1 :]
        with pytest.raises(KeyFileError):
            OfficerCard.parse(changed).require_signed(member, 2)
    for changed in (text[:-1], text + " ", text.replace("\n", ""), "{}", "[]", "", "\0"):
        with pytest.raises(KeyFileError):
            OfficerCard.parse(changed)


def test_a_list_of_an_older_epoch_is_found(panel):
    """Genuine, and of officers who have other keys now."""
    older = (panel.keys / layout.OFFICERS).read_bytes()
    rotate(panel.keys, PASSPHRASE, cards=panel.cards(3))
    (panel.keys / layout.OFFICERS).write_bytes(older)
    assert "of epoch 2, and others are of 3" in str(verify(panel.keys).problems)
    with pytest.raises(KeyFileError):
        export(panel.keys, "client", panel.root / "one", PASSPHRASE)


@pytest.mark.parametrize("how", ["left out", "left out of both", "of one authority"])
def test_a_bundle_whose_officers_are_gone_is_refused(panel, how):
    """Else clients would make their cards for the authority alone."""
    rotated = panel.export()
    copy = shutil.copytree(rotated / "client", panel.root / "less")
    (copy / layout.OFFICERS).unlink()
    if how == "left out of both":  # even by whoever signs lists, and errs
        signer = open_signer(panel.keys, PASSPHRASE, now())
        manifest = Manifest.verified((copy / layout.MANIFEST).read_text(), signer.ca)
        files = tuple(one for one in manifest.files if one.path != layout.OFFICERS.as_posix())
        text = manifest.signed_anew(signer.ca, signer.key, now(), files=files)
        (copy / layout.MANIFEST).write_text(text)
    if how == "of one authority":
        set_officers(panel.keys, PASSPHRASE, [])
        shutil.copy(panel.keys / layout.OFFICERS, copy / layout.OFFICERS)
    with pytest.raises(KeyFileError, match=r"missing|another key|not the file that was signed"):
        VerifiedBundle.load(copy, "client")


def test_a_list_that_goes_with_another_roster_is_refused(panel):
    """Each is signed: an officer that the roster does not list, or lists as a client."""
    signer = open_signer(panel.keys, PASSPHRASE, now())
    file = load_officers(panel.keys, now())
    own = file.officers[0].key()
    for name in ("nobody", "alice", "olga"):
        first, second, third = file.officers
        changed = (first, second, third.model_copy(update={"name": name}))
        text = file.signed_anew(signer.ca, signer.key, now(), officers=changed)
        with pytest.raises(KeyFileError, match=r"no officer by the roster|twice"):
            OfficersFile.verified(text, signer.ca).card_keys(own, signer.roster)
    for changed in (file.officers[1:], file.officers[::-1]):
        text = file.signed_anew(signer.ca, signer.key, now(), officers=changed)
        with pytest.raises(KeyFileError, match="officer 1 is not the authority"):
            OfficersFile.verified(text, signer.ca).card_keys(own, signer.roster)
    foreign = CardSecret.generate(2).public
    with pytest.raises(KeyFileError, match="officer 1 has another card key"):
        file.card_keys(foreign, signer.roster)


def test_a_list_of_another_consortium_is_refused(panel, tmp_path):
    """In the place of the own one."""
    init_folder(tmp_path / "other", PASSPHRASE, consortium="Süd")
    set_officers(tmp_path / "other", PASSPHRASE, [])
    joined(tmp_path / "other", tmp_path / "süd", "olga", "of olga", "officer")
    card = make_card(tmp_path / "süd/olga", 3, "of olga", tmp_path / "card.json")
    set_officers(tmp_path / "other", PASSPHRASE, [card], needed=2)
    shutil.copy(tmp_path / "other" / layout.OFFICERS, panel.keys / layout.OFFICERS)
    with pytest.raises(ForeignAuthority):
        load_client(panel.keys)


def test_every_bundle_lists_the_officers_file(panel):
    """With its SHA-256, like all others."""
    for role in ROLES:
        bundle = load_bundle(panel.export(f"of {role}") / role, role)
        entry = next(e for e in bundle.manifest.files if e.path == layout.OFFICERS.as_posix())
        assert entry == _entry(layout.OFFICERS, bundle.texts[layout.OFFICERS])


def test_a_process_takes_up_new_officers(panel):
    """They come in a newer bundle of its role; nobody goes back to the ones before."""
    old = VerifiedBundle.load(panel.export("two") / "client", "client")
    rotate(panel.keys, PASSPHRASE, cards=panel.cards(3))
    new = VerifiedBundle.load(panel.export("three") / "client", "client")
    files = [json.dumps({str(p): t for p, t in one.bundle.texts.items()}) for one in (old, new)]
    assert old.newer(files[1]).card_keys.key_id == new.card_keys.key_id
    with pytest.raises(KeyFileError, match="older"):
        new.newer(files[0])


def test_an_authority_passes_on_a_bundle_for_officers(made):
    """It is of its role, sound, and news to one that has an older one."""
    standing = FolderKeeper(made.keys, PASSPHRASE).now()
    assert {*standing.bundles} == {"client", "server", "officer"}
    old = VerifiedBundle.load(made.export() / "officer", "officer")
    rotate(made.keys, PASSPHRASE)
    new = FolderKeeper(made.keys, PASSPHRASE).now().bundles["officer"]
    assert old.newer(new).age > old.age
    with pytest.raises(KeyFileError, match="a bundle for the role client"):
        old.newer(standing.bundles["client"])
