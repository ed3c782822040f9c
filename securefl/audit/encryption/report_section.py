"""Section on encryption: how strong, how exact, and what was decrypted by whom."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from securefl.audit.encryption.flow_graph import graph
from securefl.audit.encryption.measured import (
    Estimate,
    precision_bits,
    score_precision,
    security_of,
    sum_precision,
)
from securefl.audit.encryption.opened import (
    EncryptionEvidence,
    KeyUse,
    Opened,
    answered_again,
    differing_by_one,
    key_uses,
    opened_by_name,
    refusals,
)
from securefl.audit.encryption.verdict import RULES, Encrypted, ParameterSet
from securefl.audit.findings import Number, Section
from securefl.audit.rules import decided
from securefl.audit.thresholds import LEAST_SECURITY
from securefl.crypto.params import MATCHES, SUMS
from securefl.io.html import PageTable, Picture

_STANDARD = "Homomorphic Encryption Standard 2018, Table 1: ternary secret, classical attacker"
_ESTIMATED = "lattice-estimator, attacks as by MATZOV 2022, docs/one-time-keys.md"
_ONE_TIME = (
    "Each message has a key of its own. Nothing is opened twice under a key, so that keys need no "
    "noise to hide them, and do not wear out."
)
_TOTALS = "The sum of keys over a list of clients opens the total of just these."
_SCORES = (
    "Of a profile, officers answer with one number for what the server has made of it: it opens "
    "one score, of one client, and another question about that profile is refused."
)
_ARGUMENT = (
    "That a sum of keys tells nothing else of a message is SecureFL's own argument (for centred "
    "binomial keys, the conditional distribution is plain RLWE of a smaller deviation), which "
    "nobody has reviewed. The standard's table speaks of keys of which nothing is known; it allows "
    "54 bits at N = 2048, and 109 at N = 4096."
)
_MEASURED = (
    "error that 99 of 100 random values stay below, sealed, added or matched, and opened through "
    "the run's own channel"
)
_LOG = "counted in openings.jsonl, and in the authority's own log where that was given"
_SUMS = "sums"
_PROFILES = 8
"""Profiles that are scored for each ciphertext of sums."""
_OPENS = {
    False: "a total of a session, round and name, once",
    True: "a score of a session, round and client, once",
}


_TITLE = "What was encrypted, and who decrypted what?"


def encryption_section(
    evidence: EncryptionEvidence, seed: int, effort: Literal["quick", "full"] = "quick"
) -> Section:
    """Return what the run's parameters are worth, and what its log says was decrypted.

    Precision is measured under fresh keys of the same parameters, whose noise is the operating
    system's: bits are whole, so that they do not differ from audit to audit.

    Args:
        evidence: the run's.
        seed: of the values that are sealed.
        effort: of more of them where full. Both take seconds.
    """
    flow = evidence.flow
    picture = Picture("What was decrypted by whom", flow.described(), svg=graph(flow))
    measured = _measure(evidence, np.random.default_rng(seed), 8 if effort == "quick" else 32)
    uses = key_uses(evidence.openings)
    opened = opened_by_name(evidence.openings)
    verdict, words, do = decided(RULES, Encrypted(evidence, measured, opened))
    if not flow.opener:
        return Section(
            "encryption", _TITLE, verdict, words, pictures=(picture,), do=do, attacked=False
        )
    known = not evidence.unlogged
    tables = [_decrypted(opened, flow.opener), _keys(uses)] if known else []
    tables.append(_parameters(measured))
    if refused := refusals(evidence.openings):
        rows = [(reason, f"{times:,}") for reason, times in refused.items()]
        tables.append(PageTable("Refused", ("why", "times"), rows, frozenset(range(len(rows)))))
    numbers = [*_worth(measured, seed), *(_log(evidence, opened) if known else [])]
    return Section(
        "encryption",
        _TITLE,
        verdict,
        words,
        numbers,
        tables,
        (picture,) if known else (),
        _notes(evidence),
        do=do,
        attacked=False,
    )


def _measure(
    evidence: EncryptionEvidence, rng: np.random.Generator, n_ciphertexts: int
) -> tuple[ParameterSet, ...]:
    """Measure each parameter set in use."""
    found = list[ParameterSet]()
    if evidence.sums:
        n, policy, quorum = evidence.n_clients, evidence.policy, evidence.quorum
        precision = sum_precision(policy, n, quorum, rng, n_ciphertexts)
        found.append(ParameterSet(security_of(_SUMS, SUMS), precision, "one total"))
    if evidence.profiles:
        of = evidence.policy, evidence.quorum
        precision = score_precision(*of, rng, _PROFILES * n_ciphertexts)
        found.append(ParameterSet(security_of("profiles", MATCHES), precision, "one score"))
    return tuple(found)


def _worth(measured: Sequence[ParameterSet], seed: int) -> list[Number]:
    numbers = list[Number]()
    for part in measured:
        what, precision = part.security.what, part.precision
        level = part.security.bits
        numbers.append(Number(f"security, {what}", level, _STANDARD, unit="bits"))
        if what == _SUMS:
            numbers += _estimated()
        errors = {"unrounded": precision.exact, "released": precision.released}
        numbers += [
            Number(f"precision {how}, {what}", precision_bits(error), _MEASURED, seed, unit="bits")
            for how, error in errors.items()
        ]
    return numbers


def _estimated() -> list[Number]:
    """Return what keys of sums are worth by lattice attacks."""
    estimate = Estimate()
    bits = {
        "sums of keys known": estimate.sums_known,
        "sums of keys known, constant of Hint-LWE's theorem": estimate.by_theorem,
        "no sum known": estimate.no_hint,
    }
    return [
        Number(f"estimate, {name}", found, _ESTIMATED, unit="bits") for name, found in bits.items()
    ]


def _log(evidence: EncryptionEvidence, opened: Sequence[Opened]) -> list[Number]:
    pairs = differing_by_one(evidence.openings)
    how = f"pairs of groups whose totals of one name, round or model are both opened, {_LOG}"
    return [
        Number("decrypted", sum(row.times for row in opened), f"openings, {_LOG}"),
        Number("refused", sum(row.refused for row in opened), f"openings, {_LOG}"),
        Number("groups that differ by one client", pairs, how),
        Number("opened again", answered_again(evidence.openings), f"totals and scores, {_LOG}"),
    ]


def _decrypted(opened: Sequence[Opened], opener: str) -> PageTable:
    rows = [
        (
            row.what,
            "1 each" if row.of_single_clients else str(row.fewest),
            f"{row.refused:,}" if row.refused else "–",
            f"{row.times:,}",
            f"{row.n_values:,}",
            opener,
        )
        for row in opened
    ]
    columns = ("what", "fewest clients", "refused", "times", "values", "by whom")
    alarming = frozenset(i for i, row in enumerate(opened) if row.refused)
    return PageTable("Decrypted", columns, rows, alarming)


def _keys(uses: Sequence[KeyUse]) -> PageTable:
    rows = [
        (
            _name(use),
            _OPENS[use.scores],
            f"{use.openings:,}",
            "1 each" if use.scores else str(use.fewest),
        )
        for use in uses
    ]
    return PageTable(
        "Keys", ("key", "opens", "asked", "fewest clients on a list that was opened"), rows
    )


def _name(use: KeyUse) -> str:
    what = "scores" if use.scores else "sums"
    return f"{what}, epoch {use.epoch}, {use.key_id[:16] or 'unnamed'}"


def _parameters(measured: Sequence[ParameterSet]) -> PageTable:
    rows = [_row(part) for part in measured]
    columns = (
        "parameters",
        "security",
        "N",
        "log₂ q",
        "table's row: 128 / 192 / 256",
        "encryption errs by",
        "a key opens",
        "right when released",
    )
    weak = (i for i, part in enumerate(measured) if part.security.bits < LEAST_SECURITY)
    return PageTable("Parameters", columns, rows, frozenset(weak))


def _row(part: ParameterSet) -> tuple[str, ...]:
    security, precision = part.security, part.precision
    return (
        security.what,
        f"{security.bits} bits",
        str(security.poly_degree),
        str(security.modulus_bits),
        " / ".join(map(str, security.limits)),
        f"{precision.due:.1e}",
        part.opens,
        f"{precision_bits(precision.released)} bits",
    )


def _power(evidence: EncryptionEvidence) -> str:
    """Return who could read more than totals, and whose absence is no loss."""
    quorum = evidence.quorum
    if quorum.officers == 1:
        return "The authority has the keys: together with the server it could open one client's."
    needed, away = quorum.needed, quorum.officers - quorum.needed
    return (
        f"Any {needed} of {quorum.officers} officers, with the server, could open one client's "
        f"ciphertext; {needed - 1} could open nothing. {away} may be away, and the run goes on."
    )


def _notes(evidence: EncryptionEvidence) -> list[str]:
    notes = [f"{_power(evidence)} The log says what was asked for by the rules."]
    told = [*([_TOTALS] if evidence.sums else []), *([_SCORES] if evidence.profiles else [])]
    notes.append(" ".join([_ONE_TIME, *told]))
    if evidence.sums:
        notes.append(_ARGUMENT)
    if pairs := differing_by_one(evidence.openings):
        notes.append(
            f"{pairs} pairs of groups differ by one client: where nothing else changes between "
            "their totals, the difference is that client's. See the section on tracing."
        )
    return notes
