"""A wrong setting is refused before torch is imported, which takes seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

WRONG = "--set", "algorithm.nmae=fixbn"
PARTY = "--bundle", "bundle", "--identity", "me"
COMMANDS = {
    "run": ("run", *WRONG),
    "server": ("server", "serve", *WRONG, *PARTY),
    "authority": ("authority", "serve", *WRONG, "--keys", "keys"),
    "officer": ("officer", "serve", *WRONG, *PARTY),
    "site": ("site", "join", *WRONG, *PARTY),
    "review": ("site", "review", *WRONG),
    "privacy": ("privacy", "cost", *WRONG),
    "leave one out": ("leave-one-out", "job.toml", *WRONG, "--out", "out"),
    "NVFlare": ("nvflare", "export", "wrong.toml", "--out", "job"),
}
CALL = """
import sys
from securefl_cli.main import main
try:
    main(sys.argv[1:])
finally:
    print("torch" in sys.modules)
"""


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_torch_is_not_imported_for_it(command, tmp_path):
    (tmp_path / "job.toml").write_text("")
    (tmp_path / "wrong.toml").write_text('[algorithm]\nnmae = "fixbn"\n')
    done = subprocess.run(
        [sys.executable, "-c", CALL, *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "algorithm.nmae: no such key; did you mean algorithm.name?" in done.stderr
    assert done.stdout == "False\n"
