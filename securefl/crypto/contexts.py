"""TenSEAL contexts: made, written without what another role must not have, and read again."""

from __future__ import annotations

from functools import cache
from typing import Protocol

import tenseal as ts
from tenseal import sealapi

from securefl.crypto import sealwire
from securefl.errors import KeyFileError

_PARAMETERS, _PUBLIC, _PRIVATE = 1, 2, 3
"""Fields of TenSEAL's message, which are messages themselves."""
_KEY = 1
_PUBLIC_PARTS = frozenset({_KEY, 2, 3})
"""The public key, what TenSEAL does of itself, and the scale; evaluation keys are others."""
_MAX_PARAMETER_BYTES = 4096


class ContextParameters(Protocol):
    """What fixes a context but for its keys."""

    @property
    def poly_degree(self) -> int:
        """N."""

    @property
    def modulus_bits(self) -> tuple[int, ...]:
        """The data primes, and the special prime that encryption divides away."""

    @property
    def scale_bits(self) -> int:
        """Of what is encrypted."""


def fresh_context(parameters: ContextParameters) -> ts.Context:
    """A key from the operating system's randomness, without evaluation keys."""
    context = ts.context(
        ts.SCHEME_TYPE.CKKS,
        parameters.poly_degree,
        coeff_mod_bit_sizes=list(parameters.modulus_bits),
    )
    context.global_scale = 2.0**parameters.scale_bits
    return context


def without_secret_key(context: ts.Context, *, public_key: bool) -> bytes:
    """What another role may parse anew.

    As bytes, since TenSEAL's make_context_public leaves a working decryptor behind.
    """
    return _serialised(context, public_key=public_key, secret_key=False)


def with_secret_key(context: ts.Context) -> bytes:
    """The key itself, IN CLEAR."""
    return _serialised(context, public_key=True, secret_key=True)


def _serialised(context: ts.Context, *, public_key: bool, secret_key: bool) -> bytes:
    content = context.serialize(
        save_public_key=public_key,
        save_secret_key=secret_key,
        save_galois_keys=False,
        save_relin_keys=False,
    )
    return bytes(content)


def public_context(content: bytes, parameters: ContextParameters) -> ts.Context:
    """TenSEAL's context, of just these parameters and without a secret or an evaluation key.

    Raises:
        KeyFileError: it is another one.
    """
    _require_lengths(content, parameters)
    try:
        context = ts.context_from(content)
    except (RuntimeError, ValueError) as error:
        raise KeyFileError(f"damaged key file: {error}") from error
    if context.has_secret_key():
        raise KeyFileError("this context holds a secret key: only the authority may hold it")
    if context.has_galois_keys() or context.has_relin_keys():
        raise KeyFileError("this context holds evaluation keys: nothing here needs any")
    require_parameters(context, parameters)
    return context


def _require_lengths(content: bytes, parameters: ContextParameters) -> None:
    """Lets TenSEAL see no parameters but these, and no key that unpacks to more than one has."""
    try:
        whole = sealwire.fields(content)
        if _PRIVATE in whole:
            raise KeyFileError("this context holds a secret key: only the authority may hold it")
        public = sealwire.fields(whole.get(_PUBLIC, b""))
        if not public.keys() <= _PUBLIC_PARTS:
            raise KeyFileError("this context holds evaluation keys: nothing here needs any")
        n_degree, bits = parameters.poly_degree, tuple(parameters.modulus_bits)
        if _unpacked_parameters(whole) != _parameters_of(n_degree, bits):
            raise KeyFileError(
                f"the context is not of the parameters that its file names: {parameters}"
            )
        if _KEY in public:
            sealwire.require_public_key(public[_KEY], (2, len(bits), n_degree))
    except RuntimeError as error:
        raise KeyFileError(f"damaged key file: {error}") from error


def _unpacked_parameters(whole: dict[int, bytes]) -> bytes:
    return sealwire.unpacked(whole.get(_PARAMETERS, b""), _MAX_PARAMETER_BYTES)


@cache
def _parameters_of(poly_degree: int, modulus_bits: tuple[int, ...]) -> bytes:
    context = ts.context(ts.SCHEME_TYPE.CKKS, poly_degree, coeff_mod_bit_sizes=list(modulus_bits))
    return _unpacked_parameters(sealwire.fields(without_secret_key(context, public_key=False)))


def require_parameters(context: ts.Context, parameters: ContextParameters) -> None:
    """Raises KeyFileError where the context is not of these CKKS parameters."""
    try:
        seal = context.seal_context().data
        key, data = seal.key_context_data().parms(), seal.first_context_data().parms()
        found = (
            key.scheme().name,
            key.poly_modulus_degree(),
            [prime.value() for prime in key.coeff_modulus()],
            [prime.value() for prime in data.coeff_modulus()],
            context.global_scale,
        )
        wanted = primes(parameters)
    except (RuntimeError, ValueError) as error:
        raise KeyFileError(f"damaged key file: {error}") from error
    scale = 2.0**parameters.scale_bits
    if found != ("CKKS", parameters.poly_degree, wanted, wanted[:-1], scale):
        raise KeyFileError(
            f"the context is not of the parameters that its file names: {parameters}"
        )


def primes(parameters: ContextParameters) -> list[int]:
    """The primes that SEAL takes for these parameters: data primes, then the special one."""
    bits = list(parameters.modulus_bits)
    return [prime.value() for prime in sealapi.CoeffModulus.Create(parameters.poly_degree, bits)]
