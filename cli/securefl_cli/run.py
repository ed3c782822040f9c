"""`securefl run`: one run, from settings to a folder full of evidence."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, get_args

import click

from securefl.data.catalogue import DATA_SETS, names_by_domain
from securefl.errors import ConfigError, KeyFileError, RunFolderError
from securefl.settings.axes import NORMALISATIONS, REFINEMENTS, SELECTORS, SERVERS, SOLVERS
from securefl.settings.data_set import require_run
from securefl.settings.load import load_config
from securefl.settings.models import MODELS, NormName
from securefl.settings.tables import Config, RunTable
from securefl_cli.as_json import json_option, say_json
from securefl_cli.compare import as_row, print_runs
from securefl_cli.completion import any_of, complete_runs
from securefl_cli.connection import ended_by_sigterm
from securefl_cli.options import settings_of
from securefl_cli.own_data import Own, sites_option
from securefl_cli.passphrase import read_passphrase
from securefl_cli.progress import progress_bar, say_engine, say_rate
from securefl_cli.report import report_of

if TYPE_CHECKING:
    from securefl.exchange.officer import KeySet
    from securefl.federation.client import Identities
    from securefl.federation.ledger import Ledger
    from securefl.runs.folder_reader import RunRecord
    from securefl.runs.folder_writer import RunFolder
    from securefl.runs.loop import Result


@click.command()
@click.argument(
    "config_file", metavar="[CONFIG.toml]", required=False, type=click.Path(path_type=Path)
)
@click.option(
    "--dataset",
    shell_complete=any_of(DATA_SETS.keys),
    help=f"{', '.join(DATA_SETS)}; a client per domain: {', '.join(names_by_domain())}",
)
@click.option(
    "--data-root",
    metavar="DIR",
    help="The data set's files, of all that need some: securefl data list.",
)
@click.option(
    "--partition",
    help="iid, sizes:S, classes:K, dominant:S, dirichlet:A, quantity:A or label-quantity:A",
)
@click.option("--clients", type=int, help="How many clients.")
@click.option(
    "--quality",
    metavar="NAME:SHARE,...",
    help="irrelevant:0.15,blurred:0.2: clients with low-quality data, as shares of all.",
)
@click.option(
    "--feature-noise", type=float, help="Noise of the last client's images; the others' is less."
)
@click.option("--corruptions", metavar="NAMES", help="gaussian_noise,fog,...: one per client.")
@click.option("--severity", type=int, help="Of the corruptions, 1 to 5.")
@click.option("--leave-out", help="noise, fog, a folder: clients that do not train.")
@click.option(
    "--algorithm",
    shell_complete=any_of(NORMALISATIONS.names),
    help=f"{', '.join(NORMALISATIONS.names())}, or MODULE:CLASS of your own",
)
@click.option(
    "--solver",
    shell_complete=any_of(SOLVERS.names),
    help=f"{', '.join(SOLVERS.names())}, or MODULE:CLASS of your own",
)
@click.option(
    "--server",
    shell_complete=any_of(SERVERS.names),
    help=f"{', '.join(SERVERS.names())}, or MODULE:CLASS of your own",
)
@click.option(
    "--fnr",
    shell_complete=any_of(REFINEMENTS.names),
    help=", ".join(REFINEMENTS.names()),
)
@click.option(
    "--model",
    shell_complete=any_of(MODELS.keys),
    help="mlp, cnn, resnet20, alexnet or unet; MODULE:FUNCTION with --site",
)
@click.option(
    "--norm",
    shell_complete=any_of(lambda: get_args(NormName)),
    help="batch, group, layer, instance, group-ws, scaled-ws or fixup",
)
@click.option(
    "--rounds",
    type=int,
    help="How many rounds. From 50 on, or where BN is frozen, the learning rate drops after a half "
    "and three quarters of them; train.lr_drops says otherwise.",
)
@click.option(
    "--engine",
    shell_complete=any_of(lambda: get_args(RunTable.model_fields["engine"].annotation)),
    help="How clients are simulated: sequential (one after the other), vectorised (side by side), "
    "parallel (in processes, as many as --set run.workers=N), ray (the same, on the machines of a "
    "Ray cluster), or auto, which says what it takes. "
    "--set run.threads=N has torch compute with so many, on which the last bits depend.",
)
@click.option(
    "--select",
    shell_complete=any_of(SELECTORS.names),
    metavar="NAME[:KEY=VALUE,...]",
    help=f"{', '.join(SELECTORS.names())}, or MODULE:CLASS of your own, with other keys of "
    "[selection]: fedprof:alpha=10,fraction=0.1",
)
@click.option(
    "--privacy",
    metavar="LEVEL[:KEY=VALUE,...]",
    help="none, record or client, with other keys of [privacy]: record:sigma=1.2,records=250",
)
@click.option("--devices", help="Simulated: gasturbine, emnist or cifar10.")
@click.option(
    "--encrypt", help="model (all, the default), statistics, profiles, statistics,profiles, or none"
)
@click.option(
    "--officers",
    type=int,
    metavar="N",
    help="Sums are opened by more than half of N officers, in the place of one authority; makes "
    "their keys.",
)
@click.option(
    "--blind",
    is_flag=True,
    default=None,
    help="The server relays totals that it cannot read where clients alone use them: FedTAN's "
    "statistics, and all other encrypted sums in the middle of a round.",
)
@click.option("--seed", type=int, help="Fixes the split, the first weights and every mini-batch.")
@click.option("--name", help="Names the run in tables and folders.")
@click.option("--set", "settings", multiple=True, metavar="TABLE.KEY=VALUE", help="Any setting.")
@click.option(
    "--keys",
    "key_folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keys made by `securefl keys init`; without it, a fresh set in memory.",
)
@click.option(
    "--identity",
    "identities",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A client of the consortium of --keys, once for each: they sign with their own keys, and "
    "these are data.names. All under one passphrase. Without it, the run makes identities.",
)
@click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Its first line opens the keys; else SECUREFL_PASSPHRASE, else the terminal.",
)
@sites_option(
    "A rehearsal on one machine of sites that bring their own data ([samples]): the file of each "
    "of data.names, and the server's as server=SERVER.toml where public samples are read."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The run's folder; runs/<time>-<name> where absent.",
)
@click.option(
    "--resume",
    "resumed",
    type=click.Path(path_type=Path),
    shell_complete=complete_runs,
    metavar="RUN",
    help="Go on with an interrupted run, or as the server of a federation's; takes no other "
    "setting.",
)
@json_option
def run(  # noqa: PLR0913, PLR0917
    config_file: Path | None,
    settings: tuple[str, ...],
    key_folder: Path | None,
    identities: tuple[Path, ...],
    passphrase_file: Path | None,
    sites: tuple[str, ...],
    out: Path | None,
    resumed: Path | None,
    as_json: bool,
    **options: str | float | None,
) -> None:
    """Train a model over clients that keep their data.

    Settings come from CONFIG.toml, then from the options, then from --set.

    \b
    Example:
      securefl run --rounds 50 --out runs/first
      securefl run --algorithm fedavg --encrypt none --partition dirichlet:0.5
      securefl run --algorithm fixbn --solver scaffold --encrypt statistics
      securefl run --select fedprof:alpha=10 --clients 20
      securefl run --select random:fraction=0.1,aggregation=full --devices emnist --clients 50
      securefl run --officers 3
      securefl run --algorithm fixbn --privacy record:sigma=1.2,records=250,budget=8 \\
        --set algorithm.weights=uniform
      securefl run --dataset cifar10 --data-root ~/cifar --model resnet20
      securefl run --corruptions gaussian_noise,fog,contrast --partition iid
      securefl run job.toml --keys my-keys --set train.lr=0.1
      securefl run job.toml --site north=north/site.toml --site south=south/site.toml
      securefl run --keys my-keys --identity alice --identity bob --identity carol
      securefl run --resume runs/first
      securefl run --resume runs/federation --passphrase-file hub.passphrase
    """  # noqa: D301  (click wants the backspace itself)
    model = options.get("model")
    own = Own(sites, model if isinstance(model, str) else None)
    if resumed:
        if config_file or settings_of({**options, "model": None}) or settings or out:
            raise ConfigError(
                "--resume goes on with the settings in the run's folder: give --keys, --identity, "
                "--passphrase-file, --site and --model with it, and nothing else"
            )
        secrets = _Secrets(key_folder, identities, passphrase_file)
        _resume(resumed, secrets, own, as_json=as_json)
    else:
        secrets = _Secrets(key_folder, identities, passphrase_file)
        chosen = [*settings_of(options), *settings, *secrets.settings()]
        _start(config_file, chosen, secrets, own, out, as_json=as_json)


class _Secrets(NamedTuple):
    """Paths of the run's secrets."""

    keys: Path | None
    identities: tuple[Path, ...]
    passphrase_file: Path | None

    def options(self) -> list[str]:
        """Return the options as they were given."""
        keys = ["--keys", str(self.keys)] if self.keys else []
        own = [part for directory in self.identities for part in ("--identity", str(directory))]
        file = ["--passphrase-file", str(self.passphrase_file)] if self.passphrase_file else []
        return [*keys, *own, *file]

    def settings(self) -> list[str]:
        """Return the settings that name the clients, by their identities."""
        if not self.identities:
            return []
        from securefl_keys.identity import name_in

        names = [name_in(directory) for directory in self.identities]
        return [f"data.names={json.dumps(names)}", f"data.clients={len(names)}"]


