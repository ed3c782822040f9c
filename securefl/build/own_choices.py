"""Checks of what a user's own choices return, where they come into a run.

Each is around one choice that is not SecureFL's own: every engine, worker process and site asks
through it. What breaks the interface of the base class ends in a ConfigError that names the class,
its method, what came and what was expected. An error that the class itself raises stays as it is.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Never, get_args, get_type_hints

import torch
from torch import Tensor, nn

from securefl.algorithms.normalisation.policy import Policy, RoundNorm
from securefl.algorithms.servers.server_optimiser import Averaged, ServerSteps, Stepped
from securefl.algorithms.solvers.solver import (
    End,
    LocalSession,
    LocalSolver,
    SameSteps,
    Start,
    StepContext,
)
from securefl.errors import ConfigError
from securefl.selection.selector import Selector, Standing
from securefl.settings.choice import OpenChoice
from securefl.settings.clashes import ANSWERS
from securefl.types import Kind, NamedTensors, State

MAX_LISTED = 12
"""Names in a message."""
FORM = "shape", "dtype", "layout", "is_meta"
"""Attributes of a tensor that are those of the one that it replaces."""
FIELDS = {f: get_args(of) or (of,) for f, of in get_type_hints(RoundNorm).items() if f != "local"}
"""Kinds of a RoundNorm's fields, but for names, which are looked at one by one."""


@dataclass(frozen=True, slots=True)
class _Method:
    """A method of a user's own choice, whose results are checked."""

    choice: OpenChoice
    name: str

    def error(self, came: str, cure: str) -> ConfigError:
        kind = type(self.choice)
        return ConfigError(f"{kind.__module__}.{kind.__qualname__}.{self.name} {came}: {cure}")

    def fail(self, came: str, cure: str) -> Never:
        raise self.error(came, cure)

    def require_kind(self, found: object, kind: type | tuple[type, ...], said: str) -> None:
        if not isinstance(found, kind):
            self.fail(f"returned {_kind(found)}", f"it must return {said}")

    def require_methods(self, found: object, *names: str) -> None:
        if isinstance(found, type) or not all(callable(getattr(found, n, None)) for n in names):
            said = f"it must return an object with the methods {' and '.join(names)}"
            self.fail(f"returned {_kind(found)}", said)

    def require_tensors(self, found: object, part: str) -> None:
        """Check that `found` is a dict of tensors by name."""
        if not isinstance(found, Mapping):
            self.fail(f"returned {_kind(found)} as {part}", "it must be a dict of tensors by name")
        for name, value in found.items():
            if not (isinstance(name, str) and isinstance(value, Tensor)):
                came = f"returned {part} with {_kind(value)} as {name!r:.80}"
                self.fail(came, "it must be a dict of tensors by name")

    def require_like(self, found: NamedTensors, like: NamedTensors, part: str, of: str) -> None:
        """Check that the tensors have the names and the form of others, which are those of `of`."""
        self.require_tensors(found, part)
        expected = f"the names must be those of {of}, {_listed(like) or 'none'}"
        if unknown := found.keys() - like.keys():
            self.fail(f"returned {part} with {_listed(unknown)}", expected)
        if missing := like.keys() - found.keys():
            self.fail(f"returned {part} without {_listed(missing)}", expected)
        for name, value in found.items():
            for form in FORM:
                came, due = getattr(value, form), getattr(like[name], form)
                if came != due:
                    came, due = (tuple(x) if form == "shape" else x for x in (came, due))
                    self.fail(f"returned {part} with {name} of {form} {came}", f"it must be {due}")


@dataclass(frozen=True, slots=True)
class OwnPolicy:
    """The policy of a normalisation."""

    choice: OpenChoice
    policy: Policy

    def __call__(self, state: State, model: nn.Module) -> RoundNorm:
        """Return the round's batch normalisation: see `Policy`."""
        method = _Method(self.choice, "build")
        if not callable(self.policy):
            said = "it must return a function (state, model) that returns a RoundNorm"
            method.fail(f"returned {_kind(self.policy)}", said)
        norm = self.policy(state, model)
        policy = _Method(self.choice, "build's policy")
        policy.require_kind(norm, RoundNorm, "a RoundNorm for each state and model")
        policy.require_kind(norm.local, Set, "RoundNorm.local as a frozenset of names")
        for name, kinds in FIELDS.items():
            if isinstance(found := getattr(norm, name), type) or not isinstance(found, kinds):
                said = " or ".join(kind.__name__ for kind in kinds).replace("NoneType", "None")
                policy.fail(f"returned {_kind(found)} as RoundNorm.{name}", f"it must be {said}")
        if norm.local:
            known = {*dict(model.named_parameters()), *dict(model.named_buffers())}
            known |= state.tensors.get(Kind.STATISTICS, {}).keys()
            if unknown := norm.local - known:
                came = f"returned RoundNorm.local with {_listed(unknown)}"
                policy.fail(came, f"its names must be some of the model's, {_listed(known)}")
        return norm


@dataclass(frozen=True, slots=True)
class OwnSolver(SameSteps):
    """A solver."""

    choice: OpenChoice
    solver: LocalSolver

    def control(self, model: nn.Module) -> NamedTensors:
        """Return what clients exchange beside the model: see `Solver`."""
        _Method(self.choice, "build").require_methods(self.solver, "control", "begin")
        control = self.solver.control(model)
        _Method(self.choice, "control").require_tensors(control, "its result")
        return control

    def begin(self, start: Start) -> LocalSession:
        """Begin one client's round: see `Solver`."""
        session = self.solver.begin(start)
        _Method(self.choice, "begin").require_methods(session, "gradients", "end")
        return _OwnSession(self.choice, session, start)


