"""What sums err by that a committee opens, as Markdown, in docs/threshold.md.

python docs/committee_noise.py
"""

from __future__ import annotations

import sys

from securefl.crypto.committee_flood import Flood
from securefl.crypto.params import SUMS
from securefl.exchange.decode_total import TotalDecoder
from securefl.exchange.policy import Flooding

CLIENTS = 5, 50, 500
OFFICERS = 2, 3, 5, 10


def table() -> str:
    """By officers and clients, under the default parameters and policy."""
    flooding = Flooding()
    authority = [flooding.deviation(SUMS.noise(n)) for n in CLIENTS]
    rows = ["| opened by | " + " | ".join(f"{n} clients" for n in CLIENTS) + " |"]
    rows.append("|---" * (len(CLIENTS) + 1) + "|")
    rows.append(_row("one authority", [_error(deviation) for deviation in authority]))
    rows += [_row(f"{n} officers", [_cell(n, clients) for clients in CLIENTS]) for n in OFFICERS]
    return "\n".join(rows) + "\n"


def _cell(n_officers: int, n_clients: int) -> str:
    flooding = Flooding()
    flood = Flood(SUMS, n_officers, n_clients, flooding.statistical_bits, flooding.releases)
    bits = TotalDecoder(SUMS, 1, flood.opened_deviation).weight_bits
    return f"{_error(flood.opened_deviation)}; 2^{bits}"


def _error(deviation: float) -> str:
    return f"{deviation:.1e}".replace("e-0", "e-")


def _row(name: str, cells: list[str]) -> str:
    return " | ".join([f"| {name}", *cells]) + " |"


if __name__ == "__main__":
    sys.stdout.write(table())
