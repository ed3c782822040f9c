"""Divergence of each client's data from the server's, by their profiles (FedProf).

All profile the same global model, in a unit that the server publishes. The server matches a profile
with its baseline as it arrives; the authority opens the resulting score.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from securefl.algorithms.algorithm import load_tensors
from securefl.algorithms.profiling import View, profile, profile_length
from securefl.data.samples import Samples
from securefl.errors import DataError, Diverged, MessageRefused
from securefl.exchange.noise import ScoreNoise
from securefl.exchange.one_time_match import OneTimeMatcher
from securefl.exchange.profile_match import SCORE, UNIT, Matcher, PlainMatch, Profile, range_unit
from securefl.federation.cards import Cards
from securefl.federation.contribution import Refused
from securefl.federation.incidents import Incident
from securefl.federation.ledger import AUTHORITY, SERVER, Content, Entry, Form
from securefl.federation.message import NUMBER, Expected, n_message_bytes
from securefl.federation.query import Profiling, Query, inputs
from securefl.federation.questions import Quantity
from securefl.federation.survey import ProfileSurvey, ScoreRequest, profiled_under
from securefl.types import PROFILE, Kind, State

if TYPE_CHECKING:
    from securefl.federation.engine import Opener


class MatchChannel(Protocol):
    """The server's matcher of profiles, and the opener of scores."""

    @property
    def matcher(self) -> Matcher:
        """Matcher under the key in use, or in the clear."""

    @property
    def noise(self) -> ScoreNoise | None:
        """Noise that is added to every opened score; None where clients are not hidden."""

    @property
    def sealed(self) -> bool:
        """True where an authority opens scores; in the clear the server reads them."""

    @property
    def open(self) -> OpenScores:
        """Function that opens scores."""


@dataclass(frozen=True, slots=True)
class MatchInTheClear:
    """Channel of profiles that the server reads by itself."""

    noise: ScoreNoise | None = None
    matcher: PlainMatch = field(default_factory=PlainMatch)
    sealed: bool = False

    def open(self, request: ScoreRequest) -> list[float | None]:
        """Raise RuntimeError, as nothing is sealed."""
        raise RuntimeError(f"{request.name!r}: profiles are in the clear")


OpenScores = Callable[[ScoreRequest], list[float | None]]
"""Opener of scores in a request's order; None where one is none."""


@dataclass(frozen=True, slots=True)
class SealedMatch:
    """Channel of profiles under clients' cards."""

    opener: Opener
    noise: ScoreNoise | None
    open: OpenScores
    sealed: bool = True

    @property
    def matcher(self) -> OneTimeMatcher:
        """Matcher under cards: see `MatchChannel.matcher`."""
        keys = self.opener.card_keys
        assert keys is not None  # noqa: S101 -- for mypy
        return OneTimeMatcher(keys)


