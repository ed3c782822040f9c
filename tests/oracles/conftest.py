"""For all comparisons with references."""

from __future__ import annotations

import pytest
from site_files import written
from threads import one_torch_thread

from securefl.privacy.odometer import Odometer


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Models this small are faster without torch's own threads, and leave the cores to others."""
    with one_torch_thread():
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Each client's table and arrays, and its site.toml for each."""
    return written(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="module")
def uncounted():
    """Runs with differential privacy whose ε nobody works out, round by round: half a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Odometer, "epsilon", lambda _self, _done: 0.0)
        yield
