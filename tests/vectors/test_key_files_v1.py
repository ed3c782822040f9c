"""Key files and a ciphertext of version 1, made once, are read by every later release."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from securefl.crypto.public import AddingContext, PublicKey
from securefl_keys.sealed_keys import open_secret

FILES = Path(__file__).parent / "v1"
PASSPHRASE = "correct horse battery staple"
KEY_ID = "8ab775e76fb71e44e928eed22ba782269a0f9dd2fc0e544cfe4e1c2994bc23d7"
SLOTS = np.zeros(2048)
SLOTS[:3] = [0.5, -1.25, 3.0]


def secret_key():
    return open_secret((FILES / "secret.key").read_text(), PASSPHRASE)


def test_the_frozen_secret_key_reads_the_frozen_ciphertext():
    """A secret key and a ciphertext written in version 1 give the values that were sealed."""
    slots = secret_key().decrypt((FILES / "ciphertext.bin").read_bytes())
    np.testing.assert_allclose(slots, SLOTS, atol=1e-6)


def test_the_frozen_files_name_one_key():
    """The three files of version 1 still read as the same key, by its published id."""
    public = PublicKey.from_json((FILES / "public.key").read_text())
    adding = AddingContext.from_json((FILES / "parameters.json").read_text())
    assert {secret_key().key_id, public.key_id, adding.key_id} == {KEY_ID}


def test_the_frozen_files_work_together():
    """What a client seals with its file, the server adds with its own and the authority reads."""
    public = PublicKey.from_json((FILES / "public.key").read_text())
    adding = AddingContext.from_json((FILES / "parameters.json").read_text())
    total = adding.sum().plus((FILES / "ciphertext.bin").read_bytes()).plus(public.encrypt(SLOTS))
    np.testing.assert_allclose(secret_key().decrypt(total.coefficients()), 2 * SLOTS, atol=1e-6)


def test_the_same_keys_are_written_as_the_same_text():
    """Public artefacts of version 1 are still written byte for byte as they were."""
    assert secret_key().public_key.to_json() == (FILES / "public.key").read_text()
    assert secret_key().adding_context().to_json() == (FILES / "parameters.json").read_text()
