"""Public samples where sites bring their own data: who reads them, and that all read the same.

The settings have their digest. So it is among what all parties compare, what a site approves of,
and what a resumed run goes on with.
"""

from collections.abc import Mapping
from pathlib import Path

import torch

from securefl.data.site_file import Loaded, load_samples, read_server, read_site
from securefl.errors import ConfigError, DataError
from securefl.federation.ledger import SERVER
from securefl.federation.total import state_digest
from securefl.settings.samples import SamplesTable
from securefl.settings.samples_clashes import public_reader, sites_read_public
from securefl.settings.tables import Config
from securefl.types import Kind, State


def public_samples(
    config: Config, form: SamplesTable, files: Mapping[str, Path | str]
) -> Loaded | None:
    """Load the public samples of the parties whose files these are; None where they read none.

    Args:
        config: the settings of all parties.
        form: the form of samples in them.
        files: each party's own file by its name, the server's by `SERVER`.

    Returns floats of 64 bits, whatever the model has: the digest is of them.

    Raises:
        ConfigError: a party's file names none, or the settings do not have their digest.
        DataError: they cannot be read, or are others than those of the settings.
    """
    reader, found = public_reader(config), None
    for name, path in files.items() if reader else ():
        if name == SERVER or sites_read_public(config):
            found = _of_party(reader, form, name, Path(path))
    return found


def require_server_file(config: Config, files: Mapping[str, Path | str]) -> None:
    """Raise ConfigError where the server reads public samples and its own file is not given."""
    reader = public_reader(config)
    if reader and SERVER not in files:
        raise ConfigError(
            f"{reader} with [samples]: the server reads public samples, and none are given: name "
            'them in a file of its own, server.toml, with public = "public.csv", and give it with '
            "--data server.toml, in a rehearsal with --site server=server.toml"
        )


def _of_party(reader: str, form: SamplesTable, name: str, path: Path) -> Loaded:
    where = read_server(path).public if name == SERVER else read_site(path).public
    if where is None:
        raise ConfigError(
            f"{path}: names no public samples, and with {reader} each site trains on some: add "
            'public = "public.csv", the file that all parties have'
        )
    x, y = load_samples(path.parent, where, form, torch.float64)
    digest = state_digest(State(0, {Kind.PARAMETERS: {"x": x, "y": y}}))
    if form.public is None:
        raise ConfigError(
            f"{path}: {len(y)} public samples, which the settings do not name: add to [samples], "
            f'for all parties, public = "{digest}"'
        )
    if digest != form.public:
        raise DataError(
            f"{path}: the public samples have the digest {digest}, and samples.public = "
            f'"{form.public}": take the file that all parties have'
        )
    return x, y
