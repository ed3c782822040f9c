"""Parts of the roles' commands, whatever carries their chunks."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from securefl.errors import KeyFileError
from securefl.io.files import read_bounded, write_whole
from securefl.network.authority import AuthorityLog, AuthorityProcess
from securefl.network.bodies import MAX_BUNDLE
from securefl.network.bundle_keeper import BundleKeeper
from securefl.runs.folder_files import is_finished
from securefl.runs.folder_writer import RunFolder
from securefl.settings.digests import settings_digest, study_digest
from securefl.settings.tables import Config
from securefl_keys import layout
from securefl_keys.authority_keys import FolderKeeper
from securefl_keys.bundle import VerifiedBundle
from securefl_keys.officer_card import load_officer


def authority_process(
    config: Config, keys: Path, passphrase: str, say: Callable[[str], None]
) -> AuthorityProcess:
    """Build the authority of a key folder, which no other process may serve.

    Raises:
        KeyFileError, RunFolderError: the keys or the log of openings cannot be used.
    """
    log = AuthorityLog(keys / layout.LOG, settings_digest(config), study_digest(config))
    return AuthorityProcess(FolderKeeper(keys, passphrase), config, log, say)


def officer_process(
    config: Config,
    identity: Path,
    sound: VerifiedBundle,
    passphrase: str,
    say: Callable[[str], None],
) -> AuthorityProcess:
    """Build an officer with the card keys in the folder of its identity, which keeps its log, too.

    A bundle that the server has passed on is kept in that folder, and holds where it is newer.

    Raises:
        KeyFileError, RunFolderError: the card key, the bundle that is kept, or the log of openings
            cannot be used.
    """
    kept = identity / layout.OFFICER_BUNDLE
    sound = _newest(sound, kept)
    log = AuthorityLog(identity / layout.OFFICER_LOG, settings_digest(config), study_digest(config))

    def keep(files: str) -> None:
        try:
            write_whole(kept, files.encode())
        except OSError as error:
            raise KeyFileError(f"{kept}: cannot be written: {error.strerror or error}") from error

    keeper = BundleKeeper(
        sound,
        lambda bundle: load_officer(identity, bundle, passphrase),
        keep,
    )
    return AuthorityProcess(keeper, config, log, say, keeper.take_up)


def _newest(sound: VerifiedBundle, kept: Path) -> VerifiedBundle:
    """Return the newer of a bundle and the one that is kept, if any.

    Raises:
        KeyFileError: what is kept is none of this consortium's. The older one would do, with the
            members and the policy of its time, and so does not take its place by itself.
    """
    if not kept.exists():
        return sound
    try:
        found = sound.of_any_age(read_bounded(kept, MAX_BUNDLE).decode())
    except (OSError, UnicodeDecodeError, KeyFileError) as error:
        raise KeyFileError(
            f"{kept}: damaged, or of another release ({error}): delete it, and start again with "
            "the authority's newest bundle for officers"
        ) from error
    return found if found.age > sound.age else sound


@contextmanager
def rounds_left(
    path: Path,
    config: Config,
    say: Callable[[str], None],
    admitted: Collection[str] = (),
) -> Iterator[RunFolder | None]:
    """Yield the folder of a run to go on in; None where no round is left.

    Raises as `RunFolder.begun_or_new`.
    """
    folder = RunFolder.begun_or_new(path, config, admitted)
    if is_finished(folder.path):  # a server that was killed at its end is started again
        say(f"Run folder: {path}, complete: no round is left")
        yield None
        return
    with folder.locked():
        yield folder
    say(f"Run folder: {path}")
