"""What clients, server and officers might try with one-time keys: the page's table, row by row.

Where a server does other than add the messages of those on the list, once each, the sum of their
keys decrypts to uniform words: it counts nobody, and shows nothing of anybody.
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from reachability import reachable
from ring_by_hand import untransformed
from scipy import stats

from securefl.crypto.card_secret import CardSecret
from securefl.crypto.cards import CardKey
from securefl.crypto.ciphertext_codec import packed, unpacked
from securefl.crypto.derived import common_polynomial, group_secret
from securefl.crypto.one_time import CipherSum, KeySum, OneTimeKey, ring
from securefl.crypto.params import SUMS
from securefl.errors import (
    Duplicate,
    KeyFileError,
    MessageRefused,
    OpeningRefused,
    PeerError,
    TotalRefused,
)
from securefl.exchange.card_keys import CardKeys, Quorum
from securefl.exchange.digits import Digits
from securefl.exchange.officer import KeySet, OneTimeOpener
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.sums import MessageId, Sealed, Sender
from securefl.federation.message import card_expected, encode_message, header_for, split_message

RUN, N_VALUES = "ab" * 32, 1000
ABOUT = MessageId(RUN, 1, "layer/mean", N_VALUES)
NAMES = ("alice", "bob", "carol", "dave")
N, Q = SUMS.poly_degree, 4503599627366401


class Cohort:
    """Four clients with their messages, and the officers that have their cards."""

    def __init__(self, quorum=None):
        self.keys = KeySet.ephemeral(quorum)
        self.said = []
        self.opener = self.keys.opener(self.said.append)
        rng = np.random.default_rng(0)
        self.values = {name: rng.normal(size=N_VALUES) for name in NAMES}
        self.senders = {name: Sender(name, name.encode().ljust(32)) for name in NAMES}
        for name, sender in self.senders.items():
            self.opener.take_cards(RUN, name, self.keys.public.cards(RUN, sender))
        sealer = OneTimeSealer(self.keys.public)
        self.sent = {
            name: sealer.seal(self.values[name], 0.25, ABOUT, self.senders[name]) for name in NAMES
        }

    def total(self, *names):
        """The sum of these clients' messages, one as often as it is named."""
        running = OneTimeAdder(self.keys.public).start(N_VALUES)
        for name in names:
            running = running.plus(self.sent[name].payload)
        return running.total()

    def open(self, total, *listed):
        nonces = {name: self.sent[name].nonce for name in listed}
        return self.opener.open(total, ABOUT, nonces, 32)

    def key(self, name):
        """A client's key, as it makes it."""
        secrets = self.keys.public.secrets(self.senders[name])
        return OneTimeKey.of(secrets, ABOUT.digest(), name, bytes.fromhex(self.sent[name].nonce))


@pytest.fixture
def cohort():
    return Cohort()


def is_uniform(words):
    """By Kolmogorov and Smirnov; an honest sample fails once in 10^6 runs."""
    return stats.kstest(np.ravel(words).astype(float) / Q, "uniform").pvalue > 1e-6


def residues(total, keys, about=ABOUT):
    """Coefficients of C + a S by these keys: small where the keys fit, else uniform."""
    common = common_polynomial(about.digest(), 0, N, Q)
    words = unpacked(total, (1, 1, N), [Q], "total")[0, 0]
    product = [
        int(a) * int(s) % Q for a, s in zip(common, transformed(KeySum.of(keys)), strict=True)
    ]
    return untransformed((words + np.array(product, np.uint64)) % Q, Q)


def transformed(keys):
    """A sum of keys in the transform's order, through SEAL."""
    zero_and_sum = ring().key(keys.coefficients)
    return np.array([zero_and_sum[N + i] for i in range(N)], np.uint64)


