"""`securefl audit`: views of each party of a run, attacks on them, and promises to hold against."""

import os
from pathlib import Path

import click

from securefl_cli import audit_report
from securefl_cli.completion import run_argument
from securefl_cli.key_options import PASSPHRASE_FILE
from securefl_cli.own_data import Own, allowed_model_option, own_task_of, sites_option
from securefl_cli.passphrase import read_passphrase
from securefl_cli.progress import steps_bar


@click.command()
@run_argument
@click.option(
    "--quick/--full",
    default=True,
    help="Quick takes a minute for the digits on two idle cores, full a quarter of an hour: more "
    "shadow models, more canaries, longer attacks.  [default: quick]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="The report; RUN/audit.html where absent. A JSON file with all numbers lies beside it.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**31 - 1))
@sites_option(
    "The file of each site, where they have their own data: on one machine, as in a rehearsal, and "
    "with the server's, if it needs one."
)
@allowed_model_option
@click.option(
    "--task",
    metavar="MODULE:FUNCTION",
    help="Function of this installation, or of a folder in PYTHONPATH, that returns the run's "
    "securefl.Task, where it had a model and data of its own.",
)
@click.option(
    "--keys",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Key folder or bundle of the run's consortium: the report names its members by their "
    "certificates.",
)
@click.option(
    "--openings",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The authority's own log, openings.jsonl: each row of the run's sessions, or at its "
    "models, that the log or the run's folder lacks is a leak.",
)
@click.option(
    "--sign",
    type=click.Path(path_type=Path),
    metavar="IDENTITY",
    help="With --keys: sign the report as this member of the consortium; the signature lies "
    "beside it, FILE.sig.",
)
@PASSPHRASE_FILE
@click.option(
    "--verify",
    is_flag=True,
    help="Audit nothing, and say whether each file of the run is as the report says; with --keys, "
    "whether report and files are as they were signed, and by whom.",
)
def audit(  # noqa: PLR0913  (a command has its options)
    *,
    run_folder: Path,
    quick: bool,
    out: Path | None,
    seed: int,
    sites: tuple[str, ...],
    model: str | None,
    task: str | None,
    keys: Path | None,
    openings: Path | None,
    sign: Path | None,
    passphrase_file: Path | None,
    verify: bool,
) -> None:
    """Attack a finished run, and report what leaks, what holds and how sure that is.

    The run is played again by its settings: with every byte of the first rounds looked at, with
    canaries in its data, and with shadow models beside it. What is in its folder stays as it is.
    The report is one file that needs no network: verdicts in plain words first, then every number
    with its method and its seed.

    \b
    Example:
      securefl audit runs/first
      securefl audit runs/first --full --out report.html
      securefl audit runs/first --site north=north/site.toml --site south=south/site.toml
      securefl audit runs/mine --task study:task
      securefl audit runs/first --keys my-keys --openings log/openings.jsonl --sign officer
      securefl audit runs/first --verify
      securefl audit runs/first --keys my-keys --verify

    From Python a run on a task of your own is audited by securefl.audit_run(folder, task=task).
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.audit.audits import FULL, QUICK, audit_run
    from securefl.audit.findings import PAGE
    from securefl.audit.page import html_page
    from securefl.io.text import printable
    from securefl.runs.folder_reader import read_config
    from securefl_keys.identity import load_identity
    from securefl_keys.signed_report import SignedReport

    page = out or run_folder / PAGE
    if sign and keys is None:
        raise click.UsageError("--sign goes with --keys, the consortium's folder")
    if verify and keys is None:
        why = "No signature was checked: that takes --keys, the consortium's folder or bundle."
        audit_report.compare(run_folder, page, why=why)
        return
    if verify and keys is not None:
        audit_report.verify(run_folder, page, keys)
        return
    _check(page, out)
    identity = None
    if sign:
        identity = load_identity(sign, read_passphrase(passphrase_file, confirm=False))
    own = audit_report.own_files(page, run_folder)
    by = audit_report.auditor(identity, keys, openings, own)
    if task and sites:
        raise click.UsageError("--task or --site: a run has one task")
    own_task = own_task_of(task) if task else None
    if sites:
        own_task = Own(sites, model).task(read_config(run_folder))
    effort = QUICK if quick else FULL
    with steps_bar() as on_step:
        findings = audit_run(run_folder, effort, task=own_task, seed=seed, on_step=on_step, by=by)
    for section in findings.sections:
        said = printable(f"{section.verdict.upper():6} {section.title}: {section.words}")
        click.echo(f"{said}\n")
    numbers, signature = page.with_suffix(".json"), page.with_suffix(".sig")
    written = {numbers: findings.to_json(), page: html_page(findings).encode()}
    for path, content in written.items():
        _write(path, content)
    signature.unlink(missing_ok=True)  # of a report that was here before
    click.echo(f"Report: {page}\nNumbers: {numbers}")
    if identity:
        named = {path.name: content for path, content in written.items()}
        _write(signature, SignedReport.signing(identity, named).encode())
        click.echo(f"Signature of {identity.name}: {signature}")


def _check(page: Path, out: Path | None) -> None:
    """Check before minutes of work that both files can be written, and no other one is lost."""
    from securefl.audit.findings import holds_findings

    numbers = page.with_suffix(".json")
    if page.suffix.lower() == ".json":
        raise click.BadParameter("the report is HTML; its numbers go into the .json beside it")
    if out and not page.parent.is_dir():
        raise click.BadParameter(f"{page.parent}: no such folder; make it first")
    if page.parent.is_dir() and not os.access(page.parent, os.W_OK):
        raise click.BadParameter(f"{page.parent}: cannot be written; choose a place with --out")
    if numbers.exists() and not holds_findings(numbers):
        raise click.BadParameter(
            f"{numbers}, where the numbers would go, is another file; give another name to --out"
        )


PRIVATE = 0o600
"""Mode of a report: its pictures are made from records, and it names clients and their sizes."""


def _write(path: Path, content: bytes) -> None:
    from securefl.errors import RunFolderError
    from securefl.runs.folder_writer import write_atomically

    try:
        write_atomically(path, content, PRIVATE)
    except RunFolderError as error:
        # The run itself is finished: its own way out, to resume it, would lead nowhere.
        raise click.ClickException(f"{path}: cannot be written ({error.__cause__})") from error
