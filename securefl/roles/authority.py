"""The authority: opens totals, never one client's value, and logs every opening."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from securefl.errors import MessageRefused, OpeningRefused, TooFewContributions
from securefl.exchange.base import OpenedSum, Opener
from securefl.roles import wire
from securefl.roles.server import SumRequest


@dataclass(frozen=True, slots=True)
class Opening:
    """One line of the authority's log: what was asked for, and why it was refused, if it was."""

    round: int
    name: str
    n_values: int
    signers: tuple[str, ...]
    n_clients: int
    """Counted inside the ciphertext; 0 where it was not opened."""
    refused: str = ""
    key_id: str = ""
    """The key that it was sealed under, by its messages."""


class Authority:
    """Holds the `Opener`; releases a total only where it hides each client among others."""

    def __init__(
        self,
        opener: Opener,
        roster: wire.Roster,
        min_clients: int,
        log: Callable[[Opening], None],
    ) -> None:
        self._opener = opener
        self._roster = roster
        self._min_clients = min_clients
        self._log = log
        self._opened: set[tuple[str, int, str]] = set()

    def open(self, request: SumRequest) -> OpenedSum:
        """The total, rounded to the declared precision.

        Raises:
            TooFewContributions: fewer than `min_clients`, by signatures or by the count that the
                ciphertext carries.
            OpeningRefused: a signature does not hold, a client stands in it twice, the count does
                not match, or a total of this name was opened in this round before (the difference
                of two totals would show single clients).
        """
        expected = request.expected
        signers = tuple(signed.header.sender for signed in request.signed)
        try:
            opened = self._checked(request, signers)
        except OpeningRefused as error:
            self._note(expected, signers, 0, str(error))
            raise
        self._note(expected, signers, opened.n_clients)
        return opened

    def _note(
        self, expected: wire.Expected, signers: tuple[str, ...], n_clients: int, refused: str = ""
    ) -> None:
        about = expected.round, expected.name, expected.n_values
        self._log(Opening(*about, signers, n_clients, refused, expected.key_id))

    def _checked(self, request: SumRequest, signers: tuple[str, ...]) -> OpenedSum:
        expected = request.expected
        what = f"round {expected.round}, {expected.name!r}"
        key = expected.run, expected.round, expected.name
        if key in self._opened:
            raise OpeningRefused(f"{what}: opened once already")
        if len(set(signers)) != len(signers):
            raise OpeningRefused(f"{what}: a client stands in it twice")
        self._require(len(signers), what)
        require_own_key(self._opener, expected, what)
        try:
            for signed in request.signed:
                self._roster.check(signed, expected)
            opened = self._opener.open(request.total, expected.n_values)
        except MessageRefused as error:
            raise OpeningRefused(f"{what}: {error}") from error
        self._require(opened.n_clients, what)
        if opened.n_clients != len(signers):
            raise OpeningRefused(
                f"{what}: the ciphertext counts {opened.n_clients} clients, "
                f"{len(signers)} have signed"
            )
        self._opened.add(key)
        return opened

    def _require(self, n_clients: int, what: str) -> None:
        if n_clients < self._min_clients:
            raise TooFewContributions(
                f"{what}: {n_clients} contributions, at least min_clients = {self._min_clients} "
                "are needed, or each client could work out the others' values"
            )


class Opens(Protocol):
    """Whatever opens under one key."""

    @property
    def form(self) -> str:
        """The payload encoding that it opens."""

    @property
    def key_id(self) -> str:
        """The key that it opens with."""


def require_own_key(opener: Opens, expected: wire.Expected, what: str) -> None:
    """Raise OpeningRefused where messages were sent under another key, or in another encoding."""
    if (expected.form, expected.key_id) != (opener.form, opener.key_id):
        raise OpeningRefused(
            f"{what}: sent as {expected.form!r} under key {expected.key_id[:16] or 'none'}; "
            f"the authority opens {opener.form!r} under key {opener.key_id[:16]}"
        )
