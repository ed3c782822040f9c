"""How far each client's data are from the server's: profiles sent, matched and opened (FedProf).

All profile the same global model, in a unit that the server publishes. The server matches a profile
with its baseline as it arrives; of what it makes of it, the authority opens a score.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from securefl.algorithms.base import load_tensors
from securefl.algorithms.profiles import profiles
from securefl.algorithms.profiling import View, profile, profile_length
from securefl.data.samples import Samples, in_order
from securefl.errors import DataError, Diverged, MessageRefused, ValueRefused
from securefl.exchange.match_open import MatchKeys
from securefl.exchange.match_plain import PlainMatch
from securefl.exchange.matching import PROFILE, SCORE, UNIT, Matcher, ProfileSealer
from securefl.exchange.profile import Profile, range_unit
from securefl.exchange.score_noise import ScoreNoise
from securefl.federation import message as wire
from securefl.federation.delivery import Delivery
from securefl.federation.incidents import Incident
from securefl.federation.ledger import AUTHORITY, SERVER, Entry, Form, Ledger
from securefl.federation.score_authority import ScoreAuthority
from securefl.federation.survey import ProfileSurvey, ScoreRequest
from securefl.privacy.randomness import Randomness, Secret
from securefl.selection.base import Quantity
from securefl.types import Kind, State


@dataclass(frozen=True, slots=True)
class MatchChannel:
    """What the roles match profiles with, under one key or in the clear."""

    sealer: ProfileSealer
    matcher: Matcher
    authority: ScoreAuthority | None = None
    """None in the clear, where the server reads scores by itself."""
    keys: MatchKeys | None = None
    """The key in use; None in the clear."""
    noise: ScoreNoise | None = None
    """That every opened score has; None where clients are not hidden."""


class Profiler(Protocol):
    """How a client makes a profile that is not the exact one."""

    def __call__(self, view: View, batches: Iterable[Tensor], randomness: Randomness) -> Profile:
        """In the view's unit; raises DataError where the data or the layer have none."""


@dataclass(frozen=True, slots=True)
class Profiling:
    """What is profiled, and how."""

    model: nn.Module
    """Copied, not changed."""
    layer: str | None
    """`default_layer` where None."""
    profiler: Profiler | None = None
    """Of clients; exact where None, as the server's baseline of public samples always is."""
    randomness: Callable[[int, str], Randomness] = lambda _version, _client: Secret()
    """By rounds completed and client: of the client's profile, or of its score in the clear."""


