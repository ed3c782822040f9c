"""Inspection of every byte on its way: of which messages something is readable.

A message is prefix, header, signature and payload. The header is the one that its ledger entry
implies, but for the nonce of a one-time key; the signature is its sender's; a payload in the clear
is as long as its values; a sealed one is ciphertexts that are uniform, that nobody sent before, and
that open to nothing but what a client may send (`SealedMessages`), a sum's and a profile's alike; a
card holds the secret of its sender's keys and nothing else; a total that is sealed for clients
opens for each of them, to one content. So nothing else fits between them. What others are told is
no single client's. What hides in the noise of a ciphertext, in a nonce or drawn bytes that look
random, or in when it is sent, is not found.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch

from securefl.audit.exposure.leaks import Leak
from securefl.audit.exposure.opened_messages import (
    CONTRIBUTION_ERROR,
    SentValues,
    contribution_in,
    require_profile,
    unaggregated,
)
from securefl.audit.exposure.sealed_messages import SealedMessages, too_alike
from securefl.build.exchange import is_blind, sealed_kinds
from securefl.build.training import equal_weight
from securefl.crypto.params import SUMS
from securefl.errors import MessageRefused
from securefl.exchange.blind import BlindTotal
from securefl.exchange.layout import gains_of
from securefl.exchange.one_time import OneTimeSealer
from securefl.exchange.one_time_match import OneTimeMatcher, OneTimeProfileSealer
from securefl.exchange.plain import PlainChannel
from securefl.exchange.profile_match import PlainMatch, Profile, content_of
from securefl.exchange.sums import Channel, MessageId, Sealed, Values
from securefl.federation.incidents import BOOKKEEPING_BYTES
from securefl.federation.ledger import AUTHORITY, SERVER, Content, Entry
from securefl.federation.message import (
    NUMBER,
    Expected,
    Header,
    card_expected,
    header_for,
    number_expected,
    split_message,
)
from securefl.settings.tables import Config
from securefl.types import PROFILE, Kind, NamedTensors, Plan


@final
@dataclass(slots=True)
class ByteInspector:
    """Inspector of a run's messages, called with each as the ledger's tap."""

    config: Config
    sealed: SealedMessages
    """Keys of the run: only who can open a ciphertext knows what is in it."""
    plain: PlainChannel
    weights: Mapping[str, float]
    """Weights of all clients, as they should count."""
    n_bytes: int = 0
    """Bytes seen so far; of what a simulation hands over in memory, as it would be on a wire."""
    _found: list[Leak] = field(default_factory=list)
    _runs: list[tuple[str, Entry]] = field(default_factory=list)
    """Run that each header names, which nobody has told the inspector."""
    _sizes: dict[str, int] = field(default_factory=dict)
    """Values of the model in each message that sends it."""
    _cards: set[bytes] = field(default_factory=set)
    """Messages with cards, as clients sent them."""
    _first_nonce: Entry | None = None
    """First message whose header has a nonce."""
    _first_drawn: Entry | None = None
    """First profile that is sealed."""
    _headers: dict[tuple[int, str], dict[bytes, str]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """Headers with signatures, and their senders, by round and name."""
    _listed: dict[tuple[int, str], list[str]] = field(default_factory=dict)
    """Clients of whom the authority was asked to open a total."""
    _about: dict[tuple[int, str], MessageId] = field(default_factory=dict)
    """Sums that are sealed."""
    _for_clients: frozenset[str] = frozenset()
    """Names of this round's totals that are sealed for clients."""
    _blind: dict[tuple[int, str], BlindTotal] = field(default_factory=dict)
    """Totals sealed for clients, as the authority has sealed them."""
    _received_by: Callable[[str], tuple[str, str]] = lambda _client: ("", "")
    """Digests of what a client was sent, and of the model, in the round that goes on."""
    _profiled_under: Callable[[float], str] = str
    """Digest of what profiles are made under in the round that goes on, by the unit."""
    _unit: float = 1.0
    """Unit of profiles that a client was told last."""
    _sent: dict[tuple[int, str], list[SentValues]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Contributions of clients to be added up, by round and name."""
    _gains: dict[str, Values | float] = field(default_factory=dict)
    """Gains of this round's messages, by name, where they are sealed."""

    def begin_round(
        self,
        plan: Plan,
        received_by: Callable[[str], tuple[str, str]],
        profiled_under: Callable[[float], str],
    ) -> None:
        """Prepare for the messages of a round.

        Args:
            plan: of the round.
            received_by: gives the digests that a client's header names, of sums: of what it was
                sent, and of the model.
            profiled_under: gives the digest that headers of profiles name, by the unit.
        """
        self._received_by, self._profiled_under = received_by, profiled_under
        kinds = sealed_kinds(self.config)
        specs = (*plan.sums, *plan.update)
        self._for_clients = frozenset(
            spec.name for spec in plan.sums if is_blind(self.config, spec.kind, spec.name)
        )
        self._gains = {spec.name: gains_of(spec) for spec in specs if spec.kind in kinds}

    def __call__(self, entry: Entry, content: Content) -> None:
        """Look at one message."""
        self.n_bytes += len(content) if isinstance(content, bytes) else entry.bytes
        try:
            why = self._readable(entry, content)
        except MessageRefused as error:
            why = str(error)
        if why:
            self._found.append(Leak.of(entry, why))

    def leaks(self) -> list[Leak]:
        """Return all that was readable so far, and headers of another run than most."""
        ((run, _),) = Counter(run for run, _ in self._runs).most_common(1) or [("", 0)]
        foreign = (entry for said, entry in self._runs if said != run)
        found = [*self._found, *(Leak.of(e, "its header is of another run") for e in foreign)]
        if self._first_nonce and too_alike(self.sealed.nonces):
            found.append(Leak.of(self._first_nonce, "its nonce, and others, are not random"))
        if self._first_drawn and too_alike(self.sealed.drawn):
            found.append(Leak.of(self._first_drawn, "its drawn bytes, and others, are not random"))
        return found

    def _readable(self, entry: Entry, content: Content) -> str:
        """Return what is wrong with a message; empty where nothing is."""
        if not isinstance(content, bytes):
            return self._tensors(entry, content)
        if len(content) != entry.bytes:
            return f"{len(content):,} bytes, {entry.bytes:,} are written down"
        if entry.sender == AUTHORITY:
            return self._total(entry, content)
        if entry.sender == SERVER:
            return self._from_server(entry, content)
        return self._from_client(entry, content)

    def _tensors(self, entry: Entry, tensors: NamedTensors) -> str:
        """Check what all are told: the values written down, or more where not all are news."""
        if entry.name in self._for_clients:
            return "in the clear, and the settings seal it for its clients"
        n = sum(value.numel() for value in tensors.values())
        whole = self._sizes.setdefault(entry.name, n) if entry.exchange == 0 else entry.n_values
        if n != whole or n < entry.n_values:
            return f"{n} values, {min(whole, entry.n_values)} are written down"
        flat = torch.cat([value.detach().reshape(-1).double() for value in tensors.values()])
        return self._unaggregated(entry, flat.cpu().numpy())

    def _total(self, entry: Entry, content: bytes) -> str:
        if entry.kind is Kind.PROFILES:
            return "" if len(content) == 8 * entry.n_values else "more than a score of each client"
        if entry.name in self._for_clients:
            return self._sealed_total(entry, content)
        if len(content) != 8 * entry.n_values + BOOKKEEPING_BYTES:
            return "more than a total, its weight and its count"
        values = np.frombuffer(content[:-BOOKKEEPING_BYTES])
        return self._unaggregated(entry, self._without_gains(entry, values))

    def _sealed_total(self, entry: Entry, content: bytes) -> str:
        about = entry.round, entry.name
        names = self._listed.get(about, [])
        total = self._blind[about] = BlindTotal.from_bytes(content, names)
        values = self.sealed.for_clients(self._about[about], total, names)
        return self._unaggregated(entry, self._without_gains(entry, values))

    def _unaggregated(self, entry: Entry, values: Values) -> str:
        about = entry.round, entry.name
        if entry.exchange == 0:  # the model as the round before has left it
            about = entry.round - 1, f"update/{entry.kind}"
        one = unaggregated(values, self._sent.get(about, ()))
        return f"it is {one}'s own values, and no mean" if one else ""

    def _from_client(self, entry: Entry, message: bytes) -> str:
        sealed = entry.kind in sealed_kinds(self.config)
        signed, payload = split_message(message, len(message))
        self._runs.append((signed.header.run, entry))
        due = self._due(entry, signed.header, sealed=sealed)
        self.sealed.identities.roster.check(signed, due)
        if signed.header != header_for(due, entry.sender, Sealed(payload, signed.header.nonce)):
            return "its header says more than which message it is"
        if entry.kind is Kind.CARDS:
            self._cards.add(message)
            return self.sealed.card(due.run, entry.sender, payload)
        self._headers[entry.round, due.name][signed.signed + signed.signature] = entry.sender
        if entry.kind is Kind.PROFILES:
            return self._profile(entry, due, signed.header.nonce, payload)
        if entry.kind is Kind.SELECTION:
            return "" if len(payload) == NUMBER.size else "more than one number"
        if not sealed:
            return self._in_clear(entry, payload)
        self._first_nonce = self._first_nonce or entry
        self._about[entry.round, due.name] = due.about
        slots = self.sealed.slots_of_sum(due.about, entry.sender, signed.header.nonce, payload)
        found = contribution_in(slots, entry.n_values)
        return self._counted(entry, self._without_gains(entry, found.values), found.weight)

    def _due(self, entry: Entry, said: Header, *, sealed: bool) -> Expected:
        about, name, n_values = (said.run, entry.round), entry.name, entry.n_values
        if entry.kind is Kind.SELECTION:
            return number_expected(*about, name)
        if entry.kind is Kind.CARDS:
            if not self.config.needs_cards:
                raise MessageRefused("cards, and the settings seal nothing")
            return card_expected(said.run, self.sealed.public)
        channel = self._channel(entry.kind, sealed=sealed)
        if entry.kind is Kind.PROFILES:
            return Expected.over(
                channel, about, PROFILE, n_values, self._profiled_under(self._unit)
            )
        # It is what the client was sent: else it could tell something here.
        return Expected.over(channel, about, name, n_values, *self._received_by(said.sender))

    def _channel(self, kind: Kind, *, sealed: bool) -> Channel:
        if kind is Kind.PROFILES:
            return OneTimeProfileSealer(self.sealed.public) if sealed else PlainMatch()
        return OneTimeSealer(self.sealed.public) if sealed else self.plain

    def _from_server(self, entry: Entry, content: bytes) -> str:
        """Check a unit, a client's cards, or sums or scores and the headers of what is in them."""
        if entry.receiver != AUTHORITY:
            if entry.name in self._for_clients:
                return self._relayed(entry, content)
            if len(content) != NUMBER.size:
                return "more than one number"
            (self._unit,) = NUMBER.unpack(content)
            return ""
        if entry.kind is Kind.CARDS:
            return "" if content in self._cards else "no cards that a client has sent"
        headers = self._headers[entry.round, PROFILE if entry.kind is Kind.PROFILES else entry.name]
        listed = list[str]()
        while known := next((h for h in headers if content.endswith(h)), b""):
            content = content[: -len(known)]
            listed.append(headers[known])
        self._listed[entry.round, entry.name] = listed[::-1]
        if entry.kind is Kind.PROFILES:
            return self.sealed.scores(content, entry.n_values)
        return self.sealed.ciphertexts(content, SUMS.n_ciphertexts(entry.n_values))

    def _relayed(self, entry: Entry, content: bytes) -> str:
        sealed = self._blind.get((entry.round, entry.name))
        if sealed and content == sealed.for_client(entry.receiver):
            return ""
        return "another total than the authority has sealed for it"

    def _profile(self, entry: Entry, due: Expected, nonce: str, payload: bytes) -> str:
        q, sealed = due.n_values // 2, entry.kind in sealed_kinds(self.config)
        like = Profile(torch.zeros(q), torch.ones(q), due.round - 1)
        matcher = OneTimeMatcher(self.sealed.public) if sealed else PlainMatch()
        content = content_of(payload, like, matcher.n_bytes(q))
        if sealed:
            self._first_nonce = self._first_nonce or entry
            self._first_drawn = self._first_drawn or entry
            slots = self.sealed.slots_of_profile(due.about, entry.sender, nonce, content)
            require_profile(slots, q)
        return ""

    def _in_clear(self, entry: Entry, payload: bytes) -> str:
        n_bytes = self.plain.n_bytes(entry.n_values)
        if len(payload) != n_bytes:
            return f"{len(payload) - n_bytes} bytes too many"
        values = np.frombuffer(payload, self.plain.dtype, entry.n_values)
        return self._counted(entry, values.astype(np.float64), NUMBER.unpack(payload[-8:])[0])

    def _without_gains(self, entry: Entry, values: Values) -> Values:
        gains = self._gains.get(entry.name, 1.0)
        return values / gains if np.shape(gains) in {(), values.shape} else values

    def _counted(self, entry: Entry, values: Values, weight: float) -> str:
        """Check a client's weight: its share of the samples, as often as drawn, or like all."""
        self._sent[entry.round, entry.name].append(SentValues(entry.sender, values, weight))
        times = weight / self.weights[entry.sender]
        if times > 0.5 and abs(times - round(times)) < CONTRIBUTION_ERROR * round(times) / weight:
            return ""
        alike = abs(weight / equal_weight(len(self.weights)) - 1) < CONTRIBUTION_ERROR / weight
        return "" if alike else "its weight is none that its sender may have"
