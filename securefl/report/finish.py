"""What a run leaves in its folder at its end: pictures, and a page on differential privacy."""

from __future__ import annotations

from collections.abc import Callable

from securefl.config.schema import Config
from securefl.privacy.history import History
from securefl.report.pictures import pictures
from securefl.report.protection import protection_page
from securefl.runs.folder_reader import read_run
from securefl.runs.folder_writer import RunFolder

AtEnd = Callable[[RunFolder, History], None]


def at_end(config: Config) -> AtEnd:
    """Return the function that writes them."""

    def leave(folder: RunFolder, history: History) -> None:
        if config.privacy.level != "none":
            folder.note_protection(protection_page(config, history))
        for name, png in pictures(read_run(folder.path)).items():
            folder.note_picture(name, png)

    return leave
