"""The authority: opens totals, never one client's value, and logs every opening."""

from __future__ import annotations

from typing import final

from securefl.errors import MessageRefused, TotalRefused
from securefl.exchange.base import OpenedSum
from securefl.exchange.opener import Opener
from securefl.exchange.policy import OpeningRule
from securefl.federation.checks import Checks
from securefl.federation.server import SumRequest


@final
class Authority(Checks[Opener]):
    """The authority over sums: it opens the totals that the policy allows, of several clients each.

    The server is told the total, never the sum of keys that opens it.
    """

    def open(self, request: SumRequest) -> OpenedSum:
        """Return the opened total, as precise as the policy allows for its name.

        Raises:
            TotalRefused: the ciphertext is malformed, or does not count the clients that have
                signed.
            OpeningRefused, MessageRefused: as `Checks` refuses requests; an answer is given once.
        """
        return self._answered(request, self._opened, lambda opened: opened.n_clients)

    def _opened(self, request: SumRequest, rule: OpeningRule) -> OpenedSum:
        nonces, about = request.nonces, request.expected.about
        try:
            return self.opener.open(request.total, about, nonces, rule.precision_bits)
        except TotalRefused:
            raise
        except MessageRefused as error:
            raise TotalRefused(str(error)) from error