def _start(
    config_file: Path | None,
    settings: Iterable[str],
    secrets: _Secrets,
    own: Own,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    config = load_config(config_file, settings)
    if config_file and not own.sites:
        _require_shipped(config_file)
    require_run(config)
    from securefl import run as run_rounds

    task, keys = own.task(config), _keys(config, secrets)
    folder = out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{config.name}"
    private = config.privacy.private
    with progress_bar(config.name, config.run.rounds, private=private) as bar:
        result = _watched(
            folder,
            [*secrets.options(), *own.options()],
            lambda: run_rounds(
                config, task, **keys, out=folder, progress=bar, on_start=_saying_terms(config)
            ),
        )
    _report(folder, result, as_json=as_json)


def _resume(folder: Path, secrets: _Secrets, own: Own, *, as_json: bool) -> None:
    from securefl import resume
    from securefl.runs.folder_reader import read_run
    from securefl.runs.folder_writer import RunFolder

    record = read_run(folder)
    if RunFolder(folder).is_over_processes():
        if as_json:
            raise ConfigError("--json is of a simulation: of a server's run, see securefl status")
        _serve_again(RunFolder(folder), record.config, secrets, own)
        return
    task, keys = own.task(record.config), _keys(record.config, secrets)
    done = len(record.metrics)
    private = record.config.privacy.private
    with progress_bar(record.config.name, record.config.run.rounds, done, private=private) as bar:
        result = _watched(
            folder,
            [*secrets.options(), *own.options()],
            lambda: resume(
                folder, task, **keys, progress=bar, on_start=_saying_terms(record.config)
            ),
        )
    _report(folder, result, as_json=as_json)


def _serve_again(folder: RunFolder, config: Config, secrets: _Secrets, own: Own) -> None:
    """Go on as the server of the run in a folder."""
    from securefl.runs.folder_files import CONFIG
    from securefl.runs.folder_writer import server_needed
    from securefl_cli.server_run import run_server

    start = folder.server_start()
    if start is None:
        raise RunFolderError(server_needed(folder.path))
    if secrets.keys or secrets.identities or own.sites:
        raise ConfigError(
            f"{folder.path}: a federation's run, whose clients and authority have their own keys "
            "and data: give --passphrase-file and --model with --resume, and nothing else"
        )
    gone = [
        str(path)
        for path in (start.bundle, start.identity, start.data)
        if path and not path.exists()
    ]
    if gone:
        settings, out = (shlex.quote(str(path)) for path in (folder.path / CONFIG, folder.path))
        call = f"securefl server serve {settings} --listen {start.listen} --bundle DIR"
        raise KeyFileError(
            f"{' and '.join(gone)}: no longer there, and the run's server was started with it: "
            f"go on with {call} --identity DIR{' --data FILE' if start.data else ''} --out {out}"
        )
    with ended_by_sigterm():
        run_server(config, start, folder.path, secrets.passphrase_file, own.model)


def _require_shipped(config_file: Path) -> None:
    """Refuse the settings in an own task's folder: without its data they name the digits."""
    from securefl.runs.folder_files import CONFIG, TASK
    from securefl.runs.folder_writer import own_task_needed

    if config_file.name == CONFIG and (config_file.parent / TASK).is_file():
        call = f"securefl.run(securefl.load_config({str(config_file)!r}), task)"
        raise ConfigError(own_task_needed(config_file.parent, call))


def _saying_terms(config: Config) -> Callable[[str], None]:
    """Return a function that says the learning rate, and the engine that it is given."""
    from securefl.build.training import rate_said

    def say(engine: str) -> None:
        say_rate(rate_said(config))
        say_engine(engine)

    return say


def _watched(folder: Path, options: Sequence[str], work: Callable[[], Result]) -> Result:
    try:
        return work()
    except KeyboardInterrupt:
        if folder.is_dir():
            again = ["securefl", "run", "--resume", str(folder), *options]
            click.echo(f"\nGo on with: {shlex.join(again)}", err=True)
        raise


class _Keys(TypedDict, total=False):
    """Arguments of `securefl.run` and `securefl.resume` for keys and identities."""

    keys: KeySet
    identities: Identities


def _keys(config: Config, secrets: _Secrets) -> _Keys:
    folder, identities, passphrase_file = secrets
    if not identities and folder and config.data.names:
        raise ConfigError(
            "data.names are a consortium's clients: give --identity DIR for each, also for who was "
            "revoked (what it signs is refused); or leave data.names out, and clients are made up"
        )
    if identities and not folder:
        raise ConfigError("--identity needs the --keys DIR of its consortium: give both or none")
    if not config.exchange.encrypt:
        if folder:
            raise ConfigError(
                '--keys with exchange.encrypt = "none": nothing would be encrypted; leave one out'
            )
        return {}
    if folder and config.exchange.officers > 1:
        raise ConfigError(
            f"--keys with exchange.officers = {config.exchange.officers}: a folder holds the key "
            "of one authority, and officers keep their own; leave one out"
        )
    if folder is None:
        if passphrase_file:
            raise ConfigError("--passphrase-file opens the keys of --keys DIR: give both or none")
        n_officers = config.exchange.officers
        made = f"ephemeral keys of {n_officers} officers" if n_officers > 1 else "ephemeral keys"
        click.echo(f"No --keys given: using {made}, which end with this process.", err=True)
        return {}
    from securefl_keys.authority_keys import load_all
    from securefl_keys.identity import load_identities

    try:
        found = folder.is_dir()
    except OSError as error:
        raise KeyFileError(f"{folder}: {error.strerror}") from error
    if not found:
        raise KeyFileError(f"{folder}: no such folder; make it with: securefl keys init {folder}")
    passphrase = read_passphrase(passphrase_file, confirm=False)
    keys: _Keys = {}
    if config.needs_cards:
        keys["keys"] = load_all(folder, passphrase)
    if identities:
        keys["identities"] = load_identities(folder, identities, passphrase)
    return keys


def _report(folder: Path, result: Result, *, as_json: bool) -> None:
    from securefl.federation.ledger import Ledger
    from securefl.metrics.by_name import worst_said
    from securefl.runs.folder_files import PROTECTION
    from securefl.runs.folder_reader import read_run
    from securefl_cli.passed_rounds import passed_rounds

    record = read_run(folder)
    ledger = Ledger(list(record.ledger))
    passed = passed_rounds(record)
    if passed:
        click.echo(f"Note: {passed}.", err=True)
    if as_json:
        say_json(_as_one(record, ledger, result))
    else:
        print_runs({record.config.name: (record.metrics, ledger)})
        if words := worst_said(record.metrics[-1].metric, record.metrics[-1].values):
            click.echo(f"Of the clients: {words}.")
        if record.config.privacy.private:
            _note_privacy(record.config, result)
            click.echo(f"Privacy: {folder / PROTECTION}")
        click.echo(f"Report: {report_of(record)}\nRun folder: {folder}")
    if record.all_passed:
        raise SystemExit(1)


def _as_one(record: RunRecord, ledger: Ledger, result: Result) -> dict[str, Any]:
    """Return what `run --json` says: what `compare --json` does of a run, and what it left."""
    from securefl.runs.status import status_of

    return {
        **as_row(record.config.name, record.metrics, ledger),
        "passed": len(record.passed),
        "openings": status_of(record.path).openings,
        "epsilon": record.metrics[-1].epsilon,
        "stopped": result.stopped,
        "report": report_of(record),
        "folder": record.path,
    }


def _note_privacy(config: Config, result: Result) -> None:
    from securefl.report.protection import epsilon_said

    if result.stopped:
        click.echo(f"The run {result.stopped}.")
    click.echo(epsilon_said(config, result.history))
