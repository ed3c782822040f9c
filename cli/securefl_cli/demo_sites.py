"""`securefl demo --sites`: authority, server and four hospitals, each a process of its own."""

import csv
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl.errors import PeerError, RunFolderError
from securefl_cli.log import ENVIRONMENT

if TYPE_CHECKING:
    from securefl.data.heart import Patients

SERVER, KILLED = "hub", "hungary"
OFFICERS = ("olga", "otto")
"""Officers beside the authority, where sums are opened by two of three."""
SECUREFL = (sys.executable, "-c", "from securefl_cli.main import main; main()")
PATIENCE_S = 120.0
"""Seconds that a silent process is waited for."""
JOB = """\
[run]
name = "hospitals"
rounds = {rounds}
seed = {seed}

[data]
names = {names}

[samples]                      # the form that all hospitals' files have
columns = {columns}
levels = {{ {levels} }}
target = "disease"
classes = ["no", "yes"]
most = 400                     # patients that one trains on, at most

[algorithm]
name = "fedtan"
local_steps = 5

[train]
lr = 0.1

[sites]
quorum = 4                     # a round begins when all hospitals are there
late = "pass"                  # one that waits longer than wait_s passes, and the next waits
"""
OF_OFFICERS = """
[exchange]
officers = 3                   # two of the authority and two officers open sums
"""


def demo_sites(
    rounds: int, seed: int, folder: Path, officers: Sequence[str] = (), *, as_json: bool = False
) -> None:
    """Run the demo in this folder; raises PeerError where a process ends with an error."""
    from securefl.federation.ledger import Ledger
    from securefl.runs.folder_reader import read_run
    from securefl_cli.as_json import say_json
    from securefl_cli.compare import as_row, print_runs

    hospitals = prepare(rounds, seed, folder, officers)
    words = ("--passphrase-file", "passphrase")
    with _processes(folder) as start:
        server = start(
            SERVER,
            *("server", "serve", "job.toml", "--bundle", "bundles/server", "--identity", SERVER),
            *("--listen", "127.0.0.1:0", "--out", "run", *words),
        )
        at = server.told(r"Listening on (\S+)")
        serve = ("authority", "serve", "job.toml", "--keys", "keys", "--server", at)
        start("authority", *serve, *words)
        for name in officers:
            own = ("--bundle", "bundles/officer", "--identity", name, "--server", at)
            start(name, "officer", "serve", "job.toml", *own, *words)

        def join(name: str) -> _Process:
            own = ("--identity", name, "--data", f"{name}/site.toml", "--server", at)
            return start(
                name, "site", "join", "job.toml", "--bundle", "bundles/client", *own, *words
            )

        sites = {name: join(name) for name in hospitals}
        server.told(f"Round {max(1, rounds // 3)}/", show=True, beside=sites)
        sites[KILLED].kill()
        sites[KILLED].wait()
        click.echo(f"{KILLED} is killed, and started again by the same command", err=True)
        sites[KILLED] = join(KILLED)
        server.told(r"Run folder: (\S+)", show=True, beside=sites)
    record = read_run(folder / "run")
    found = record.metrics, Ledger(list(record.ledger))
    if as_json:
        row = as_row("hospitals", *found)
        say_json({"runs": [row], "openings": _n_opened(folder), "folder": folder / "run"})
        return
    print_runs({"hospitals": found})
    who = f"{1 + len(officers)} officers, of whom two are needed," if officers else "The authority"
    click.echo(
        f"\n{who} opened {_n_opened(folder)} totals, and no single value. No hospital's "
        f"file has left its folder.\nWhat each party saw: {folder / 'run' / 'ledger.jsonl'}"
    )


def prepare(rounds: int, seed: int, folder: Path, officers: Sequence[str] = ()) -> tuple[str, ...]:
    """Write what the parties of the demo have: settings, keys, identities, bundles, data.

    Returns the hospitals' names.

    Raises:
        DataError: the package with the hospitals' patients is not installed, or is another one.
        KeyFileError, RunFolderError: a file cannot be written.
        UsageError: the folder is there already, or cannot be made.
    """
    from securefl.data.catalogue import DATA_SETS
    from securefl.data.heart import read_patients

    patients_of = read_patients(*DATA_SETS["heart"].packaged)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise click.UsageError(
            f"--out {folder}: cannot be made ({error.strerror}): name a folder that is not there, "
            "or move this one away"
        ) from error
    passphrase = secrets.token_urlsafe(24)
    hospitals = tuple(patients_of)
    job = JOB + OF_OFFICERS if officers else JOB
    try:
        make_consortium(folder, hospitals, SERVER, passphrase, name="Hospitals", officers=officers)
        _write_data(folder, job, patients_of, rounds=rounds, seed=seed)
        (folder / "run").mkdir()  # the server's; where it is mounted, it has to be there
    except OSError as error:
        raise RunFolderError(
            f"{folder}: cannot be written ({error.strerror}): make room, and remove what is there"
        ) from error
    click.echo(f"Four hospitals' files, keys and settings: {folder}", err=True)
    return hospitals


