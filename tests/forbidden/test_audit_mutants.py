"""Runs that leak one field in plaintext, as a bug or a malicious developer would have it: caught.

By what the run's folder shows (`FOLDER`), by whoever looks at every byte of it (`TAP`), or by both.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from audited_runs import in_folder, settings, task_of
from matching_runs import make_task
from on_the_wire import nothing_is_handed_over
from without_error import encrypted_without_error

import securefl
import securefl.build.parties
import securefl.build.simulation
import securefl.crypto.one_time
import securefl.crypto.seal_ring
import securefl.exchange.decode_total
import securefl.exchange.one_time
import securefl.exchange.one_time_match
import securefl.federation.checks
from securefl.audit.replay import inspect_rounds
from securefl.build import job
from securefl.build.exchange import sealed_kinds
from securefl.crypto.blind import TAG_BYTES
from securefl.crypto.one_time import OneTimeKey
from securefl.crypto.params import MATCHES, SUMS
from securefl.crypto.seal_ring import SealRing
from securefl.exchange import blind
from securefl.exchange.blind import n_answer_bytes, n_client_bytes
from securefl.exchange.officer import OneTimeOpener
from securefl.exchange.one_time import OneTimeSealer
from securefl.exchange.one_time_match import OneTimeProfileSealer
from securefl.exchange.plain import PlainChannel
from securefl.exchange.policy import Policy
from securefl.exchange.profile_match import SCORE, PlainMatch, with_header
from securefl.exchange.sums import ONE_TIME, OpenedSum, Sealed, Sender, fresh_nonce
from securefl.federation import clients_round
from securefl.federation.authority import Authority, ScoreAuthority
from securefl.federation.cards import Cards
from securefl.federation.client import Client
from securefl.federation.clients_round import ClientsRound
from securefl.federation.contribution import UPDATE, Refused
from securefl.federation.ledger import AUTHORITY, SERVER, Entry, Ledger
from securefl.federation.message import (
    CARD,
    MAGIC,
    Expected,
    encode_message,
    header_for,
    headers_bytes,
    n_message_bytes,
    split_message,
)
from securefl.federation.opening_history import OpeningHistory
from securefl.federation.profile_match import MatchInTheClear, ProfileQuestion
from securefl.federation.round import ServerRound
from securefl.federation.server import Server, ServerSum, SumRequest
from securefl.federation.survey import ScoreRequest, Survey
from securefl.federation.total import RELEASED, n_total_bytes
from securefl.runs import folder_writer as runfolder
from securefl.runs import loop as rounds
from securefl.types import PROFILE, Kind

pytestmark = pytest.mark.usefixtures("no_hang", "quick")

FOLDER, TAP = "the folder", "the tap"
PARAMETERS, STATISTICS = "update/parameters", "update/statistics"
CONTRIBUTE = Client.contribute


@dataclass(frozen=True)
class Mutant:
    install: Callable[[pytest.MonkeyPatch], None]
    run: str
    """Whose settings."""
    what: str
    """The field that it leaks."""
    caught_by: tuple[str, ...]
    round: int = 1


MUTANTS = {}


def mutant(run, what, *caught_by, round_number=1):
    def put_down(install):
        name = install.__name__.replace("_", " ")
        name += f", {run}" if name in MUTANTS else ""
        MUTANTS[name] = Mutant(install, run, what, caught_by, round_number)
        return install

    return put_down


# A kind that the settings seal, in the clear.


def unsealed(kind, run, what):
    def install(patch):
        patch.setattr(job, "sealed_kinds", lambda config: sealed_kinds(config) - {kind})

    MUTANTS[f"{kind} unsealed"] = Mutant(install, run, what, (FOLDER, TAP))


unsealed(Kind.PARAMETERS, "model", PARAMETERS)
unsealed(Kind.STATISTICS, "fedavg", STATISTICS)
unsealed(Kind.GRADIENTS, "fedtan", "1/gradient")
unsealed(Kind.MOMENTUM, "momentum", "update/momentum")
unsealed(Kind.CONTROL, "scaffold", "update/control")
unsealed(Kind.CLIPPING, "clipping", "update/clipping")


@mutant("profiles", PROFILE, FOLDER, TAP)
def profiles_unsealed(patch):
    """The channel in the clear, whatever is asked for."""
    patch.setattr(securefl.build.parties, "OneTimeProfileSealer", lambda _keys: PlainMatch())
    patch.setattr(securefl.build.parties, "SealedMatch", lambda *_: MatchInTheClear())


# The ledger lies.


@mutant("fedavg", STATISTICS, FOLDER, TAP)
def ledger_says_ciphertext(patch):
    """Of what is plaintext."""
    patch.setattr(job, "sealed_kinds", lambda _: frozenset())
    write = ServerRound._note

    def noted(self, spec, way, form, content, n_bytes=None):
        form = "ciphertext" if way[1] == SERVER and spec.kind is Kind.STATISTICS else form
        write(self, spec, way, form, content, n_bytes)

    patch.setattr(ServerRound, "_note", noted)


@mutant("fedavg", STATISTICS, FOLDER, TAP)
def ledger_says_ciphertext_and_its_length(patch):
    """To the folder it looks right, but for the authority, who opened nothing."""
    ledger_says_ciphertext(patch)
    note = Ledger.note

    def noted(self, entry, content):
        if entry.form == "ciphertext" and entry.kind is not Kind.CARDS:
            entry = replace(entry, bytes=sealed_length(entry))
        note(self, entry, content)

    patch.setattr(Ledger, "note", noted)


def sealed_length(entry):
    about = "0" * 64, entry.round, entry.name, ONE_TIME, "0" * 64, 1, entry.n_values
    return n_message_bytes(
        Expected(*about, "0" * 64, "0" * 64), entry.sender, SUMS.message_bytes(entry.n_values)
    )


@mutant("fedavg", STATISTICS, TAP)
def every_file_lies(patch):
    """Ledger and log tell of openings that never were: only whoever looks at the bytes knows."""
    add, note = ServerSum.admit, Ledger.note

    def in_clear(self, run, round_number, spec, tensors, times=1, state="", *, model=""):
        message = CONTRIBUTE(self, run, round_number, spec, tensors, times, state, model=model)
        return (
            message if spec.kind is not Kind.STATISTICS else told(self, message, doubles(tensors))
        )

    def noted(self, entry, content):
        if entry.sender.startswith("client") and entry.kind is Kind.STATISTICS:
            entry = replace(entry, bytes=sealed_length(entry))
        note(self, entry, content)

    patch.setattr(Client, "contribute", in_clear)
    patch.setattr(ServerSum, "admit", lambda self, message, _: add(self, without_told(message)))
    patch.setattr(Ledger, "note", noted)


def doubles(tensors):
    return b"".join(value.detach().double().numpy().tobytes() for value in tensors.values())


TOLD = b"told"


def told(client, message, plaintext):
    """A message with plaintext behind it."""
    return message + TOLD + plaintext


def without_told(message):
    return message.split(TOLD)[0]


@mutant("fedavg", STATISTICS, FOLDER, TAP)
def a_message_is_not_written_down(patch):
    """One client's, whatever it was; the tap sees what comes of it."""
    note = Ledger.note

    def noted(self, entry, content):
        if (entry.name, entry.sender) != (STATISTICS, "client-2"):
            note(self, entry, content)

    patch.setattr(Ledger, "note", noted)


