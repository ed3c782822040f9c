"""`securefl audit`: views of each party of a run, attacks on them, and promises to hold against."""

import os
from pathlib import Path

import click

from securefl_cli.own_data import Own, allowed_model_option, sites_option
from securefl_cli.progress import steps_bar


@click.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--quick/--full",
    default=True,
    help="Quick takes about a minute for the digits, full a quarter of an hour: more shadow "
    "models, more canaries, longer attacks.  [default: quick]",
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
def audit(
    run_folder: Path,
    quick: bool,
    out: Path | None,
    seed: int,
    sites: tuple[str, ...],
    model: str | None,
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

    A run on data of your own is audited from Python: securefl.audit_run(folder, task=task).
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.audit.audits import FULL, QUICK, audit_run
    from securefl.audit.page import html_page
    from securefl.io.text import printable
    from securefl.runs.folder_reader import read_config

    page = out or run_folder / "audit.html"
    _check(page, out)
    task = Own(sites, model).task(read_config(run_folder)) if sites else None
    effort = QUICK if quick else FULL
    with steps_bar() as on_step:
        findings = audit_run(run_folder, effort, task=task, seed=seed, on_step=on_step)
    for section in findings.sections:
        said = printable(f"{section.verdict.upper():6} {section.title}: {section.words}")
        click.echo(f"{said}\n")
    _write(page.with_suffix(".json"), findings.to_json())
    _write(page, html_page(findings).encode())
    click.echo(f"Report: {page}\nNumbers: {page.with_suffix('.json')}")


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


def _write(path: Path, content: bytes) -> None:
    from securefl.errors import RunFolderError
    from securefl.runs.folder_writer import write_atomically

    try:
        write_atomically(path, content)
    except RunFolderError as error:
        # The run itself is finished: its own way out, to resume it, would lead nowhere.
        raise click.ClickException(f"{path}: cannot be written ({error.__cause__})") from error
