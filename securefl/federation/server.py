"""Server that checks, adds and matches clients' messages. It holds no secret key of any kind."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from securefl.errors import Duplicate, MessageRefused, TotalRefused
from securefl.exchange.blind import n_client_bytes
from securefl.exchange.plain import PlainChannel, PlainSum
from securefl.exchange.profile_match import Matcher, Profile
from securefl.exchange.sums import Adder, OpenedSum, RunningSum, Values
from securefl.federation.contribution import PlainContribution, PlainRows
from securefl.federation.incidents import Incident
from securefl.federation.ledger import SERVER, Entry, Ledger
from securefl.federation.lineage import Lineage
from securefl.federation.message import (
    Expected,
    Roster,
    SignedHeader,
    headers_bytes,
    n_message_bytes,
    number_expected,
    split_message,
)
from securefl.federation.survey import NumberRange, NumberSurvey, ProfileSurvey
from securefl.federation.total import RELEASED, Terms, n_total_bytes
from securefl.types import PROFILE, Kind, MessageSpec, State, Weighing

WEIGHT_MARGIN = 0.01
"""Largest relative error of a sealed total's weight against its clients': more than rounding's."""


@dataclass(frozen=True, slots=True)
class WeightShares:
    """Clients' weights by the settings."""

    own: Mapping[str, float]
    """Weight of each client, by name."""
    equal: float
    """Weight of every client in sums where all count alike."""
    told: bool = True
    """True where these are the weights; False where they bound them, as nobody tells a size."""

    def of(self, name: str, weighing: Weighing) -> float:
        """Return a client's weight in a sum; 0 for an unknown client."""
        return self.equal if weighing is Weighing.EQUAL else self.own.get(name, 0.0)


ANY_STATE = "0" * 64
"""Placeholder of a digest, for lengths."""


@dataclass(frozen=True, slots=True)
class DueWeight:
    """Weight that a sealed total should have, by the settings."""

    weight: float
    told: bool = True
    """True where it is the weight; False where it bounds it, as nobody tells a size."""

    def is_that_of(self, total: OpenedSum) -> bool:
        """Return True where a total weighs as much, but for its rounding."""
        too_much = total.weight > (1 + WEIGHT_MARGIN) * self.weight
        return not too_much and not (self.told and total.weight < (1 - WEIGHT_MARGIN) * self.weight)


@dataclass(frozen=True, slots=True)
class SumRequest:
    """Sum and the signed headers of all its contributions, for the authority."""

    expected: Expected
    total: bytes
    signed: tuple[SignedHeader, ...]
    terms: Mapping[str, Terms] = field(default_factory=dict)
    """Terms of each client whose header is signed; `Terms()` for one that is not in it."""
    blind: bool = False
    """True where the server asks for the total as sealed for its clients."""
    due: DueWeight | None = None
    """Weight of a blind total, which the authority checks as the server cannot; None where the
    server does not know any client's. A server learns by it whether a total weighs as much."""

    @property
    def signers(self) -> dict[str, Terms]:
        """Clients that have signed, in order, each with its terms."""
        names = [signed.header.sender for signed in self.signed]
        return {name: self.terms.get(name, Terms()) for name in names}

    @property
    def nonces(self) -> dict[str, str]:
        """Nonce of each client's message, by its signed header."""
        return {signed.header.sender: signed.header.nonce for signed in self.signed}

    def as_bytes(self) -> bytes:
        """Return the bytes that the authority is sent, part after part."""
        return self.total + headers_bytes(self.signed)