# Messages that no settings ask for.


def sending(patch, make):
    """Beside what each client sends, `make(round, number, name, tensors)`: an entry, its bytes."""
    send = ClientsRound._sent

    def more(self, name, what, specs, tensors):
        entry, content = make(self, self.context.number, name, tensors)
        ledger = self._outlet.ongoing.server.ledger
        ledger.note(replace(entry, bytes=len(content)), content)
        return send(self, name, what, specs, tensors)

    patch.setattr(ClientsRound, "_sent", more)


@mutant("model", "samples", FOLDER, TAP)
def a_number_of_samples_is_sent(patch):
    """As eight bytes, unsigned."""

    def samples(_round, number, name, _tensors):
        entry = Entry(number, 1, "samples", Kind.SELECTION, name, SERVER, "plaintext", 1, 0)
        return entry, struct.pack("<d", 16)

    sending(patch, samples)


@mutant("model", "selection/loss", FOLDER)
def a_loss_is_sent(patch):
    """Signed and well-formed, as AFL has it; the settings do not."""

    def loss(ongoing, number, name, _tensors):
        entry = Entry(number, 0, "selection/loss", Kind.SELECTION, name, SERVER, "plaintext", 1, 0)
        client = ongoing._clients[name]
        return entry, client.send_number(ongoing.context.run, number, entry.name, 0.7)

    sending(patch, loss)


