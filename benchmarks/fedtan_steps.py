"""Time of the processor in the demo's encrypted FedTAN run: its steps, and a lower bound.

A step is a call of the code with timers around it, without the steps that are called from within
it. The bound is what the same numbers of messages cost if there were nothing but the libraries'
calls: SEAL's and OpenSSL's, one after the other on data that are in the processor's cache.
OMP_NUM_THREADS=1, as for `encrypted_fedtan`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from encrypted_fedtan import MOMENTS, OTHER, Stopwatch, config, run_seconds, timers
from measure import Machine, show, write_json
from tenseal import sealapi

import securefl
from securefl.crypto import KEY_BITS
from securefl.crypto.params import SUMS
from securefl.simulation.malloc import keep_freed_memory
from securefl.task import Task, configured_task

STEPS: Mapping[str, tuple[str, ...]] = {
    "train": ("securefl.federation.pausable.Pausable.resume",),
    "pack values": ("securefl.federation.client.Client.hand_over",),
    "derive keys": ("securefl.crypto.one_time.OneTimeKey.of",),
    "draw errors": ("securefl.crypto.one_time.error_polynomial",),
    "load, transform keys and errors": ("securefl.crypto.seal_ring.SealRing._small",),
    "encode": ("securefl.crypto.seal_ring.SealRing._encoded",),
    "add m, multiply a s": ("securefl.crypto.seal_ring.SealRing.encrypted",),
    "read SEAL's words": ("securefl.crypto.seal_ring._words",),
    "seal: digits, nonce, packing": ("securefl.exchange.one_time.OneTimeSealer.seal",),
    "header, hash, sign": ("securefl.federation.client.Client._signed",),
    "parse header, hash": ("securefl.federation.server.split_message",),
    "verify signatures": ("securefl.federation.message.Roster.check",),
    "add": (
        "securefl.exchange.one_time.OneTimeSum.plus",
        "securefl.exchange.one_time.OneTimeSum.total",
    ),
    "decrypt totals": ("securefl.crypto.one_time.KeySum.open",),
    "decode totals": ("securefl.exchange.decode_total.TotalDecoder.decode",),
    "authority's other checks": ("securefl.federation.authority.Authority.open",),
    OTHER: ("securefl.runs.loop.Rounds.step",),
}
SEALED, SUM_OPENED = "seal: digits, nonce, packing", "decrypt totals"
"""Steps that are called once a sealed message, and once a total of one ciphertext."""
_REPEATS = 200


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a round."""

    name: str
    calls: float
    plain_ms: float
    sealed_ms: float


@dataclass(frozen=True, slots=True)
class Bare:
    """Call of one library, alone."""

    name: str
    calls: float
    """Calls in a round."""
    call_ms: float

    @property
    def round_ms(self) -> float:
        """Milliseconds of a round."""
        return self.calls * self.call_ms


@dataclass(frozen=True, slots=True)
class Steps:
    """Round with statistics sealed beside a plain one."""

    moments: str
    plain_ms: float
    """Milliseconds without timers, as `sealed_ms`; the median of the repeats."""
    sealed_ms: float
    steps: Sequence[Step]
    bare: Sequence[Bare]

    @property
    def bound_ms(self) -> float:
        """Least that sealing adds to a round."""
        return sum(bare.round_ms for bare in self.bare)


def counted_steps(
    settings: securefl.Config, task: Task
) -> tuple[dict[str, float], dict[str, float]]:
    """Return a round's milliseconds and calls, by step."""
    watch = Stopwatch(time.process_time)
    with timers(watch, STEPS):
        securefl.run(settings, task)
    n = settings.run.rounds
    return {s: 1e3 * watch.seconds[s] / n for s in STEPS}, {s: watch.calls[s] / n for s in STEPS}


def measured(moments: str, rounds: int, repeats: int, bare: Mapping[str, float]) -> Steps:
    """Measure plain and sealed runs in turn, without timers and then with them."""
    jobs = {e: config(moments, e, rounds, "mlp") for e in ("none", "statistics")}
    task = configured_task(jobs["none"])
    for encrypt in jobs:
        run_seconds(config(moments, encrypt, 1, "mlp"), task)  # warms torch up
    whole, by_step = defaultdict(list), defaultdict(list)
    calls: dict[str, float] = {}
    for _ in range(repeats):
        for encrypt, settings in jobs.items():
            whole[encrypt].append(1e3 * run_seconds(settings, task) / rounds)
    for _ in range(repeats):
        for encrypt, settings in jobs.items():
            found, calls = counted_steps(settings, task)
            by_step[encrypt].append(found)
    plain, sealed = (
        {step: median(run[step] for run in by_step[encrypt]) for step in STEPS} for encrypt in jobs
    )
    return Steps(
        moments,
        median(whole["none"]),
        median(whole["statistics"]),
        [Step(name, calls[name], plain[name], sealed[name]) for name in STEPS],
        [Bare(name, times(calls), bare[name]) for name, times in _TIMES.items()],
    )


def _messages(calls: Mapping[str, float]) -> float:
    return calls[SEALED]


def _totals(calls: Mapping[str, float]) -> float:
    return calls[SUM_OPENED]


def _messages_and_totals(calls: Mapping[str, float]) -> float:
    return calls[SEALED] + calls[SUM_OPENED]


