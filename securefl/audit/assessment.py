"""Outline of a data protection impact assessment (GDPR, Art. 35), filled in from a run.

What a run cannot know, such as its purpose, is left to the officer, and says so.
"""

from collections.abc import Container, Iterator, Sequence

from securefl.audit.exposure.evidence import FolderEvidence
from securefl.audit.exposure.openings import opened_lists
from securefl.audit.findings import Section
from securefl.audit.incident_table import incidents_in_words, passed_in_words
from securefl.audit.provenance import Provenance
from securefl.audit.rules import Verdict
from securefl.build.exchange import quorum_of
from securefl.federation.ledger import AUTHORITY, SERVER, Entry
from securefl.io.html import PageTable
from securefl.report.reading import scores_kept
from securefl.report.views import OUTSIDER, Shows, views
from securefl.runs.folder_reader import RunRecord
from securefl.settings.tables import Config
from securefl.types import Kind

YOURS = "Yours to write"


def outline(found: FolderEvidence, of: Provenance, sections: Sequence[Section]) -> PageTable:
    """Return the outline: each of the regulation's points, and what the run says to it."""
    return PageTable(
        "Outline of a data protection impact assessment (GDPR, Art. 35)",
        ("Point", "This run"),
        list(_points(found, of, sections)),
    )


def _points(
    found: FolderEvidence, of: Provenance, sections: Sequence[Section]
) -> Iterator[tuple[str, str]]:
    run = found.run
    yield from _processing(found, of)
    yield from _parties(of)
    yield from _recipients(run, of, sections)
    yield "Necessity and proportionality (7 b)", YOURS
    yield from _risks(found, of, sections)
    yield "Measures (7 d)", " ".join(_measures(run.config, run.ledger))
    yield "Retention", f"The table Retention, below, the same for each run. {YOURS}: each date"
    yield "Transfers to third countries (Art. 44)", YOURS
    yield "Information, and objection (Art. 13, 14, 21): how persons learn of this", YOURS
    yield (
        "Access, rectification, erasure (Art. 15 to 17)",
        f"{_places(of)} {_forgotten(of, sections)} How a person is answered: {YOURS.lower()}",
    )
    yield "Notice of a breach (Art. 33, 34): who tells whom, by when", YOURS
    yield "Views of data subjects (9), advice of the officer (2)", YOURS
    yield "Review (11)", f"When settings, members or the model's use change. {YOURS}: by when"
    yield "Prior consultation (Art. 36), where a high risk is left", YOURS


def _forgotten(of: Provenance, sections: Sequence[Section]) -> str:
    """Return the end of the row on erasure: copies of a record that are not its file."""
    if of.logs_alone:
        return "A trained model does not forget it: train anew. The report has nothing of it."
    pictures = (
        "pictures that attacks rebuilt of it are personal data again where they came near"
        if _has_pictures(sections)
        else "it has no rebuilt record, but its numbers were made with this one"
    )
    return (
        f"A trained model does not forget it: train anew. Nor does the report: {pictures}; delete "
        "report, signatures and copies, and audit the new run."
    )


def _has_pictures(sections: Sequence[Section]) -> bool:
    """Return whether the report shows records that attacks rebuilt."""
    return any(section.pictures_of_records for section in sections)


def _places(of: Provenance) -> str:
    """Return in words where records are, and where one is changed or deleted."""
    keeper, all_share = "its client", ""
    if of.simulated:
        keeper = "the operator of the one process, who held those of all clients"
    if of.shared_test:
        all_share = " One of the test set that all share is with whoever scores the model, too."
    audited = "" if of.logs_alone else ", and with whoever audited"
    return f"A record is changed or deleted with {keeper}{audited}.{all_share}"


SIMULATED = "Simulation: one process of one operator played all parties, under names."
"""Beginning of rows that speak of parties."""


