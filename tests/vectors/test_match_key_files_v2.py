"""A match key's files, a ciphertext and a score of version 2 are read by every later release."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from securefl.crypto.match_public import MatchPublicKey, ScoringContext, Weights
from securefl.exchange.match_flood import MAX_RELEASES

from securefl_keys.releases import FileCount, ReleasesFile
from securefl_keys.sealed_keys import open_match_secret

FILES = Path(__file__).parent / "v2"
PASSPHRASE = "correct horse battery staple"
KEY_ID = "1fa8e1acbd548e505bff833cf39457a211216f7384484816a48466a4da8785cb"


def row(values):
    slots = np.zeros((1, 2048))
    slots[0, : len(values)] = values
    return slots


SLOTS = row([0.5, -1.25, 3.0])
WEIGHTS = Weights(
    baseline=row([0.5]), linear=2048 * row([2, -1, 0.5]), squared=row([]), constant=0.125
)
SCORE = 0.125 + 2 * (0.5 - 0.5) - (-1.25) + 0.5 * 3


@pytest.fixture(scope="module")
def secret():
    return open_match_secret((FILES / "match.key").read_text(), PASSPHRASE)


@pytest.fixture(scope="module")
def public():
    return MatchPublicKey.from_json((FILES / "match-public.key").read_text())


@pytest.fixture(scope="module")
def scoring():
    return ScoringContext.from_json((FILES / "match.json").read_text())


def test_the_frozen_match_key_reads_the_frozen_score(secret):
    """A score that was computed in version 2 still opens."""
    score = (FILES / "match-score.bin").read_bytes()
    assert secret.score(score) == pytest.approx(SCORE, abs=1e-9)


def test_the_frozen_match_files_work_together(secret, public, scoring):
    """What a client sealed in version 2, or seals now, is scored by the server's file."""
    for payload in ((FILES / "match-ciphertext.bin").read_bytes(), public.encrypt(SLOTS)):
        assert secret.score(scoring.score(payload, WEIGHTS)) == pytest.approx(SCORE, abs=1e-9)


def test_the_frozen_match_files_name_one_key(secret, public, scoring):
    """All four files of version 2 still read as the same key, by its published id."""
    releases = ReleasesFile.parse((FILES / "match-releases.json").read_text())
    assert {secret.key_id, public.key_id, scoring.key_id, releases.key_id} == {KEY_ID}
    assert {secret.origin.epoch, public.epoch, scoring.epoch} == {3}


def test_the_frozen_count_is_read(tmp_path):
    """Seven releases of version 2 are seven now, and the next is the eighth."""
    path = tmp_path / f"{KEY_ID}.json"
    path.write_text((FILES / "match-releases.json").read_text())
    count = FileCount(path, KEY_ID)
    assert count.n_released == 7
    count.spend(1, MAX_RELEASES)
    assert json.loads(path.read_text())["n_released"] == 8


def test_the_same_match_key_is_written_as_the_same_text(secret):
    """Public files and counts of version 2 are still written byte for byte as they were."""
    assert secret.public_key().to_json() == (FILES / "match-public.key").read_text()
    assert secret.scoring_context().to_json() == (FILES / "match.json").read_text()
    assert ReleasesFile.stating(KEY_ID, 7) == (FILES / "match-releases.json").read_text()
