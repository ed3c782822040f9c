"""Commands that look at a key folder change nothing in it, and no link in it is followed."""

from __future__ import annotations

import shutil

import pytest
from click.testing import CliRunner
from consortium_files import PASSPHRASE, cut_off_rotation
from key_folders import load_client

from securefl.errors import KeyFileError
from securefl_cli.main import main
from securefl_keys import signer
from securefl_keys.authority_keys import load_all
from securefl_keys.rotation import rotate
from securefl_keys.verification import verify

pytestmark = pytest.mark.usefixtures("cheap_guesses")


def contents(folder):
    """Every name in it, and what lies there."""
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else path.is_symlink()
        for path in folder.rglob("*")
        if path.suffix != ".lock"
    }


@pytest.fixture
def cut_off(consortium):
    """A key folder whose next keys are ready, and none of them in place."""
    cut_off_rotation(consortium.keys)
    return consortium.keys


@pytest.mark.parametrize(
    "command", [["show"], ["verify"], ["verify", "--open"], ["policy"]], ids=" ".join
)
def test_a_rotation_that_was_cut_off_is_told_and_left(cut_off, tmp_path, command):
    """Who looks may be somebody else than who rotates."""
    passphrase = tmp_path / "passphrase"
    passphrase.write_text(PASSPHRASE)
    before = contents(cut_off)
    file = ["--passphrase-file", passphrase] if "--open" in command else []
    result = CliRunner().invoke(main, ["keys", *command, *map(str, file), str(cut_off)])
    assert contents(cut_off) == before
    assert result.exit_code == (0 if command == ["policy"] else 1)
    assert ("a rotation is under way, or was cut off" in result.output) == result.exit_code
    assert load_all(cut_off, PASSPHRASE).public.epoch == 2  # who opens the keys finishes it


def a_linked_journal(keys, strangers):
    (keys / signer.NEXT).symlink_to(strangers)


def a_link_in_the_journal(keys, strangers):
    (keys / signer.NEXT / "clients").mkdir(parents=True)
    (keys / signer.NEXT / "clients/public.key").symlink_to(strangers / "clients/public.key")


def a_linked_rest(keys, strangers):
    keys.joinpath("..next.0123").symlink_to(strangers)


@pytest.mark.parametrize("lay", [a_linked_journal, a_link_in_the_journal, a_linked_rest])
def test_a_link_in_the_place_of_the_next_keys_is_refused(consortium, tmp_path, lay):
    """By who looks and by who opens; neither your keys nor what it leads to are moved."""
    strangers = tmp_path / "yours"
    shutil.copytree(consortium.keys / "clients", strangers / "clients")
    (strangers / "clients/public.key").write_text("yours")
    own = load_client(consortium.keys).key_id
    lay(consortium.keys, strangers)
    before = contents(consortium.keys), contents(strangers)
    assert any("next" in problem for problem in verify(consortium.keys).problems)
    for use in (load_all, rotate):
        with pytest.raises(KeyFileError, match="a link, and a rotation leaves none"):
            use(consortium.keys, PASSPHRASE)
    assert (contents(consortium.keys), contents(strangers)) == before
    assert load_client(consortium.keys).key_id == own