def _processing(found: FolderEvidence, of: Provenance) -> Iterator[tuple[str, str]]:
    """Yield processing, purpose and data subjects."""
    run = found.run
    simulated = f"{SIMULATED} " if of.simulated else ""
    n_train = sum(count.train or 0 for count in of.data.values())
    n_test = of.shared_test + sum(count.test or 0 for count in of.data.values())
    tests = ", one set that all share" if of.shared_test else ""
    records = f"{n_train:,} records train, and {n_test:,} test{tests}"
    if of.logs_alone:
        records = "Records"
    yield (
        "Processing (7 a)",
        (
            f"{simulated}{len(of.data)} clients train one model by {run.config.algorithm.name} in "
            f"{len(run.metrics)} rounds{passed_in_words(run)}, {of.began or 'an unknown time'} to "
            f"{of.ended}. {_sent(of)} Contributions that did not count: "
            f"{incidents_in_words(found)}."
        ),
    )
    yield "Purpose, and legal basis (7 a)", YOURS
    yield (
        "Data subjects (7 a)",
        (
            f"{simulated}{of.with_origin(records)}. How many persons "
            "these are, their categories, and whether any is of a special category (Art. 9): "
            f"{YOURS.lower()}"
        ),
    )


def _sent(of: Provenance) -> str:
    """Return in words whether records left their client."""
    if of.simulated:
        return "No message has a record, but one operator held all records from the beginning."
    shared = ", but for the test set that all share" if of.shared_test else ""
    return f"No message has a record: they stay with their clients{shared}."


def _parties(of: Provenance) -> Iterator[tuple[str, str]]:
    """Yield controllers, processors, and who operates each party."""
    names = f"{', '.join(of.data):.500}"
    yield (
        "Controllers",
        f"{SIMULATED} Its clients stand for controllers: {names}"
        if of.simulated
        else f"Each client for its own records: {names}",
    )
    yield "Joint controllers, and their arrangement (Art. 26)", YOURS
    yield (
        "Processors, and their contracts (Art. 28)",
        (
            "The operators of server and authority, where they are no clients; two that are "
            f"independent of each other. {YOURS}: the contracts"
            if of.has_authority
            else f"The server's operator, where it is no client. {YOURS}: the contract"
        ),
    )
    yield "Of each party: operator, legal entity, address, contact, officer (DPO)", YOURS


def _recipients(
    run: RunRecord, of: Provenance, sections: Sequence[Section]
) -> Iterator[tuple[str, str]]:
    """Yield what each kind of party received, the first client for all."""
    told = set()
    held = "" if of.logs_alone else "all records that the audit played the run again with, and "
    received = "Its part, played by the one process, received" if of.simulated else "Received"
    for view in views(run.ledger):
        if view.party == OUTSIDER:
            continue
        role = view.party if view.party in {"server", "authority"} else "each client"
        if role in told:
            continue
        told.add(role)
        shown = sorted({str(f.shows) for f in view.fields if f.shows is not Shows.LENGTH})
        ciphertext = any(f.shows is Shows.LENGTH for f in view.fields)
        what = [*shown, *(["ciphertexts that it cannot read"] if ciphertext else [])]
        yield f"Recipient: {role} (30 d)", f"{received} {', '.join(what) or 'nothing'}"
    if kept := scores_kept(run):
        yield (
            "Recipient: whoever gets metrics.jsonl or report.html of the folder (30 d)",
            f"{kept} Who that is: {YOURS.lower()}",
        )
    yield (
        "Recipient: whoever gets the final model (30 d)",
        (
            "Receives the model, and what it remembers of records: sections on membership and ε. "
            f"Who that is: {YOURS.lower()}"
        ),
    )
    yield (
        "Recipient: whoever audits (30 d)",
        (f"Holds {held}the run's folder. Who that is: {YOURS.lower()}"),
    )
    said = "names and sizes of clients"
    pictures = "and numbers on attacks; no record, and none that an attack rebuilt"
    if of.logs_alone:
        said, pictures = "names of clients", "and what the logs say; nothing on records"
    if _has_pictures(sections):
        pictures = (
            "and pictures that attacks rebuilt from records: personal data again where they came "
            "near"
        )
    yield (
        "Recipient: whoever gets the report (30 d)",
        f"Receives {said}, {pictures}. Who that is: {YOURS.lower()}",
    )


LYING = (
    "A server that keeps to the protocol was assumed. One that sends a crafted model reads records "
    "out of a total of all clients, with all sealed and nobody helping it: in trials of SecureFL's "
    "authors more than half of 40 records through the protocol, and up to 124 of 160 records by "
    "the plain sum of five clients (one step on batches of 32, a hidden layer of 1,024 units "
    "without BN). No client looks for it. One that shows a model again, but for its last bits, "
    "reads a client's mean update in a few rounds. Against both: differential privacy "
    "(privacy.level), and a server whose operator has no interest in the records (SECURITY.md). "
    "More clients, larger batches or more steps are no measure: against the first nobody has "
    "measured them, and against the second more steps do not help."
)
"""Risk of a server that deviates, which no audit of a run sees."""