def make_consortium(
    folder: Path,
    clients: Sequence[str],
    server: str,
    passphrase: str,
    *,
    name: str,
    officers: Sequence[str] = (),
) -> None:
    """Make keys, members and bundles in `folder`, and a file with the one passphrase of them all.

    More than half of the authority and `officers` open sums.
    Real parties each make their own key on their own machine, under a passphrase of their own.

    Raises:
        ConfigError: the passphrase is empty.
        KeyFileError: a folder is there already, or cannot be written.
        RequestRefused: a name cannot be a member's.
    """
    from securefl_keys import layout
    from securefl_keys.consortium import init_folder
    from securefl_keys.export import export_all
    from securefl_keys.identity import make_identities
    from securefl_keys.membership import JoinApproval, approve
    from securefl_keys.officer_card import make_card
    from securefl_keys.rotation import set_officers

    path = folder / "passphrase"
    path.touch(mode=0o600)
    path.write_text(passphrase + "\n")
    keys = folder / "keys"
    init_folder(keys, passphrase, consortium=name)
    requests = (
        *make_identities(folder, clients, "client", passphrase),
        *make_identities(folder, [server], "server", passphrase),
        *make_identities(folder, officers, "officer", passphrase),
    )
    members = (*clients, server, *officers)
    certificates = [folder / member / layout.IDENTITY_CERTIFICATE for member in members]
    approve(keys, list(map(JoinApproval, requests, certificates)), passphrase)
    if officers:
        cards = [
            make_card(folder / officer, 2, passphrase, folder / officer / "card-2.json")
            for officer in officers
        ]
        set_officers(keys, passphrase, cards, (1 + len(cards)) // 2 + 1)
    export_all(keys, folder / "bundles", passphrase)


class _Process:
    """One party: its command, and the lines that it says."""

    def __init__(self, log: Path, command: Sequence[str]) -> None:
        self.log = log
        self._n_shown = 0
        with log.open("ab") as file:
            self._process = subprocess.Popen(  # noqa: S603 -- our own commands
                [*SECUREFL, *command], cwd=log.parent, stdout=file, stderr=file, env=_plain()
            )

    def told(
        self, pattern: str, *, show: bool = False, beside: "Mapping[str, _Process] | None" = None
    ) -> str:
        """Wait until it has said this.

        Raises:
            PeerError: it ends before, or says nothing, or one of those `beside` it has failed.
        """
        deadline, n_said = time.monotonic() + PATIENCE_S, 0
        while True:
            said, ended = self.log.read_text(), self._process.poll() is not None
            for line in said.splitlines()[self._n_shown :] if show else ():
                self._n_shown += 1
                if found := re.search(r"\bRound \d.*", line):
                    click.echo(found[0], err=True)
            if found := re.search(pattern, said):
                return found[found.re.groups]
            if len(said) > n_said:
                deadline, n_said = time.monotonic() + PATIENCE_S, len(said)
            if ended or time.monotonic() > deadline:
                raise PeerError(f"{self.log.stem}: {'ended' if ended else 'silent'}: {said[-500:]}")
            for other in (beside or {}).values():
                other.require_unfailed()
            time.sleep(0.05)

    def require_unfailed(self) -> None:
        """Raise PeerError where it has ended with an error."""
        if self._process.poll() not in {None, 0}:
            raise PeerError(f"{self.log.stem}: failed: {self.log.read_text()[-500:]}")

    def kill(self) -> None:
        """Kill it, as a power cut would."""
        self._process.kill()

    def wait(self) -> None:
        """Wait until it has ended."""
        self._process.wait()


@contextmanager
def _processes(folder: Path) -> Iterator[Callable[..., _Process]]:
    """Yield a function that starts a party; all end with the block."""
    started: list[_Process] = []

    def start(name: str, *command: str) -> _Process:
        started.append(_Process(folder / f"{name}.log", command))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:  # all of them before any is waited for: Ctrl-C may come again
            process.kill()
        for process in started:
            process.wait()


def _write_data(
    folder: Path, job: str, patients_of: "Mapping[str, Patients]", **of_run: int
) -> None:
    """Write the settings, and a table for each hospital, with words where the source has them."""
    from securefl.data.heart import TABLE

    *columns, _ = TABLE
    words = {name: {float(n): word for word, n in of.items()} for name, of in TABLE.items() if of}
    for hospital, patients in patients_of.items():
        with (folder / hospital / "patients.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow([*columns, "disease"])
            for *readings, grade in patients.tolist():
                found = zip(columns, readings, strict=True)
                said = [
                    words[name][value] if name in words else f"{value:g}" for name, value in found
                ]
                table.writerow([*said, "yes" if grade else "no"])
        (folder / hospital / "site.toml").write_text('train = "patients.csv"\ntest = 0.2\n')
    levels = ", ".join(f"{name} = {json.dumps([*of.values()])}" for name, of in words.items())
    listed = {"names": json.dumps([*patients_of]), "columns": json.dumps(columns)}
    (folder / "job.toml").write_text(job.format(levels=levels, **listed, **of_run))


def _plain() -> dict[str, str]:
    """Return the environment, in which lines are as they are read here."""
    return os.environ | {ENVIRONMENT: "plain"}


def _n_opened(folder: Path) -> int:
    from securefl_keys import layout

    lines = (folder / "keys" / layout.LOG / "openings.jsonl").read_text().splitlines()
    return sum(not json.loads(line)["refused"] for line in lines)
