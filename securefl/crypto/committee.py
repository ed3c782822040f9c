"""An officer's part of a committee's key: made, held and used by this officer alone.

SEAL does all that touches it. What looks like a detour below is the way to SEAL's arithmetic
through what TenSEAL exposes: decrypting (c_0, c_1) is c_0 + c_1 s, for any c_0 and c_1.
"""

from __future__ import annotations

import random
from dataclasses import replace
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
            ConfigError: parameters whose two primes have the same size.
        """
        degree, moduli = self.parameters.poly_degree, primes(self.parameters)
        own = sealapi.PublicKey()
        seal = self._context.seal_context().data
        sealapi.KeyGenerator(seal, self._context.secret_key().data).create_public_key(own)
        residues = words_of(own.data(), 4 * degree).reshape(2, 2, degree)
        modulus = np.array(moduli, np.uint64)[:, None]
        residues[1] = (residues[1] + (modulus - common)) % modulus
        data = _decrypted(self._context, self.parameters, residues[:, :1])
        special = _decrypted(*self._by_the_special_prime(), residues[:, 1:])
        return to_wire(np.concatenate([data, special]))

    def opening_share(self, total: bytes, flood: Flood, rng: random.Random) -> bytes:
        """h_i = c_1 s_i + noise, for one ciphertext of `total`; shape (1, N).

        SEAL adds the noise to (0, c_1) as a plaintext and decrypts that. `rng` draws the noise: the
        operating system's, but in tests.

        Raises:
            ConfigError: the noise is for other parameters.
            MessageRefused: not a ciphertext of these parameters.
        """
        if flood.parameters != self.parameters:
            raise ConfigError("the noise is sized for other CKKS parameters than the key's")
        frame = RingFrame.of_fresh(self._context, self.parameters.scale_bits)
        residues = frame.from_wire(total)
        residues[0] = 0
        ciphertext = frame.loaded(self._context, residues).ciphertext()[0]
        seal = self._context.seal_context().data
        noise = sealapi.Plaintext()
        slots = _gaussian(self.parameters.poly_degree // 2, flood.slot_deviation, rng)
        sealapi.CKKSEncoder(seal).encode(slots, 2.0**self.parameters.scale_bits, noise)
        sealapi.Evaluator(seal).add_plain_inplace(ciphertext, noise)
        return to_wire(_read(self._context, ciphertext))

    def _by_the_special_prime(self) -> tuple[ts.Context, CkksParameters]:
        """The same key with the primes in the other order.

        SEAL decrypts by the data primes alone, but a public key is of the special prime, too.
        """
        first, second = self.parameters.modulus_bits
        if first == second:
            raise ConfigError(f"modulus_bits = {first}, {second}: a committee's primes must differ")
        parameters = replace(self.parameters, modulus_bits=(second, first), scale_bits=20)
        degree = parameters.poly_degree
        secret = words_of(self._context.secret_key().data.data(), 2 * degree).reshape(2, degree)
        empty = fresh_context(parameters)
        whole = empty.seal_context().data.key_context_data().parms_id()
        key = sealwire.field(1, sealwire.secret_key(whole, secret[::-1]))
        bare = without_secret_key(empty, public_key=False)
        return ts.context_from(bare + sealwire.field(3, key)), parameters

    def __repr__(self) -> str:
        return "OfficerKey()"


def _gaussian(size: int, deviation: float, rng: random.Random) -> list[complex]:
    """Independent in all slots, and so, by the embedding's symmetry, in all coefficients."""
    return [complex(rng.gauss(0, deviation), rng.gauss(0, deviation)) for _ in range(size)]


def _decrypted(context: ts.Context, parameters: CkksParameters, residues: Residues) -> Residues:
    vector = RingFrame.of_fresh(context, parameters.scale_bits).loaded(context, residues)
    return _read(context, vector.ciphertext()[0])


def _read(context: ts.Context, ciphertext: sealapi.Ciphertext) -> Residues:
    plain = sealapi.Plaintext()
    seal, secret = context.seal_context().data, context.secret_key().data
    sealapi.Decryptor(seal, secret).decrypt(ciphertext, plain)
    return words_of(plain, ciphertext.poly_modulus_degree())[None]
