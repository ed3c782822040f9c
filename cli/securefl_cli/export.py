"""`securefl export` and `card`: a finished run's model, to take along, and what to say of it."""

import warnings
from pathlib import Path

import click

from securefl.export.formats import FORMATS
from securefl.io.text import printable
from securefl_cli.completion import run_argument
from securefl_cli.own_data import Own, allowed_model_option, sites_option


@click.command()
@run_argument
@click.option(
    "--format",
    "name",
    type=click.Choice(list(FORMATS)),
    help="Form of the file; by the ending of --out where absent.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="New file; the name of RUN in the present folder where absent.",
)
@click.option(
    "--client",
    default="",
    metavar="NAME",
    help="The model of this client, where clients of a simulation keep parts of it (FedBN, Ditto).",
)
@click.option(
    "--own",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A site's own part of the model, which it has kept in its folder, models/JOB.safetensors.",
)
@sites_option(
    "A site of a run whose sites have their own data, and its file here: its samples say the "
    "form of inputs."
)
@allowed_model_option
def export(  # noqa: PLR0913, PLR0917  (click gives each option)
    run_folder: Path,
    name: str | None,
    out: Path | None,
    client: str,
    own: Path | None,
    sites: tuple[str, ...],
    model: str | None,
) -> None:
    """Write the model of the finished run RUN into a file that needs no SecureFL.

    \b
    FORMAT        ENDING        is read by
      safetensors   .safetensors  safetensors.torch.load_file: tensors by name
      state-dict    .pt           torch.load(FILE, weights_only=True): tensors by name
      torch-export  .pt2          torch.export.load(FILE).module(): the whole model
      onnx          .onnx         ONNX Runtime and others: the whole model

    Tensors go into a model of the same class. A whole model takes any number of samples and gives
    what the run scored: logits of classes. Of tables the names of its inputs are printed, in order.
    BN layers are torch's own; weight-standardised layers are plain ones with standardised weights.

    \b
    Example:
      securefl export runs/first --format torch-export
      securefl export runs/first --out model.onnx
      securefl export runs/fedbn --client north --out north.onnx
      securefl export north/first --own north/models/JOB.safetensors --site north=north/site.toml \\
        --out north.onnx

    A run on data of your own is exported from Python: securefl.export_model(result, "model.pt2").
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.evaluation.evaluate import UntrainedStatistics, load_trained, note_on
    from securefl.evaluation.own_part import own_part
    from securefl.export.model_file import export_model
    from securefl.io.tensors import read_tensors
    from securefl.runs.folder_reader import read_config

    if client and own:
        raise click.UsageError("--client is of a simulation, --own of a site: give one of them")
    if out is None:
        if name is None:
            raise click.UsageError("give --format, or --out with the ending of one")
        out = Path(f"{run_folder.resolve().name}{FORMATS[name].suffix}")
    config = read_config(run_folder)
    task = Own(sites, model).task_here(config) if sites else None
    tensors = own_part(run_folder, client) if client else None
    if own:
        tensors = read_tensors(own)
    trained = load_trained(run_folder, task, tensors)
    with warnings.catch_warnings(action="ignore", category=UntrainedStatistics):  # said below
        click.echo(f"Model: {export_model(trained, out, name or '')}")
    if config.samples:
        click.echo(printable(config.samples.form_said))
    if note := note_on(trained):
        click.echo(f"Note: {note}", err=True)


@click.command()
@run_argument
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.md",
    help="New file, as README.md of a model's repository; printed where absent.",
)
def card(run_folder: Path, out: Path | None) -> None:
    """Print the model card of the run RUN: Markdown, in the form that model hubs read.

    How it was trained, on how many samples of how many clients, its scores, ε, the verdicts of the
    run's audit if it had one, and limits. No site is named.

    \b
    Example:
      securefl card runs/first --out model/README.md
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.export.card import model_card
    from securefl.io.files import require_new
    from securefl.runs.folder_writer import write_atomically

    if out:
        require_new(out)
    text = model_card(run_folder)
    if out is None:
        click.echo(text, nl=False)
    else:
        write_atomically(out, text.encode())
        click.echo(f"Card: {out}")
