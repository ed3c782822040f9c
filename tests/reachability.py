"""Reach of an object: all that it leads to."""

from __future__ import annotations

import gc
from types import BuiltinFunctionType, FunctionType, ModuleType

import tenseal as ts

KEY_PARTS = ("public_key", "secret_key", "galois_keys", "relin_keys")


def reachable(root):
    """Return all objects that one leads to, through attributes, items, slots and closures."""
    seen, todo = {}, [root]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, (type, ModuleType, BuiltinFunctionType)):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, FunctionType):  # its globals are its module's, not its own
            todo += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
        else:
            todo += gc.get_referents(thing)
    return list(seen.values())


def keyed_contexts(things):
    """Return those of TenSEAL's contexts among them that could encrypt, decrypt or evaluate."""
    contexts = [thing for thing in things if isinstance(thing, ts.Context)]
    return [c for c in contexts if any(getattr(c, f"has_{part}")() for part in KEY_PARTS)]
