"""A key folder made once for several test files, and what is wrong with a copy of it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from securefl.exchange.card_keys import CardKeys
from securefl_keys import layout, sealed_file
from securefl_keys.roster import card_keys_in
from securefl_keys.verification import describe

PASSPHRASE = "correct horse battery staple"
CARD_SECRET = "authority/secret.key"
CARD_KEYS = ("authority/public.key", "server/public.key", "clients/public.key")
CARD_FILES = (CARD_SECRET, *CARD_KEYS)


def load_client(directory: Path) -> CardKeys:
    """Load the card keys that a client holds."""
    return card_keys_in(directory, layout.CLIENT_KEY)


def load_server(directory: Path) -> CardKeys:
    """Load the card keys that the server holds."""
    return card_keys_in(directory, layout.SERVER_KEY)


def rewritten(path: Path, **fields: Any) -> str:
    """Return the file with other fields in it, and a digest that is right for them."""
    file = json.loads(path.read_text()) | fields
    content = {name: value for name, value in file.items() if name != "sha256"}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps(file | {"sha256": hashlib.sha256(canonical).hexdigest()})


def encoded(content: bytes) -> str:
    """Return the content as a file holds it."""
    return base64.b64encode(content).decode()


@contextmanager
def cheap() -> Iterator[None]:
    """Guesses of a passphrase cost nothing in what is sealed meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "KDF_COST", sealed_file.KdfCost(1, 1, 8))
        yield


def problems_of(directory: Path) -> dict[str, tuple[str, ...]]:
    """Return problems by file, of those that have some."""
    return {
        entry.path.as_posix(): entry.problems for entry in describe(directory) if entry.problems
    }