@mutant("model", "update/debug", FOLDER, TAP)
def a_debug_tensor_is_sent(patch):
    """The first weights of each client."""

    def debug(_round, number, name, tensors):
        entry = Entry(number, 1, "update/debug", Kind.SELECTION, name, SERVER, "plaintext", 63, 0)
        return entry, doubles(tensors[PARAMETERS])

    sending(patch, debug)


@mutant("fedavg", STATISTICS, FOLDER, TAP)
def a_client_tells_another(patch):
    """What it sends the server sealed."""

    def aside(_round, number, name, tensors):
        about = STATISTICS, Kind.STATISTICS, name, "client-3", "plaintext"
        return Entry(number, 1, *about, 12, 0), doubles(tensors[STATISTICS])

    sending(patch, aside)


# What all are told is one client's.


@mutant("fedavg", "model/statistics", TAP, round_number=2)
def a_broadcast_carries_one_clients_statistics(patch):
    """In the place of the mean."""
    own, broadcast, send = {}, Server.note_broadcast, ClientsRound._sent

    def sending_own(self, name, what, specs, tensors):
        own.setdefault(self.context.number, tensors[STATISTICS])
        return send(self, name, what, specs, tensors)

    def sent(self, state, news, client):
        if state.round in own:
            state = replace(state, tensors={**state.tensors, Kind.STATISTICS: own[state.round]})
        broadcast(self, state, news, client)

    patch.setattr(ClientsRound, "_sent", sending_own)
    patch.setattr(Server, "note_broadcast", sent)


@mutant("fedtan", "1/mean", TAP)
def a_total_is_one_clients_mean(patch):
    """Sent to all, where the mean over clients should be."""
    first, send, write = {}, ClientsRound._sent, ServerRound._note

    def sending_first(self, name, what, specs, tensors):
        first.setdefault((self.context.number, *tensors), next(iter(tensors.values())))
        return send(self, name, what, specs, tensors)

    def noted(self, spec, way, form, content, n_bytes=None):
        if n_bytes is not None:
            content = first[self.context.number, spec.name]
        write(self, spec, way, form, content, n_bytes)

    patch.setattr(ClientsRound, "_sent", sending_first)
    patch.setattr(ServerRound, "_note", noted)


# Totals that are for clients alone.


def with_totals_for_the_server(patch):
    patch.setattr(Policy, "is_blind", lambda *_: False)
    patch.setattr(Server, "is_blind", lambda *_: False)
    patch.setattr(Client, "read_total", lambda *about: about[-1])


@mutant("blind", "1/mean", FOLDER, TAP)
def the_server_is_given_what_clients_alone_may_read(patch):
    """Against the settings, by the authority; clients take it from the server."""
    with_totals_for_the_server(patch)


@mutant("blind", "1/mean", TAP)
def the_server_is_given_it_and_the_ledger_says_ciphertext(patch):
    """Of the length that a sealed one has: to the folder it looks right."""
    with_totals_for_the_server(patch)
    note = Ledger.note
    names = [f"client-{i}" for i in (1, 2, 3)]

    def noted(self, entry, content):
        lengths = {AUTHORITY: n_answer_bytes, SERVER: n_client_bytes}
        if entry.name.startswith("1/") and entry.form == "plaintext":
            n_bytes = lengths[entry.sender](names, n_total_bytes(entry.n_values, RELEASED))
            entry = replace(entry, form="ciphertext", bytes=n_bytes)
        note(self, entry, content)

    patch.setattr(Ledger, "note", noted)


@mutant("blind", "1/mean", FOLDER, TAP)
def a_sealed_total_comes_with_its_values(patch):
    """Behind it, for the server to read."""
    seal = OneTimeOpener.sealed_for

    def open_handed(self, content, about, names):
        total = seal(self, content, about, names)
        return replace(total, sealed=total.sealed + content)

    patch.setattr(OneTimeOpener, "sealed_for", open_handed)
    text = blind._text

    def careless(total, message):
        found = text(total, message)
        n_content = (len(found.ciphertext) - TAG_BYTES) // 2
        return replace(found, ciphertext=found.ciphertext[: n_content + TAG_BYTES])

    patch.setattr(blind, "_text", careless)  # clients take no notice


@mutant("blind", "1/mean", TAP)
def a_sealed_total_is_one_clients_mean(patch):
    """Clients would learn it, where the mean over clients should be."""
    first, send, write = {}, ClientsRound._sent, securefl.federation.authority.total_bytes

    def sending_first(self, name, what, specs, tensors):
        first.setdefault((self.context.number, *tensors), next(iter(tensors.values())))
        return send(self, name, what, specs, tensors)

    def other(opened, dtype):
        (values,) = first.get((1, "1/mean"), {"mean": None}).values()
        if values is not None and not first.setdefault("done", False):
            first["done"] = True
            opened = replace(opened, values=values.double().numpy())
        return write(opened, dtype)

    patch.setattr(ClientsRound, "_sent", sending_first)
    patch.setattr(securefl.federation.authority, "total_bytes", other)


