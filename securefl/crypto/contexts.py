"""TenSEAL contexts: made, written without what another role must not have, and read again."""

from __future__ import annotations

from typing import Protocol

import tenseal as ts
from tenseal import sealapi

from securefl.errors import KeyFileError


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


def secret_key_alone(context: ts.Context) -> bytes:
    """The key itself, IN CLEAR, and no public key of it."""
    return _serialised(context, public_key=False, secret_key=True)


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
