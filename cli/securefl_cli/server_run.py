"""A federation's run at its server, begun or gone on with."""

import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from securefl.errors import ConfigError
from securefl.network.connect import Address
from securefl.network.saying import Warned
from securefl.network.server import Patience, ServerProcess, server_job
from securefl.runs.folder_reader import read_run
from securefl.runs.progress import RunProgress, RunSoFar, terminal_bar
from securefl.runs.round_metrics import read_metrics
from securefl.runs.session import ServerStart
from securefl.settings.tables import Config
from securefl_cli.connection import introduce, run_until_done, watched_at
from securefl_cli.log import is_plain, say
from securefl_cli.passed_rounds import passed_rounds
from securefl_cli.passphrase import ENVIRONMENT, from_environment, read_own_passphrase
from securefl_cli.report import report_of
from securefl_cli.roles import rounds_left
from securefl_keys.bundle import VerifiedBundle, process_identity


def run_server(
    config: Config,
    start: ServerStart,
    path: Path,
    passphrase_file: Path | None,
    model: str | None,
    admitted: Collection[str] = (),
) -> None:
    """Run all rounds that are left of the run in the folder `path`, as its server.

    `start` is written down there, for `securefl run --resume`.

    Raises:
        ConfigError, KeyFileError, RunFolderError: a setting or a file is wrong, or the environment
            holds a passphrase.
    """
    if from_environment() is not None:
        raise ConfigError(
            f"{ENVIRONMENT} is set, and a server's environment is to hold no secret: unset it "
            "here, and give --passphrase-file, or type the passphrase"
        )
    at, sound = Address.parse(start.listen), VerifiedBundle.load(start.bundle, "server")
    job = server_job(config, model, start.data)
    passphrase = read_own_passphrase(passphrase_file, start.identity)
    mine = process_identity(start.identity, passphrase, sound.ca, "server")
    introduce(mine, "server", start.identity)
    patience = Patience(start.joining_s, start.timeout_s, start.away_s)
    process = ServerProcess(mine, sound, job, patience, say)
    with rounds_left(path, config, say, admitted) as folder:
        if folder:
            folder.note_server(start)
            watched = watched_at(start.metrics, start.health, process.monitor, "server")
            with watched, _resumed_by(path), _bar(config, len(read_metrics(path))) as bar:
                run_until_done(process.run(at, folder, bar))
    record = read_run(path)
    if folder and record.metrics:
        say(f"Report: {report_of(record)}")
    if folder and (passed := passed_rounds(record)):
        say(Warned(f"Note: {passed}"))
        if record.all_passed:
            raise SystemExit(1)


@contextmanager
def _bar(config: Config, done: int) -> Iterator[RunProgress | None]:
    """Show a bar under the lines of a terminal; yield None where lines are to tell of rounds."""
    so_far = RunSoFar(config.name, config.run.rounds, done, config.privacy.private)
    with terminal_bar(so_far) if is_plain() else nullcontext() as bar:
        yield bar


@contextmanager
def _resumed_by(path: Path) -> Iterator[None]:
    """Name, at a Ctrl-C within, the command that goes on."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"Go on with: {shlex.join(['securefl', 'run', '--resume', str(path)])}")
        raise
