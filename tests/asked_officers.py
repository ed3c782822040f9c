"""Officers that note what an authority asks of them."""

from __future__ import annotations

from securefl.exchange.officer import OneTimeOpener


class Counting:
    """An officer that notes what it is asked."""

    def __init__(self, officer, asked):
        self._officer, self._asked = officer, asked

    def __getattr__(self, name):
        return getattr(self._officer, name)

    def key_sums(self, about, nonces):
        self._asked.append(about)
        return self._officer.key_sums(about, nonces)


def noting_what_is_asked(authority):
    """Return what the authority's officers are asked for from now on."""
    asked, opener = [], authority.opener
    officers = [Counting(officer, asked) for officer in opener.officers]
    authority.opener = OneTimeOpener(opener.keys, opener.combiner, officers)
    return asked