def test_honest_clients_total_opens(cohort):
    """The mean of those that are listed."""
    opened = cohort.open(cohort.total(*NAMES), *NAMES)
    mean = np.mean(list(cohort.values.values()), axis=0)
    assert opened.n_clients == 4
    np.testing.assert_allclose(opened.values, mean, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("added", "listed"),
    [
        (("alice",) * 3, ("alice", "bob", "carol")),
        (("alice", "alice", "bob"), ("alice", "bob", "carol")),
        (("alice", "bob", "carol"), NAMES),
        (NAMES, ("alice", "bob", "carol")),
        (("alice", "bob", "dave"), ("alice", "bob", "carol")),
        (("alice",), ("bob", "carol", "dave")),
    ],
    ids=["one three times", "one twice", "one less", "one more", "another", "others"],
)
def test_a_server_that_adds_other_messages_than_it_lists_reads_noise(cohort, added, listed):
    """The authority refuses, and what a server would see with the keys' sum in hand is uniform."""
    total = cohort.total(*added)
    with pytest.raises(MessageRefused, match="does not count its clients"):
        cohort.open(total, *listed)
    assert is_uniform(residues(total, [cohort.key(name) for name in listed]))


def test_whoever_knows_the_sum_of_keys_opens_that_total_and_no_other(cohort):
    """S of all four shows their total; of any three of them, or of one, it shows noise."""
    keys = [cohort.key(name) for name in NAMES]
    assert not is_uniform(residues(cohort.total(*NAMES), keys))
    for n in (1, 2, 3):
        for names in combinations(NAMES, n):
            assert is_uniform(residues(cohort.total(*names), keys))


def test_a_message_is_uniform_without_its_key(cohort):
    """Its words, and what another client's key makes of them."""
    words = unpacked(cohort.sent["alice"].payload, (1, 1, N), [Q], "message")[0, 0]
    assert is_uniform(untransformed(words, Q))
    assert not is_uniform(residues(cohort.sent["alice"].payload, [cohort.key("alice")]))
    assert is_uniform(residues(cohort.sent["alice"].payload, [cohort.key("bob")]))


def test_a_client_that_crafts_its_message_shifts_the_total_and_learns_no_key(cohort):
    """A polynomial P that it adds comes out as its own slots: nothing of it meets anybody's key.

    Under a shared public key two such openings gave the secret key of all sums away.
    """
    of, rng = ring(), np.random.default_rng(5)
    added = rng.uniform(-1, 1, size=N)
    plain = of._encoded(added, of._scale)
    crafted = np.array([plain[i] for i in range(N)], np.uint64)
    honest, total = cohort.total(*NAMES), cohort.total(*NAMES)
    words = (unpacked(total, (1, 1, N), [Q], "total") + crafted) % Q
    keys = KeySum.of([cohort.key(name) for name in NAMES])
    before = keys.open(honest, ABOUT.digest(), 1)[0]
    after = keys.open(packed(words, [Q]), ABOUT.digest(), 1)[0]
    np.testing.assert_allclose(after - before, added, rtol=0, atol=1e-9)


def test_a_client_that_sends_any_words_spoils_the_total_alone(cohort):
    """The total counts nobody: it is refused, and the round passes."""
    rng = np.random.default_rng(3)
    rubbish = packed(rng.integers(0, Q, (1, 1, N), dtype=np.uint64), [Q])
    total = CipherSum(1).plus(cohort.total("alice", "bob", "carol")).plus(rubbish).total()
    with pytest.raises(MessageRefused, match="does not count its clients"):
        cohort.open(total, *NAMES)


@pytest.mark.parametrize(
    "change",
    [
        {"round": 2},
        {"name": "layer/variance"},
        {"run": "cd" * 32},
        {"n_values": N_VALUES - 1},
    ],
    ids=str,
)
def test_a_total_opens_for_its_own_message_alone(change):
    """Another round, name, session or size has other common polynomials and other keys."""
    cohort, about = Cohort(), replace(ABOUT, **change)
    for name, sender in cohort.senders.items():
        cohort.opener.take_cards(about.run, name, cohort.keys.public.cards(about.run, sender))
    nonces = {name: cohort.sent[name].nonce for name in NAMES}
    with pytest.raises(MessageRefused, match="does not count its clients"):
        cohort.opener.open(cohort.total(*NAMES), about, nonces, 32)


def test_a_nonce_that_was_exchanged_opens_nothing(cohort):
    """The signed header has it; whoever lists another's gets noise."""
    nonces = {name: cohort.sent[name].nonce for name in NAMES}
    nonces["alice"], nonces["bob"] = nonces["bob"], nonces["alice"]
    with pytest.raises(MessageRefused, match="does not count its clients"):
        cohort.opener.open(cohort.total(*NAMES), ABOUT, nonces, 32)


