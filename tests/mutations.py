"""Changed copies of what was sent or written, at random: bytes, and fields of JSON."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

MAX_PARSE_S = 1.0
"""Seconds of processor time: more is a hang, whatever else the machine does."""
ODD = (None, True, -1, 0, 2**31, 2**63, 10**400, 1.5, float("nan"), [], {})
ODD += ("", "\0", "\ud800", "x" * 5000)
"""Values that a field may get."""


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Turn bits, put bytes in, take out or exchange some, double a stretch, or cut an end off."""
    data = bytearray(content or b"\0")
    for _ in range(rng.randint(1, 3)):
        at, other = rng.randrange(len(data)), rng.randrange(len(data))
        match rng.randrange(7):
            case 0 | 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at : at + rng.randint(1, 8)]
            case 3:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case 4:
                data[at], data[other] = data[other], data[at]
            case 5:
                data[at:at] = data[other : other + rng.randint(1, 64)]
            case 6:
                del data[at:]
        data = data or bytearray(b"\0")
    return bytes(data)


def mutated_json(content: bytes, rng: random.Random) -> bytes:
    """Change one field, exchange two, add or drop one, or change the text."""
    if rng.randrange(2):
        return mutated(content, rng)
    tree = json.loads(content)
    places = list(_places(tree))
    if not places:
        return mutated(content, rng)
    inside, key = rng.choice(places)
    match rng.randrange(5):
        case 0:
            inside[key] = rng.choice(ODD)
        case 1:
            there, other = rng.choice(places)
            with suppress(IndexError, KeyError):  # one may be in the other
                inside[key], there[other] = there[other], inside[key]
        case 2:
            del inside[key]
        case 3 if isinstance(inside, dict):
            inside[rng.choice(("more", "", f"{key} "))] = inside[key]
        case 3:
            inside.append(inside[key])
        case 4 if isinstance(inside[key], str):
            inside[key] = mutated(inside[key].encode(), rng).decode(errors="replace")
        case 4:
            inside[key] = [inside[key]]
    with suppress(ValueError, RecursionError):  # a field was put into itself
        return json.dumps(tree, indent=rng.choice((None, 1))).encode()
    return mutated(content, rng)


def _places(tree: object) -> Iterator[tuple[object, object]]:
    items = tree.items() if isinstance(tree, dict) else ()
    items = enumerate(tree) if isinstance(tree, list) else items
    for key, value in items:
        yield tree, key
        yield from _places(value)


def nasty(content: bytes, size: int) -> Iterator[bytes]:
    """Yields files of about `size` bytes that cost a parser most: alone, and inside a sound one."""
    for piece in (
        b"[" * size,
        b'{"a":' * (size // 5),
        b"a = " + b"{b = " * (size // 5),
        b"1" * size,
        b"0x" + b"f" * size,
        b"1e" + b"9" * size,
        b"a." * (size // 2) + b"b = 1",
        b'"a".' * (size // 4) + b"b = 1",
        b"\n".join(b"k%d = 1" % i for i in range(size // 12)),
        b"[" + b"1," * (size // 2) + b"1]",
        b"[" + b"{}," * (size // 3) + b"1]",
        b'"' + b"\\u0041" * (size // 6) + b'"',
        b'"' + b"x" * size + b'"',
        b'\\"' * (size // 2),
        b"\xff" * 100,
        b"\0" * 100,
        b"\n" * size,
    ):
        yield piece
        yield content[: len(content) // 2] + piece + content[len(content) // 2 :]
        yield content + b"\n" + piece + b"\n"
    for part in (0, 1, len(content) // 3, len(content) - 1):
        yield content[:part]
    yield content * (1 + size // max(len(content), 1))


def try_all(
    content: bytes,
    parse: Callable[[bytes], object],
    *refusals: type[Exception],
    n: int = 10_000,
    mutate: Callable[[bytes, random.Random], bytes] = mutated,
) -> list[tuple[bytes, object]]:
    """Return what was accepted of n changed copies, each with what came of it.

    All others were refused with one of these errors, and none hung.
    """
    rng, accepted, n_changed = random.Random(len(content)), [], 0
    for _ in range(n):
        changed = mutate(content, rng)
        if changed == content:
            continue
        started = time.thread_time()
        with suppress(*refusals):
            accepted.append((changed, parse(changed)))
        assert time.thread_time() - started < MAX_PARSE_S
        n_changed += 1
    assert n_changed > 0.9 * n
    return accepted
