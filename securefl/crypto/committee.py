"""An officer's part of a committee's key: made, held and used by this officer alone.

SEAL does all that touches it. What looks like a detour below is the way to SEAL's arithmetic
through what TenSEAL exposes: decrypting (c_0, c_1) is c_0 + c_1 s, for any c_0 and c_1.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import final

import numpy as np
import tenseal as ts
from tenseal import sealapi

from securefl.crypto import sealwire
from securefl.crypto.committee_flood import Flood
from securefl.crypto.committee_public import to_wire
from securefl.crypto.contexts import (
    fresh_context,
    primes,
    require_parameters,
    secret_key_alone,
    without_secret_key,
)
from securefl.crypto.held import Held
from securefl.crypto.params import SUMS, CkksParameters
from securefl.crypto.ring import Residues, RingFrame, words_of
from securefl.errors import ConfigError, KeyFileError

_ANY = 1
"""The scale, in bits, of what is never decoded."""


@final
class OfficerKey(Held):
    """The ternary s_i, which opens nothing alone. It has no text form and cannot be pickled."""

    def __init__(self, context: ts.Context, parameters: CkksParameters) -> None:
        """Use `generate` or `from_secret_bytes`.

        Raises:
            KeyFileError: no secret key of these parameters, or a public key beside it, whose error
                a share of the committee's key could have in common.
        """
        if not context.has_secret_key() or context.has_public_key():
            raise KeyFileError("an officer's context holds a secret key and nothing else")
        require_parameters(context, parameters)
        self._context = context
        self.parameters = parameters

    @classmethod
    def generate(cls, parameters: CkksParameters = SUMS) -> OfficerKey:
        """A fresh one from the operating system's randomness."""
        secret = secret_key_alone(fresh_context(parameters))
        return cls(ts.context_from(secret), parameters)

    @classmethod
    def from_secret_bytes(cls, secret: bytes, parameters: CkksParameters = SUMS) -> OfficerKey:
        """Read what `to_secret_bytes` wrote. Only for bytes whose authenticity is established."""
        return cls(ts.context_from(secret), parameters)

    def to_secret_bytes(self) -> bytes:
        """The key itself, IN CLEAR: for encryption at rest, and for nothing else."""
        return secret_key_alone(self._context)

    def public_share(self, common: Residues) -> bytes:
        """b_i = -(a s_i) + e_i for the common polynomial a, with a fresh error at every call.

        SEAL makes (b', a') with b' = -(a' s_i) + e_i, and decrypts (b', a' - a) to b_i. Nobody
        else may ever see b', which is why it is made and forgotten here.

        Raises:
            ConfigError: the special prime has the size of a data prime.
        """
        degree, moduli = self.parameters.poly_degree, primes(self.parameters)
        frame, by_special = self._frame(), self._by_the_special_prime()
        own = sealapi.PublicKey()
        seal = self._context.seal_context().data
        sealapi.KeyGenerator(seal, self._context.secret_key().data).create_public_key(own)
        residues = words_of(own.data(), 2 * len(moduli) * degree).reshape(2, -1, degree)
        modulus = np.array(moduli, np.uint64)[:, None]
        residues[1] = (residues[1] + (modulus - common)) % modulus
        data = _decrypted(self._context, frame, residues[:, :-1])
        reordered = np.roll(residues, 1, axis=1)[:, :-1]
        special = _decrypted(by_special, RingFrame.of_fresh(by_special, _ANY), reordered)
        return to_wire(np.concatenate([data, special[:1]]), moduli)

    def opening_share(self, total: bytes, flood: Flood, rng: random.Random) -> bytes:
        """h_i = c_1 s_i + noise modulo each data prime, for one ciphertext of a total.

        SEAL adds the noise to (0, c_1) as a plaintext and decrypts that. `rng` draws the noise: the
        operating system's, but in tests.

        Raises:
            ConfigError: the noise is for other parameters.
            MessageRefused: not a ciphertext of these parameters.
        """
        if flood.parameters != self.parameters:
            raise ConfigError("the noise is sized for other CKKS parameters than the key's")
        frame = self._frame()
        residues = frame.from_wire(total)
        residues[0] = 0
        ciphertext = frame.loaded(self._context, residues).ciphertext()[0]
        seal = self._context.seal_context().data
        noise = sealapi.Plaintext()
        slots = _gaussian(self.parameters.poly_degree // 2, flood.slot_deviation, rng)
        sealapi.CKKSEncoder(seal).encode(slots, 2.0**self.parameters.scale_bits, noise)
        sealapi.Evaluator(seal).add_plain_inplace(ciphertext, noise)
        return to_wire(_read(self._context, ciphertext), frame.moduli)

    def _frame(self) -> RingFrame:
        return RingFrame.of_fresh(self._context, self.parameters.scale_bits)

    def _by_the_special_prime(self) -> ts.Context:
        """The same key with the special prime in front, and so the last data prime special.

        SEAL decrypts by all primes but the last, but a public key is of the last one, too.
        """
        moduli, degree = primes(self.parameters), self.parameters.poly_degree
        *data_bits, special_bits = self.parameters.modulus_bits
        reordered = _Reordered(degree, (special_bits, *data_bits))
        if primes(reordered) != [moduli[-1], *moduli[:-1]]:
            raise ConfigError(
                f"modulus_bits = {self.parameters.modulus_bits}: a committee's special prime, the "
                "last, must differ in size from the others"
            )
        words = words_of(self._context.secret_key().data.data(), len(moduli) * degree)
        empty = fresh_context(reordered)
        whole = empty.seal_context().data.key_context_data().parms_id()
        secret = np.roll(words.reshape(-1, degree), 1, axis=0)
        key = sealwire.field(1, sealwire.secret_key(whole, secret))
        bare = without_secret_key(empty, public_key=False)
        return ts.context_from(bare + sealwire.field(3, key))

    def __repr__(self) -> str:
        return "OfficerKey()"


@dataclass(frozen=True, slots=True)
class _Reordered:
    """Of a context that decodes nothing, so that no scale has to fit."""

    poly_degree: int
    modulus_bits: tuple[int, ...]
    scale_bits: int = _ANY


def _gaussian(size: int, deviation: float, rng: random.Random) -> list[complex]:
    """Independent in all slots, and so, by the embedding's symmetry, in all coefficients."""
    return [complex(rng.gauss(0, deviation), rng.gauss(0, deviation)) for _ in range(size)]


def _decrypted(context: ts.Context, frame: RingFrame, residues: Residues) -> Residues:
    return _read(context, frame.loaded(context, residues).ciphertext()[0])


def _read(context: ts.Context, ciphertext: sealapi.Ciphertext) -> Residues:
    """c_0 + c_1 s modulo each data prime: shape (primes, N)."""
    plain = sealapi.Plaintext()
    seal, secret = context.seal_context().data, context.secret_key().data
    sealapi.Decryptor(seal, secret).decrypt(ciphertext, plain)
    n_primes, degree = ciphertext.coeff_modulus_size(), ciphertext.poly_modulus_degree()
    return words_of(plain, n_primes * degree).reshape(n_primes, degree)
