"""What the server and the clients may hold: a context that adds, a key that encrypts."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated, Literal, final

import numpy as np
import tenseal as ts
from numpy.typing import NDArray
from pydantic import Field

from securefl.crypto.artefact import (
    CODEC,
    KeyFile,
    Sha256,
    decoded,
    digest,
    read_key_file,
    require_digest,
)
from securefl.crypto.contexts import primes, public_context, without_secret_key
from securefl.crypto.held import Held
from securefl.crypto.packing import CiphertextFrame
from securefl.crypto.params import CkksParameters
from securefl.errors import ConfigError, KeyFileError, MessageRefused

PARAMETERS_FORMAT: Literal["securefl-ckks-parameters/1"] = "securefl-ckks-parameters/1"
PUBLIC_KEY_FORMAT: Literal["securefl-ckks-public-key/1"] = "securefl-ckks-public-key/1"
Format = Literal["securefl-ckks-parameters/1", "securefl-ckks-public-key/1"]

Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{2}){1,1000}$")]


class SumsKeyFile(KeyFile):
    """The text form of a public artefact of sums."""

    poly_degree: int
    modulus_bits: tuple[int, int]
    scale_bits: int
    head: Hex
    tail: Hex
    modulus: int
    context: str
    sha256: Sha256
    """Over head, tail and context."""


@dataclass(frozen=True, slots=True)
class PublicArtefact:
    """A context without its secret key, and what is to be known of it."""

    context: bytes
    key_id: str
    parameters: CkksParameters
    frame: CiphertextFrame

    def to_json(self, format_: Format) -> str:
        """The artefact as text; it holds nothing secret."""
        return SumsKeyFile(
            format=format_,
            codec=CODEC,
            key_id=self.key_id,
            poly_degree=self.parameters.poly_degree,
            modulus_bits=self.parameters.modulus_bits,
            scale_bits=self.parameters.scale_bits,
            head=self.frame.head.hex(),
            tail=self.frame.tail.hex(),
            modulus=self.frame.modulus,
            context=base64.b64encode(self.context).decode(),
            sha256=digest(self.frame.head, self.frame.tail, self.context),
        ).model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str, format_: Format) -> PublicArtefact:
        """Parse a key file; TenSEAL sees none of it yet.

        Raises:
            KeyFileError: damaged, or of another role or TenSEAL version.
        """
        file = read_key_file(text, SumsKeyFile, format_)
        try:
            parameters = CkksParameters(file.poly_degree, file.modulus_bits, file.scale_bits)
        except ConfigError as error:
            raise KeyFileError(f"damaged key file: {error}") from error
        context = decoded(file.context)
        head, tail = bytes.fromhex(file.head), bytes.fromhex(file.tail)
        require_digest(file.sha256, head, tail, context)
        frame = CiphertextFrame(head, tail, file.modulus, parameters.ciphertext_bytes)
        return cls(context, file.key_id, parameters, frame)

    def parsed(self) -> ts.Context:
        """TenSEAL's context, of just these parameters and without a secret key.

        Raises:
            KeyFileError: it is another one.
        """
        return public_context(self.context, self.parameters)


@final
class AddingContext(Held):
    """CKKS parameters without any key: ciphertexts can be added, not made and not read.

    This is all of CKKS that a server ever gets.
    """

    def __init__(self, artefact: PublicArtefact) -> None:
        """Raises KeyFileError where the artefact holds any key."""
        self._artefact = artefact
        self._context = artefact.parsed()
        self.key_id = artefact.key_id
        self.parameters = artefact.parameters
        if self._context.has_public_key():
            raise KeyFileError("this context holds a public key: a server needs parameters alone")

    def to_json(self) -> str:
        """The server's file."""
        return self._artefact.to_json(PARAMETERS_FORMAT)

    @classmethod
    def from_json(cls, text: str) -> AddingContext:
        """Parse the server's file; raises KeyFileError."""
        return cls(PublicArtefact.from_json(text, PARAMETERS_FORMAT))

    def sum(self) -> CiphertextSum:
        """An empty sum of ciphertexts."""
        return CiphertextSum(self._context, self._artefact.frame)


class CiphertextSum:
    """Ciphertexts added as they arrive: memory does not grow with their number."""

    def __init__(
        self, context: ts.Context, frame: CiphertextFrame, vector: ts.CKKSVector | None = None
    ) -> None:
        self.frame = frame
        self._context = context
        self._vector = vector

    def plus(self, coefficients: bytes) -> CiphertextSum:
        """A new sum with one ciphertext more.

        Raises:
            MessageRefused: not a ciphertext of these parameters.
        """
        serialised = self.frame.dress(coefficients)
        try:
            vector = ts.ckks_vector_from(self._context, serialised)
            if self._vector is not None:
                vector += self._vector
        except (RuntimeError, ValueError) as error:
            raise MessageRefused(f"ciphertext refused by TenSEAL: {error}") from error
        return CiphertextSum(self._context, self.frame, vector)

    def coefficients(self) -> bytes:
        """The sum, as bytes that `SecretKey.decrypt` takes."""
        if self._vector is None:
            raise RuntimeError("a sum of no ciphertexts")
        return self.frame.strip(self._vector.serialize())


@final
class PublicKey(Held):
    """Encrypts. What a client holds."""

    def __init__(self, artefact: PublicArtefact) -> None:
        """Raises KeyFileError where the artefact is not the public key that its key id names."""
        self._artefact = artefact
        self._context = artefact.parsed()
        self.key_id = artefact.key_id
        self.parameters = artefact.parameters
        self.frame = artefact.frame
        if not self._context.has_public_key():
            raise KeyFileError("this context holds no public key: a client cannot encrypt with it")
        if digest(artefact.context) != self.key_id:
            raise KeyFileError("the public key does not match its key id: the file was changed")
        try:
            self.encrypt(np.zeros(self.parameters.poly_degree // 2))
        except RuntimeError as error:
            raise KeyFileError(f"damaged key file: {error}") from error

    @classmethod
    def of(cls, context: bytes, parameters: CkksParameters) -> PublicKey:
        """The key in a context of this process's own making."""
        slots = [0.0] * (parameters.poly_degree // 2)
        probe = ts.ckks_vector(ts.context_from(context), slots).serialize()
        frame = CiphertextFrame.measured(probe, parameters, primes(parameters)[0])
        return cls(PublicArtefact(context, digest(context), parameters, frame))

    def adding_context(self) -> AddingContext:
        """The server's part: parameters, no key."""
        context = without_secret_key(self._context, public_key=False)
        return AddingContext(PublicArtefact(context, self.key_id, self.parameters, self.frame))

    def to_json(self) -> str:
        """A client's file."""
        return self._artefact.to_json(PUBLIC_KEY_FORMAT)

    @classmethod
    def from_json(cls, text: str) -> PublicKey:
        """Parse a client's file; raises KeyFileError."""
        return cls(PublicArtefact.from_json(text, PUBLIC_KEY_FORMAT))

    def encrypt(self, slots: NDArray[np.float64]) -> bytes:
        """Coefficients of one ciphertext of N/2 slots, each within ±`parameters.max_value`."""
        return self.frame.strip(ts.ckks_vector(self._context, slots.tolist()).serialize())
