"""The authority: opens totals, never one client's value, and logs every opening."""

from __future__ import annotations

from typing import final

from securefl.errors import MessageRefused, TotalRefused
from securefl.exchange.base import OpenedSum
from securefl.exchange.blind import BlindTotal
from securefl.exchange.opener import Opener
from securefl.exchange.policy import OpeningRule
from securefl.federation.checks import Checks
from securefl.federation.server import SumRequest
from securefl.federation.total import RELEASED, total_bytes


@final
class Authority(Checks[Opener]):
    """The authority over sums: it opens the totals that the policy allows, of several clients each.

    The server is told the total, never the sum of keys that opens it.
    """

    def open(self, request: SumRequest) -> OpenedSum | BlindTotal:
        """Return the opened total, as precise as the policy allows for its name.

        It is sealed for its clients where the policy says so, whatever the server asks for.

        Raises:
            TotalRefused: the ciphertext is malformed, or does not count the clients that have
                signed.
            OpeningRefused, MessageRefused: as `Checks` refuses requests; an answer is given once.
        """
        opened = self._answered(request, self._opened, lambda opened: opened.n_clients)
        about = request.expected.about
        if not self.policy.is_blind(about.name):
            return opened
        return self.opener.sealed_for(total_bytes(opened, RELEASED), about, tuple(request.nonces))

    def _opened(self, request: SumRequest, rule: OpeningRule) -> OpenedSum:
        nonces, about = request.nonces, request.expected.about
        try:
            opened = self.opener.open(request.total, about, nonces, rule.precision_bits)
        except TotalRefused:
            raise
        except MessageRefused as error:
            raise TotalRefused(str(error)) from error
        if request.due and not request.due.is_that_of(opened):
            raise TotalRefused("it does not weigh what its clients do: one lies about its weight")
        return opened
