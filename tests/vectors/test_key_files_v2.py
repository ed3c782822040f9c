"""Key files, a count and a ciphertext of version 2 are read by every later release."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from securefl.crypto.artefact import Origin
from securefl.crypto.public import AddingContext, PublicKey
from securefl.errors import MessageRefused
from securefl.federation.message import split_message
from securefl_keys.releases import ReleasesFile
from securefl_keys.sealed_keys import open_secret

FILES = Path(__file__).parent / "v2"
PASSPHRASE = "correct horse battery staple"
KEY_ID = "0aa0914230abb6ac87d94e18b27f974054816835557a094639dcddba8aded5c4"
ORIGIN = Origin(epoch=3, created="2026-11-21T22:57:34Z")
N_RELEASED = 7 * 2**20
SLOTS = np.zeros(2048)
SLOTS[:3] = [0.5, -1.25, 3.0]


def secret_key():
    return open_secret((FILES / "secret.key").read_text(), PASSPHRASE)


def test_the_frozen_secret_key_reads_the_frozen_ciphertext():
    """A secret key and a ciphertext written in version 2 give the values that were sealed."""
    slots = secret_key().decrypt((FILES / "ciphertext.bin").read_bytes())
    np.testing.assert_allclose(slots, SLOTS, atol=1e-12)


def test_the_frozen_files_name_one_key():
    """The four files of version 2 still read as the same key, by its published id."""
    public = PublicKey.from_json((FILES / "public.key").read_text())
    adding = AddingContext.from_json((FILES / "parameters.json").read_text())
    count = ReleasesFile.parse((FILES / "releases.json").read_text())
    assert {secret_key().key_id, public.key_id, adding.key_id, count.key_id} == {KEY_ID}
    assert {secret_key().origin, public.origin} == {ORIGIN}
    assert (adding.epoch, count.purpose, count.n_released) == (3, "sums", N_RELEASED)


def test_the_frozen_files_work_together():
    """What a client seals with its file, the server adds with its own and the authority reads."""
    public = PublicKey.from_json((FILES / "public.key").read_text())
    adding = AddingContext.from_json((FILES / "parameters.json").read_text())
    total = adding.sum().plus((FILES / "ciphertext.bin").read_bytes()).plus(public.encrypt(SLOTS))
    np.testing.assert_allclose(secret_key().decrypt(total.coefficients()), 2 * SLOTS, atol=1e-12)


def test_the_same_keys_are_written_as_the_same_text():
    """Public artefacts and counts of version 2 are still written byte for byte as they were."""
    assert secret_key().public_key.to_json() == (FILES / "public.key").read_text()
    assert secret_key().adding_context().to_json() == (FILES / "parameters.json").read_text()
    stated = ReleasesFile.stating("sums", KEY_ID, N_RELEASED)
    assert stated == (FILES / "releases.json").read_text()


def test_a_message_of_version_2_is_refused_by_its_version():
    """Its signature had no prefix, and it names no model: who sent it needs this release."""
    with pytest.raises(MessageRefused, match="version 2, where version 3 is read"):
        split_message((FILES / "message.bin").read_bytes(), 10)