class Server:
    """Server of a run: sums and surveys of the roster's clients."""

    def __init__(  # noqa: PLR0913  (what a server has)
        self,
        run: str,
        roster: Roster,
        adders: Mapping[Kind, Adder],
        shares: WeightShares | None = None,
        *,
        plain: PlainChannel | None = None,
        sealed: frozenset[Kind] = frozenset(),
        ledger: Ledger | None = None,
        report: Callable[[Incident], None] = lambda _incident: None,
        job: str = "",
        lineage: Lineage | None = None,
        blind: bool = False,
    ) -> None:
        """Begin a run.

        Args:
            run: id of the run, 64 hex digits.
            roster: clients that may take part.
            adders: adder of each kind of message.
            shares: clients' weights; where None, each weight is only known to be in (0, 1].
            plain: channel that opens sums in the clear.
            sealed: kinds that travel as ciphertext.
            ledger: keeps an entry of every message.
            report: gets every contribution that does not count.
            job: see `RoundContext.job`.
            lineage: record of the models that rounds began with; None where all clients are in one
                process, and nobody could be shown another.
            blind: whether it relays sealed totals in mid-round that it cannot read.
        """
        self.run = run
        self.job = job
        self.lineage = lineage
        self.blind = blind
        self.roster = roster
        self.plain = plain or PlainChannel("float32")
        self.sealed = sealed
        self.ledger = ledger or Ledger()
        self.report = report
        self._shares = shares
        self._adders = adders

    @property
    def value_bytes(self) -> int:
        """Number of bytes of one value in the model's precision."""
        return np.dtype(self.plain.dtype).itemsize

    def total_bytes(self, spec: MessageSpec) -> int:
        """Return the length in bytes of a total on its way to a client, in mid-round.

        Of one that is sealed for clients, it is that of a round in which all take part.
        """
        if self.is_blind(spec):
            names = sorted(self.roster.names)
            return n_client_bytes(names, n_total_bytes(spec.n_values, RELEASED))
        return n_total_bytes(spec.n_values, self.plain.dtype)

    def is_blind(self, spec: MessageSpec) -> bool:
        """Return True where a total in mid-round is sealed for its clients."""
        return self.blind and spec.kind in self.sealed

    def note_broadcast(self, state: State, news: Sequence[MessageSpec], client: str) -> None:
        """Write down the broadcast to a client at the start of the round after `state`."""
        for spec in news:
            entry = Entry(
                round=state.round + 1,
                exchange=0,
                name=f"model/{spec.kind}",
                kind=spec.kind,
                sender=SERVER,
                receiver=client,
                form="plaintext",
                n_values=spec.n_values,
                bytes=spec.n_values * self.value_bytes,
            )
            self.ledger.note(entry, state.tensors[spec.kind])

    def start(
        self,
        round_number: int,
        spec: MessageSpec,
        state: str = "",
        terms: Mapping[str, Terms] | None = None,
        model: str = "",
    ) -> "ServerSum":
        """Begin the sum of one message.

        `state` is the digest of what all clients were sent, `terms` are those of each, `model` is
        the digest of the state that the round began with.
        """
        adder, expected = self._adders[spec.kind], self._expected(round_number, spec, state, model)
        running = adder.start(spec.n_values)
        most = partial(self._shares.of, weighing=spec.weighing) if self._shares else None
        told = self._shares is None or self._shares.told or spec.weighing is Weighing.EQUAL
        n_bytes = adder.n_bytes(spec.n_values)
        return ServerSum(self.roster, expected, n_bytes, running, most, told=told, terms=terms)

    def n_bytes(self, round_number: int, spec: MessageSpec, sender: str) -> int:
        """Return the exact length in bytes of a client's message."""
        expected = self._expected(round_number, spec, ANY_STATE, ANY_STATE)
        return n_message_bytes(expected, sender, self._adders[spec.kind].n_bytes(spec.n_values))

    def ask_number(
        self, round_number: int, name: str, allowed: NumberRange, asked: Collection[str]
    ) -> NumberSurvey:
        """Begin a survey for a number of each of these clients."""
        expected = number_expected(self.run, round_number, name)
        return NumberSurvey(self.roster, expected, allowed, asked)

    def ask_profile(
        self,
        round_number: int,
        matcher: Matcher,
        baseline: Profile,
        asked: Collection[str],
        state: str = "",
    ) -> ProfileSurvey:
        """Begin a survey that matches the profiles of these clients with the baseline.

        `state` is the digest of what they profile under.
        """
        about, n_values = (self.run, round_number), 2 * len(baseline)
        expected = Expected.over(matcher, about, PROFILE, n_values, state)
        return ProfileSurvey(self.roster, expected, matcher, baseline, asked)

    def _expected(self, round_number: int, spec: MessageSpec, state: str, model: str) -> Expected:
        adder, about = self._adders[spec.kind], (self.run, round_number)
        return Expected.over(adder, about, spec.name, spec.n_values, state, model)


