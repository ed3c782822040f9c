"""Outline of a data protection impact assessment (GDPR, Art. 35), filled in from a run.

What a run cannot know, such as its purpose, is left to the officer, and says so.
"""

from collections.abc import Iterator, Sequence

from securefl.audit.findings import Section
from securefl.audit.provenance import Provenance
from securefl.audit.rules import Verdict
from securefl.io.html import PageTable
from securefl.report.views import OUTSIDER, Shows, views
from securefl.runs.folder_reader import RunRecord
from securefl.settings.tables import Config

YOURS = "Yours to write"


def outline(run: RunRecord, of: Provenance, sections: Sequence[Section]) -> PageTable:
    """Return the outline: each of the regulation's points, and what the run says to it."""
    return PageTable(
        "Outline of a data protection impact assessment (GDPR, Art. 35)",
        ("Point", "This run"),
        list(_points(run, of, sections)),
    )


def _points(
    run: RunRecord, of: Provenance, sections: Sequence[Section]
) -> Iterator[tuple[str, str]]:
    config = run.config
    n_train = sum(count.train for count in of.data.values())
    yield (
        "Processing (7 a)",
        (
            f"{len(of.data)} clients train one model by {config.algorithm.name} in "
            f"{len(run.metrics)} rounds, {of.began or 'an unknown time'} to {of.ended}. Records "
            "themselves are not sent."
        ),
    )
    yield "Purpose, and legal basis (7 a)", YOURS
    yield (
        "Data subjects (7 a)",
        (
            f"{n_train:,} records train. Their categories, and whether any is of a special "
            f"category (Art. 9): {YOURS.lower()}"
        ),
    )
    yield "Controllers", f"Each client for its own records: {', '.join(of.data):.500}"
    yield from _recipients(run)
    yield "Necessity and proportionality (7 b)", YOURS
    yield from _risks(sections)
    yield "Measures (7 d)", " ".join(_measures(config))
    yield (
        "Retention",
        (
            "The run itself leaves no record of a person in its folder; model, checkpoint and "
            "statistics follow from them. This report is in it (mode 0600): its pictures, where it "
            "has any, are rebuilt from records, and near to them where an attack went well. "
            "Whoever signs or answers for the run may get it, and nobody else. Delete all, and "
            "the clients' folders of rounds, when the model is no longer needed: "
            f"{YOURS.lower()} until when"
        ),
    )
    yield "Transfers to third countries (Art. 44)", YOURS
    yield (
        "Access, rectification, erasure (Art. 15 to 17)",
        (
            "A record is at its client alone, and is changed or deleted there. A trained model "
            f"does not forget it: train anew. How a person is answered: {YOURS.lower()}"
        ),
    )
    yield "Notice of a breach (Art. 33, 34): who tells whom, by when", YOURS
    yield "Views of data subjects (9), advice of the officer (2)", YOURS


def _recipients(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield what each kind of party received, the first client for all."""
    told = set()
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
        yield f"Recipient: {role} (30 d)", f"Received {', '.join(what) or 'nothing'}"


LYING = (
    "A server that keeps to the protocol was assumed. One that sends a crafted model has read up "
    "to 124 of 160 records of one total of five clients in our own trials, with all sealed and "
    "nobody helping it, and clients see next to nothing of it. Against it: differential privacy "
    "(privacy.level), more clients and steps in a round, and a server whose operator has no "
    "interest in the records (SECURITY.md)."
)
"""Risk of a server that deviates, which no audit of a run sees."""


def _risks(sections: Sequence[Section]) -> Iterator[tuple[str, str]]:
    yield "Risk (7 c): a server that lies", LYING
    for section in sections:
        if section.verdict is not Verdict.HOLDS:
            yield (
                f"Risk (7 c): {section.title}",
                f"{str(section.verdict).capitalize()}. {section.words}",
            )
    held = [section.title for section in sections if section.verdict is Verdict.HOLDS]
    if held:
        yield "Attacked, and stood (7 c)", ", ".join(held)
    yield "Severity and likelihood of each risk (7 c)", YOURS


def _measures(config: Config) -> Iterator[str]:
    sealed = ", ".join(config.exchange.encrypt)
    if sealed:
        yield (
            f"Sealed by its sender: {sealed} (exchange.encrypt); a total is opened of "
            f"{config.exchange.min_clients} clients at least (exchange.min_clients)."
        )
    else:
        yield 'Nothing is sealed (exchange.encrypt = "none").'
    if config.privacy.private:
        yield f"Noise by differential privacy for each {config.privacy.level} (privacy.level)."
    else:
        yield 'No noise is added (privacy.level = "none"), so nothing bounds what the model tells.'