_TIMES: Mapping[str, Callable[[Mapping[str, float]], float]] = {
    "SEAL encodes": _messages,
    "SEAL transforms a key and an error": _messages_and_totals,
    "SEAL adds, multiplies": _messages_and_totals,
    "SEAL saves": _messages,
    "SEAL decodes": _totals,
    "HKDF, SHAKE-256 of a key": lambda calls: calls["derive keys"],
    "SHAKE-256 of an error": _messages,
    "SHAKE-256 of a common polynomial": _totals,
    "SHA-256 of a payload": lambda calls: 2 * calls[SEALED],
    "Ed25519 signs": _messages,
    "Ed25519 verifies": _messages,  # once a process, for the server and the authority
}


def seal_calls() -> dict[str, float]:
    """Return milliseconds of each of SEAL's calls for one ciphertext of a sum."""
    degree, scale = SUMS.poly_degree, 2.0**SUMS.scale_bits
    of = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.CKKS)
    of.set_poly_modulus_degree(degree)
    of.set_coeff_modulus(sealapi.CoeffModulus.Create(degree, [*SUMS.prime_bits]))
    context = sealapi.SEALContext(of, True, sealapi.SEC_LEVEL_TYPE.TC128)
    secret, encoder = sealapi.KeyGenerator(context).secret_key(), sealapi.CKKSEncoder(context)
    encryptor, evaluator = sealapi.Encryptor(context, secret), sealapi.Evaluator(context)
    decryptor = sealapi.Decryptor(context, secret)
    values = np.random.default_rng(0).normal(size=degree // 2).astype(complex).tolist()
    plain, summed, both = sealapi.Plaintext(), sealapi.Plaintext(), sealapi.Ciphertext()
    encoder.encode(values, scale, plain)
    encryptor.encrypt_symmetric(plain, both)

    def transformed() -> None:
        evaluator.transform_from_ntt_inplace(both)
        evaluator.transform_to_ntt_inplace(both)

    def multiplied() -> None:
        evaluator.add_plain_inplace(both, plain)
        decryptor.decrypt(both, summed)

    found = {
        "SEAL encodes": _call_ms(lambda: encoder.encode(values, scale, plain)),
        "SEAL transforms a key and an error": _call_ms(transformed) / 2,
        "SEAL adds, multiplies": _call_ms(multiplied),
    }
    found["SEAL decodes"] = _call_ms(lambda: encoder.decode_complex(summed))
    descriptor = os.memfd_create("steps")
    path = f"/proc/self/fd/{descriptor}"
    found["SEAL saves"] = _call_ms(lambda: summed.save(path))
    os.close(descriptor)
    return found


def hash_and_signature_calls() -> dict[str, float]:
    """Return milliseconds of each of OpenSSL's calls for one ciphertext of a sum."""
    payload, secret = os.urandom(SUMS.ciphertext_bytes), bytes(32)
    signing = Ed25519PrivateKey.generate()
    header, public = payload[:700], signing.public_key()
    signature, key_bytes = signing.sign(header), SUMS.poly_degree * -(-KEY_BITS // 8)

    def derived() -> None:
        HKDF(SHA256(), 32, salt=None, info=header[:120]).derive(secret)
        hashlib.shake_256(secret).digest(key_bytes)

    calls: dict[str, Callable[[], object]] = {
        "HKDF, SHAKE-256 of a key": derived,
        "SHAKE-256 of an error": lambda: hashlib.shake_256(secret).digest(key_bytes),
        "SHAKE-256 of a common polynomial": lambda: hashlib.shake_256(secret).digest(
            8 * SUMS.poly_degree
        ),
        "SHA-256 of a payload": lambda: hashlib.sha256(payload).digest(),
        "Ed25519 signs": lambda: signing.sign(header),
        "Ed25519 verifies": lambda: public.verify(signature, header),
    }
    return {name: _call_ms(call) for name, call in calls.items()}


def _call_ms(call: Callable[[], object]) -> float:
    """Return the median of ten batches."""
    batches = []
    for _ in range(10):
        began = time.process_time()
        for _ in range(_REPEATS // 10):
            call()
        batches.append(1e3 * (time.process_time() - began) / (_REPEATS // 10))
    return median(batches)


def show_steps(of: Steps) -> None:
    """Print both tables."""
    show(
        f"A round with {of.moments} moments, by timers",
        ("step", "calls", "plain", "sealed", "more"),
        [
            [s.name, f"{s.calls:.1f}", *_ms(s.plain_ms, s.sealed_ms, s.sealed_ms - s.plain_ms)]
            for s in of.steps
        ],
    )
    show(
        f"Least that sealing adds to it: {of.bound_ms:.1f} ms",
        ("libraries' calls", "a round", "each", "a round's ms"),
        [[b.name, f"{b.calls:.1f}", f"{b.call_ms:.3f}", *_ms(b.round_ms)] for b in of.bare],
    )
    ratio, least = of.sealed_ms / of.plain_ms, 1 + of.bound_ms / of.plain_ms
    print(
        f"{of.moments}: {of.plain_ms:.1f} ms plain, {of.sealed_ms:.1f} ms sealed without timers, "
        f"a ratio of {ratio:.2f}; {least:.2f} if sealing were the libraries' calls alone"
    )


def _ms(*values: float) -> list[str]:
    return [f"{value:.2f}" for value in values]


def main(argv: Sequence[str] | None = None) -> list[Steps]:
    """Measure, print, and write what the arguments ask for."""
    keep_freed_memory()  # as the command line does
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    print(Machine.here())
    bare = seal_calls() | hash_and_signature_calls()
    results = [measured(moments, args.rounds, args.repeats, bare) for moments in MOMENTS]
    for result in results:
        show_steps(result)
    if args.json:
        write_json(args.json, results)
    return results


if __name__ == "__main__":
    main()
