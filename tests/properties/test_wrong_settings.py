"""A wrong setting is refused in words: key, value, rule and way out; each rule has an example."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from refused_settings import FILES, WRONG

ROOT = Path(__file__).parents[2]
LOOK = """
import json, sys
seen = set()

def trace(frame, event, _argument):
    file = frame.f_code.co_filename
    if "securefl/" not in file:
        return None
    seen.add((file, frame.f_lineno))
    return trace

from securefl.errors import ConfigError
from securefl.settings.data_set import require_run
from securefl.settings.load import load_config
from securefl.selection.selector import Selector

class Asking(Selector):
    asks = ("loss",)

    def select(self, standing, n, rng):
        return standing.clients[:n]

class AskingForOne(Asking):
    asks = "profile"

class Unclear(Asking):
    asks = ()
    needs_devices = "no"

found = {}
for name, (path, settings) in json.load(sys.stdin).items():
    sys.settrace(trace)
    try:
        require_run(load_config(path, settings))
        said = "accepted"
    except ConfigError as error:
        said = str(error)
    finally:
        sys.settrace(None)
    found[name] = said, "torch" in sys.modules
print(json.dumps([found, sorted(seen)]))
"""
PARTS = ("settings", "algorithms/normalisation", "algorithms/solvers", "algorithms/servers")
RULES = [
    *(path for part in (*PARTS, "selection") for path in (ROOT / "securefl" / part).glob("*.py")),
    ROOT / "securefl/privacy/levels.py",
]


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    """Try all of them in one process."""
    folder = tmp_path_factory.mktemp("settings")
    asked = {name: (None, wrong.settings) for name, wrong in WRONG.items()}
    for number, (name, wrong) in enumerate(FILES.items()):
        path = folder / f"job-{number}.toml"
        if wrong.settings[0] is not None:
            path.write_bytes(wrong.settings[0])
        asked[f"file: {name}"] = (str(path), ())
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


ALL = {**WRONG, **{f"file: {name}": wrong for name, wrong in FILES.items()}}


@pytest.mark.parametrize("name", ALL)
def test_the_message_names_key_value_rule_and_cure(looked, name):
    """In this order, and before torch is loaded."""
    (said, torch), wrong = looked[0][name], ALL[name]
    assert not torch
    place = 0
    for part in (wrong.place, wrong.rule, wrong.cure):
        assert part in said[place:], said
        place = said.index(part, place) + len(part)


def test_there_are_more_than_a_hundred():
    assert len({wrong.settings for wrong in WRONG.values()}) > 100


def rules(path):
    """The statements that refuse settings: `yield` a reason, or raise ValueError.

    Of a data set it is ConfigError; elsewhere that one is for callers in Python, too.
    """
    error = "ConfigError" if path.name == "data_set.py" else "ValueError"
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(returns=ast.Subscript(value=ast.Name("Iterator"), slice=given)):
                if ast.unparse(given) != "str":
                    continue
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Yield):
                        yield inner
            case ast.Raise(exc=ast.Call(func=ast.Name(name))) if name == error:
                yield node


def test_each_rule_has_an_example(looked):
    """No reason is left that none of the settings above is refused for."""
    seen = {(Path(file).resolve(), line) for file, line in looked[1]}
    missing, n_rules = [], 0
    for path in RULES:
        for rule in rules(path):
            n_rules += 1
            lines = range(rule.lineno, rule.end_lineno + 1)
            if not any((path, line) in seen for line in lines):
                missing.append(f"{path.relative_to(ROOT)}:{rule.lineno}")
    assert not missing, missing
    assert n_rules > 50
