"""The secret key of profile matches: made, held and used by the authority alone."""

from __future__ import annotations

from typing import final

import numpy as np
import tenseal as ts

from securefl.crypto.artefact import Artefact, Origin, digest
from securefl.crypto.contexts import (
    fresh_context,
    require_parameters,
    with_secret_key,
    without_secret_key,
)
from securefl.crypto.decoding import Decoder, Slots
from securefl.crypto.held import Held
from securefl.crypto.match_params import LINEAR, MatchParameters
from securefl.crypto.match_public import (
    MatchPublicKey,
    ScoringContext,
    score_frame,
)
from securefl.crypto.ring import RingFrame
from securefl.errors import KeyFileError, MessageRefused

MAX_IMAGINARY = 2.0**-20
"""A true score has none. A ciphertext of another key or of rubbish passes once in 2^28 or rarer."""


@final
class MatchSecretKey(Held):
    """Decrypts scores. It has no text form, cannot be pickled, and says nothing of itself."""

    def __init__(self, context: ts.Context, parameters: MatchParameters, origin: Origin) -> None:
        """Use `generate` or `from_secret_bytes`."""
        if not context.has_secret_key():
            raise KeyFileError("this context holds no secret key")
        require_parameters(context, parameters)
        self._context = context
        self.parameters = parameters
        public = without_secret_key(context, public_key=True)
        self._artefact = Artefact(public, digest(public), parameters, origin)
        self.score_frame = score_frame(
            RingFrame.of_fresh(context, parameters.scale_bits), parameters
        )
        self._decoder = Decoder(context)

    @classmethod
    def generate(cls, parameters: MatchParameters = LINEAR, epoch: int = 1) -> MatchSecretKey:
        """A fresh key from the operating system's randomness, without evaluation keys."""
        return cls(fresh_context(parameters), parameters, Origin.now(epoch))

    @classmethod
    def from_secret_bytes(
        cls, secret: bytes, parameters: MatchParameters, origin: Origin
    ) -> MatchSecretKey:
        """Read what `to_secret_bytes` wrote. Only for bytes whose authenticity is established."""
        return cls(ts.context_from(secret), parameters, origin)

    def to_secret_bytes(self) -> bytes:
        """The key itself, IN CLEAR: for encryption at rest, and for nothing else."""
        return with_secret_key(self._context)

    @property
    def key_id(self) -> str:
        """SHA-256 of the public key, in hex."""
        return self._artefact.key_id

    @property
    def origin(self) -> Origin:
        """Its epoch, and when it was made."""
        return self._artefact.origin

    def public_key(self) -> MatchPublicKey:
        """A client's part."""
        return MatchPublicKey(self._artefact)

    def scoring_context(self) -> ScoringContext:
        """The server's part: parameters, no key."""
        context = without_secret_key(self._context, public_key=False)
        return ScoringContext(Artefact(context, self.key_id, self.parameters, self.origin))

    def slots(self, coefficients: bytes) -> Slots:
        """All that a ciphertext shows to the key's holder: shape (slots,).

        Raises:
            MessageRefused: not a ciphertext of a score's shape.
        """
        return self._decoder.slots(self.score_frame.parsed(self._context, coefficients))

    def score(self, coefficients: bytes) -> float:
        """The constant coefficient, unrounded: it is for the opener to flood.

        Raises:
            MessageRefused: not a ciphertext of a score's shape, or not one that this key opens.
        """
        mean = self.slots(coefficients).mean()
        if not (np.isfinite(mean) and abs(mean.imag) <= MAX_IMAGINARY):
            raise MessageRefused(
                "the payload is no score: it is sealed under another key, or was changed"
            )
        return float(mean.real)

    def __repr__(self) -> str:
        return f"MatchSecretKey(key_id={self.key_id[:16]}…)"
