"""Evidence of a run's encryption, and what the authority's log says was decrypted."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import final

from securefl.audit.encryption.flow_graph import Flow
from securefl.build.exchange import policy_of, quorum_of
from securefl.exchange.card_keys import Quorum
from securefl.exchange.policy import Policy
from securefl.exchange.profile_match import SCORE
from securefl.federation.ledger import AUTHORITY, SERVER, Entry, Ledger
from securefl.federation.message import SCORE_MEAN
from securefl.federation.opening import Opening
from securefl.federation.opening_history import MOST_LISTS, fewest
from securefl.report.views import of_all_layers
from securefl.runs.folder_reader import unopened
from securefl.settings.tables import Config
from securefl.types import Kind


@final
@dataclass(frozen=True, slots=True)
class EncryptionEvidence:
    """Evidence of one run, all of its sessions."""

    config: Config
    openings: Sequence[Opening]
    """Rows of openings.jsonl, and of the authority's own log: of an opening in both, its row."""
    ledger: Sequence[Entry]
    """Rows of ledger.jsonl."""
    consortium: Policy | None = None
    """Signed policy; None where the settings were all there was."""
    own: Sequence[Opening] | None = None
    """Rows of the authority's own log; None where it was not given to the audit."""
    foreign: Sequence[str] = ()
    """Openings of which the folder's log and the authority's own do not say the same, in words."""
    in_one_process: bool = False
    """True where one process was all parties, so that the folder's log is the authority's."""

    @property
    def unlogged(self) -> str:
        """Reason why nobody knows all that was opened; empty where the log of openings tells."""
        return unopened(self.openings, self.ledger) or (
            "" if self.openings else "not known: no log of openings"
        )

    @property
    def policy(self) -> Policy:
        """Policy that the authority enforced."""
        return policy_of(self.config, self.consortium)

    @property
    def n_clients(self) -> int:
        """Number of clients that have sent anything."""
        return len({entry.sender for entry in self.ledger} - {SERVER, AUTHORITY})

    @property
    def sums(self) -> bool:
        """True where sums were encrypted."""
        return any(
            e.form == "ciphertext" and e.kind not in {Kind.CARDS, Kind.PROFILES}
            for e in self.ledger
        )

    @property
    def quorum(self) -> Quorum:
        """Officers that open sums and scores, and how many of them are needed."""
        return quorum_of(self.config)

    @property
    def profiles(self) -> bool:
        """True where profiles were encrypted."""
        return any(e.form == "ciphertext" and e.kind is Kind.PROFILES for e in self.ledger)

    @property
    def read_by_server(self) -> tuple[str, ...]:
        """Kinds that clients sent in the clear, and answers to a selector."""
        return tuple(Ledger(list(self.ledger)).server_reads_in_words())

    @property
    def opener(self) -> str:
        """Party that decrypts; empty where nothing was encrypted."""
        if not (self.sums or self.profiles):
            return ""
        quorum = self.quorum
        alone = quorum.officers == 1
        return AUTHORITY if alone else f"{quorum.needed} of {quorum.officers} officers"

    @property
    def flow(self) -> Flow:
        """Counts of the run's messages."""
        up = [e for e in self.ledger if e.receiver == SERVER and e.sender != AUTHORITY]
        done = [row for row in self.openings if not row.refused]
        totals = [row for row in done if row.name != SCORE]
        n_sealed = sum(entry.form == "ciphertext" for entry in up)
        return Flow(
            n_clients=self.n_clients,
            sealed_up=n_sealed,
            clear_up=len(up) - n_sealed,
            clear_kinds=self.read_by_server,
            opened=len(totals),
            fewest=min((row.n_clients for row in totals), default=0),
            scores=sum(row.n_values for row in done if row.name == SCORE),
            refused=len(self.openings) - len(done),
            down=sum(e.sender == SERVER and e.receiver != AUTHORITY for e in self.ledger),
            opener=self.opener,
        )


@final
@dataclass(frozen=True, slots=True)
class Opened:
    """Openings of one name."""

    what: str
    """Name of the sums: `*/mean` for the means of layers that have numbers."""
    times: int
    """Number that were opened."""
    n_values: int
    """Number of values in all of them."""
    fewest: int
    """Least number of clients in one of them; 0 where none was opened."""
    refused: int

    @property
    def of_single_clients(self) -> bool:
        """True for scores of profiles: each is of one client, where a total is of all of its."""
        return self.what == SCORE