class InMemorySum:
    """One sum of contributions in memory, while they arrive."""

    def __init__(self, plain: PlainChannel, roster: Roster, n_values: int) -> None:
        self._plain = plain
        self._roster = roster
        self._values: Values = np.zeros(n_values)
        self._weighted: Values = np.empty(n_values)
        self._weight = 0.0
        self._names: set[str] = set()

    def admit(self, sender: str, sent: PlainContribution) -> Callable[[], None]:
        """Check a contribution and return the function that adds it.

        Raises:
            UnknownSender, SenderExpired, SenderRevoked: the client may not take part.
            Duplicate: the client has contributed already.
            MessageRefused: the size or the weight is wrong.
        """
        self.check(sender, sent.weight, len(sent.values))

        def add() -> None:
            values = sent.values.astype(self._plain.dtype, copy=False)
            np.multiply(values, sent.weight, out=self._weighted, dtype=np.float64)
            self._values += self._weighted
            self._weight += sent.weight
            self._names.add(sender)

        return add

    def check(self, sender: str, weight: float, n_values: int) -> None:
        """Check the terms of a contribution; raises as `admit`."""
        self._roster.key_of(sender)
        if not 0 < weight <= 1:
            raise MessageRefused(f"{sender}: weight {weight} outside (0, 1]")
        if sender in self._names:
            raise Duplicate(f"{sender} has contributed already")
        if n_values != len(self._values):
            raise MessageRefused(
                f"{sender}: message of n_values {n_values}, expected {len(self._values)}"
            )

    def add_rows(self, sent: PlainRows, index: Sequence[int]) -> None:
        """Add the rows of these indices, all checked before, in one product on their own device."""
        sent_KN = sent.rows.of(index).matrix_KN.to(getattr(torch, self._plain.dtype)).double()
        weights = [sent.weights[i] for i in index]
        weight_K = torch.tensor(weights, dtype=torch.float64).to(sent_KN.device)
        self._values += (weight_K @ sent_KN).cpu().numpy()
        for i, weight in zip(index, weights, strict=True):
            self._weight += weight
            self._names.add(sent.names[i])

    def opened(self) -> OpenedSum:
        """Return the mean; raises MessageRefused where nothing was added."""
        total = PlainSum(self._plain.dtype, self._values, self._weight, len(self._names)).total()
        return self._plain.open(total, len(self._values))


class ServerSum:
    """One sum of signed messages, while they arrive."""

    def __init__(  # noqa: PLR0913  (what a sum is held against)
        self,
        roster: Roster,
        expected: Expected,
        n_bytes: int,
        running: RunningSum,
        weight_of: Callable[[str], float] | None = None,
        *,
        told: bool = True,
        terms: Mapping[str, Terms] | None = None,
    ) -> None:
        self._terms = terms or {}
        self._weight_of = weight_of
        self._told = told
        self._roster = roster
        self._expected = expected
        self._n_bytes = n_bytes
        self._running = running
        self._signed: dict[str, SignedHeader] = {}

    def receive(self, message: bytes) -> None:
        """Check one contribution and add it; raises as `admit`, and is then unchanged."""
        self.admit(message)()

    def admit(self, message: bytes, client: str | None = None) -> Callable[[], None]:
        """Check one contribution and return the function that adds it.

        It must be called before another contribution is admitted. Where `client` is given, the
        message must be that client's own.

        The ciphertext parser sees only bytes that a client of the roster has signed for this run,
        round and message, and whose length and coefficients are in range.

        Raises:
            Duplicate: the client has contributed already.
            MessageRefused: the message fails another check.
        """
        try:
            signed, payload = split_message(memoryview(message), self._n_bytes)
        except MessageRefused as error:
            raise MessageRefused(f"{client}: {error}" if client else str(error)) from error
        sender = signed.header.sender
        self._roster.check(signed, self._expected.under(self._terms.get(sender, Terms())))
        if client not in {None, sender}:
            raise MessageRefused(f"{client}: sent a message of {sender!r}")
        if sender in self._signed:
            raise Duplicate(f"{sender} has contributed to {self._expected.name!r} already")
        if len(payload) != self._n_bytes:
            raise MessageRefused(
                f"{sender}: payload of {len(payload)} bytes, expected exactly {self._n_bytes}"
            )
        try:
            larger = self._running.plus(payload, self._weight_of(sender) if self._weight_of else 1)
        except MessageRefused as error:
            raise MessageRefused(f"{sender}: {error}") from error

        def add() -> None:
            self._running = larger
            self._signed[sender] = signed

        return add

    def check_weight(self, opened: OpenedSum) -> None:
        """Raise TotalRefused unless a sealed total's weight is that of its clients' settings."""
        due = self._due
        if due and not due.is_that_of(opened):
            most = "" if due.told else "at most "
            raise TotalRefused(
                f"the total of {self._expected.name!r} weighs {opened.weight:.6g}, and by the "
                f"settings its clients weigh {most}{due.weight:.6g}: one of them lies about its "
                "weight"
            )

    @property
    def _due(self) -> DueWeight | None:
        weight_of = self._weight_of
        return DueWeight(sum(map(weight_of, self._signed)), self._told) if weight_of else None

    def request(self, *, blind: bool = False) -> SumRequest:
        """Return the sum of all contributions that were added; `blind` as in `SumRequest`.

        Raises:
            MessageRefused: there are none.
        """
        if not self._signed:
            raise MessageRefused(f"no client contributed to {self._expected.name!r}")
        terms = {name: self._terms.get(name, Terms()) for name in self._signed}
        signed = tuple(self._signed.values())
        total, due = self._running.total(), self._due if blind else None
        return SumRequest(self._expected, total, signed, terms, blind, due)