@mutant("blind", "1/mean", TAP)
def the_server_passes_another_total_on(patch):
    """Of one byte."""
    write = ServerRound._note

    def noted(self, spec, way, form, content, n_bytes=None):
        if way[0] == SERVER and way[1] != AUTHORITY and form == "ciphertext":
            content = content[:-1] + bytes([content[-1] ^ 1])
        write(self, spec, way, form, content, n_bytes)

    patch.setattr(ServerRound, "_note", noted)


# Beside the values of a message, where the server does not look.


def behind_a_careless_server(patch, change):
    """Clients' parameters, which `change(message, the client's statistics)` makes other messages.

    The server adds whatever has the right values in it.
    """
    statistics = {}

    def contribute(self, run, round_number, spec, tensors, times=1, state="", *, model=""):
        message = CONTRIBUTE(self, run, round_number, spec, tensors, times, state, model=model)
        if spec.kind is Kind.PARAMETERS:
            return change(self, message, statistics.get(self.name) or listed(tensors))
        statistics[self.name] = listed(tensors)
        return message

    admit = ServerSum.admit

    def careless(self, message, client):
        if self._expected.name != PARAMETERS:
            return admit(self, message, client)
        signed, payload = split(message)
        larger = self._running.plus(payload[: self._n_bytes])

        def add():
            self._running = larger
            self._signed[signed.header.sender] = signed

        return add

    patch.setattr(Client, "contribute", contribute)
    patch.setattr(ServerSum, "admit", careless)


def listed(tensors):
    return [value for t in tensors.values() for value in t.double().flatten().tolist()]


def split(message):
    return split_message(message, len(message))


def signed_anew(client, message, payload=None, **changes):
    """Another header, or other bytes behind it, under the client's signature."""
    before = split(message)
    payload = before[1] if payload is None else payload
    expected = Expected("0" * 64, 0, "", "", "", 0, 1)
    about = header_for(expected, client.name, Sealed(payload))
    sizes = {"payload_bytes": about.payload_bytes, "payload_sha256": about.payload_sha256}
    header = before[0].header.model_copy(update=sizes | changes)
    return encode_message(header, payload, client.signing_key)


@mutant("fedavg", PARAMETERS, FOLDER, TAP)
def a_header_names_a_value(patch):
    """Behind the message's name."""

    def change(client, message, values):
        return signed_anew(client, message, name=f"{PARAMETERS}?{values[0]}")

    behind_a_careless_server(patch, change)


@mutant("fedavg", PARAMETERS, TAP)
def a_headers_run_is_eight_floats(patch):
    """In hex it is as long as a run's name."""

    def change(client, message, values):
        return signed_anew(client, message, run=struct.pack("<8f", *values[:8]).hex())

    behind_a_careless_server(patch, change)


@mutant("fedavg", PARAMETERS, TAP)
def a_headers_size_is_a_value(patch):
    """Of as many digits as the size."""

    def change(client, message, values):
        return signed_anew(client, message, n_values=10 + int(abs(values[0]) * 1000) % 50)

    behind_a_careless_server(patch, change)


@mutant("fedavg", PARAMETERS, TAP)
def a_signature_is_eight_doubles(patch):
    """Where nobody verifies it."""

    def change(_client, message, values):
        start = message.index(b"}", len(MAGIC) + 2) + 1
        return message[:start] + struct.pack("<8d", *values[:8]) + message[start + 64 :]

    behind_a_careless_server(patch, change)


@mutant("fedavg", PARAMETERS, FOLDER, TAP)
def plaintext_stands_behind_a_payload(patch):
    """Hashed and signed; the server cuts it off."""

    def change(client, message, values):
        return signed_anew(client, message, split(message)[1] + struct.pack("<8d", *values[:8]))

    behind_a_careless_server(patch, change)


@mutant("fedavg", STATISTICS, FOLDER, TAP)
def plaintext_stands_behind_a_ciphertext(patch):
    """The header does not know of it."""
    admit = ServerSum.admit

    def contribute(self, run, round_number, spec, tensors, times=1, state="", *, model=""):
        message = CONTRIBUTE(self, run, round_number, spec, tensors, times, state, model=model)
        sealed = spec.kind is Kind.STATISTICS
        return told(self, message, doubles(tensors)) if sealed else message

    patch.setattr(Client, "contribute", contribute)
    patch.setattr(ServerSum, "admit", lambda self, message, _: admit(self, without_told(message)))


