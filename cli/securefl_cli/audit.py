"""`securefl audit`: views of each party of a run, attacks on them, and promises to hold against."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from securefl_cli.as_json import json_option, say_json
from securefl_cli.completion import run_argument
from securefl_cli.key_options import PASSPHRASE_FILE
from securefl_cli.own_data import Own, allowed_model_option, own_task_of, sites_option
from securefl_cli.progress import steps_bar

if TYPE_CHECKING:
    from securefl_cli.audit_report import Signing


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
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0, 2**31 - 1),
    help="Fixes the audit's draws: canaries, shadow models, attacks.",
)
@sites_option(
    "The file of each site, where they have their own data: on one machine, as in a rehearsal, and "
    "with the server's, if it needs one. Without them logs alone are audited."
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
    help="The authority's own log, openings.jsonl, or one officer's: each row of the run's "
    "sessions, or at its models, that the log or the run's folder lacks is a leak.",
)
@click.option(
    "--sign",
    type=click.Path(path_type=Path),
    metavar="IDENTITY",
    help="With --keys: audit nothing, and sign the report that is there as this member of the "
    "consortium. Several may: each signature lies beside it, as FILE.MEMBER.sig.",
)
@click.option(
    "--yes",
    is_flag=True,
    help="With --sign: you have read the report, and are not asked whether its verdicts are those "
    "that you have read. A script has to say so.",
)
@PASSPHRASE_FILE
@click.option(
    "--verify",
    is_flag=True,
    help="Audit nothing, and say whether the report's page and each file of the run are as its "
    "numbers say; with --keys, whether report and files are as they were signed, and by which "
    "members.",
)
@json_option
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
    yes: bool,
    passphrase_file: Path | None,
    verify: bool,
    as_json: bool,
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
      securefl audit runs/first --keys bundles/officer --openings log/openings.jsonl
      securefl audit runs/first --keys bundles/officer --sign officer
      securefl audit runs/first --keys bundles/officer --verify
      securefl audit runs/first --verify

    From Python a run on a task of your own is audited by securefl.audit_run(folder, task=task).
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.audit.audits import FULL, QUICK, audit_run
    from securefl.audit.findings import PAGE
    from securefl.audit.page import html_page, in_terminal
    from securefl_cli.audit_report import Signing, auditor, page_in

    page = out or run_folder / PAGE
    if yes and not sign:
        raise click.UsageError("--yes goes with --sign: nothing else asks")
    if sign or verify:
        _require_no_audit(sign, verify=verify)
    if sign:
        signing = Signing(sign, passphrase_file, read=yes)
        _sign(run_folder, page, keys, signing, as_json=as_json)
        return
    if verify:
        _verify(run_folder, page, keys, as_json=as_json)
        return
    _check(page, out)
    by = auditor(keys, openings, page_in(page, run_folder))
    if task and sites:
        raise click.UsageError("--task or --site: a run has one task")
    own_task = own_task_of(task) if task else None
    if found := Own(sites, model).recorded(run_folder):
        own_task, by = found.task, replace(by, recorded=found.same)
    effort = QUICK if quick else FULL
    with steps_bar() as on_step:
        findings = audit_run(run_folder, effort, task=own_task, seed=seed, on_step=on_step, by=by)
    if not as_json:
        click.echo(in_terminal(findings))
    numbers = page.with_suffix(".json")
    html = html_page(findings).encode()
    for path, content in {numbers: findings.to_json(html), page: html}.items():
        _write(path, content)
    if as_json:
        verdicts = {
            of.key: {"title": of.title, "verdict": of.said, "words": of.words, "do": of.do}
            for of in findings.sections
        }
        say_json({"run": findings.run, "verdicts": verdicts, "report": page, "numbers": numbers})
    else:
        click.echo(f"Report: {page}\nNumbers: {numbers}")


def _sign(
    run_folder: Path,
    page: Path,
    keys: Path | None,
    by: Signing,
    *,
    as_json: bool,
) -> None:
    """Sign a report that is there; see `audit_report`."""
    from securefl_cli import audit_report

    if keys is None:
        raise click.UsageError("--sign goes with --keys, the consortium's folder or bundle")
    path, signature = audit_report.sign(run_folder, page, keys, by)
    _write(path, signature)
    if as_json:
        say_json({"report": page, "numbers": page.with_suffix(".json"), "signature": path})
    else:
        click.echo(f"Signature of {page} and of its numbers: {path}")


def _verify(run_folder: Path, page: Path, keys: Path | None, *, as_json: bool) -> None:
    """Check a report that is there, with keys its signatures, too; see `audit_report`."""
    from securefl_cli import audit_report

    if as_json:
        checked = audit_report.checked(run_folder, page, keys)
        say_json(checked)
        raise SystemExit(1 if checked["problems"] else 0)
    if keys is None:
        why = "No signature was checked: that takes --keys, the consortium's folder or bundle."
        audit_report.compare(run_folder, page, why=why)
    else:
        audit_report.verify(run_folder, page, keys)


AUDITING = {"quick", "seed", "sites", "model", "task", "openings"}
"""Parameters of an audit, of no use to a signature or a check."""


def _require_no_audit(sign: Path | None, *, verify: bool) -> None:
    """Raise UsageError where one command is to sign or check a report and do something else."""
    context = click.get_current_context()
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name in AUDITING
        and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]
    if sign and verify:
        given.append("--verify")
    if given:
        raise click.UsageError(
            f"{', '.join(given)}: --sign and --verify take the report that is there: audit first, "
            "without them, and read it"
        )


def _check(page: Path, out: Path | None) -> None:
    """Check before minutes of work that both files can be written, and no other one is lost."""
    from securefl.audit.findings import holds_findings, signatures

    numbers = page.with_suffix(".json")
    if page.suffix.lower() == ".json":
        raise click.BadParameter("the report is HTML; its numbers go into the .json beside it")
    if out and not page.parent.is_dir():
        raise click.BadParameter(f"{page.parent}: no such folder; make it first")
    if page.parent.is_dir() and not os.access(page.parent, os.W_OK):
        raise click.BadParameter(f"{page.parent}: cannot be written; choose a place with --out")
    if signed := [path.name for path in signatures(page)]:
        raise click.BadParameter(
            f"{page} is signed ({', '.join(signed)}), and an audit would write another report in "
            "its place: choose a place with --out, or move report and signatures away"
        )
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
