"""Key files of version 1 had one data prime, and their sums were not flooded: none is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from securefl.crypto.cards import CardKey
from securefl.errors import KeyFileError
from securefl_keys.sealed_keys import open_secret

FILES = Path(__file__).parent / "v1"
PASSPHRASE = "correct horse battery staple"


def sealed(opens):
    return lambda text: opens(text, PASSPHRASE)


@pytest.mark.parametrize(
    ("file", "read", "old", "wanted"),
    [
        ("public.key", CardKey.from_json, "ckks-public-key", "card-key/3"),
        ("parameters.json", CardKey.from_json, "ckks-parameters", "card-key/3"),
        ("secret.key", sealed(open_secret), "secret-key", "card-secret-key/3"),
    ],
)
def test_a_key_file_of_version_1_is_refused_with_the_way_out(file, read, old, wanted):
    """The line names both versions, and says that keys are to be made anew."""
    with pytest.raises(KeyFileError) as refusal:
        read((FILES / file).read_text())
    assert str(refusal.value) == (
        f"a securefl-{old}/1 file, of another SecureFL; this one reads securefl-{wanted}: "
        "make the keys anew"
    )