@mutant("fedavg", PARAMETERS, TAP)
def a_weight_is_a_value(patch):
    """Anything in (0, 1] is taken for one."""
    seal = PlainChannel.seal

    def weighing(self, values, _weight, *about):
        return seal(self, values, odd(values), *about)

    patch.setattr(PlainChannel, "seal", weighing)


def odd(values):
    return 0.2 + 0.1 * abs(float(values[0])) % 0.1


# Ciphertexts that are none.


def drawing(patch, key):
    """Keys of messages, by their seed."""
    patch.setattr(securefl.crypto.one_time, "key_polynomial", lambda _seed, degree: key(degree))


@mutant("profiles", PROFILE, TAP)
@mutant("fedavg", STATISTICS, TAP)
def a_ciphertext_is_an_encoded_plaintext(patch):
    """Its common polynomial is the constant one, so that a key hides the last bits alone."""

    def one(_about, _index, degree, _modulus):
        return np.ones(degree, np.uint64)

    patch.setattr(securefl.crypto.seal_ring, "common_polynomial", one)


@mutant("profiles", PROFILE, TAP)
@mutant("fedavg", STATISTICS, TAP)
def a_ciphertexts_mask_is_tiny(patch):
    """It looks as random as any, and its key is one: whoever knows a subtracts it."""
    drawing(patch, lambda degree: np.eye(1, degree, dtype=np.int64)[0])


def seeding(patch, seed):
    """Seeds of keys by what they are of."""
    patch.setattr(securefl.crypto.one_time, "key_seed", seed)


@mutant("profiles", PROFILE, TAP)
@mutant("fedavg", STATISTICS, TAP)
def ciphertexts_share_their_randomness(patch):
    """The difference of two clients' messages is that of their plaintexts."""
    seeding(patch, lambda _secret, about, _sender, _nonce: about)


@mutant("profiles", PROFILE, TAP, round_number=2)
@mutant("fedtan", "1/variance", TAP)
def a_client_has_one_key(patch):
    """For all its messages: the sum of keys that opens one total opens every other one."""
    seeding(patch, lambda secret, _about, _sender, _nonce: secret)


@mutant("profiles", PROFILE, TAP)
@mutant("fedavg", STATISTICS, TAP)
def a_ciphertext_has_no_error(patch):
    """Exactly m - a s: a client's key is the solution of linear equations."""
    patch.setattr(SealRing, "encrypted", encrypted_without_error)