def test_a_copied_machine_uses_no_key_for_two_values(cohort, monkeypatch):
    """With the same random bytes the nonce still follows from the values, and so does the key."""
    monkeypatch.setattr("securefl.exchange.sums.os.urandom", lambda n: b"r" * n)
    sealer = OneTimeSealer(cohort.keys.public)
    alice, values = cohort.senders["alice"], cohort.values["alice"]
    once, again = (sealer.seal(of, 0.25, ABOUT, alice).nonce for of in (values, values + 1e-9))
    assert once != again


# Officers.


@pytest.fixture(params=[(2, 3), (3, 5)], ids=["2 of 3", "3 of 5"])
def officers(request):
    return Cohort(Quorum(*request.param))


def test_k_less_one_officers_read_nothing(officers):
    """Their groups' parts of all keys leave a total uniform, for any of them together."""
    quorum, total = officers.keys.quorum, officers.total(*NAMES)
    digest = ABOUT.digest()
    for few in combinations(range(quorum.officers), quorum.needed - 1):
        known = {group for officer in few for group in quorum.groups_of[officer]}
        keys = [
            OneTimeKey.of(
                [group_secret(officers.senders[name].secret, group) for group in known],
                digest,
                name,
                bytes.fromhex(officers.sent[name].nonce),
            )
            for name in NAMES
        ]
        assert is_uniform(residues(total, keys))


def test_any_two_quorums_have_an_officer_in_common(officers):
    """Who answers for one list alone: where it is honest, no two lists are both opened."""
    quorum = officers.keys.quorum
    several = list(combinations(range(quorum.officers), quorum.needed))
    assert all(set(one) & set(other) for one in several for other in several)


class Liar:
    """Adds one to a coefficient of one of its sums."""

    def __init__(self, officer):
        self._officer = officer

    def key_sums(self, about, nonces):
        answer = dict(self._officer.key_sums(about, nonces))
        group = next(iter(answer))
        changed = answer[group].coefficients.copy()
        changed[7] += 1
        answer[group] = KeySum(changed, SUMS)
        return answer


class Away:
    """Gives no answer."""

    def key_sums(self, about, nonces):
        raise PeerError("does not answer")


def with_officer(cohort, number, instead):
    found = list(cohort.opener.officers)
    found[number] = instead(found[number]) if instead is Liar else instead()
    return OneTimeOpener(cohort.opener.keys, cohort.opener.combiner, found)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_officer_that_lies_is_named_and_the_total_opens(officers, number):
    """The others' answers agree, and open."""
    opener, officers.said[:] = with_officer(officers, number, Liar), []
    nonces = {name: officers.sent[name].nonce for name in NAMES}
    opened = opener.open(officers.total(*NAMES), ABOUT, nonces, 32)
    assert opened.n_clients == 4
    assert officers.said == [f"officer {number + 1}: gave a wrong sum of keys for 'layer/mean'"]


class Shy:
    """Answers for none of its groups."""

    def key_sums(self, about, nonces):
        return {}


def test_an_officer_that_answers_for_other_groups_is_named(officers):
    """As if it were away."""
    opener, officers.said[:] = with_officer(officers, 2, Shy), []
    nonces = {name: officers.sent[name].nonce for name in NAMES}
    assert opener.open(officers.total(*NAMES), ABOUT, nonces, 32).n_clients == 4
    assert officers.said == ["officer 3: has answered for other groups than its own"]


def test_an_officer_answers_a_message_for_one_list(officers):
    """Again for the same, and never for another."""
    officer = Cohort(officers.keys.quorum).opener.officers[0]
    nonces = {name: officers.sent[name].nonce for name in NAMES}
    assert officer.key_sums(ABOUT, nonces).keys() == officer.key_sums(ABOUT, nonces).keys()
    with pytest.raises(PeerError, match="has answered for 'layer/mean' with another list"):
        officer.key_sums(ABOUT, {name: nonces[name] for name in NAMES[:3]})


