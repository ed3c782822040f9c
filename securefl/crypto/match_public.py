"""What clients and the server hold of a match key: one encrypts, the other scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import tenseal as ts
from numpy.typing import NDArray
from tenseal import sealapi

from securefl.crypto import blinding
from securefl.crypto.artefact import Artefact, FileKind, digest
from securefl.crypto.held import Held
from securefl.crypto.match_params import MatchParameters
from securefl.crypto.ring import RingFrame
from securefl.errors import KeyFileError, MessageRefused

MATCH_PARAMETERS_FILE = FileKind("securefl-match-parameters/2", "server", "matches")
MATCH_PUBLIC_KEY_FILE = FileKind("securefl-match-public-key/2", "client", "matches")


Slots = NDArray[np.float64]
"""Shape (ciphertexts, slots)."""


@dataclass(frozen=True, slots=True)
class Weights:
    """score = constant + Σ_c mean over slots of (squared (x - baseline)² + linear (x - baseline)).

    Taking the difference first makes the error of encoding vanish where x is the baseline.
    """

    baseline: Slots
    linear: Slots
    squared: Slots
    constant: float


@final
class MatchPublicKey(Held):
    """Encrypts profiles. What a client holds."""

    def __init__(self, artefact: Artefact) -> None:
        """Raises KeyFileError where the artefact is not the public key that its key id names."""
        self._artefact = artefact
        self._context = artefact.parsed()
        self.key_id, self.epoch = artefact.key_id, artefact.origin.epoch
        self.parameters = artefact.parameters
        self.frame = RingFrame.of_fresh(self._context, artefact.parameters.scale_bits)
        if not self._context.has_public_key():
            raise KeyFileError("this context holds no public key: a client cannot encrypt with it")
        if digest(artefact.context) != self.key_id:
            raise KeyFileError("the public key does not match its key id: the file was changed")
        try:
            self.encrypt(np.zeros((1, self.parameters.slots)))
        except RuntimeError as error:
            raise KeyFileError(f"damaged key file: {error}") from error

    @property
    def n_bytes(self) -> int:
        """Size of what a client gets once, before any encoding as text."""
        return len(self._artefact.context)

    def to_json(self) -> str:
        """A client's file."""
        return self._artefact.to_json(MATCH_PUBLIC_KEY_FILE)

    @classmethod
    def from_json(cls, text: str) -> MatchPublicKey:
        """Parse a client's file; raises KeyFileError."""
        return cls(Artefact.from_json(text, MATCH_PUBLIC_KEY_FILE))

    def encrypt(self, slots: Slots) -> bytes:
        """One ciphertext for each row."""
        scale = 2.0**self.parameters.scale_bits
        vectors = [ts.ckks_vector(self._context, row.tolist(), scale) for row in slots]
        return b"".join(map(self.frame.encrypted, vectors))


@final
class ScoringContext(Held):
    """CKKS parameters without any key: scores ciphertexts, and can neither make nor read one."""

    def __init__(self, artefact: Artefact) -> None:
        """Raises KeyFileError where the artefact holds any key."""
        self._artefact = artefact
        self._context = artefact.parsed()
        if self._context.has_public_key():
            raise KeyFileError("this context holds a public key: a server needs parameters alone")
        self.key_id, self.epoch = artefact.key_id, artefact.origin.epoch
        self.parameters = artefact.parameters
        self.frame = RingFrame.of_fresh(self._context, artefact.parameters.scale_bits)
        self.score_frame = score_frame(self.frame, artefact.parameters)
        seal = self._context.seal_context().data
        self._evaluator = sealapi.Evaluator(seal)
        self._encoder = sealapi.CKKSEncoder(seal)
        self._classes = self._root_classes()

    def to_json(self) -> str:
        """The server's file."""
        return self._artefact.to_json(MATCH_PARAMETERS_FILE)

    @classmethod
    def from_json(cls, text: str) -> ScoringContext:
        """Parse the server's file; raises KeyFileError."""
        return cls(Artefact.from_json(text, MATCH_PARAMETERS_FILE))

    def score(self, payload: bytes, weights: Weights) -> bytes:
        """One ciphertext: the score in its constant coefficient, nothing in the others.

        Raises:
            MessageRefused: `payload` is not as many ciphertexts as the weights have rows.
        """
        chunks = self.frame.chunks(payload, len(weights.baseline))
        # All are checked before the first is computed with.
        vectors = [self.frame.parsed(self._context, chunk) for chunk in chunks]
        try:
            terms = [
                term
                for row, vector in enumerate(vectors)
                for term in self._terms(vector, weights, row)
            ]
            total = sealapi.Ciphertext()
            self._evaluator.add_many(terms, total)
        except (RuntimeError, ValueError) as error:
            raise MessageRefused(f"ciphertext refused by SEAL: {error}") from error
        return self._blinded(total, weights.constant)

    def _terms(
        self, vector: sealapi.Ciphertext, weights: Weights, row: int
    ) -> Iterator[sealapi.Ciphertext]:
        """The polynomial's terms for one ciphertext, all of the score's scale.

        SEAL refuses to multiply by zero, so a row without weights has no term.
        """
        bits, evaluator = self.parameters, self._evaluator
        evaluator.sub_plain_inplace(vector, self._plain(weights.baseline[row], bits.scale_bits))
        if weights.squared[row].any():
            square = sealapi.Ciphertext()
            evaluator.square(vector, square)
            squared = self._plain(weights.squared[row], bits.weight_bits)
            evaluator.multiply_plain_inplace(square, squared)
            yield square
        if weights.linear[row].any():
            linear = self._plain(weights.linear[row], bits.linear_bits)
            evaluator.multiply_plain_inplace(vector, linear)
            yield vector

    def _plain(self, slots: Slots, scale_bits: int) -> sealapi.Plaintext:
        plain = sealapi.Plaintext()
        self._encoder.encode(slots.tolist(), 2.0**scale_bits, plain)
        return plain

    def _root_classes(self) -> blinding.Classes:
        """Found by encoding i, which is X^(N/2): the order of the roots is SEAL's own affair."""
        plain, frame = sealapi.Plaintext(), self.score_frame
        self._encoder.encode([1j] * self.parameters.slots, 2.0**30, plain)
        words = [plain[i] for i in range(len(frame.moduli) * frame.poly_degree)]
        values = np.array(words, np.uint64).reshape(len(frame.moduli), -1)
        return np.equal(values, values[:, :1])

    def _blinded(self, score: sealapi.Ciphertext, constant: float) -> bytes:
        frame = self.score_frame
        residues = frame.residues(score)
        scaled = round(constant * 2**self.parameters.score_scale_bits)
        mask = blinding.blinding(self._classes, frame.moduli, scaled)
        moduli = np.array(frame.moduli, np.uint64)[:, None]
        residues[0] = (residues[0] + mask) % moduli
        return frame.to_wire(residues)


def score_frame(client_frame: RingFrame, parameters: MatchParameters) -> RingFrame:
    """The shape of a score: a square has a third polynomial, which nothing relinearises."""
    return RingFrame(
        client_frame.parms_id,
        client_frame.poly_degree,
        client_frame.moduli,
        n_polynomials=parameters.degree + 1,
        scale_bits=parameters.score_scale_bits,
    )