def with_nonces(patch, nonce):
    """Sixteen bytes, by the values that are sealed; what follows them is no whole one."""

    def of_values(sealed):
        return nonce(np.frombuffer(sealed[: len(sealed) // 8 * 8]))

    for module in (securefl.exchange.one_time, securefl.exchange.one_time_match):
        patch.setattr(module, "fresh_nonce", of_values)


@mutant("profiles", PROFILE, TAP)
@mutant("fedavg", STATISTICS, TAP)
def a_nonce_is_two_values(patch):
    """In the clear, in a header that is signed."""
    with_nonces(patch, lambda values: struct.pack("<2d", *values[:2]))


@mutant("profiles", PROFILE, TAP)
@mutant("fedavg", STATISTICS, TAP)
def all_nonces_are_alike(patch):
    """A copied machine would use a key for two lists of values."""
    with_nonces(patch, lambda _values: bytes(16))


@mutant("fedavg", STATISTICS, TAP)
def values_stand_in_padding(patch):
    """A second time, unweighted: the authority sees what the server cannot."""
    seal = OneTimeSealer.seal

    def twice(self, values, weight, *about):
        return seal(self, np.concatenate([values, values / weight]), weight, *about)

    patch.setattr(OneTimeSealer, "seal", twice)
    patch.setattr(securefl.exchange.decode_total, "EMPTY", np.inf)  # the authority would refuse it


# Profiles.


def sealing(patch, make):
    """Profiles whose rows, drawn bytes and drawn bytes that the server is sent `make` decides."""

    def seal(self, profile, about, sender):
        values = securefl.exchange.one_time_match._values(profile)
        rows = securefl.exchange.one_time_match._rows(values)
        rows, drawn, sent = make(rows, os.urandom(32), sender)
        nonce = fresh_nonce(rows.tobytes())
        secrets, digest = self.keys.secrets(sender), about.digest("profile")
        key = OneTimeKey.of(secrets, digest, sender.name, nonce, MATCHES)
        return Sealed(with_header(profile, sent + key.seal(rows, drawn)), nonce.hex())

    patch.setattr(OneTimeProfileSealer, "seal", seal)


def with_rows(patch, change):
    """Profiles of which something stands in rows that `change` writes to."""

    def make(rows, drawn, sender):
        change(rows[0], sender)
        return rows, drawn, drawn

    sealing(patch, make)


@mutant("profiles", PROFILE, TAP)
def drawn_bytes_are_values(patch):
    """Four means in the clear, which make common polynomials as well as random bytes do."""

    def make(rows, _drawn, _sender):
        drawn = rows[0, 6:10].tobytes()
        return rows, drawn, drawn

    sealing(patch, make)


@mutant("profiles", PROFILE, TAP)
def drawn_bytes_repeat(patch):
    """Whoever knows a common polynomial from elsewhere learns weights from the authority's side."""
    sealing(patch, lambda rows, _drawn, _sender: (rows, bytes(32), bytes(32)))


@mutant("profiles", PROFILE, TAP)
def drawn_bytes_are_not_those_of_the_ciphertext(patch):
    """Something else travels in their place, from one client; its score comes out as noise."""

    def make(rows, drawn, sender):
        return rows, drawn, os.urandom(32) if sender.name == "client-2" else drawn

    sealing(patch, make)


@mutant("profiles", PROFILE, TAP)
def a_value_stands_behind_a_profile(patch):
    """In the one slot that no copy takes."""

    def change(row, _sender):
        row[-1] = row[6]

    with_rows(patch, change)


@mutant("profiles", PROFILE, TAP)
def a_copy_of_a_profile_is_something_else(patch):
    """One of 315 has a mean in the place of its last value."""

    def change(row, _sender):
        row[13 * 200 - 1] = row[6]

    with_rows(patch, change)


@mutant("profiles", PROFILE, TAP)
def a_profiles_logarithm_is_a_value(patch):
    """In all copies alike: it no longer follows from moments and means."""

    def change(row, _sender):
        row[12:-1:13] += 1e-3

    with_rows(patch, change)


@mutant("profiles", PROFILE, TAP)
def a_profile_has_no_variance(patch):
    """Something else stands in the place of its second moments."""

    def change(row, _sender):
        row[0:-1:13] = 0.01 * row[6]

    with_rows(patch, change)


@mutant("profiles", PROFILE, FOLDER, TAP)
def plaintext_stands_behind_a_profile(patch):
    """The header does not know of it, and the server cuts it off."""
    send, admit = Client.send_profile, Survey.admit

    def sending_more(self, run, round_number, profile, state=""):
        return told(
            self, send(self, run, round_number, profile, state), doubles({"": profile.mean_Q})
        )

    def careless(self, message, client=None):
        return admit(self, without_told(message), client)

    patch.setattr(Client, "send_profile", sending_more)
    patch.setattr(Survey, "admit", careless)


@mutant("profiles", SCORE, TAP)
def a_request_for_scores_carries_plaintext(patch):
    """Behind the scores; the authority should see no more than them."""
    as_bytes = ScoreRequest.as_bytes
    patch.setattr(ScoreRequest, "as_bytes", lambda self: as_bytes(self) + struct.pack("<d", 0.3))


@mutant("profiles", SCORE, TAP)
def a_score_is_plaintext(patch):
    """Means fill the polynomial, which the authority is shown."""

    def as_bytes(self):
        means = [struct.pack("<d", 0.3 / (i + 1)) for i in range(len(self.scores))]
        scores = [s[:-32768] + 4096 * mean for s, mean in zip(self.scores, means, strict=True)]
        return b"".join(scores) + headers_bytes(self.signed)

    patch.setattr(ScoreRequest, "as_bytes", as_bytes)


def with_constants(patch, constant):
    """Requests whose scores have this in the place of a uniform number."""

    def as_bytes(self):
        scores = [score[:1] + constant + score[13:] for score in self.scores]
        return b"".join(scores) + headers_bytes(self.signed)

    patch.setattr(ScoreRequest, "as_bytes", as_bytes)


@mutant("profiles", SCORE, TAP)
def a_scores_constant_is_a_double(patch):
    """It is smaller than a uniform number ever is."""
    with_constants(patch, struct.pack("<d4x", 0.3))


@mutant("profiles", SCORE, TAP)
def a_scores_constant_ends_in_a_double(patch):
    """It is not below the modulus."""
    with_constants(patch, struct.pack("<4xd", 0.3))


@mutant("profiles", SCORE, TAP)
def scores_have_scales_of_their_own(patch):
    """One tells something of a client; the baseline's is the same for all."""

    def as_bytes(self):
        scores = [bytes([i]) + score[1:] for i, score in enumerate(self.scores)]
        return b"".join(scores) + headers_bytes(self.signed)

    patch.setattr(ScoreRequest, "as_bytes", as_bytes)


@mutant("profiles", SCORE, FOLDER, TAP)
def scores_come_with_a_value(patch):
    """From the authority, behind them."""
    note = ProfileQuestion._note

    def noted(self, number, name, way, form, n_values, content):
        content += struct.pack("<d", 0.3) if way[0] == AUTHORITY else b""
        note(self, number, name, way, form, n_values, content)

    patch.setattr(ProfileQuestion, "_note", noted)


@mutant("profiles", SCORE, FOLDER)
def the_authority_opens_scores_twice(patch):
    """The second answer may be another number of the same profile."""
    opened = ScoreAuthority.open

    def twice(self, request):
        opened(self, request)
        self._authority._history = OpeningHistory()
        return opened(self, request)

    patch.setattr(ScoreAuthority, "open", twice)


def with_log(patch, change):
    """An authority that writes down what `change` makes of an opening, or nothing."""
    logged = securefl.federation.checks.logged

    def changed(log, *about):
        return logged(lambda opening: [log(line) for line in change(opening)], *about)

    patch.setattr(securefl.federation.checks, "logged", changed)


def without(name):
    """Nothing of openings of this name."""
    return lambda opening: [opening] if opening.name != name else []


@mutant("profiles", SCORE, FOLDER)
def the_authority_keeps_scores_from_its_log(patch):
    """Though it has opened them."""
    with_log(patch, without(SCORE))


# Cards.


@mutant("fedavg", CARD, TAP)
def a_card_holds_a_value(patch):
    """The number of samples, as the secret that keys follow from: the authority reads it."""

    def sender(self, _run, _key_id):
        return Sender(self.name, struct.pack("<4d", self.weight, 0, 0, 0))

    patch.setattr(Client, "sender", sender)


@mutant("fedavg", CARD, FOLDER, TAP)
def plaintext_stands_behind_a_card(patch):
    """The server cuts it off before it passes the card on."""
    send, asked, admit = Client.send_cards, Cards._asked, Survey.admit

    def sending_more(self, run):
        return told(self, send(self, run), struct.pack("<d", self.weight))

    def passing_less_on(self, state, clients):
        given = asked(self, state, clients)
        return {client: without_told(message) for client, message in given.items()}

    def careless(self, message, client=None):
        return admit(self, without_told(message), client)

    patch.setattr(Client, "send_cards", sending_more)
    patch.setattr(Cards, "_asked", passing_less_on)
    patch.setattr(Survey, "admit", careless)


@mutant("fedavg", CARD, FOLDER, TAP)
def a_card_is_passed_on_with_more(patch):
    """Something that the server tells the authority beside it."""
    note = Cards._note

    def noted(self, state, way, message):
        note(self, state, way, message + b"more" if way == (SERVER, AUTHORITY) else message)

    patch.setattr(Cards, "_note", noted)


@mutant("fedavg", CARD, TAP)
def a_card_is_changed_on_its_way(patch):
    """To something of the same length that no client has sent."""
    note = Cards._note

    def noted(self, state, way, message):
        turned = bytes(reversed(message)) if way == (SERVER, AUTHORITY) else message
        note(self, state, way, turned)

    patch.setattr(Cards, "_note", noted)


# The authority.


def with_first_client_alone(patch):
    admit = ServerSum.admit

    def only_first(self, message, client):
        add = admit(self, message, client)
        alone = self._expected.form == ONE_TIME and self._signed
        return (lambda: None) if alone else add

    patch.setattr(ServerSum, "admit", only_first)
    patch.setattr(securefl.federation.checks, "require_clients", lambda *_: None)


@mutant("fedavg", STATISTICS, FOLDER, TAP)
def the_authority_opens_one_clients_total(patch):
    """And says so in its log."""
    with_first_client_alone(patch)


@mutant("fedavg", STATISTICS, TAP)
def the_authority_lies_of_whose_total_it_opened(patch):
    """All are in its log."""
    with_first_client_alone(patch)
    everybody = tuple(f"client-{i + 1}" for i in range(3))
    with_log(patch, lambda opening: [replace(opening, signers=everybody, n_clients=len(everybody))])


@mutant("fedavg", STATISTICS, FOLDER)
def the_authority_opens_a_total_twice(patch):
    """The second time it may be of other clients."""
    opened = Authority.open

    def twice(self, request):
        opened(self, request)
        self._history = OpeningHistory()
        return opened(self, request)

    patch.setattr(Authority, "open", twice)


@mutant("fedavg", STATISTICS, FOLDER)
def the_authority_writes_nothing_down(patch):
    """Not even that there is a log."""
    with_log(patch, lambda _opening: [])


@mutant("fedtan", "1/mean", FOLDER)
def the_authority_keeps_one_opening_from_its_log(patch):
    """Of many."""
    with_log(patch, without("1/mean"))


@mutant("fedavg", STATISTICS, FOLDER, TAP)
def a_total_comes_with_a_single_value(patch):
    """Behind it."""
    as_bytes = OpenedSum.as_bytes
    patch.setattr(OpenedSum, "as_bytes", lambda self: as_bytes(self) + struct.pack("<d", 0.3))


@mutant("fedavg", STATISTICS, TAP)
def a_request_carries_plaintext(patch):
    """To the authority, which opens totals and should see no more."""
    as_bytes = SumRequest.as_bytes
    patch.setattr(
        SumRequest, "as_bytes", lambda self: as_bytes(self) + struct.pack("<12d", *[0.3] * 12)
    )


# Beside messages.


@mutant("fedavg", "debug.bin", FOLDER, round_number=0)
def a_file_holds_tensors(patch):
    """In the run's folder."""
    note = runfolder.RunFolder.note_round

    def noted(self, metrics, checkpoint, participants=None):
        note(self, metrics, checkpoint, participants)
        (self.path / "debug.bin").write_bytes(struct.pack("<3d", 0.1, 0.2, 0.3))

    patch.setattr(runfolder.RunFolder, "note_round", noted)


@mutant("fedavg", "debug", FOLDER, round_number=0)
def a_row_holds_a_value(patch):
    """Where readers take no notice of it."""
    lines = runfolder._lines
    more = {"debug": [0.1, 0.2]}
    patch.setattr(runfolder, "_lines", lambda rows: lines(row | more for row in rows))


@mutant("fedavg", "uploads", FOLDER)
def more_was_sent_than_is_accounted_for(patch):
    """By what the round itself has counted."""
    made = rounds.RoundMetrics
    patch.setattr(
        rounds,
        "RoundMetrics",
        lambda **row: made(**row | {"upload_bytes": row["upload_bytes"] + 96}),
    )


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_caught(tmp_path, name):
    """By its field and round; by the folder alone, or the tap alone, where only these can know."""
    made = MUTANTS[name]
    config, task = settings(made.run), task_of(made.run)
    table = config.run.model_copy(update={"rounds": max(1, made.round)})
    config = config.model_copy(update={"run": table})
    with pytest.MonkeyPatch.context() as patch:
        nothing_is_handed_over(patch)
        made.install(patch)
        securefl.run(config, task, out=tmp_path / "run")
    found = {FOLDER: in_folder(tmp_path / "run", task)}
    with pytest.MonkeyPatch.context() as patch:
        made.install(patch)
        found[TAP] = inspect_rounds(config, task, 2).leaks
    where = {by for by, leaks in found.items() if leaks}
    assert where == set(made.caught_by), found
    for by in made.caught_by:
        assert (made.round, made.what) in {(leak.round, leak.what) for leak in found[by]}, by


def test_there_are_enough_mutants():
    """The requirement asks for twenty."""
    assert len(MUTANTS) >= 24


def test_a_value_in_an_incident_is_found(tmp_path, monkeypatch):
    """Where the error's own words are written down; those without the value are not."""
    task = make_task(4)
    task.clients[1][0][:] *= 1e6
    without, refused = clients_round.cannot_send, []

    def with_value(client, message, why):
        return Refused(message, why) if refused else without(client, message, why)

    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(clients_round, "cannot_send", with_value)
            folder = tmp_path / str(len(refused))
            securefl.run(settings("fedavg"), task, out=folder)
        assert (folder / "incidents.jsonl").read_text()
        refused.append({(leak.round, leak.what, leak.who) for leak in in_folder(folder, task)})
    assert refused == [set(), {(n, UPDATE, "incidents.jsonl") for n in (1, 2)}]
