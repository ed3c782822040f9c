"""The task of sites that bring their own data, as each party builds it from what lies there.

The settings have the digest of public samples, which more than one party may read. So it is among
what all parties compare, what a site approves of, and what a resumed run goes on with.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from securefl.build.job import Job, job_of
from securefl.build.own_model import is_own, own_model, require_allowed
from securefl.crypto.params import SUMS
from securefl.data.site_file import Loaded, load_samples, load_site, read_server, read_site
from securefl.data.split import Split
from securefl.errors import ConfigError, DataError
from securefl.exchange.digits import Digits
from securefl.federation.ledger import SERVER
from securefl.federation.total import state_digest
from securefl.models.build import build_model
from securefl.norms.find import BatchNorm
from securefl.norms.standardised_input import StandardisedInput, find_standardised
from securefl.settings.clashes import public_reader, sites_read_public
from securefl.settings.samples import SamplesTable
from securefl.settings.tables import Config
from securefl.task import LOSSES, Task
from securefl.types import Kind, State

N_ELSEWHERE = 2
"""Samples that stand for those of another site: as many as a BN layer needs."""


def task_of_sites(config: Config, files: Mapping[str, Path | str]) -> Task:
    r"""Build the task of a rehearsal: all sites' own data on one machine.

    Args:
        config: settings with a table `[samples]`, and the sites' names in `data.names`.
        files: the site.toml of each site, by its name; by "server" the server's own file, where
            the settings have public samples read.

    Raises:
        ConfigError: the settings have no `[samples]` or no names, or the files are of other sites.
        DataError: as `load_site`.

    Examples:
        >>> from pathlib import Path
        >>> files = {name: Path(f"{name}.toml") for name in ("north", "south", "east")}
        >>> for name, path in files.items():
        ...     _ = path.write_text(f'train = "{name}.csv"\ntest = 0.25\n')
        ...     _ = Path(f"{name}.csv").write_text("age,ill\n" + "40,no\n70,yes\n" * 20)
        >>> names, columns = 'data.names=["north", "south", "east"]', 'samples.columns=["age"]'
        >>> target = ["samples.target=ill", 'samples.classes=["no", "yes"]', "samples.most=100"]
        >>> config = securefl.load_config(settings=["run.rounds=2", names, columns, *target])
        >>> result = securefl.run(config, securefl.task_of_sites(config, files))
    """
    if missing := sorted({*config.data.names} - {*files}):
        raise ConfigError(
            f"{', '.join(missing):.200}: no site.toml is given for them: give one for each of "
            "data.names"
        )
    task = task_at(config, files)
    require_server_file(config, files)
    return task


def task_at(config: Config, files: Mapping[str, Path | str]) -> Task:
    """Build the task as one party has it: one site with its own data, or the server with none.

    Zeros of the same form stand for other sites' samples, which the party never uses (see
    `job_of`). Public samples are there where the party reads them. Raises as `task_of_sites`, but
    for missing files.
    """
    form, dtype = config.samples, getattr(torch, config.model.dtype)
    if form is None:
        raise ConfigError(
            "sites bring their own data where the settings have a table [samples], which says what "
            "form they are of"
        )
    if unknown := sorted({*files} - {*config.data.names, SERVER}):
        raise ConfigError(
            f"{', '.join(unknown):.200} is none of data.names ({', '.join(config.data.names):.200})"
        )
    elsewhere, model = _elsewhere(form, dtype), model_of(config, form)
    limit = _largest_statistic(model)
    own = {
        name: load_site(Path(path), form, config.run.seed, dtype, limit)
        for name, path in files.items()
        if name != SERVER
    }
    splits = [own.get(name, elsewhere) for name in config.data.names]
    return Task(
        model,
        [(split.train_x, split.train_y) for split in splits],
        (elsewhere.test_x, elsewhere.test_y),
        LOSSES[form.targets],
        client_tests=[(split.test_x, split.test_y) for split in splits],
        public=public_samples(config, form, files),
        names=config.data.names,
    )


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


def site_job(config: Config, name: str | None, data: Path | None) -> Job:
    """Build the job of one site, or as anybody sees it who is none.

    Args:
        config: the settings of all parties.
        name: the site; None for none.
        data: its site.toml, where the settings have a table `[samples]`.

    Raises:
        ConfigError: the settings do not fit, or name code that the site has not allowed.
        DataError: its data cannot be used.
    """
    if config.samples is None and data is None:
        return job_of(config, None)
    how = f'model = "{config.model.name}" in {data or "its site.toml"}'
    require_allowed(config.model.name, read_site(data).model if data else None, how)
    own = {name: data} if name and data else {}
    if name and not own:
        return job_of(config, None)  # which says that the data are missing
    if not own and sites_read_public(config):
        raise ConfigError(
            f"{public_reader(config)} with [samples]: messages are as long as the public samples "
            "are many: give the file of a site, which names them, with --data site.toml"
        )
    return job_of(config, task_at(config, own), [*own])


def model_of(config: Config, form: SamplesTable) -> nn.Module:
    """Build the model of the settings for samples of this form.

    Raises:
        ConfigError: the model is one of images, and samples are none; or as `own_model`.
    """
    shape, table = form.sample_shape, config.model
    first: list[nn.Module] = [_standardised(form)] if form.standardises else []
    if table.name == "mlp" and len(shape) > 1:
        first.append(nn.Flatten())
        shape = (torch.Size(shape).numel(),)
    if is_own(table.name):
        own = own_model(table.name, shape, form.n_outputs, config.run.seed)
        return nn.Sequential(*first, own).to(getattr(torch, table.dtype))
    if table.name != "mlp" and len(shape) != 3:
        raise ConfigError(
            f'model.name = "{table.name}" reads images, and a sample is {list(shape)}: set '
            'model.name = "mlp"'
        )
    built = build_model(
        table.name,
        table.norm,
        in_channels=shape[0],
        n_features=shape[0],
        n_classes=form.n_outputs,
        groups=table.groups,
        width=table.width,
        seed=config.run.seed,
    )
    return nn.Sequential(*first, *built).to(getattr(torch, table.dtype))


def _standardised(form: SamplesTable) -> StandardisedInput:
    n_channels, numbers = form.sample_shape[0], form.numbers
    if form.shape:
        return StandardisedInput(n_channels, range(n_channels), {}, form.most)
    last = range(n_channels - len(form.missing), n_channels)
    indicators = dict(zip(form.missing, last, strict=True))
    may_miss = {at: indicators[name] for name, at in numbers.items() if name in indicators}
    return StandardisedInput(n_channels, [*numbers.values()], may_miss, form.most)


def _largest_statistic(model: nn.Module) -> float:
    """Return the largest mean or variance that a site can send, sealed or not.

    A message has means and variances, and fused FedTAN's references, of all layers or of some, and
    of columns: of more values the range is narrower.
    """
    layers = (layer for layer in model.modules() if isinstance(layer, BatchNorm))
    n_channels = sum(layer.num_features for layer in layers)
    if found := find_standardised(model):
        n_channels += len(found[1].input_mean_C)
    return Digits.of(SUMS, max(1, 3 * n_channels)).max_value


def _elsewhere(form: SamplesTable, dtype: torch.dtype) -> Split:
    x = torch.zeros(N_ELSEWHERE, *form.sample_shape, dtype=dtype)
    if form.classes:
        y = torch.arange(N_ELSEWHERE) % form.n_outputs
    else:
        y = torch.zeros(N_ELSEWHERE, len(form.target_columns), dtype=dtype)
    return Split(x, y, x, y)
