"""Commands that repeat a run, with words in capitals for paths that its folder does not know."""

import shlex
from collections.abc import Iterator

from securefl.io.html import PageTable
from securefl.runs.folder_files import CONFIG
from securefl.runs.folder_reader import RunRecord
from securefl.runs.folder_writer import RunFolder
from securefl.settings.clashes import public_reader
from securefl.settings.tables import Config

OUT = "--out runs/again"
NAMED = "--bundle FOLDER --identity FOLDER"


def repeated(record: RunRecord) -> str:
    """Return how the run is run again; of processes the words above `commands_of_roles`."""
    config, folder = record.config, RunFolder(record.path)
    if folder.is_over_processes():
        if folder.server_start() is None:
            return (
                "Its clients are processes, and not of `securefl server serve`: where NVIDIA FLARE "
                "ran it, submit its job again."
            )
        return f"The same again: a process each, with a copy of {CONFIG} where it runs."
    if folder.has_own_task() and config.samples is None:
        allowed = "".join(f"`securefl.allow_code({name!r})`, " for name in own_code(config))
        call = f"securefl.run(securefl.load_config({str(record.path / CONFIG)!r}), task)"
        return f"The same again, with the task that it was given: {allowed}`{call}`."
    of_a_script = [name for name in own_code(config) if name.startswith("__main__:")]
    if of_a_script:
        return f"The same again: by the script that began it, which has `{of_a_script[0]}`."
    file = shlex.quote(str(record.path / CONFIG))
    command = " ".join([_securefl(config), "run", file, *_of_sites(config), OUT])
    return " ".join([f"The same again: `{command}`.", *_notes(config)])


def commands_of_roles(record: RunRecord) -> PageTable | None:
    """Return a line for each role of a run of processes; None of any other run."""
    folder = RunFolder(record.path)
    if not folder.is_over_processes() or folder.server_start() is None:
        return None
    return PageTable("By role", ("Role", "Command"), list(_roles(record.config)))


def own_code(config: Config) -> list[str]:
    """Return the names of users' own code that settings in a file may load once it is allowed."""
    names = (*(choice.name for choice in config.choices), config.run.metric or "")
    return [name for name in dict.fromkeys(names) if ":" in name]


def _securefl(config: Config) -> str:
    return " ".join(["securefl", *(f"--code {shlex.quote(name)}" for name in own_code(config))])


def _of_sites(config: Config) -> Iterator[str]:
    """Yield the options of a rehearsal of sites that bring their own data."""
    if config.samples is None:
        return
    if ":" in config.model.name:
        yield f"--model {shlex.quote(config.model.name)}"
    yield from (f"--site {shlex.quote(name)}=SITE.toml" for name in config.data.names)
    if public_reader(config):
        yield "--site server=SERVER.toml"


def _notes(config: Config) -> Iterator[str]:
    if config.samples is not None:
        yield "Each `SITE.toml` is that site's own file."
    if config.needs_cards and config.exchange.officers == 1:
        yield (
            "Keys are made anew: where it had some, add `--keys FOLDER`, and where clients signed "
            "with their own, `--identity FOLDER` for each."
        )


def _roles(config: Config) -> Iterator[tuple[str, str]]:
    securefl, at = _securefl(config), "--server HOST:PORT"
    own = f" --model {shlex.quote(config.model.name)}" if ":" in config.model.name else ""
    public = " --data SERVER.toml" if config.samples and public_reader(config) else ""
    listen = f"{NAMED} --listen HOST:PORT{own}{public}"
    yield "server", f"{securefl} server serve {CONFIG} {listen} {OUT}"
    if config.needs_cards:
        yield "authority", f"{securefl} authority serve {CONFIG} --keys FOLDER {at}"
        if config.exchange.officers > 1:
            yield "each other officer", f"{securefl} officer serve {CONFIG} {NAMED} {at}"
    data = " --data SITE.toml" if config.samples else ""
    yield "each site", f"{securefl} site join {CONFIG} {NAMED}{data} {at}"
