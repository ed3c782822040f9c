"""A match key's files hold for each role what it may have, and no changed one is believed."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest
import tenseal as ts
from key_folders import (
    MATCH_SECRET,
    PASSPHRASE,
    count_of,
    encoded,
    problems_of,
    rewritten,
)
from securefl.crypto.match_params import LINEAR, SQUARE
from securefl.crypto.match_public import MatchPublicKey, ScoringContext
from securefl.exchange.match_flood import MAX_RELEASES

from securefl.errors import KeyFileError
from securefl_keys.folder import init_folder
from securefl_keys.loading import load_all, load_match
from securefl_keys.releases import ReleasesFile

pytestmark = pytest.mark.usefixtures("cheap_guesses")
SERVERS, CLIENTS = "server/match.json", "clients/match-public.key"
PUBLIC = {SERVERS: ScoringContext, CLIENTS: MatchPublicKey}


@pytest.fixture(scope="module")
def secret(made_keys):
    return load_match(made_keys, PASSPHRASE).secret


def test_the_three_parts_are_of_one_key_that_has_released_nothing(made_keys):
    """What is loaded names one key; its count is at its start."""
    keys = load_match(made_keys, PASSPHRASE)
    assert keys.secret.key_id == keys.public.key_id == keys.scoring.key_id
    assert keys.left == MAX_RELEASES
    assert not hasattr(keys.scoring, "encrypt")
    assert not hasattr(keys.public, "score")


def test_another_form_of_the_same_folder_is_refused(keys, tmp_path):
    """Files of a key that squares do not go with a linear one."""
    init_folder(tmp_path / "other", PASSPHRASE, match=SQUARE)
    shutil.copy(tmp_path / "other" / SERVERS, keys / SERVERS)
    with pytest.raises(KeyFileError, match="the authority holds"):
        load_match(keys, PASSPHRASE)


@pytest.mark.parametrize("file", PUBLIC)
@pytest.mark.parametrize("parts", ["secret", "galois", "relin"])
def test_a_public_match_file_with_more_in_it_is_refused(keys, secret, file, parts):
    """A secret or an evaluation key inside, though every digest is right."""
    context = ts.context_from(secret.to_secret_bytes())
    if parts == "galois":
        context.generate_galois_keys()
    if parts == "relin":
        context.generate_relin_keys()
    content = context.serialize(
        save_public_key=file == CLIENTS,
        save_secret_key=parts == "secret",
        save_galois_keys=parts == "galois",
        save_relin_keys=parts == "relin",
    )
    key_id = hashlib.sha256(content).hexdigest()
    path = keys / file
    path.write_text(rewritten(path, context=encoded(content), key_id=key_id))
    what = "secret key" if parts == "secret" else "evaluation keys"
    with pytest.raises(KeyFileError, match=f"holds (a )?{what}"):
        PUBLIC[file].from_json(path.read_text())
    if parts != "galois":  # with these the file is too large even to be read
        assert what in problems_of(keys)[file][0]


def test_a_public_key_is_no_servers(keys):
    """Neither as its file nor inside a file that says it is the server's."""
    context = json.loads((keys / CLIENTS).read_text())["context"]
    with pytest.raises(KeyFileError, match="holds a public key"):
        ScoringContext.from_json(rewritten(keys / SERVERS, context=context))
    with pytest.raises(KeyFileError, match="where securefl-match-parameters/2 is needed"):
        ScoringContext.from_json((keys / CLIENTS).read_text())


def test_parameters_are_no_public_key(keys):
    """A client that is given the server's file cannot encrypt, and is told."""
    context = json.loads((keys / SERVERS).read_text())["context"]
    with pytest.raises(KeyFileError, match="no public key"):
        MatchPublicKey.from_json(rewritten(keys / CLIENTS, context=context))


def test_a_match_key_where_the_key_of_cards_belongs_is_refused(keys):
    """And shown as what it is."""
    shutil.copy(keys / MATCH_SECRET, keys / "authority/secret.key")
    with pytest.raises(KeyFileError, match=r"secret\.key: not a sealed secret key: format"):
        load_all(keys, PASSPHRASE)
    assert "a match secret file where card secret" in problems_of(keys)["authority/secret.key"][0]