def test_a_server_with_a_lying_officer_reads_a_client_where_two_quorums_share_no_other():
    """2 of 3: each honest officer is shown another list, and their difference is dave's key.

    k is more than half against a lying server, and 2k - n officers more must be honest: the page
    says so. With 3 of 3 there is no group that two of them know.
    """
    cohort, digest = Cohort(Quorum(2, 3)), ABOUT.digest()
    groups = cohort.keys.quorum.groups
    nonces = {name: cohort.sent[name].nonce for name in NAMES}
    fewer = {name: nonces[name] for name in NAMES[:3]}
    liar, honest, other = cohort.opener.officers
    whole, part = honest.key_sums(ABOUT, nonces), other.key_sums(ABOUT, fewer)
    shared = groups.index((1, 2))
    own = OneTimeKey.of(
        [liar._secrets[RUN]["dave"][i] for i in range(2)],
        digest,
        "dave",
        bytes.fromhex(nonces["dave"]),
    )
    of_dave = whole[shared].coefficients - part[shared].coefficients + own.coefficients
    slots = KeySum(of_dave, SUMS).open(cohort.total("dave"), digest, 1)[0]
    shown = Digits.of(SUMS, N_VALUES).joined(slots[: SUMS.values_per_ciphertext], N_VALUES)
    np.testing.assert_allclose(shown, 0.25 * cohort.values["dave"], rtol=0, atol=1e-7)
    three = Cohort(Quorum(3, 3))
    _, honest, other = three.opener.officers
    honest.key_sums(ABOUT, {name: three.sent[name].nonce for name in NAMES})
    assert not set(three.keys.quorum.groups_of[1]) & set(three.keys.quorum.groups_of[2])


def cards_with(keys, sender, junk=(), lie=()):
    """A client's cards, of which some officers cannot open theirs, or find another secret."""
    honest, other = keys.cards(RUN, sender), keys.cards(RUN, Sender(sender.name, b"other" * 7))
    sizes = [len(keys.card_of(honest, number)[0]) for number in range(len(keys.keys))]
    cards, start = bytearray(honest), 0
    for number, size in enumerate(sizes):
        if number in junk:
            cards[start : start + size] = bytes(size)
        if number in lie:
            cards[start : start + size] = other[start : start + size]
        start += size
    return bytes(cards)


@pytest.mark.parametrize("how", ["junk", "lie"])
def test_clients_that_send_officers_bad_cards_end_no_run(how):
    """One may cost an officer that can be spared; a second that costs another is left out."""
    cohort = Cohort(Quorum(2, 3))
    opener, said = cohort.keys.opener(cohort.said.append), cohort.said
    keys, senders = cohort.keys.public, cohort.senders
    opener.take_cards(RUN, "alice", cards_with(keys, senders["alice"], **{how: [1]}))
    with pytest.raises(MessageRefused):
        opener.take_cards(RUN, "bob", cards_with(keys, senders["bob"], **{how: [2]}))
    for name in ("carol", "dave"):
        opener.take_cards(RUN, name, keys.cards(RUN, senders[name]))
    why = {"junk": "does not open under this key", "lie": "than its client has signed"}[how]
    assert said == [f"officer 2: refuses the card of alice: a card {said[0].split(': a card ')[1]}"]
    assert why in said[0]
    assert opener.without_card(RUN, NAMES) == ["bob"]
    nonces = {name: cohort.sent[name].nonce for name in ("alice", "carol", "dave")}
    opened = opener.open(cohort.total("alice", "carol", "dave"), ABOUT, nonces, 32)
    assert opened.n_clients == 3
    assert len(said) == 1  # nobody is called a liar


def test_an_officer_may_be_away(officers):
    """It is named; with fewer than are needed nothing opens, and the error says who is away."""
    opener, officers.said[:] = with_officer(officers, 1, Away), []
    nonces = {name: officers.sent[name].nonce for name in NAMES}
    assert opener.open(officers.total(*NAMES), ABOUT, nonces, 32).n_clients == 4
    assert officers.said == ["officer 2: does not answer"]
    quorum = officers.keys.quorum
    gone = [Away()] * (quorum.officers - quorum.needed + 1)
    others = officers.opener.officers[len(gone) :]
    missing = OneTimeOpener(opener.keys, opener.combiner, [*gone, *others])
    with pytest.raises(OpeningRefused, match=f"and {quorum.needed} are needed: officer 1: does"):
        missing.open(officers.total(*NAMES), ABOUT, nonces, 32)


def test_all_officers_of_a_quorum_that_lie_alike_open_nothing(cohort):
    """The authority itself: what it says wrongly shows as a total that counts nobody."""
    opener = with_officer(cohort, 0, Liar)
    nonces = {name: cohort.sent[name].nonce for name in NAMES}
    with pytest.raises(MessageRefused):
        opener.open(cohort.total(*NAMES), ABOUT, nonces, 32)


