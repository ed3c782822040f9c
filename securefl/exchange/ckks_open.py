"""The authority's side of the encrypted sum: decrypt, flood, count, divide, round.

A total that is not real is refused (`decode_total`), and its key is used up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from securefl.crypto.secret import SecretKey
from securefl.errors import Crafted
from securefl.exchange.base import OpenedSum, Values
from securefl.exchange.ckks import FORM
from securefl.exchange.decode_total import TotalDecoder, require_real
from securefl.exchange.gaussian import Draw, gaussian
from securefl.exchange.policy import Flooding, most_releases
from securefl.exchange.releases import ReleaseCount, use_up


@dataclass(frozen=True, slots=True)
class CkksOpener:
    """Opens totals of at most `max_clients`, for whose ciphertexts the noise is sized."""

    secret_key: SecretKey
    count: ReleaseCount
    """The key's own: whoever opens with this key counts here."""
    flooding: Flooding | None
    max_clients: int
    draw: Draw | None = field(default=None, repr=False)
    """Draws the noise; `gaussian` where None."""

    @property
    def form(self) -> str:
        """The only encoding that it opens."""
        return FORM

    @property
    def key_id(self) -> str:
        """The key that it opens with."""
        return self.secret_key.key_id

    @property
    def epoch(self) -> int:
        """The key's."""
        return self.secret_key.origin.epoch

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on every value that is released."""
        if self.flooding is None:
            return 0.0
        return self.flooding.deviation(self.secret_key.parameters.noise(self.max_clients))

    def open(self, total: bytes, n_values: int, precision_bits: int) -> OpenedSum:
        """Σ p_i x_i with the weight and the count that the ciphertexts themselves carry.

        Every slot counts as released, also of a total that is refused: a refusal is an answer.

        Raises:
            KeyWornOut: more than this key may still release.
            Crafted: its slots are not real; this key opens nothing more.
            MessageRefused: wrong length, a count that is no whole number (another key, or
                rubbish), more clients than the noise is sized for, or ciphertexts that do not
                count the same clients.
        """
        slots = self._released(total, n_values)
        decoder = TotalDecoder(self.secret_key.parameters, self.max_clients, self.deviation)
        return decoder.decode(slots, n_values, precision_bits)

    def _released(self, total: bytes, n_values: int) -> Values:
        """Shape (ciphertexts, N/2), flooded before anything but `require_real` looks at it."""
        parameters = self.secret_key.parameters
        frame, count = self.secret_key.public_key.frame, parameters.n_ciphertexts(n_values)
        chunks, size = frame.chunks(total, count), parameters.n_released(n_values)
        most = most_releases(self.flooding)
        self.count.spend(size, most)
        slots = np.stack([self.secret_key.slots(chunk) for chunk in chunks])
        try:
            require_real(slots, parameters.noise(self.max_clients))
        except Crafted:
            use_up(self.count, most)  # a second refusal would tell more of the same key
            raise
        noise = (self.draw or gaussian)(size, self.deviation)
        return slots.real + noise.reshape(slots.shape)
