"""Verdict on encryption: what was decrypted, under which parameters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from securefl.audit.encryption.measured import Estimate, Precision, Security
from securefl.audit.encryption.opened import (
    EncryptionEvidence,
    Opened,
    answered_again,
    shown_at_models,
)
from securefl.audit.rules import Rule, Verdict, always, counted, unmeasured
from securefl.audit.thresholds import LEAST_SECURITY
from securefl.federation.opening import Opening


@final
@dataclass(frozen=True, slots=True)
class ParameterSet:
    """Parameter set in use, and what it is worth."""

    security: Security
    precision: Precision
    opens: str
    """Use of one key."""


@final
@dataclass(frozen=True, slots=True)
class Encrypted:
    """Encryption of a run and its openings: what the rules go by."""

    evidence: EncryptionEvidence
    parameters: Sequence[ParameterSet]
    """Parameter sets in use."""
    opened: Sequence[Opened]

    @property
    def totals(self) -> Sequence[Opened]:
        """Totals that were decrypted."""
        return [row for row in self.opened if row.times and not row.of_single_clients]

    @property
    def fewest(self) -> int:
        """Least number of clients in one of them; 0 where there is none."""
        return min((row.fewest for row in self.totals), default=0)

    @property
    def least(self) -> int:
        """Least number of clients that the policy allows."""
        return self.evidence.policy.min_contributions

    @property
    def again(self) -> int:
        """Totals and scores that were opened though there was one already."""
        return answered_again(self.evidence.openings)

    @property
    def shown_at_models(self) -> int:
        """Number of models at which sums and differences of totals show fewer clients."""
        return shown_at_models(self.evidence.openings, self.least)

    @property
    def read(self) -> str:
        """Kinds that the server could read of each client; empty for none."""
        return ", ".join(self.evidence.read_by_server)


def _nothing(found: Encrypted) -> str:
    read = f" The server could read each client's {found.read}." if found.read else ""
    return f"Nothing was encrypted, so whatever clients sent could be read.{read}"


def _decrypted_in_all(found: Encrypted) -> str:
    done = list[str]()
    if found.totals:
        n = sum(row.times for row in found.totals)
        done.append(f"{counted(n, 'total')}, each of {found.fewest} clients or more")
    if scored := sum(row.n_values for row in found.opened if row.of_single_clients):
        done.append(f"{counted(scored, 'score')} of profiles, each of one client")
    refused = sum(row.refused for row in found.opened)
    asked = f" Requests refused: {refused:,}." if refused else ""
    what = ", and ".join(done) or "nothing"
    clear = f" Not encrypted, and read by the server of each client: {found.read}."
    said = f"Decrypted by the {found.evidence.opener}: {what}.{asked}"
    return f"{said}{clear if found.read else ''} {_by_which_log(found.evidence)}{_worth(found)}"


def _by_which_log(evidence: EncryptionEvidence) -> str:
    if evidence.own is not None:
        return "So say the run's folder and the authority's own log."
    if evidence.in_one_process:
        return "So says the log of the one process that played all parties."
    return "So says the run's folder alone: the authority's own log was not seen."


def _worth(found: Encrypted) -> str:
    """Return what sealed sums are worth, and on whose word; nothing where none were sealed."""
    if not found.evidence.sums:
        return ""
    return (
        f" That a sum hides single clients is worth {Estimate().by_theorem:g} bits by estimates of "
        "lattice attacks, and rests on an argument of SecureFL's authors that nobody has reviewed."
    )


_ASK_BOTH = (
    "Use the run for nothing before the operators of server and authority have said how it came "
    "about."
)


def _ask(found: Encrypted, count: Callable[[Sequence[Opening]], int]) -> str:
    """Return whom to ask about openings that are not allowed, which `count` finds in a log."""
    own = found.evidence.own
    if own is None:
        return "Ask the authority's operator for its own log, and audit with --openings."
    if count(own):
        return (
            "The authority's own log says so, too: ask its operator how it came about, and use the "
            "run for nothing before you know."
        )
    return f"The authority's own log by itself does not say so. {_ASK_BOTH}"


RULES: tuple[Rule[Encrypted], ...] = (
    Rule(
        Verdict.OPEN,
        lambda found: not (found.evidence.opener or found.evidence.foreign),
        "nothing was encrypted, and no log says otherwise",
        _nothing,
        do='Set exchange.encrypt = "model".',
    ),
    Rule(
        Verdict.LEAKS,
        lambda found: bool(found.totals) and found.fewest < found.least,
        "a total was decrypted of fewer clients than the rule allows (scores of profiles are of "
        "one)",
        lambda found: (
            f"A total of {counted(found.fewest, 'client')} was decrypted, and the rule is "
            f"{found.least} at least."
        ),
        do=(
            "Ask the authority's operator how it came about, and have the consortium sign its "
            "policy anew (securefl keys policy)."
        ),
    ),
    Rule(
        Verdict.LEAKS,
        lambda found: any(part.security.bits < LEAST_SECURITY for part in found.parameters),
        f"parameters are below {LEAST_SECURITY}-bit security",
        lambda _: f"The parameters are below {LEAST_SECURITY}-bit security: who records may read.",
        do="Make new keys (securefl keys init).",
    ),
    Rule(
        Verdict.LEAKS,
        lambda found: found.again > 0,
        "a total, or a client's score, was opened again",
        lambda found: (
            f"{counted(found.again, 'time')} a total or a score was opened for a session, round "
            "and name that had one already: the difference of two totals shows the clients that "
            "are in one of them alone, and a second score is a second number of a client's "
            "profile."
        ),
        do=lambda found: _ask(found, answered_again),
    ),
    Rule(
        Verdict.LEAKS,
        lambda found: found.shown_at_models > 0,
        "totals of several lists of clients at one model show fewer clients than the rule allows",
        lambda found: (
            f"At {counted(found.shown_at_models, 'model')} totals of several lists of clients were "
            f"opened, and their sums and differences show fewer than {found.least} clients."
        ),
        do=lambda found: _ask(found, lambda rows: shown_at_models(rows, found.least)),
    ),
    Rule(
        Verdict.LEAKS,
        lambda found: bool(found.evidence.foreign),
        "the run's folder and the authority's own log (or one officer's) differ",
        lambda found: (
            "The run's folder and the authority's own log do not say the same. Openings that "
            f"differ, or are in one of them alone: {len(found.evidence.foreign):,}. The first: "
            f"{found.evidence.foreign[0]}."
        ),
        do=_ASK_BOTH,
    ),
    Rule(
        Verdict.LEAKS,
        lambda found: any(part.precision.without_error for part in found.parameters),
        "encryption has less than half of the error that hides keys",
        lambda _: (
            "The error of encryption that should hide clients' keys is not there: values come out "
            "more exactly than it allows."
        ),
        do="Install another build: the random error that hides keys is not there.",
    ),
    Rule(
        Verdict.OPEN,
        lambda found: bool(found.evidence.unlogged),
        "the run has no log of openings, or one that lacks what the ledger has",
        lambda found: f"What was decrypted is {found.evidence.unlogged}.",
        do="Audit with --openings and the authority's own log.",
    ),
    unmeasured(lambda found: [part.precision.encryption for part in found.parameters]),
    Rule(
        Verdict.WEAK,
        lambda found: found.evidence.own is None and not found.evidence.in_one_process,
        "the parties were processes of their own, and the authority's own log was not given",
        _decrypted_in_all,
        do="Ask the authority's operator for its own log, and audit with --openings.",
    ),
    Rule(Verdict.HOLDS, always, "none of these", _decrypted_in_all),
)
