"""Key files of version 1 had one data prime, and their sums were not flooded: none is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from securefl.crypto.match_public import MatchPublicKey, ScoringContext
from securefl.crypto.public import AddingContext, PublicKey
from securefl.errors import KeyFileError
from securefl_keys.releases import ReleasesFile
from securefl_keys.sealed_keys import open_match_secret, open_secret

FILES = Path(__file__).parent / "v1"
PASSPHRASE = "correct horse battery staple"


def sealed(opens):
    return lambda text: opens(text, PASSPHRASE)


@pytest.mark.parametrize(
    ("file", "read", "wanted"),
    [
        ("public.key", PublicKey.from_json, "securefl-ckks-public-key/2"),
        ("parameters.json", AddingContext.from_json, "securefl-ckks-parameters/2"),
        ("secret.key", sealed(open_secret), "securefl-secret-key/2"),
        ("match-public.key", MatchPublicKey.from_json, "securefl-match-public-key/2"),
        ("match.json", ScoringContext.from_json, "securefl-match-parameters/2"),
        ("match.key", sealed(open_match_secret), "securefl-match-secret-key/2"),
    ],
)
def test_a_key_file_of_version_1_is_refused_with_the_way_out(file, read, wanted):
    """The line names both versions, and says that keys are to be made anew."""
    old = wanted.replace("/2", "/1")
    with pytest.raises(KeyFileError) as refusal:
        read((FILES / file).read_text())
    assert str(refusal.value) == (
        f"a {old} file, of another SecureFL; this one reads {wanted}: make the keys anew"
    )


def test_a_count_of_version_1_is_none():
    """It was of scores alone, and of a key that is not read any more."""
    with pytest.raises(KeyFileError, match="no count of releases"):
        ReleasesFile.parse((FILES / "match.releases").read_text())
