"""The authority's side of the encrypted match: decrypt, flood, round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ldexp

from securefl.crypto.match_public import MatchPublicKey, ScoringContext
from securefl.crypto.match_secret import MatchSecretKey
from securefl.errors import KeyWornOut, MessageRefused
from securefl.exchange.gaussian import Draw, gaussian, seeded
from securefl.exchange.match_ckks import EXPONENT, form_name
from securefl.exchange.match_flood import MAX_RELEASES, flood_deviation, grid_bits
from securefl.exchange.match_forms import MatchForm, require_parameters_of
from securefl.exchange.policy import Policy
from securefl.exchange.releases import MemoryCount, ReleaseCount, require_ephemeral
from securefl.exchange.score_noise import ScoreNoise


@dataclass(frozen=True, slots=True)
class CkksScoreOpener:
    """Opens scores until the noise that hides the key is used up.

    Raises:
        ConfigError: the key is for another form.
    """

    match_form: MatchForm
    secret_key: MatchSecretKey
    count: ReleaseCount
    """The key's own: whoever opens with this key counts here."""
    noise: ScoreNoise | None = None
    """Of differential privacy, in the place of the flooding where it is as large."""
    draw: Draw | None = field(default=None, repr=False)
    """Draws noise; `gaussian` where None."""

    def __post_init__(self) -> None:
        require_parameters_of(self.match_form, self.secret_key.parameters)

    @property
    def form(self) -> str:
        """The only encoding that it opens."""
        return form_name(self.match_form)

    @property
    def key_id(self) -> str:
        """The key that it opens with."""
        return self.secret_key.key_id

    @property
    def epoch(self) -> int:
        """The key's."""
        return self.secret_key.origin.epoch

    def open(self, scores: Sequence[bytes]) -> list[float | None]:
        """Each flooded, then rounded, before the exponent that the server chose is applied.

        With `noise`, each is clipped first, and the larger of the two deviations is added, once:
        Gaussian noise hides the key and the client alike.

        What is no score is None and counts as released, too: the refusal also tells of the key.

        Raises:
            KeyWornOut: more scores than this key may still release; none is opened.
        """
        self.count.spend(len(scores), MAX_RELEASES)
        return [self._released(score) for score in scores]

    def _released(self, score: bytes) -> float | None:
        if len(score) < EXPONENT.size:
            return None
        (exponent,) = EXPONENT.unpack_from(score)
        try:
            normalised = self.secret_key.score(score[EXPONENT.size :])
        except MessageRefused:
            return None
        parameters = self.secret_key.parameters
        bits, deviation = grid_bits(parameters), flood_deviation(parameters)
        if self.noise:
            normalised = ldexp(self.noise.clipped(ldexp(normalised, exponent)), -exponent)
            deviation = max(deviation, ldexp(self.noise.deviation, -exponent))
        flooded = normalised + float((self.draw or gaussian)(1, deviation)[0])
        return ldexp(round(ldexp(flooded, bits)), exponent - bits)


@dataclass(frozen=True, slots=True)
class MatchKeys:
    """The three parts of one match key and its count. Only a simulation holds them together."""

    secret: MatchSecretKey = field(repr=False)
    public: MatchPublicKey
    scoring: ScoringContext
    count: ReleaseCount
    successor: Callable[[], MatchKeys]
    """Makes the key of the next epoch, once this one has released what its noise hides."""
    policy: Policy | None = None
    """Of the consortium whose key it is; None where there is none."""
    seed: int | None = None
    """Of the noise on scores, in a simulation alone; None: nobody can repeat it."""

    def __post_init__(self) -> None:
        require_ephemeral(self.count, self.seed)

    @property
    def draw(self) -> Draw | None:
        """Draws the noise on this key's scores; `gaussian` where None."""
        return None if self.seed is None else seeded(self.seed, self.public.epoch, 1)

    @property
    def left(self) -> int:
        """Scores that it may still release."""
        return MAX_RELEASES - self.count.n_released

    @property
    def score_bytes(self) -> int:
        """Exact length of a score under this key."""
        return EXPONENT.size + self.secret.score_frame.n_bytes

    def opener(self, form: MatchForm, noise: ScoreNoise | None) -> CkksScoreOpener:
        """Build the authority's capability; raises ConfigError for a key of another form."""
        return CkksScoreOpener(form, self.secret, self.count, noise, self.draw)

    @classmethod
    def ephemeral(cls, form: MatchForm, epoch: int = 1, seed: int | None = None) -> MatchKeys:
        """A fresh key and its count, which live in memory and end with the process."""
        secret = MatchSecretKey.generate(form.parameters, epoch)
        return cls(
            secret,
            secret.public_key(),
            secret.scoring_context(),
            MemoryCount(),
            lambda: cls.ephemeral(form, epoch + 1, seed),
            seed=seed,
        )


def for_scores(keys: MatchKeys, needed: int) -> MatchKeys:
    """Returns these keys, or the next where they may not release so many scores more.

    Raises:
        KeyWornOut: no keys may.
    """
    if needed > MAX_RELEASES:
        raise KeyWornOut(
            f"a round opens {needed} scores, and the noise on them hides {MAX_RELEASES} under one "
            "key: have fewer clients, or select them by something else than profiles"
        )
    return keys.successor() if needed > keys.left else keys
