"""`--site NAME=SITE.toml`: sites that bring their own data, and code that may be their model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from securefl.errors import ConfigError, SecureFLError
from securefl_cli.log import say

if TYPE_CHECKING:
    from securefl.settings.tables import Config
    from securefl.task import Task

Command = TypeVar("Command", bound=Callable[..., Any])

allowed_model_option = click.option(
    "--model",
    metavar="MODULE:FUNCTION",
    help="With --site: code of this installation that the settings' model.name may run here.",
)


def sites_option(what: str) -> Callable[[Command], Command]:
    """Make the option --site; `what` says in its help which files it takes."""
    return click.option("--site", "sites", multiple=True, metavar="NAME=SITE.toml", help=what)


def own_task_of(name: str) -> Task:
    """Return what the function `module:function` makes; ConfigError where it is no task."""
    from securefl.io.own_code import own_function
    from securefl.task import Task

    function = own_function(name, f"--task {name}")
    try:
        found = function()
    except SecureFLError:
        raise
    except (Exception, SystemExit) as error:  # it may do anything
        raise ConfigError(
            f"--task {name}: raised a {type(error).__name__} ({error!s:.200}): mend it; it is "
            "called with nothing"
        ) from error
    if not isinstance(found, Task):
        raise ConfigError(
            f"--task {name}: returns a {type(found).__name__}: have it return a securefl.Task"
        )
    return found


def say_doubts(site: Path) -> None:
    """Say what a site may not have meant; raises as `doubts`."""
    from securefl.data.site_file import doubts
    from securefl.network.saying import Warned

    if words := doubts(site):
        say(Warned(words))


class Recorded(NamedTuple):
    """Task of a run's sites, from files given to an audit of it."""

    task: Task
    same: set[str]
    """Names of sites whose samples agree with the record that each keeps of the run."""


class Own(NamedTuple):
    """Sites that bring their own data, and the code that may be their model."""

    sites: tuple[str, ...]
    """Sites as NAME=SITE.toml; the server's own file, if it needs one, as server=SERVER.toml."""
    model: str | None

    def options(self) -> list[str]:
        """Return the options as they were given."""
        model = ["--model", self.model] if self.sites and self.model else []
        return [*model, *(part for site in self.sites for part in ("--site", site))]

    def files(self) -> dict[str, Path]:
        """Return each site's file; raises ConfigError where one is given in another form."""
        found: dict[str, Path] = {}
        for site in self.sites:
            name, equals, path = site.partition("=")
            if not (name and equals and path):
                raise ConfigError(
                    f"--site {site}: write NAME=SITE.toml, as in north=north/site.toml"
                )
            if name in found:
                raise ConfigError(f"--site {name}=… is given twice: give each site once")
            found[name] = Path(path)
        return found

    def task(self, config: Config) -> Task | None:
        """Return the task of a rehearsal, of all sites; None where no site was given."""
        if not self.sites:
            return None
        from securefl import task_of_sites

        self._require_allowed(config)
        files = self.files()
        for name, path in files.items():
            if name != "server":
                say_doubts(path)
        return task_of_sites(config, files)

    def recorded(self, folder: Path) -> Recorded | None:
        """Return the task of all sites, and whose samples the run in `folder` had by their records.

        A record lies beside a site's file, as in the folder of its identity; without it nobody
        knows. None where no site was given. Raises:
            ConfigError: a site's samples are others than it began the run with.
            RunFolderError: no run's folder, or a record is damaged.
        """
        from securefl.runs.folder_files import JOB
        from securefl.runs.folder_reader import read_config
        from securefl.runs.folder_writer import RunFolder
        from securefl.runs.task_record import SiteRecord, site_record

        task = self.task(read_config(folder)) if self.sites else None
        if task is None:
            return None
        same = set[str]()
        if (folder / JOB).is_file():  # else a rehearsal, whose own folder has the record
            record = site_record(RunFolder(folder).job_id())
            files = self.files()
            data = zip(task.names, task.clients, task.client_tests, strict=True)
            for name, train, test in data:
                if (path := files[name].parent / record).is_file():
                    SiteRecord.of(train, test).require_same(path, name)
                    same.add(name)
        return Recorded(task, same)

    def task_here(self, config: Config) -> Task | None:
        """Return the task as it is where some sites' files lie; None where no site was given."""
        if not self.sites:
            return None
        from securefl.build.own_data import task_at

        self._require_allowed(config)
        return task_at(config, self.files())

    def _require_allowed(self, config: Config) -> None:
        from securefl.build.own_model import require_allowed

        require_allowed(config.model.name, self.model, f"--model {config.model.name}")
