"""Public samples: no client holds them and nobody is tested on them.

Published FNR-FL code takes the test set for it; a score on samples that were trained on says
nothing.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch

from securefl.data.samples import Samples, in_order, samples
from securefl.data.split import Labelled, Split
from securefl.errors import DataError

_CARVED = "carve_public() takes one out of the training data before clients get theirs"
_MOST_NUMBERS = 20
"""In a message."""
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
            f"data.public = {n_public}: {n_public} public samples of {len(single)} training "
            f"samples without a double{kinds}: take {least} to {len(single) - least}"
        )
    taken, _ = train_test_split(single, train_size=n_public, stratify=classes, random_state=seed)
    public = torch.zeros(len(train), dtype=torch.bool)
    public[torch.from_numpy(np.sort(taken))] = True
    rest = replace(split, train_x=split.train_x[~public], train_y=split.train_y[~public])
    return (split.train_x[public], split.train_y[public]), rest


def check_disjoint(
    public: Samples,
    others: Mapping[str, Samples],
    digests: Callable[[Samples], list[bytes]] | None = None,
    way_out: str = _CARVED,
) -> None:
    """Refuse public samples that others hold too.

    Args:
        public: the public set.
        others: the clients' and the test data, by owner, for the message.
        digests: of what makes two samples one; where absent, their content, whatever its label,
            shape or precision.
        way_out: the message's end.

    Raises:
        DataError: naming how many samples coincide, with whose, and their numbers in the public
            set, which count from 1.
    """
    of = digests or content_digests
    places = {digest: number for number, digest in enumerate(of(public), 1)}
    held = {owner: [places[d] for d in of(data) if d in places] for owner, data in others.items()}
    found = {owner: numbers for owner, numbers in held.items() if numbers}
    if found:
        whose = ", ".join(f"{len(numbers)} of {owner}" for owner, numbers in found.items())
        numbers = sorted({number for each in found.values() for number in each})
        named = ", ".join(map(str, numbers[:_MOST_NUMBERS]))
        more = f" and {len(numbers) - _MOST_NUMBERS} more" if len(numbers) > _MOST_NUMBERS else ""
        raise DataError(
            f"{sum(map(len, found.values()))} samples are also public: {whose}; in the public set "
            f"they are {named}{more}, counted from 1. A public set is disjoint from clients' data "
            f"and from what is tested; {way_out}"
        )


def content_digests(data: Samples) -> list[bytes]:
    """Return a digest of each sample's x, in its order."""
    digests: list[bytes] = []
    for x, _ in in_order(data):
        # Adding zero makes -0 and 0 one content.
        rows = x.detach().reshape(len(x), -1).to("cpu", torch.float32) + 0.0
        digests += [hashlib.sha256(row.tobytes()).digest() for row in rows.numpy()]
    return digests


def record_digests(data: Samples) -> list[bytes]:
    """Return a digest of each sample, x and y, in order: by chance, lines share an x."""
    targets = (
        row.tobytes()
        for _, y in in_order(data)
        for row in (y.detach().reshape(len(y), -1).to("cpu", torch.float32) + 0.0).numpy()
    )
    both = zip(content_digests(data), targets, strict=True)
    return [hashlib.sha256(x + y).digest() for x, y in both]
