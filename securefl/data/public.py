"""Public samples: no client holds them and nobody is tested on them.

Published FNR-FL code takes the test set for it; a score on samples that were trained on says
nothing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from securefl.data.samples import Samples, in_order, samples
from securefl.data.split import Labelled, Split
from securefl.errors import DataError

_MIN_TARGETS = 2  # of a regression; batch normalisation has no variance to offer for one


def carve_public(split: Split, n_public: int, seed: int) -> tuple[Labelled, Split]:
    """Return `n_public` training samples, every class in its share, and the split without them.

    Of a regression it is any samples. One with a double, in training or in test, is not taken:
    whoever holds the rest holds none of the public ones.

    Raises:
        DataError: too few samples for the classes (two for a regression), or too many for the
            training set.
    """
    from sklearn.model_selection import train_test_split

    train = content_digests(samples((split.train_x, split.train_y), "the training data"))
    test = set(content_digests(samples((split.test_x, split.test_y), "the test data")))
    times = Counter(train)
    single = np.flatnonzero([times[digest] == 1 and digest not in test for digest in train])
    regression = split.train_y.is_floating_point()
    classes = None if regression else split.train_y.numpy(force=True)[single]
    least = _MIN_TARGETS if classes is None else len(np.unique(classes))
    if not least <= n_public <= len(single) - least:
        kinds = "" if classes is None else f", in {least} classes"
        raise DataError(
            f"{n_public} public samples of {len(single)} training samples without a "
            f"double{kinds}: take {least} to {len(single) - least}"
        )
    taken, _ = train_test_split(single, train_size=n_public, stratify=classes, random_state=seed)
    public = torch.zeros(len(train), dtype=torch.bool)
    public[torch.from_numpy(np.sort(taken))] = True
    rest = replace(split, train_x=split.train_x[~public], train_y=split.train_y[~public])
    return (split.train_x[public], split.train_y[public]), rest


def check_disjoint(public: Samples, others: Mapping[str, Samples]) -> None:
    """Refuse public samples whose content others hold too, whatever its label, shape or precision.

    Args:
        public: the public set.
        others: the clients' and the test data, by owner, for the message.

    Raises:
        DataError: naming how many samples coincide, and with whose.
    """
    known = set(content_digests(public))
    found = {
        owner: n
        for owner, data in others.items()
        if (n := sum(digest in known for digest in content_digests(data)))
    }
    if found:
        whose = ", ".join(f"{n} of {owner}" for owner, n in found.items())
        raise DataError(
            f"{sum(found.values())} samples are also public: {whose}. A public set is disjoint "
            "from clients' data and from what is tested; carve_public() takes one out of the "
            "training data before clients get theirs"
        )


def content_digests(data: Samples) -> list[bytes]:
    """Return a digest of each sample's x, in its order."""
    digests: list[bytes] = []
    for x, _ in in_order(data):
        # Adding zero makes -0 and 0 one content.
        rows = x.detach().reshape(len(x), -1).to("cpu", torch.float32) + 0.0
        digests += [hashlib.sha256(row.tobytes()).digest() for row in rows.numpy()]
    return digests
