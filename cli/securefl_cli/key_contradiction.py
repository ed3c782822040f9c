"""`securefl keys contradiction`: what a client kept of a server that has shown it two models."""

from pathlib import Path

import click

from securefl.io.text import printable
from securefl_cli.as_json import json_option, say_json
from securefl_cli.key_options import KEYS

MAX_BYTES = 2**22
"""Size of such a file at most: of a job of ten thousand rounds it is half."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@KEYS
@json_option
def contradiction(file: Path, directory: Path, as_json: bool) -> None:
    """Check the two statements in FILE, and say which server of the consortium has lied.

    A client that is shown other models than before takes no part, and keeps in
    models-shown/JOB.contradiction.json, below its identity, what the server has signed. Anybody who
    has the consortium's bundle can check that. Exits with 2 where it proves nothing.

    \b
    Example:
      securefl keys contradiction alice/models-shown/JOB.contradiction.json --keys bundles/client
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.errors import KeyFileError, SignatureRefused
    from securefl.io.files import read_bounded
    from securefl.io.json import parsed
    from securefl.network.models_shown import CONTRADICTION
    from securefl_keys.certificate_form import read_pem
    from securefl_keys.certificates import holder_certificate, require_role
    from securefl_keys.key_files import found_in
    from securefl_keys.roster import load_roster

    roster = load_roster(directory)
    with found_in(file):
        try:
            found = parsed(CONTRADICTION, read_bounded(file, MAX_BYTES), KeyFileError)
            found.check()
        except (OSError, SignatureRefused) as error:
            raise KeyFileError(f"proves nothing: {error}") from error
        servers = set[str]()
        for said in (found.known, found.then):
            holder = holder_certificate(read_pem(said.certificate), roster.ca)
            require_role(holder, "server")
            servers.add(holder.name)
        if len(servers) > 1:
            raise KeyFileError(f"proves nothing: of two servers, {printable(', '.join(servers))}")
    known, then = found.known.statement, found.then.statement
    if as_json:
        rounds = [known.round, then.round]
        server, consortium = servers.pop(), roster.ca.name
        say_json({"server": server, "consortium": consortium, "job": known.job, "rounds": rounds})
        return
    click.echo(
        f"{printable(servers.pop())}, server of {printable(roster.ca.name)}, has signed what "
        f"cannot both be true: the models up to round {known.round} of job {known.job[:16]}, and "
        f"others up to round {then.round}. It has shown two models, or goes on from an older copy "
        "of its folder."
    )
