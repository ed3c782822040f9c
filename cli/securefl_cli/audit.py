"""`securefl audit`: what each party of a run saw, what attackers make of it, what is promised."""

from __future__ import annotations

from pathlib import Path

import click

from securefl_cli.progress import steps_bar


@click.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--quick/--full",
    default=True,
    help="Quick takes about two minutes for the digits, full a quarter of an hour: more shadow "
    "models, more canaries, longer attacks.  [default: quick]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="The report; RUN/audit.html where absent. A JSON file with all numbers lies beside it.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**31 - 1))
def audit(run_folder: Path, quick: bool, out: Path | None, seed: int) -> None:
    """Attack a finished run, and report what leaks, what holds and how sure that is.

    The run is played again by its settings: with every byte of the first rounds looked at, with
    canaries in its data, and with shadow models beside it. Nothing in its folder is changed. The
    report is one file that needs no network: verdicts in plain words first, then every number with
    its method and its seed.

    \b
    Example:
      securefl audit runs/first
      securefl audit runs/first --full --out report.html

    A run on data of your own is audited from Python: securefl.audit_run(folder, task=task).
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.audit.audits import FULL, QUICK, audit_run
    from securefl.audit.page import html_page
    from securefl.runfolder import write_atomically

    page = out or run_folder / "audit.html"
    if page.suffix == ".json":
        raise click.BadParameter("the report is HTML; its numbers go into the .json beside it")
    if not page.parent.is_dir():
        raise click.BadParameter(f"{page.parent}: no such folder; make it first")
    with steps_bar() as on_step:
        findings = audit_run(run_folder, QUICK if quick else FULL, seed=seed, on_step=on_step)
    numbers = page.with_suffix(".json")
    write_atomically(page, html_page(findings).encode())
    write_atomically(numbers, findings.to_json())
    for chapter in findings.chapters:
        click.echo(f"{chapter.verdict.upper():6} {chapter.title}: {chapter.words}\n")
    click.echo(f"Report: {page}\nNumbers: {numbers}")
