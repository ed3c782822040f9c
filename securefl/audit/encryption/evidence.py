"""What a run leaves of its encryption: settings, the authority's log, and the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from securefl.audit.encryption.flow_graph import Flow
from securefl.build.exchange import policy_of, quorum_of
from securefl.config.schema import Config
from securefl.exchange.matching import SCORE
from securefl.exchange.policy import Policy
from securefl.exchange.quorum import Quorum
from securefl.federation.ledger import AUTHORITY, SERVER, Entry, Ledger
from securefl.federation.opening import Opening
from securefl.types import Kind


@final
@dataclass(frozen=True, slots=True)
class Evidence:
    """Of one run, all of its sessions."""

    config: Config
    openings: Sequence[Opening]
    """openings.jsonl."""
    ledger: Sequence[Entry]
    """ledger.jsonl."""
    consortium: Policy | None = None
    """The signed policy; None where the settings were all there was."""

    @property
    def policy(self) -> Policy:
        """What the authority enforced."""
        return policy_of(self.config, self.consortium)

    @property
    def n_clients(self) -> int:
        """Who has sent anything."""
        return len({entry.sender for entry in self.ledger} - {SERVER, AUTHORITY})

    @property
    def sums(self) -> bool:
        """Whether sums were encrypted."""
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
        """Whether profiles were encrypted."""
        return any(e.form == "ciphertext" and e.kind is Kind.PROFILES for e in self.ledger)

    @property
    def read_by_server(self) -> tuple[str, ...]:
        """The kinds that clients sent in the clear."""
        return tuple(sorted(str(kind) for kind in Ledger(list(self.ledger)).server_reads()))

    @property
    def opener(self) -> str:
        """Who decrypts; empty where nothing was encrypted."""
        if not (self.sums or self.profiles):
            return ""
        quorum = self.quorum
        alone = quorum.officers == 1
        return AUTHORITY if alone else f"{quorum.needed} of {quorum.officers} officers"

    @property
    def flow(self) -> Flow:
        """Messages, counted."""
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