class Keyless:
    """Answers that the keys add up to nothing."""

    def key_sums(self, about, nonces):
        return {0: KeySum.of([])}


def test_keys_that_add_up_to_zero_open_nothing(cohort):
    """Under no key a total is in the clear, and no clients have sent it."""
    of = ring()
    plain = of._encoded(np.ones(N), of._scale)
    total = packed(np.array([plain[i] for i in range(N)], np.uint64).reshape(1, 1, N), [Q])
    key = cohort.key("alice")
    opposite = OneTimeKey(-key.coefficients, SUMS)
    for keys in ([], [key, opposite]):
        with pytest.raises(MessageRefused, match="the keys add up to zero"):
            KeySum.of(keys).open(total, ABOUT.digest(), 1)
    nonces = {name: cohort.sent[name].nonce for name in NAMES}
    with pytest.raises(MessageRefused, match="the keys add up to zero"):
        with_officer(cohort, 0, Keyless).open(total, ABOUT, nonces, 32)


# Cards.


def test_a_second_card_with_another_secret_is_refused(federate):
    """The same client again is no harm: a process that starts anew says the same."""
    federation = federate()
    name, client = next(iter(federation.clients.items()))
    authority = federation.authority
    assert not authority.take_cards(federation.run, {name: client.send_cards(federation.run)})
    keys = federation.keys.public
    other = keys.cards(federation.run, Sender(name, b"x" * 32))
    message = card_message(federation, name, other)
    assert authority.take_cards(federation.run, {name: message}) == {
        name: "a second card, with another secret"
    }
    assert federation.authority.open(federation.collect().request()).n_clients == 4


def card_message(federation, client, cards, **changes):
    expected = card_expected(federation.run, federation.keys.public)
    header = header_for(expected, client, Sealed(cards)).model_copy(update=changes)
    return encode_message(header, cards, federation.clients[client].signing_key)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda f, c: card_message(f, "client-1", bytes([c[0] ^ 1]) + c[1:]), "does not open"),
        (lambda f, c: card_message(f, "client-1", c[:-1]), "expected exactly"),
        (lambda f, c: card_message(f, "client-1", c, sender="client-2"), "not signed by"),
        (lambda f, c: card_message(f, "client-1", c, run="cd" * 32), "message of run"),
        (lambda f, c: card_message(f, "client-1", c, key_id="cd" * 32), "sealed under key"),
        (lambda f, c: card_message(f, "client-1", c, name="layer/mean"), "message of name"),
        (lambda f, c: card_message(f, "client-1", c, sender="eve"), "no client of this run"),
        (lambda f, c: b"rubbish", "not a SecureFL message"),
        (lambda f, c: card_message(f, "client-1", bytes(len(c))), "does not open"),
    ],
    ids=["changed", "cut", "sender", "session", "key", "name", "stranger", "rubbish", "zeros"],
)
def test_a_card_that_is_not_this_clients_for_this_session_is_refused(federate, make, reason):
    """With its reason; and without a card nothing of the client is opened."""
    federation = federate()
    own = federation.clients["client-1"]
    opener = federation.keys.opener()
    authority = federation.authority
    authority.opener = opener
    cards = federation.keys.public.cards(federation.run, own.sender(federation.run, "other"))
    for name in ("client-2", "client-3", "client-4"):
        message = federation.clients[name].send_cards(federation.run)
        assert not authority.take_cards(federation.run, {name: message})
    refused = authority.take_cards(federation.run, {"client-1": make(federation, cards)})
    assert reason in refused["client-1"]
    with pytest.raises(OpeningRefused, match="no card of client-1"):
        authority.open(federation.collect().request())
    others = federation.collect("client-2", "client-3", "client-4")
    assert authority.open(others.request()).n_clients == 3


def test_a_card_of_another_client_or_session_does_not_open():
    """HPKE binds it to both."""
    keys = KeySet.ephemeral()
    sender, opener = Sender("alice", b"k" * 32), keys.opener()
    cards = keys.public.cards(RUN, sender)
    for run, name in ((RUN, "bob"), ("cd" * 32, "alice")):
        with pytest.raises(MessageRefused, match="does not open"):
            opener.take_cards(run, name, cards)
    with pytest.raises(MessageRefused, match="does not open"):
        KeySet.ephemeral().opener().take_cards(RUN, "alice", cards)
    opener.take_cards(RUN, "alice", cards)


