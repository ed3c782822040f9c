"""History of a run's releases, of both levels; it goes on where a stored one ended."""

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from securefl.errors import ConfigError, RunFolderError
from securefl.io.json import parsed
from securefl.privacy.accountants import Accountant, epsilon
from securefl.privacy.events import (
    Gaussian,
    Level,
    PrivacyEvent,
    SampledGaussian,
    WithoutPrivacy,
)

FORMAT = "securefl-privacy-history/1"


@final
@dataclass(frozen=True, slots=True)
class History:
    """Releases in their order, record level and client level apart: neither counts for the other.

    An empty level has released nothing, which is ε = 0: who trains without noise must say so with
    a `WithoutPrivacy`.
    """

    record: tuple[PrivacyEvent, ...] = ()
    client: tuple[PrivacyEvent, ...] = ()

    def events(self, level: Level) -> tuple[PrivacyEvent, ...]:
        """Return the releases of one level."""
        return self.record if level is Level.RECORD else self.client

    def plus(self, level: Level, event: PrivacyEvent) -> "History":
        """Return the history with one event more; steps of one kind in a row become one event."""
        events = _appended(self.events(level), event)
        return replace(self, **{level.value: events})

    def counts(self, level: Level) -> Counter[PrivacyEvent]:
        """Return how often each kind of release, as one step, is in one level."""
        found: Counter[PrivacyEvent] = Counter()
        for event in self.events(level):
            if isinstance(event, WithoutPrivacy):
                found[event] = 1
            else:
                found[replace(event, steps=1)] += event.steps
        return found

    def epsilon(self, level: Level, delta: float, accountant: Accountant = Accountant.PLD) -> float:
        """Return the ε that the level's releases add up to; see `accountants.epsilon`."""
        return epsilon(self.events(level), delta, accountant)

    def stages_without_privacy(self, level: Level) -> tuple[str, ...]:
        """Return the stages that make the level's ε infinite, in words."""
        found = (e.stage for e in self.events(level) if isinstance(e, WithoutPrivacy))
        return tuple(dict.fromkeys(found))

    def to_json(self) -> str:
        """Return the history as text, with a digest that tells damage (not forgery)."""
        content = {level.value: [_written(e) for e in self.events(level)] for level in Level}
        return json.dumps({"format": FORMAT, **content, "sha256": _digest(content)}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> "History":
        """Read the history that `to_json` has written.

        Raises:
            RunFolderError: damaged, or of another version. A run must not go on from it, because
                what it has spent is not known.
        """
        try:
            file = parsed(_PARSER, text, RunFolderError)
            content = {level.value: getattr(file, level.value) for level in Level}
            plain = {key: [event.model_dump() for event in found] for key, found in content.items()}
            history = cls(**{key: tuple(map(_read, found)) for key, found in plain.items()})
        except (RunFolderError, ConfigError) as error:
            raise _damaged(str(error)) from None
        if _digest(plain) != file.sha256:
            raise _damaged("its content does not match its SHA-256")
        return history


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class _SampledGaussianLine(_Line):
    kind: Literal["sampled-gaussian"]
    noise_multiplier: float
    sample_rate: float
    steps: int


class _GaussianLine(_Line):
    kind: Literal["gaussian"]
    noise_multiplier: float
    steps: int


class _WithoutPrivacyLine(_Line):
    kind: Literal["without-privacy"]
    stage: str


_Event = Annotated[
    _SampledGaussianLine | _GaussianLine | _WithoutPrivacyLine, Field(discriminator="kind")
]


class _File(_Line):
    format: Literal["securefl-privacy-history/1"]
    record: list[_Event]
    client: list[_Event]
    sha256: str


_PARSER = TypeAdapter(_File)
_KINDS: dict[str, type[SampledGaussian | Gaussian | WithoutPrivacy]] = {
    "sampled-gaussian": SampledGaussian,
    "gaussian": Gaussian,
    "without-privacy": WithoutPrivacy,
}


def _written(event: PrivacyEvent) -> dict[str, Any]:
    (kind,) = (name for name, found in _KINDS.items() if type(event) is found)
    return {"kind": kind, **asdict(event)}


def _read(line: dict[str, Any]) -> PrivacyEvent:
    return _KINDS[line["kind"]](**{key: value for key, value in line.items() if key != "kind"})


def _appended(events: tuple[PrivacyEvent, ...], event: PrivacyEvent) -> tuple[PrivacyEvent, ...]:
    if not events:
        return (event,)
    *before, last = events
    if isinstance(event, WithoutPrivacy) or isinstance(last, WithoutPrivacy):
        return events if event == last else (*events, event)
    if replace(last, steps=event.steps) != event:
        return (*events, event)
    return (*before, replace(last, steps=last.steps + event.steps))


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _damaged(reason: str) -> RunFolderError:
    return RunFolderError(
        f"privacy history: damaged ({reason}); what the run has spent is not known, so start a new "
        "run on the assumption that its budget is gone"
    )