class ProfileQuestion:
    """The divergence of a client's profile from the server's."""

    quantity: Quantity = "divergence"
    reads_data = True
    asked_bytes = wire.NUMBER.size

    def __init__(
        self,
        delivery: Delivery,
        data: Mapping[str, Samples],
        profiling: Profiling,
        public: Samples,
        channels: Iterator[MatchChannel],
    ) -> None:
        """The next channel is taken where one is used up.

        Raises:
            DataError: the layer cannot be profiled.
        """
        self._delivery = delivery
        self._data = data
        self._profiling = replace(profiling, model=copy.deepcopy(profiling.model))
        self._public = public
        self._channels = channels
        self._channel = next(channels)
        x, _ = public.take(torch.arange(1))
        self._q = profile_length(self._profiling.model, profiling.layer, x)
        self._baseline: Profile | None = None

    def ask(self, state: State, clients: Collection[str]) -> dict[str, float]:
        """See `Question.ask`."""
        waiting, found = list(clients), dict[str, float]()
        if waiting:
            load_tensors(self._profiling.model, state)
        while waiting:
            left = self._channel.keys.left if self._channel.keys else None
            if left == 0:
                self._channel = next(self._channels)
                continue
            found |= self._asked(state, waiting[:left])
            waiting = waiting[left:] if left is not None else []
        return found

    def n_bytes(self, state: State, client: str) -> int:
        """See `Question.n_bytes`."""
        matcher = self._channel.matcher
        about = self._delivery.run, state.round + 1
        expected = wire.Expected.over(matcher, about, PROFILE, 2 * self._q)
        return wire.n_bytes(expected, client, matcher.n_bytes(self._q))

    def _asked(self, state: State, clients: Collection[str]) -> dict[str, float]:
        round_number, channel, delivery = state.round + 1, self._channel, self._delivery
        notes = _Notes(delivery.ledger, round_number)
        baseline = self._baseline_of(state)
        unit = range_unit(baseline)
        matched = baseline.in_unit(unit)
        survey = delivery.server.ask_profile(round_number, channel.matcher, matched, clients)
        view = self._view(state, unit)
        made = self._made(clients, view)
        for client in clients:
            notes.write(UNIT, (SERVER, client), "plaintext", 1, wire.NUMBER.pack(unit))
            try:
                own = made[client]
                if isinstance(own, DataError):
                    raise own
                self._receive(survey, notes, client, own.in_range())
            except (DataError, MessageRefused, ValueRefused) as error:
                reason = error.without_value if isinstance(error, ValueRefused) else str(error)
                delivery.report(Incident(round_number, PROFILE, client, reason))
        request = survey.request()
        opened = self._opened(request, channel, notes)
        # Noise takes scores below 0, and there says nothing of a client's profile.
        precision = math.inf if channel.noise else channel.matcher.precision(matched)
        return self._read(request, opened, precision)

    def _receive(self, survey: ProfileSurvey, notes: _Notes, client: str, made: Profile) -> None:
        sender, q = self._delivery.clients[client], len(made)
        sender.profile_sealer = self._channel.sealer
        message = sender.send_profile(self._delivery.run, notes.round, made)
        n_clear = self._channel.matcher.n_clear(q)
        if n_clear in {0, 2 * q}:
            form: Form = "plaintext" if n_clear else "ciphertext"
            notes.write(PROFILE, (client, SERVER), form, 2 * q, message)
        else:  # one message, in two parts
            sealed, clear = message[: -8 * n_clear], message[-8 * n_clear :]
            notes.write(f"{PROFILE}/means", (client, SERVER), "ciphertext", q, sealed)
            notes.write(f"{PROFILE}/variances", (client, SERVER), "plaintext", n_clear, clear)
        survey.receive(message)

    def _read(
        self, request: ScoreRequest, opened: Sequence[float | None], precision: float
    ) -> dict[str, float]:
        """Scores by client; below 0 by more than the channel errs is no divergence."""
        found = {}
        for signed, score in zip(request.signed, opened, strict=True):
            client = signed.header.sender
            if score is None or score < -precision:
                reason = "its profile is none: the score is not what a divergence can be"
                self._delivery.report(Incident(request.expected.round, PROFILE, client, reason))
            else:
                found[client] = max(score, 0.0)
        return found

    def _opened(
        self, request: ScoreRequest, channel: MatchChannel, notes: _Notes
    ) -> list[float | None]:
        if not request.scores:
            return []
        if channel.authority is None:
            return self._opened_in_clear(request, channel.noise)
        n = len(request.scores)
        notes.write(SCORE, (SERVER, AUTHORITY), "ciphertext", n, request.as_bytes())
        opened = channel.authority.open(request)
        scores = b"".join(wire.NUMBER.pack(math.nan if x is None else x) for x in opened)
        notes.write(SCORE, (AUTHORITY, SERVER), "plaintext", n, scores)
        return opened

    def _opened_in_clear(
        self, request: ScoreRequest, noise: ScoreNoise | None
    ) -> list[float | None]:
        version = request.expected.round - 1
        opened: list[float | None] = []
        for signed, score in zip(request.signed, request.scores, strict=True):
            randomness = self._profiling.randomness(version, signed.header.sender)
            opened += PlainMatch(noise=noise, draw=randomness.gaussian).open([score])
        return opened

    def _baseline_of(self, state: State) -> Profile:
        if self._baseline is None or self._baseline.version != state.round:
            try:
                view = self._view(state, 1.0)
                inputs = _inputs(self._public)
                self._baseline = profile(view.model, view.layer, inputs, view.version)
            except DataError as error:
                raise Diverged(f"round {state.round + 1}: {error}") from error
        return self._baseline

    def _view(self, state: State, unit: float) -> View:
        return View(self._profiling.model, self._profiling.layer, state.round, unit)

    def _made(self, clients: Collection[str], view: View) -> dict[str, Profile | DataError]:
        """Each client's profile, or why it has none."""
        data, profiler = {c: self._data[c] for c in clients}, self._profiling.profiler
        if profiler is None:
            return profiles(view, data)
        made: dict[str, Profile | DataError] = {}
        for client, of in data.items():
            randomness = self._profiling.randomness(view.version, client)
            try:
                made[client] = profiler(view, _inputs(of), randomness)
            except DataError as error:
                made[client] = error
        return made


@dataclass(frozen=True, slots=True)
class _Notes:
    """Where one round's messages are written down."""

    ledger: Ledger
    round: int

    def write(
        self, name: str, way: tuple[str, str], form: Form, n_values: int, message: bytes
    ) -> None:
        about = name, Kind.PROFILES, *way, form, n_values, len(message)
        self.ledger.note(Entry(self.round, 0, *about), message)


def _inputs(data: Samples) -> Iterator[Tensor]:
    return (x for x, _ in in_order(data))
