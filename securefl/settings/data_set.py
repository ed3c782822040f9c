"""Rules of a run on the data set that its settings name; a run on a task of one's own has none.

They are checked before torch is loaded and a sample is read: by the settings, and by which folders
there are.
"""

from collections.abc import Iterator

from securefl.data.domains import domain_families, left_out
from securefl.errors import ConfigError
from securefl.settings.axes import DrawnSelector
from securefl.settings.clashes import above
from securefl.settings.data import DataTable
from securefl.settings.tables import Config


def require_data_set(config: Config) -> None:
    """Check the settings against the data set that they name; not where sites bring data.

    Raises:
        ConfigError: its folder is not there, or the metric does not score its targets.
    """
    if config.samples is None:
        for reason in _reasons(config):
            raise ConfigError(reason)


def require_run(config: Config) -> None:
    """Check the settings of a run on the data set that they name; not where sites bring data.

    Raises:
        ConfigError: as `require_data_set`; or too few clients train, or the model does not go with
            what is encrypted or with the precision.
        DataError: the folder of the domains cannot be read.
    """
    require_data_set(config)
    if config.samples is not None:
        return
    for reason in _reasons_of_model(config):
        raise ConfigError(reason)
    if (n_clients := _n_clients(config.data)) is not None:
        said = f"data.clients = {n_clients}"
        if config.data.families or config.data.traits.by_domain:
            said = f'data.dataset = "{config.data.dataset}" of {n_clients} clients that train'
        require_enough(config, n_clients, said)
        config.privacy.require_clients(n_clients)
        config.privacy.require_shares(config, n_clients)
        config.selection.require_clients(config.data.names or numbered(n_clients))


def numbered(n_clients: int) -> tuple[str, ...]:
    """Return the names of clients that nothing names."""
    return tuple(f"client-{i}" for i in range(1, n_clients + 1))


def require_enough(config: Config, n_clients: int, said: str = "") -> None:
    """Raise ConfigError where a round has too few clients for what is encrypted, or its quorum.

    Args:
        config: the settings.
        n_clients: that train.
        said: setting that says so, for the message.
    """
    n, found = config.selection.n_selected(n_clients), said or f"{n_clients} clients"
    if isinstance(config.selection, DrawnSelector):
        share = config.selection.fraction
        found = f"selection.fraction = {share} of {n_clients} clients are {n} in a round"
    elif n < n_clients:
        found += f', of which selection.name = "{config.selection.name}" selects {n}'
    least = config.exchange.min_clients
    if config.exchange.seals_sums and n < least:
        raise ConfigError(
            f"{found}: the authority opens totals of at least exchange.min_clients = {least}; "
            'have more clients, or select more of them, or set exchange.encrypt = "none"'
        )
    if too_many := above(config.sites.quorum, n_clients):
        raise ConfigError(too_many)


def _reasons(config: Config) -> Iterator[str]:
    data = config.data
    yield from config.run.metric_clashes(data.traits.targets, f'data.dataset = "{data.dataset}"')
    if data.root is not None and not _is_folder(data):
        needed = data.traits.files or data.traits.files_instead
        yield f'data.root = "{data.root}": there is no such folder here; make it, with {needed}'


def _reasons_of_model(config: Config) -> Iterator[str]:
    alone = "statistics" in config.exchange.encrypt and "model" not in config.exchange.encrypt
    if alone and not config.model.has_bn and not config.fnr.refines:  # FNR-FL's are sealed
        norm = (
            "model.width = 0" if config.model.width == 0 else f'model.norm = "{config.model.norm}"'
        )
        yield (
            f'exchange.encrypt = "statistics" with {norm}: a model without batch normalisation has '
            'none to send, so nothing would be encrypted; set exchange.encrypt = "none", or "model"'
        )
    if config.train.precision == "bfloat16" and config.model.dtype == "float64":
        yield (
            'train.precision = "bfloat16" with model.dtype = "float64": autocast leaves doubles as '
            'they are; set model.dtype = "float32", or leave train.precision out'
        )


def _is_folder(data: DataTable) -> bool:
    try:
        return data.folder.is_dir()
    except OSError:  # no name that a folder could have here
        return False


def _n_clients(data: DataTable) -> int | None:
    """Return the number of clients that train; None where its files alone tell."""
    if data.traits.listed and data.traits.domains:  # its folder may have some of them
        return None
    families, gone = domain_families(data), left_out(data)
    if data.traits.by_domain:
        return len(families) - len(gone)
    kept = [name not in gone for name in families] or [True]
    return sum(kept[i % len(kept)] for i in range(data.clients))
