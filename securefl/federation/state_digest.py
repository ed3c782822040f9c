"""The digest of the model that a client was sent, which its signed header carries.

A server that sent one client the model, or true totals in mid-round, and the others zeros would
know the others' updates well enough to read the one's in the total. So whoever adds or opens
refuses headers that differ.
"""

from __future__ import annotations

import hashlib
import json

import torch

from securefl.types import State


def state_digest(state: State) -> str:
    """SHA-256 in hex of the tensors that clients are sent: kinds, names, types, shapes and bytes.

    In the order of kinds and names, whatever order and device they are in.
    """
    found = hashlib.sha256(b"SecureFL state 1\0")
    for kind, named in sorted(state.tensors.items()):
        for name, value in sorted(named.items()):
            about = json.dumps([kind, name, str(value.dtype), list(value.shape)]).encode()
            found.update(len(about).to_bytes(4, "little") + about)
            flat = value.detach().cpu().contiguous().reshape(-1)
            found.update(flat.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def with_total(digest: str, total: bytes) -> str:
    """SHA-256 in hex of what a client was sent so far, and of one total more as it travels."""
    heard = hashlib.sha256(b"SecureFL total 1\0" + digest.encode())
    heard.update(total)
    return heard.hexdigest()
