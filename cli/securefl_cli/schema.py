"""`securefl schema`: the settings as a JSON Schema, for editors."""

import json
from pathlib import Path

import click


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write it there; printed where absent.",
)
def schema(out: Path | None) -> None:
    """Print the JSON Schema of a file of settings: keys, types, ranges, choices and what they mean.

    An editor that knows JSON Schema completes and checks settings by it: VS Code with "Even Better
    TOML", or any with taplo, where the file begins with #:schema and the schema's path.

    \b
    Example:
      securefl schema --out securefl.schema.json
      (echo '#:schema ./securefl.schema.json'; cat examples/fedtan_digits.toml) > job.toml
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.runs.folder_writer import write_atomically
    from securefl.settings.schema import settings_schema

    text = json.dumps(settings_schema(), indent=1)
    if out is None:
        click.echo(text)
    else:
        write_atomically(out, text.encode() + b"\n")
        click.echo(f"Schema: {out}")
