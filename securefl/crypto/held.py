"""Key material stays where it was made or read."""

from __future__ import annotations

from typing import NoReturn


class Held:
    """Can be neither pickled nor copied, shallow or deep.

    For a secret key because no copy of it may leave; for the others because TenSEAL crashes the
    process when it copies a context without keys.
    """

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be pickled or copied")