@dataclass(frozen=True, slots=True)
class _OwnSession:
    choice: OpenChoice
    session: LocalSession
    start: Start

    def gradients(self, around: StepContext) -> None:
        self.session.gradients(around)

    def end(self) -> End:
        end, start = self.session.end(), self.start
        method = _Method(self.choice, f"begin's {type(self.session).__qualname__}.end")
        method.require_kind(end, End, "an End")
        trained = {name: start.parameters[name] for name in start.origin}
        method.require_like(end.parameters, trained, "End.parameters", "Start.origin")
        method.require_like(end.control, start.control, "End.control", "the solver's control()")
        method.require_tensors(end.client_state, "End.client_state")
        method.require_tensors(end.personal, "End.personal")
        return end


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A server optimiser."""

    choice: OpenChoice
    server: ServerSteps

    def init(self, parameters: NamedTensors) -> NamedTensors:
        """Return what the server keeps: see `ServerOptimiser`."""
        _Method(self.choice, "build").require_methods(self.server, "init", "step")
        kept = self.server.init(parameters)
        _Method(self.choice, "init").require_tensors(kept, "its result")
        return kept

    def step(self, averaged: Averaged, kept: NamedTensors) -> Stepped:
        """Return the next model, and what is kept: see `ServerOptimiser`."""
        stepped, method = self.server.step(averaged, kept), _Method(self.choice, "step")
        if not (isinstance(stepped, tuple) and len(stepped) == 2):
            said = "it must return the next model and what is kept, a tuple of two dicts"
            method.fail(f"returned {_kind(stepped)}", said)
        model, kept = stepped
        method.require_like(model, averaged.last, "a next model", "Averaged.last")
        method.require_tensors(kept, "what is kept")
        return stepped


def require_refined(choice: OpenChoice, refined: object) -> None:
    """Raise ConfigError where a refinement's `around` returned no algorithm."""
    _Method(choice, "around").require_methods(refined, "init", "plan", "client", "update")


@dataclass(frozen=True, slots=True)
class OwnSelector:
    """A selector, which can read no answer that it does not ask for."""

    selector: Selector
    needed: int
    """Least clients of a round that trains."""

    def select(self, standing: Standing, n: int, rng: torch.Generator) -> tuple[str, ...]:
        """Choose clients: see `Selector`."""
        method, known = _Method(self.selector, "select"), standing.clients
        chosen = self.selector.select(self._readable(standing), n, rng)
        method.require_kind(chosen, (tuple, list), "a tuple of clients")
        others = {_kind(client) for client in chosen if not isinstance(client, str)}
        if unknown := others or set(chosen) - set(known):
            method.fail(f"chose {_listed(unknown)}", f"it must choose of {_listed(known)}")
        if len(chosen) > n:
            method.fail(f"chose {len(chosen)} clients", f"it must choose n = {n}")
        if len(chosen) < (least := min(self.needed, n, len(known))):
            cure = f"it must choose n = {n}; fewer than {least} train nothing"
            method.fail(f"chose {_listed(chosen) or 'nobody'}", cure)
        if len(set(chosen)) < len(chosen) and not self.selector.repeats:
            method.fail(f"chose a client twice of {_listed(chosen)}", "each may be there once")
        return tuple(chosen)

    def n_selected(self, n_clients: int) -> int:
        """Return the number of clients of a round: see `Selector`."""
        n = self.selector.n_selected(n_clients)
        if not (isinstance(n, int) and n > 0):
            method = _Method(self.selector, "n_selected")
            method.fail(f"returned {n!r:.80}", "it must return a whole number, at least 1")
        return n

    def scores(self, standing: Standing) -> dict[str, float]:
        """Return the score of each client: see `Selector`."""
        scores = self.selector.scores(self._readable(standing))
        _Method(self.selector, "scores").require_kind(scores, dict, "a dict of numbers by client")
        return scores

    def _readable(self, standing: Standing) -> Standing:
        asked = self.selector.asked
        cures = {q: f'asks = ("{name}",)' for name, q in ANSWERS.items() if name not in asked}
        if not self.selector.needs_devices:
            cures["time_s"] = "needs_devices = True"
        hidden: dict[str, Any] = {q: _NotAsked(self.selector, q, cures[q]) for q in cures}
        return replace(standing, **hidden)


@dataclass(frozen=True, slots=True, eq=False)
class _NotAsked(Mapping[str, float]):
    """The answers to a question that nobody asks."""

    selector: Selector
    quantity: str
    cure: str

    def __getitem__(self, client: str) -> float:
        raise self._error

    def __iter__(self) -> Iterator[str]:
        raise self._error

    def __len__(self) -> int:
        raise self._error

    @property
    def _error(self) -> ConfigError:
        came = f"reads standing.{self.quantity}, which this run has for no client"
        return _Method(self.selector, "select").error(came, f"its class must have {self.cure}")


def _kind(found: object) -> str:
    """Return the kind of a value in words, without what is in it: that may be a client's."""
    return "None" if found is None else type(found).__qualname__


def _listed(names: Iterable[object]) -> str:
    shown = sorted(map(str, names))
    more = [f"and {len(shown) - MAX_LISTED} more"] if len(shown) > MAX_LISTED else []
    return ", ".join([*shown[:MAX_LISTED], *more])
