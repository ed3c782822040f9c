"""A committee's public side: one key made of its officers' shares, and their openings added up.

Multiparty CKKS (Mouchet, Troncoso-Pastoriza, Bossuat, Hubaux, PoPETs 2021). The secret key is
s = Σ s_i and exists nowhere; `committee` holds the officers' s_i. `docs/threshold.md` says what
this withstands.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import tenseal as ts

from securefl.crypto import sealwire
from securefl.crypto.artefact import Origin, canonical, digest
from securefl.crypto.contexts import fresh_context, primes, without_secret_key
from securefl.crypto.decoding import Decoder, Slots
from securefl.crypto.held import Held
from securefl.crypto.params import SUMS, CkksParameters
from securefl.crypto.public import AddingContext, PublicKey
from securefl.crypto.ring import Residues, RingFrame, packed, unpacked
from securefl.errors import ConfigError, MessageRefused

CONTRIBUTION_BYTES = 32
_COMMON = "securefl-committee-common/1"
_COMMITMENT = b"securefl-committee-commitment/1"


def common_polynomial(
    contributions: Sequence[bytes], parameters: CkksParameters = SUMS
) -> Residues:
    """The polynomial a of a committee's public key, uniform: shape (primes, N).

    Hashed (SHAKE-256) from 32 random bytes of each officer, in the officers' order, so that no one
    chooses it.

    Raises:
        ConfigError: fewer than two contributions.
        MessageRefused: one of another length, or the same from two officers.
    """
    _require_committee(len(contributions))
    if any(len(contribution) != CONTRIBUTION_BYTES for contribution in contributions):
        raise MessageRefused(f"an officer contributes {CONTRIBUTION_BYTES} bytes to the key")
    _require_different(contributions)
    label = {
        "format": _COMMON,
        "poly_degree": parameters.poly_degree,
        "modulus_bits": parameters.modulus_bits,
        "contributions": [contribution.hex() for contribution in contributions],
    }
    rows = [
        _uniform(canonical(label | {"modulus": modulus}), parameters.poly_degree, modulus)
        for modulus in primes(parameters)
    ]
    return np.stack(rows)


def _uniform(seed: bytes, size: int, modulus: int) -> Residues:
    """By rejection, from four words for each residue: at most every other one is rejected."""
    stream = hashlib.shake_256(seed).digest(4 * size * 8)
    drawn = np.frombuffer(stream, "<u8") & np.uint64((1 << modulus.bit_length()) - 1)
    return drawn[drawn < modulus][:size]


def commitment(public_share: bytes) -> str:
    """What an officer tells the others before it sees any of their shares: a hash of its own."""
    return digest(_COMMITMENT, public_share)


@dataclass(frozen=True, slots=True)
class CollectiveKey:
    """What clients and the server get of a committee's key: of the types that they always hold."""

    public: PublicKey
    adding: AddingContext

    @classmethod
    def assembled(
        cls,
        common: Residues,
        commitments: Sequence[str],
        public_shares: Sequence[bytes],
        parameters: CkksParameters = SUMS,
        epoch: int = 1,
    ) -> CollectiveKey:
        """(Σ b_i, a), the same at every officer, as its `key_id` shows.

        Raises:
            ConfigError: fewer than two shares, or not as many commitments.
            MessageRefused: a share is none, or not the one that its officer had committed to.
        """
        _require_committee(len(public_shares))
        if len(commitments) != len(public_shares):
            raise ConfigError(f"{len(commitments)} commitments to {len(public_shares)} shares")
        _require_different(public_shares)
        moduli = primes(parameters)
        total = np.zeros_like(common)
        for number, (share, stated) in enumerate(
            zip(public_shares, commitments, strict=True), start=1
        ):
            if commitment(share) != stated:
                raise MessageRefused(f"officer {number} had committed to another share of the key")
            total = added(total, from_wire(share, moduli, parameters.poly_degree), moduli)
        return cls._of(np.stack([total, common]), parameters, Origin.now(epoch))

    @classmethod
    def _of(cls, public_key: Residues, parameters: CkksParameters, origin: Origin) -> CollectiveKey:
        context = fresh_context(parameters)
        whole = context.seal_context().data.key_context_data().parms_id()
        bare = without_secret_key(context, public_key=False)
        key = sealwire.field(1, sealwire.ciphertext(whole, public_key, scale=1.0))
        parsed = ts.context_from(bare + sealwire.field(2, key))
        public = PublicKey.of(without_secret_key(parsed, public_key=True), parameters, origin)
        return cls(public, public.adding_context())


@final
class Combiner(Held):
    """Adds all officers' shares to a total and decodes it. It holds nothing of their keys."""

    def __init__(self, n_officers: int, parameters: CkksParameters = SUMS) -> None:
        """Raises ConfigError for a committee of one."""
        _require_committee(n_officers)
        self.n_officers = n_officers
        self.parameters = parameters
        self._context = fresh_context(parameters)
        self._decoder = Decoder(self._context)
        self.frame = RingFrame.of_fresh(self._context, parameters.scale_bits)

    def slots(self, total: bytes, shares: Sequence[bytes]) -> Slots:
        """The N/2 slots of c_0 + Σ h_i, for one ciphertext; the noise is in both their parts.

        Noise without any meaning where a share is wrong: the count of clients shows it.

        Raises:
            MessageRefused: not a ciphertext of these parameters, or not a share of every officer.
        """
        if len(shares) != self.n_officers:
            raise MessageRefused(f"{len(shares)} shares, but all {self.n_officers} open together")
        residues, moduli = self.frame.from_wire(total), self.frame.moduli
        for share in shares:
            decoded = from_wire(share, moduli, self.parameters.poly_degree)
            residues[0] = added(residues[0], decoded, moduli)
        # TenSEAL decodes only what it decrypts. Without its second polynomial a ciphertext hides
        # nothing, and every key decrypts it: this context's, which no one encrypts with.
        residues[1] = 0
        return self._decoder.slots(self.frame.loaded(self._context, residues).ciphertext()[0])


def added(left: Residues, right: Residues, moduli: Sequence[int]) -> Residues:
    """Sum of polynomials, shape (primes, N): each residue has a bit to spare in its word."""
    return (left + right) % np.array(moduli, np.uint64)[:, None]


def to_wire(residues: Residues, moduli: Sequence[int]) -> bytes:
    """A share as bytes: shape (primes, N), each residue in as many bytes as a ciphertext's."""
    return packed(residues, moduli)


def from_wire(share: bytes, moduli: Sequence[int], poly_degree: int) -> Residues:
    """The checked residues, shape (primes, N).

    Raises:
        MessageRefused: wrong length, or a residue outside the ring.
    """
    return unpacked(share, (len(moduli), poly_degree), moduli, "share")


def _require_committee(n_officers: int) -> None:
    if n_officers < 2:
        raise ConfigError(f"{n_officers} officers: a committee has two or more")


def _require_different(parts: Sequence[bytes]) -> None:
    if len(set(parts)) != len(parts):
        raise MessageRefused("two officers sent the same: one of them has copied")