def test_an_answer_is_given_once_for_a_session_round_and_name(federate):
    """Also where it was a refusal: a second list would be a second equation."""
    federation = federate()
    with pytest.raises(OpeningRefused):
        federation.authority.open(federation.collect("client-1", "client-2").request())
    with pytest.raises(OpeningRefused, match="once already"):
        federation.authority.open(federation.collect().request())
    request = federation.collect(round_number=2).request()
    assert federation.authority.open(request).n_clients == 4
    with pytest.raises(OpeningRefused, match="once already"):
        federation.authority.open(request)


def test_a_list_with_a_client_twice_is_refused(federate):
    """Its key would be added twice, as its message might be."""
    federation = federate()
    request = federation.collect().request()
    doubled = replace(request, signed=(*request.signed[:3], request.signed[0]))
    with pytest.raises(Duplicate):
        federation.authority.open(doubled)


def test_a_header_without_its_nonce_is_refused(federate):
    """And one with a nonce where there is none."""
    federation = federate()
    message = federation.signed("client-1", bytes(SUMS.ciphertext_bytes), nonce="")
    with pytest.raises(MessageRefused, match="nonce of 0 digits"):
        federation.collect("client-2").receive(message)
    plain = federation.signed("client-1", bytes(48), federation.plain_spec, nonce="0" * 32)
    with pytest.raises(MessageRefused, match="nonce of 32 digits"):
        federation.collect("client-2", spec=federation.plain_spec).receive(plain)


def test_a_total_of_rubbish_is_rubbish(federate):
    """Whoever sends random words with a good signature is one of those who may have spoilt it."""
    federation = federate()
    arriving = federation.collect("client-1", "client-2")
    words = np.random.default_rng(1).integers(0, Q, (1, 1, N), dtype=np.uint64)
    arriving.receive(federation.signed("client-3", packed(words, [Q])))
    with pytest.raises(TotalRefused, match="does not count its clients"):
        federation.authority.open(arriving.request())


# Secrets.


def test_no_secret_is_printed_copied_or_pickled(cohort):
    """Not of officers, not of clients, not of one message."""
    secret = cohort.keys.secrets[0]
    for thing in (secret, cohort.key("alice"), secret.public, cohort.senders["alice"]):
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                copied(thing)
    hidden = cohort.senders["alice"].secret
    texts = [repr(t) for t in (cohort.keys, cohort.opener, cohort.senders["alice"], secret)]
    texts.append(repr(cohort.key("alice")))
    for text in texts:
        assert hidden.hex() not in text
        assert repr(hidden) not in text
        assert secret.to_secret_bytes().hex() not in text


def test_neither_clients_nor_server_reach_an_officers_secret(federate):
    """Nor does what they seal and add with."""
    federation = federate()
    arriving = federation.collect()
    for part in (federation.server, arriving, federation.clients, federation.sealer):
        assert not [thing for thing in reachable(part) if isinstance(thing, CardSecret)]
    assert [t for t in reachable(federation.authority) if isinstance(t, CardSecret)]


@pytest.mark.parametrize("n_bytes", [0, 1215, 1217])
def test_a_card_key_has_one_length(n_bytes):
    """Whatever a file says."""
    with pytest.raises(KeyFileError, match="card key of"):
        CardKey(bytes(n_bytes), KeySet.ephemeral().secrets[0].origin)


def test_officers_have_keys_of_their_own():
    """One key for two officers would be one officer."""
    keys = KeySet.ephemeral(Quorum(2, 3)).public
    doubled = (keys.keys[0], keys.keys[0], keys.keys[1])
    with pytest.raises(ValueError, match="for 3 officers"):
        CardKeys(doubled, Quorum(2, 3))


def test_a_message_names_its_nonce_under_the_signature(federate):
    """A server that changes it changes what was signed."""
    federation = federate()
    message = federation.message("client-1")
    signed, _ = split_message(message, 2**20)
    changed = message.replace(signed.header.nonce.encode(), b"0" * 32)
    with pytest.raises(MessageRefused, match="not signed by"):
        federation.collect("client-2").receive(changed)