def _fewest(found: FolderEvidence, clients: Container[str]) -> int:
    """Return the number of clients in the smallest total that somebody read; 0 where none was."""
    passed = {each.round for each in found.run.passed}
    senders: dict[tuple[int, int, str], set[str]] = {}
    for entry in found.run.ledger:
        summed = entry.form == "plaintext" and entry.kind in {Kind.PARAMETERS, Kind.STATISTICS}
        counts = entry.receiver == SERVER and entry.sender in clients and entry.round not in passed
        if summed and counts:
            senders.setdefault((entry.round, entry.exchange, entry.name), set()).add(entry.sender)
    lists = [*senders.values(), *opened_lists(found.run.ledger, found.all_openings)]
    return min(map(len, lists), default=0)


def _comparing(found: FolderEvidence, of: Provenance) -> str:
    """Return what clients that put together what they know read of another one."""
    run, fewest = found.run, _fewest(found, of.data)
    least = run.config.exchange.min_clients
    if fewest < 2:
        return "No total of this run has a second client."
    others = "the other one has" if fewest == 2 else f"{fewest - 1} of them that compare notes have"
    rule = (
        f" exchange.min_clients = {least} allows totals in which {least - 1} are enough."
        if run.config.exchange.encrypt and least < fewest
        else ""
    )
    noise = " Its own noise is still on them." if run.config.privacy.of_clients else ""
    return (
        f"The smallest total of this run is of {fewest} clients: {others} the last one's values, "
        f"sealed or not, since the total less their own is just that.{noise}{rule} Against it: "
        "more clients in a total, and differential privacy (privacy.level)."
    )


def _server_and_authority(run: RunRecord, of: Provenance) -> str:
    """Return what the two read together."""
    if not run.config.exchange.encrypt:
        return "Nothing is sealed, so the server reads each client's messages by itself."
    quorum = quorum_of(run.config)
    keys = AUTHORITY if quorum.officers == 1 else f"{quorum.needed} of {quorum.officers} officers"
    here = (
        "Here one process of one operator was both"
        if of.simulated
        else f"Here they were processes of their own; who operates each: {YOURS.lower()}"
    )
    return (
        f"The {SERVER} has all ciphertexts, and the secrets of the {keys} make all keys: together "
        "they read each client's messages, and no audit sees it. By contract (Art. 28) they have "
        f"two independent operators. {here}."
    )


def _risks(
    found: FolderEvidence, of: Provenance, sections: Sequence[Section]
) -> Iterator[tuple[str, str]]:
    yield "Risk (7 c): a server that lies", LYING
    yield "Risk (7 c): clients that compare notes", _comparing(found, of)
    yield "Risk (7 c): server and authority together", _server_and_authority(found.run, of)
    for section in sections:
        if section.verdict is not Verdict.HOLDS:
            yield (
                f"Risk (7 c): {section.title}",
                f"{str(section.verdict).capitalize()}. {section.words}",
            )
    held = [section for section in sections if section.verdict is Verdict.HOLDS]
    if attacked := [section.title for section in held if section.attacked]:
        yield "Attacked, and stood (7 c)", ", ".join(attacked)
    if checked := [section.title for section in held if not section.attacked]:
        yield "Checked against the run's own files, not attacked (7 c)", ", ".join(checked)
    yield "Severity and likelihood of each risk (7 c)", YOURS


def sealed_in(ledger: Sequence[Entry]) -> str:
    """Return in words the kinds of values that were sealed; cards are keys, and no values."""
    sealed = {entry.kind for entry in ledger if entry.form == "ciphertext"} - {Kind.CARDS}
    return ", ".join(kind for kind in Kind if kind in sealed) or "nothing"


def _measures(config: Config, ledger: Sequence[Entry]) -> Iterator[str]:
    if config.exchange.encrypt:
        settings = ", ".join(config.exchange.encrypt)
        yield (
            f"Sealed by its sender (exchange.encrypt = {settings}): {sealed_in(ledger)}; a total "
            f"is opened of {config.exchange.min_clients} clients at least (exchange.min_clients)."
        )
    else:
        yield 'Nothing is sealed (exchange.encrypt = "none").'
    if config.privacy.private:
        yield f"Noise by differential privacy for each {config.privacy.level} (privacy.level)."
    else:
        yield 'No noise is added (privacy.level = "none"), so nothing bounds what the model tells.'
