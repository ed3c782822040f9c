"""Virtual environments of the peers, made where missing: python environments.py [PEER ...].

They lie in .peers/ at the repository's root. torch is the version that SecureFL has, from where pip
is told to take it. flwr 1.42.0 wants a certifi that our index does not have yet. FedJAX 0.0.17, the
last one, calls jax.tree_map, which jax dropped; 0.4.38 still has it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".peers"
TORCH = f"torch=={version('torch').partition('+')[0]}"
REQUIREMENTS = {
    "flower": ("flwr[simulation]==1.41.0", "ray==2.55.1", "numpy==2.4.6", TORCH),
    "pfl": ("pfl==0.6.0", "numpy==2.4.6", TORCH),
    "fedjax": (
        "fedjax==0.0.17",
        "jax==0.4.38",
        "jaxlib==0.4.38",
        "dm-haiku==0.0.17",
        "optax==0.2.5",
        "numpy==2.4.6",
    ),
}


def python_of(peer: str) -> Path:
    """Return the peer's interpreter; installs what is missing, minutes the first time."""
    folder, wanted = FOLDER / peer, "\n".join(REQUIREMENTS[peer])
    done, python = folder / "installed.txt", folder / "bin" / "python"
    if not done.exists() or done.read_text() != wanted:
        print(f"{peer}: installing {', '.join(REQUIREMENTS[peer])} into {folder}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS[peer]], check=True)
        done.write_text(wanted)
    return python


if __name__ == "__main__":
    for name in sys.argv[1:] or REQUIREMENTS:
        print(python_of(name))