def opened_by_name(openings: Iterable[Opening]) -> tuple[Opened, ...]:
    """Return openings by their names, of all layers under one, in alphabetical order."""
    groups: dict[str, list[Opening]] = defaultdict(list)
    for opening in openings:
        groups[of_all_layers(opening.name)].append(opening)
    return tuple(_group(what, groups[what]) for what in sorted(groups))


def _group(what: str, rows: Sequence[Opening]) -> Opened:
    done = [row for row in rows if not row.refused]
    return Opened(
        what,
        len(done),
        sum(row.n_values for row in done),
        min((row.n_clients for row in done), default=0),
        len(rows) - len(done),
    )


@final
@dataclass(frozen=True, slots=True)
class KeyUse:
    """Uses of the keys that clients make cards for in an epoch, by the log: for sums, or scores."""

    key_id: str
    epoch: int
    scores: bool
    """True where scores of profiles were asked for, not totals."""
    openings: int
    """Requests, refused ones among them: some were refused after officers had answered, and the log
    does not say which."""
    fewest: int
    """Least number of clients on a list that was answered; 0 where none was."""


def key_uses(openings: Iterable[Opening]) -> tuple[KeyUse, ...]:
    """Return uses of keys by epoch and key."""
    keys: dict[tuple[bool, int, str], list[Opening]] = defaultdict(list)
    for row in openings:
        keys[row.name == SCORE, row.epoch, row.key_id].append(row)
    return tuple(_use(*key, rows) for key, rows in sorted(keys.items()))


def _use(scores: bool, epoch: int, key_id: str, rows: Sequence[Opening]) -> KeyUse:
    fewest = min((len(set(row.signers)) for row in rows if not row.refused), default=0)
    return KeyUse(key_id, epoch, scores, len(rows), fewest)


def answered_again(openings: Iterable[Opening]) -> int:
    """Return how many totals were opened for a session, round and name that had one before.

    The difference of two shows the clients that are in one of them alone. Scores count by client:
    a second one is a second number of its profile.
    """
    times = Counter(
        (row.run, row.round, row.name, client)
        for row in openings
        if row.run and not row.refused
        for client in (row.signers if row.name == SCORE else ("",))
    )
    return sum(n - 1 for n in times.values())


def refusals(openings: Iterable[Opening]) -> dict[str, int]:
    """Return how often each reason was given, without round and name; the most frequent first."""
    reasons = (_reason(row) for row in openings if row.refused)
    return dict(sorted(Counter(reasons).items(), key=lambda item: (-item[1], item[0])))


def _reason(row: Opening) -> str:
    return row.refused.removeprefix(f"round {row.round}, {row.name!r}: ")


def shown_at_models(openings: Iterable[Opening], least: int) -> int:
    """Return the number of models at which sums and differences show fewer clients than `least`.

    Also those with more lists of clients than whoever opens compares.
    """
    lists = _lists_at_models(row for row in openings if not row.refused and row.name != SCORE)
    return sum(len(of) > MOST_LISTS or len(fewest(of)) < least for of in lists.values())


def _lists_at_models(totals: Iterable[Opening]) -> dict[str, set[frozenset[str]]]:
    """Return the lists of clients of totals at each model; those of scores by themselves."""
    lists: dict[str, set[frozenset[str]]] = defaultdict(set)
    for row in totals:
        if row.model:
            what = SCORE_MEAN if row.name == SCORE_MEAN else "round"
            lists[f"{row.model} {what}"].add(frozenset(row.signers))
    return lists


def differing_by_one(openings: Iterable[Opening]) -> int:
    """Return the number of pairs of groups of opened totals that differ by one client.

    The totals are of one name, or of one round or model, as one message may follow from another.
    Their difference is that client's value, as far as the others' have not changed.
    """
    totals = [row for row in openings if not row.refused and row.name != SCORE]
    groups: dict[str | tuple[str, int], set[frozenset[str]]] = defaultdict(set)
    for row in totals:
        of_round = row.name if row.name == SCORE_MEAN else (row.run, row.round)
        for alike in (row.name, of_round):
            groups[alike].add(frozenset(row.signers))
    groups.update(_lists_at_models(totals).items())
    pairs = {frozenset(pair) for found in groups.values() for pair in combinations(found, 2)}
    return sum(len(one ^ two) == 1 for one, two in pairs)