class ProfileQuestion:
    """Question for the divergence of a client's profile from the server's."""

    quantity: Quantity = "divergence"
    reads_data = True
    asked_bytes = NUMBER.size

    def __init__(
        self,
        cards: Cards,
        profiling: Profiling,
        model: nn.Module,
        public: Samples,
        channel: MatchChannel,
    ) -> None:
        """Measure the layer's length.

        Args:
            cards: clients' cards, with the server and the engine that asks clients.
            profiling: layer, and how clients profile it.
            model: copied, not changed.
            public: samples of the server's baseline.
            channel: matches profiles and opens scores.

        Raises:
            DataError: the layer cannot be profiled.
        """
        self._server, self._engine = cards.server, cards.engine
        self._profiling = profiling
        self._model = copy.deepcopy(model)
        self._public = public
        self._channel = channel
        self._cards = cards
        x, _ = public.take(torch.arange(1))
        self._q = profile_length(self._model, profiling.layer, x)
        self._baseline: Profile | None = None

    def ask(self, state: State, clients: Collection[str]) -> dict[str, float]:
        """Ask for divergences: see `Question.ask`."""
        number, channel, server = state.round + 1, self._channel, self._server
        if channel.sealed:
            clients = self._cards.holders(state, clients)
        baseline = self._baseline_of(state)
        unit = range_unit(baseline)
        matched = baseline.in_unit(unit)
        under = profiled_under(state, unit)
        survey = server.ask_profile(number, channel.matcher, matched, clients, under)
        answers = self._engine.answers(server.run, Query(PROFILE, unit), state, clients)
        for client in clients:
            self._note(number, UNIT, (SERVER, client), "plaintext", 1, NUMBER.pack(unit))
            answer = answers[client]
            try:
                self._receive(number, survey, client, answer)
            except MessageRefused as error:
                diverged = isinstance(answer, Refused) and answer.diverged
                server.report(Incident(number, PROFILE, client, str(error), diverged))
        request = survey.request()
        opened = self._opened(request)
        # Noise takes scores below 0, and there says nothing of a client's profile.
        precision = math.inf if channel.noise else channel.matcher.precision(matched)
        return self._read(request, opened, precision)

    def n_bytes(self, state: State, client: str) -> int:
        """Return the length of an answer: see `Question.n_bytes`."""
        matcher = self._channel.matcher
        about = self._server.run, state.round + 1
        expected = Expected.over(matcher, about, PROFILE, 2 * self._q, "0" * 64)
        return n_message_bytes(expected, client, matcher.n_bytes(self._q))

    def _receive(
        self, number: int, survey: ProfileSurvey, client: str, answer: bytes | Refused
    ) -> None:
        if isinstance(answer, Refused):
            raise MessageRefused(answer.reason)
        form: Form = "ciphertext" if self._channel.sealed else "plaintext"
        self._note(number, PROFILE, (client, SERVER), form, 2 * self._q, answer)
        survey.receive(answer, client)

    def _read(
        self, request: ScoreRequest, opened: Sequence[float | None], precision: float
    ) -> dict[str, float]:
        """Return scores by client; one below 0 by more than the channel's error is an incident."""
        found = {}
        for signed, score in zip(request.signed, opened, strict=True):
            client = signed.header.sender
            if score is None or score < -precision:
                reason = "its profile is none: the score is not what a divergence can be"
                self._server.report(Incident(request.expected.round, PROFILE, client, reason))
            else:
                found[client] = max(score, 0.0)
        return found

    def _opened(self, request: ScoreRequest) -> list[float | None]:
        if not request.scores:
            return []
        if not self._channel.sealed:
            return self._opened_in_clear(request)
        number, n = request.expected.round, len(request.scores)
        self._note(number, SCORE, (SERVER, AUTHORITY), "ciphertext", n, request.as_bytes())
        opened = self._channel.open(request)
        scores = b"".join(NUMBER.pack(math.nan if x is None else x) for x in opened)
        self._note(number, SCORE, (AUTHORITY, SERVER), "plaintext", n, scores)
        return opened

    def _opened_in_clear(self, request: ScoreRequest) -> list[float | None]:
        version, noise = request.expected.round - 1, self._channel.noise
        opened: list[float | None] = []
        for signed, score in zip(request.signed, request.scores, strict=True):
            draw = self._profiling.draw(version, signed.header.sender)
            exact = PlainMatch().open(score)
            opened.append(noise.on(exact, draw) if noise and exact is not None else exact)
        return opened

    def _baseline_of(self, state: State) -> Profile:
        if self._baseline is None or self._baseline.version != state.round:
            load_tensors(self._model, state)
            view = View(self._model, self._profiling.layer, state.round, 1.0)
            try:
                self._baseline = profile(view.model, view.layer, inputs(self._public), view.version)
            except DataError as error:
                raise Diverged(f"round {state.round + 1}: {error}") from error
        return self._baseline

    def _note(
        self,
        number: int,
        name: str,
        way: tuple[str, str],
        form: Form,
        n_values: int,
        content: Content,
    ) -> None:
        sender, receiver = way
        entry = Entry(
            round=number,
            exchange=0,
            name=name,
            kind=Kind.PROFILES,
            sender=sender,
            receiver=receiver,
            form=form,
            n_values=n_values,
            bytes=len(content),
        )
        self._server.ledger.note(entry, content)
