"""Protection of a run by differential privacy: each release, its means, and from whom.

The adversaries: the server, the authority (or so many officers as open sums), other clients, and an
outside reader, who has the trained model and all that is published with it. Each is honest but
curious and by itself; server and authority together could open single contributions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from securefl.privacy.events import Level
from securefl.privacy.history import History
from securefl.privacy.wording import WHAT, epsilon_words
from securefl.settings.tables import Config, Encrypt

YES, NO = "yes", "no"
HEADINGS = ("Release", "Noise", "Server", "Authority", "Other clients", "Outside reader")


@dataclass(frozen=True, slots=True)
class Protection:
    """One release, and whether ε holds against each adversary."""

    release: str
    noise: str
    server: str
    authority: str
    clients: str
    reader: str

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells in the order of `HEADINGS`."""
        return self.release, self.noise, self.server, self.authority, self.clients, self.reader


def protections(config: Config) -> tuple[Protection, ...]:
    """Return all that clients release of their data under these settings."""
    choice = config.privacy
    of = _records if choice.of_records else _clients if choice.of_clients else _unprotected
    return (*of(config), *_selection(config))


def protection_page(config: Config, history: History) -> str:
    """Return the table with what ε says, in Markdown."""
    return "\n".join([
        "# What differential privacy protects in this run",
        "",
        epsilon_said(config, history),
        "",
        *_markdown(protections(config)),
        "",
        *wrap(
            "An outside reader has the model. Accuracy and loss are of test data, which are "
            "nobody's training data, and which ε does not count."
        ),
        "",
        *wrap(opening_said(config)),
        "",
    ])  # fmt: skip


def opening_said(config: Config) -> str:
    """Return the sentences on who opens what is sealed, and who together could open more."""
    exchange, needed, n = config.exchange, config.exchange.needed, config.exchange.officers
    if not exchange.encrypt:
        return "Nothing is sealed: the server reads whatever clients send."
    one = "authority" if n == 1 else f"{needed} officers"
    together = (
        f"Server and {one} together could open single contributions, and are no adversary that ε "
        "speaks of."
    )
    totals = ["totals"] if exchange.seals_sums else []
    opened = " and ".join([*totals, "scores"] if config.seals_scores else totals)
    if n == 1:
        return f"The authority opens {opened} alone. {together}"
    fewer = (
        "1 officer with the server reads"
        if needed == 2
        else f"{needed - 1} officers with the server read"
    )
    return (
        f"The answers of {needed} of {n} officers open {opened}; whoever asks for them, which over "
        f"separate processes is the server, reads them unrounded. {fewer} nothing "
        f"more, and {n - needed} may be away. {together}"
    )


def epsilon_said(config: Config, history: History) -> str:
    """Say what ε is, whom it is for, and whether anybody could take the noise off."""
    table = config.privacy
    if not table.private:
        return "ε is infinite: training had no noise, so nothing is guaranteed."
    level = Level(table.level)
    said = [epsilon_words(history, level, table.delta)]
    if not history.stages_without_privacy(level):
        cells = [cell for each in protections(config) for cell in each.cells[2:]]
        some = any(cell.startswith(NO) for cell in cells)
        said.append(
            f"Protected: {WHAT[level]}, "
            + (f"but for what the table says `{NO}` of." if some else "in each release.")
        )
    if table.seeded:
        said.append(
            'privacy.noise = "seeded": the noise follows from run.seed, and whoever knows that '
            "takes it off, so nobody is protected from them."
        )
    return " ".join(said)


def _markdown(rows: Sequence[Protection]) -> Iterator[str]:
    yield "| " + " | ".join(HEADINGS) + " |"
    yield "|" + "---|" * len(HEADINGS)
    for row in rows:
        yield "| " + " | ".join(row.cells) + " |"


def _unprotected(config: Config) -> Iterator[Protection]:
    del config
    yield Protection("updates of the model and of what goes with it", "none", *[NO] * 4)


def _records(config: Config) -> Iterator[Protection]:
    table = config.privacy
    yield Protection(
        "gradients, and all that is computed from them: updates, momentum, control variates",
        f"σ = {table.sigma:g} of DP-SGD, whole at each client",
        *[YES] * 4,
    )
    if not config.algorithm.releases_statistics:
        return
    if table.warm_up:
        yield Protection("BN statistics", "none needed: of public samples", *[YES] * 4)
    else:
        yield _shared("BN statistics", config, table.statistics_sigma, Encrypt.STATISTICS)


def _clients(config: Config) -> Iterator[Protection]:
    sigma = config.privacy.sigma
    yield _shared("updates of parameters, momentum and control", config, sigma, Encrypt.MODEL)
    yield _shared("BN statistics, where there are any", config, sigma, Encrypt.STATISTICS)
    if config.privacy.adapts:
        yield _shared("votes on the clip norm", config, sigma, Encrypt.STATISTICS)
    # What clients keep to themselves has no noise, and is in what they are scored by.
    if config.models_at_clients:
        yield Protection("accuracy and loss of clients' own models", "none", *[NO] * 4)
    if config.fnr.refines:
        ranked = "FNR-FL's levels of accuracy and class norms"
        yield _shared(ranked, config, sigma, Encrypt.STATISTICS)


def _shared(release: str, config: Config, sigma: float, sealed_by: Encrypt) -> Protection:
    """Return the protection by noise that clients add in shares."""
    sealed = {sealed_by, Encrypt.MODEL} & set(config.exchange.encrypt)
    tell = config.privacy.colluders
    alone = "each alone" if tell == 1 else f"up to {tell} together"
    return Protection(
        release,
        f"σ = {sigma:g} on the sum, in shares",
        YES if sealed else f"{NO}: in the clear, each with its own share alone",
        YES,
        f"{YES}: {alone}" if tell else f"{NO}: each knows its own share",
        YES,
    )


def _selection(config: Config) -> Iterator[Protection]:
    table, selection = config.privacy, config.selection
    profiled, sealed = selection.asks_for_profiles, config.exchange.seals_profiles
    if profiled and table.of_records:
        noise = f"σ = {table.statistics_sigma:g}, whole at each client"
        yield Protection("profiles and their scores", noise, *[YES] * 4)
    elif profiled and table.of_clients:
        noise = f"σ = {table.statistics_sigma:g}, by the authority"
        server = YES if sealed else f"{NO}: it reads the profiles"
        authority = f"{NO}: it reads scores before the noise" if sealed else "is sent nothing"
        yield Protection("scores of profiles", noise, server, authority, YES, YES)
    elif profiled:
        yield Protection(
            "scores of profiles", "none", NO, NO if sealed else "is sent nothing", YES, YES
        )
    elif selection.tells:
        yield Protection(
            selection.tells, "none", NO, "is sent nothing", YES, f"{NO}: by who is selected"
        )