@pytest.mark.parametrize("file", PUBLIC)
@pytest.mark.parametrize("name", ["scale_bits", "weight_bits", "range_bits"])
def test_changed_parameters_are_refused(keys, file, name):
    """Damage by the digest, a lie about the context by the context, any other by the authority."""
    path = keys / file
    parameters = json.loads(path.read_text())["parameters"]
    parameters[name] -= 1
    forged = rewritten(path, parameters=parameters)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"parameters": parameters}))
    with pytest.raises(KeyFileError, match="does not match its SHA-256"):
        load_match(keys, PASSPHRASE)
    path.write_text(forged)
    what = "not of the parameters" if name == "scale_bits" else "changed since the keys were made"
    with pytest.raises(KeyFileError, match=what):
        load_match(keys, PASSPHRASE)


def test_a_context_of_other_primes_or_scheme_is_refused(keys):
    """Also one whose primes are as many bits together."""
    contexts = [
        ts.context(ts.SCHEME_TYPE.CKKS, 4096, coeff_mod_bit_sizes=bits)
        for bits in ([46, 47, 16], [46, 46, 17], [47, 46])
    ]
    for context in contexts:
        context.global_scale = 2.0**LINEAR.scale_bits
    contexts.append(ts.context(ts.SCHEME_TYPE.BFV, 4096, plain_modulus=1032193))
    for context in contexts:
        bare = context.serialize(save_public_key=False, save_secret_key=False)
        text = rewritten(keys / SERVERS, context=encoded(bare))
        with pytest.raises(KeyFileError):
            ScoringContext.from_json(text)


def test_a_public_key_under_another_name_is_refused(keys):
    """The key id is the SHA-256 of the public key, whatever the file says."""
    with pytest.raises(KeyFileError, match="does not match its key id"):
        MatchPublicKey.from_json(rewritten(keys / CLIENTS, key_id="0" * 64))


@pytest.mark.parametrize("file", PUBLIC)
@pytest.mark.parametrize(
    "fields",
    [
        {"context": ""},
        {"context": "not base64"},
        {"context": encoded(b"no context")},
        {"context": encoded(bytes(93))},
        {"codec": "tenseal-0.3.16"},
        {"more": 1},
        {"parameters": None},
        {"format": "securefl-match-parameters/1"},
        {"role": "authority"},
        {"purpose": "sums"},
        {"epoch": 0},
        {"created": "yesterday"},
    ],
    ids=str,
)
def test_what_is_no_match_file_never_crashes(keys, file, fields):
    """Each refusal names the file; TenSEAL is asked only what has passed all checks."""
    path = keys / file
    path.write_text(rewritten(path, **fields))
    with pytest.raises(KeyFileError, match=str(path)):
        load_match(keys, PASSPHRASE)
    assert problems_of(keys).keys() == {file}


@pytest.mark.parametrize("file", PUBLIC)
def test_tenseal_sees_nothing_that_failed_a_check(keys, file, monkeypatch):
    """Its parser is no place for bytes from a stranger."""
    monkeypatch.setattr(ts, "context_from", lambda *_: pytest.fail("parsed"))
    text = (keys / file).read_text()
    parameters = json.loads(text)["parameters"]
    for fields in ({"codec": "x"}, {"key_id": "x"}, {"parameters": parameters | {"degree": 3}}):
        with pytest.raises(KeyFileError):
            PUBLIC[file].from_json(rewritten(keys / file, **fields))
    with pytest.raises(KeyFileError):
        PUBLIC[file].from_json(text.replace('"degree": 1', '"degree": 2'))


def test_a_fresh_count_file_names_no_secret(made_keys):
    """It is five fields, of which none is secret."""
    file = json.loads((made_keys / count_of(made_keys)).read_text())
    assert file.keys() == {"format", "purpose", "key_id", "n_released", "sha256"}
    assert ReleasesFile.parse(json.dumps(file)).n_released == 0
