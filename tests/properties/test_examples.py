"""Each public name has an example, and each example runs."""

import doctest
import inspect
import runpy
from pathlib import Path

import pytest
from small_audit import TINY, audits_are_tiny

import securefl
from securefl.io import allowed_code

ROOT = Path(__file__).parents[2]
MINE = """
from securefl.algorithms.solvers.sgd import SGD

class Mine(SGD):
    pass
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A folder, and the names of the code that the examples go on from, run there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder := tmp_path_factory.mktemp("examples"))
        patch.syspath_prepend(str(folder))
        patch.setattr(allowed_code, "_ALLOWED", set())
        audits_are_tiny(patch)
        patch.setattr(securefl.audit_run, "__defaults__", (TINY,))  # it has the one of before
        Path("mine.py").write_text(MINE)
        names: dict[str, object] = {}
        exec(runpy.run_path(str(ROOT / "docs/site.py"))["START"], names)
        yield names


@pytest.mark.parametrize("name", sorted(securefl.__all__, key=str.lower))
def test_each_public_name_has_an_example_that_runs(start, name):
    """Each by itself, in any order."""
    text = inspect.getdoc(getattr(securefl, name))
    examples = doctest.DocTestParser().get_doctest(text, dict(start), name, None, 0)
    assert "\nExamples:\n" in text
    assert examples.examples
    said = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(examples, out=said.append, clear_globs=False)
    assert not said, "".join(said)
