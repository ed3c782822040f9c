"""Tables of audits: the rules of verdicts, and several audits of one job side by side.

python docs/audit_table.py docs/audit.md
python docs/audit_table.py docs/officer.md
python docs/audit_table.py docs/results/audit-heart.md runs/heart/audit.json

write the rules of verdicts, what is kept until when, and what a report says, into the page, between
its two comments.
docs/audited_demo.py makes the other table, a question a row, from the JSON of each audit.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import securefl.audit.bounds.verdict as bounds
import securefl.audit.encryption.verdict as encryption
import securefl.audit.exposure.verdict as exposure
import securefl.audit.inversion.verdict as inversion
import securefl.audit.membership.verdict as membership
import securefl.audit.tracing.verdict as tracing
from securefl.audit.findings import verdict_said
from securefl.audit.membership.attackers import MODEL_HOLDERS, PARTIES, UPDATE_READER
from securefl.audit.retention import RETENTION
from securefl.audit.rules import Rule
from securefl.audit.thresholds import TABLE
from securefl.federation.ledger import SERVER
from securefl.report.views import Shows

BEGIN, END = "<!-- by docs/audit_table.py -->\n", "<!-- until here -->"
KEPT = "<!-- retention, by docs/audit_table.py -->\n"
REPORT = "<!-- a report, by docs/audit_table.py -->\n"
RULES: Mapping[str, Sequence[Rule[Any]]] = {
    "Who saw what": exposure.RULES,
    "Membership inference": membership.RULES,
    "Bounds on ε": bounds.RULES,
    "Gradient inversion, statistics sealed": inversion.STATISTICS_SEALED,
    "Gradient inversion, nothing sealed": inversion.NOTHING_SEALED,
    "Gradient inversion, model sealed": inversion.UPDATES_SEALED,
    "Tracing": tracing.RULES,
    "Encryption": encryption.RULES,
}
"""Rules of each section, in the order of a report."""
READ = "single clients' values that the server could read"
UPDATE = "update/parameters"


@dataclass(frozen=True, slots=True)
class Measured:
    """One number of an audit."""

    value: float
    low: float | None
    high: float | None

    def said(self, form: str) -> str:
        """Return the number with its interval."""
        if math.isinf(self.value):
            return "no bound"
        if self.low is None or self.high is None:
            return f"{self.value:{form}}"
        return f"{self.value:{form}} ({self.low:{form}} to {self.high:{form}})"


@dataclass(frozen=True, slots=True)
class Audit:
    """Sections of one run's JSON."""

    sections: Mapping[str, Any]

    def verdict(self, section: str) -> str:
        """Return the verdict in one word: where nobody attacked, `checked` for `holds`."""
        return verdict_said(self.sections[section])

    def title(self, section: str) -> str:
        """Return the section's title."""
        return str(self.sections[section]["title"])

    def words(self, section: str) -> str:
        """Return the section's sentences, those on trials at their end."""
        found = self.sections[section]
        return str(found["words"]) + (f" *Trials:* {found['trials']}" if found["trials"] else "")

    def numbers(self, section: str, begin: str) -> dict[str, Measured]:
        """Return all whose names begin so, by the rest of their names."""
        return {
            n["name"].removeprefix(begin): Measured(float(n["value"]), n["low"], n["high"])
            for n in self.sections[section]["numbers"]
            if n["name"].startswith(begin)
        }

    def said(self, section: str, begin: str, form: str) -> str:
        """Return the first of these as text."""
        found = self.numbers(section, begin)
        return next(iter(found.values())).said(form) if found else "–"

    def rows(self, section: str, title: str) -> list[list[str]]:
        """Return rows of the table whose title begins so."""
        tables = [t for t in self.sections[section]["tables"] if t["title"].startswith(title)]
        return [row for found in tables for row in found["rows"]]


def verdicts() -> str:
    """Return the rules of verdicts as a table, a rule a row, and that of their thresholds."""
    rows = []
    for section, rules in RULES.items():
        for i, rule in enumerate(rules):
            rows.append(("" if i else section, str(rule.verdict), rule.condition))
    thresholds = _of_words(("section", "threshold", "meaning"), TABLE)
    return f"{_of_words(('section', 'verdict', 'when'), rows)}\n{thresholds}"


def sentences(audits: Mapping[str, Audit]) -> str:
    """Return what each section of these reports says in words; once where several say the same."""
    rows = []
    for key in next(iter(audits.values())).sections:
        said: dict[tuple[str, str], list[str]] = {}
        for name, audit in audits.items():
            said.setdefault((audit.title(key), audit.words(key)), []).append(name)
        rows += [(title, ", ".join(names), words) for (title, words), names in said.items()]
    return _of_words(("section", "run", "says"), rows)


def _of_words(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    ruler = ["---"] * len(columns)
    return "".join(f"| {' | '.join(line)} |\n" for line in (columns, ruler, *lines))


def retention() -> str:
    """Return what a run leaves, and until when: the same rows as in a report."""
    return _of_words(RETENTION.columns, RETENTION.rows)


def report(audit: Audit) -> str:
    """Return what each section of a report says, and what to do."""
    rows = [
        (audit.title(key), audit.verdict(key), audit.words(key), audit.sections[key]["do"] or "-")
        for key in audit.sections
    ]
    return _of_words(("section", "verdict", "words", "what to do"), rows)


def filled(page: str) -> str:
    """Return the page with each table that one of its comments asks for."""
    for begin, content in ((BEGIN, verdicts()), (KEPT, retention())):
        if begin in page:
            page = written(page, content, begin)
    return page


def written(page: str, content: str, begin: str = BEGIN) -> str:
    """Return the page with this content between its two comments."""
    before, found, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not (found and end):
        raise SystemExit(f"the page lacks {begin.strip()} or {END}: between them stands the table")
    return f"{before}{begin}{content}{END}{after}"


Row = tuple[str, Callable[[Audit], str]]
"""Question, and its answer for one run."""


def table(audits: Mapping[str, Audit]) -> str:
    """Return a row for each question, a column for each run."""
    rows = [
        *_exposure(),
        *_membership(),
        *_inversion(next(iter(audits.values()))),
        *_sums(audits),
        *_tracing(),
        *_epsilon(),
        *_encryption(),
    ]
    lines = [[question, *(answer(audit) for audit in audits.values())] for question, answer in rows]
    return markdown(["", *audits], lines)


def markdown(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table, its first column to the left."""
    ruler = ["---", *["--:"] * (len(columns) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (columns, ruler, *lines))


def _judged(title: str, section: str) -> Row:
    return f"**{title}**", lambda audit: f"**{audit.verdict(section)}**"


def _number(question: str, section: str, begin: str, form: str) -> Row:
    return question, lambda audit: audit.said(section, begin, form)


def _bracketed(row: Row, possible: Callable[[Audit], bool]) -> Row:
    """Put in brackets what would be found, where nobody of the run can do this."""
    question, answer = row
    return question, lambda audit: answer(audit) if possible(audit) else f"[{answer(audit)}]"


def _exposure() -> Iterator[Row]:
    yield _judged("Who saw what", "exposure")
    yield _number(READ, "exposure", READ, ",.0f")
    yield (
        "messages and files that are not as the settings promise",
        lambda audit: f"{sum(n.value for n in audit.numbers('exposure', 'leaks').values()):,.0f}",
    )


def _membership() -> Iterator[Row]:
    yield _judged("Membership inference", "membership")
    for who in (MODEL_HOLDERS, PARTIES, UPDATE_READER):
        for what, begin, form in (
            ("AUC", "AUC, ", ".3f"),
            ("TPR at 1 % FPR", "TPR at 1 % FPR, ", ".1%"),
        ):
            yield (
                f"best {what} of {who}",
                lambda audit, who=who, begin=begin, form=form: _best(audit, begin, who, form),
            )


def _best(audit: Audit, begin: str, who: str, form: str) -> str:
    """Return the best of the attacks that are open to somebody, with its name."""
    known = {name for name, *_, observer in audit.rows("membership", "Attacks") if observer == who}
    found = audit.numbers("membership", begin)
    return _largest({name: n for name, n in found.items() if name in known}, form)


def _largest(found: Mapping[str, Measured], form: str) -> str:
    if not found:
        return "nobody reads them"
    name = max(found, key=lambda name: found[name].value)
    return f"{found[name].said(form)}, {name}"


def _inversion(audit: Audit) -> Iterator[Row]:
    yield _judged("Gradient inversion", "inversion")
    yield "who reads single clients' updates", lambda audit: _reader(audit, UPDATE)
    yield "who reads the statistics that normalise a batch", _reader_of_totals
    exact = ": PSNR, exact"
    for name in (name for name in audit.numbers("inversion", "") if name.endswith(exact)):
        for row in _rebuilt(name.removesuffix(exact)):
            yield _bracketed(row, lambda audit: _reader(audit, UPDATE) != "nobody")


def _reader(audit: Audit, field: str, shows: Shows = Shows.ONE_CLIENT) -> str:
    """Return whether the server got this."""
    rows = audit.rows("exposure", "What the server received")
    got = any(row[0] == field and row[1] == shows and row[2] == "plaintext" for row in rows)
    return SERVER if got else "nobody"


def _reader_of_totals(audit: Audit) -> str:
    """Return who reads totals: FedTAN's are, so who reads all clients' has them, too."""
    own, total = (_reader(audit, "*/mean", s) for s in (Shows.ONE_CLIENT, Shows.TOTAL))
    return f"{own}, of each client" if own == SERVER else total


def _rebuilt(title: str) -> Iterator[Row]:
    begin = f"{title}: PSNR, "
    yield _number(f"PSNR in dB, {title}: a guess by the label", "inversion", f"{begin}base", ".1f")
    yield _number("– with these statistics", "inversion", f"{begin}exact", ".1f")
    yield "– the best without them", lambda audit: _adaptive(audit, begin)
    yield _number("– with less without", "inversion", f"{title}: exact less", ".1f")


def _adaptive(audit: Audit, begin: str) -> str:
    found = audit.numbers("inversion", begin)
    return _largest(
        {k: n for k, n in found.items() if k not in {"exact", "baseline", "no information"}}, ".1f"
    )


def _sums(audits: Mapping[str, Audit]) -> Iterator[Row]:
    """Yield a row for each sum of updates that some run's audit attacked."""
    guess = ": PSNR, baseline"
    names = (name for a in audits.values() for name in a.numbers("inversion", "sum of "))
    for name in dict.fromkeys(name.removesuffix(guess) for name in names if name.endswith(guess)):
        begin = f"sum of {name}: "
        yield (
            f"PSNR in dB from the sum of {name}: the best attack; a guess",
            lambda audit, begin=begin: _of_sum(audit, begin),
        )


def _of_sum(audit: Audit, begin: str) -> str:
    """Return the best attack on a sum, and the guess from the labels."""
    if not audit.numbers("inversion", begin):
        return "–"
    guess = audit.said("inversion", f"{begin}PSNR, baseline", ".1f")
    tried = bool(audit.numbers("inversion", f"{begin}gain"))
    return f"{_adaptive(audit, f'{begin}PSNR, ') if tried else 'none tried'}; {guess}"


def _tracing() -> Iterator[Row]:
    yield _judged("Tracing a record in statistics", "tracing")
    begin = "AUC, this run: "
    yield (
        "AUC in what this run shows",
        lambda audit: _largest(audit.numbers("tracing", begin), ".3f"),
    )
    for name in ("difference of two sums", "difference of two sums with clients' noise"):
        row = _number(f"AUC in a {name}", "tracing", f"AUC, {name}", ".3f")
        yield _bracketed(row, lambda audit: bool(audit.rows("encryption", "Decrypted")))


def _epsilon() -> Iterator[Row]:
    yield _judged("Bounds on ε", "epsilon")
    yield _number("ε of a record at most", "epsilon", "ε at most", ".3g")
    least, most = "ε at least, records", "ε that so many canary records"
    yield _number("ε of a record at least, by canaries", "epsilon", least, ".2f")
    yield _number("the most that so many canaries can show", "epsilon", most, ".2f")


def _encryption() -> Iterator[Row]:
    yield _judged("Encryption", "encryption")
    yield _number("security of sums, bits", "encryption", "security, sums", ".0f")
    yield "totals opened, by whom, of how many clients at least", _opened


def _opened(audit: Audit) -> str:
    rows = audit.rows("encryption", "Decrypted")
    if not rows:
        return "none"
    times = sum(int(row[3].replace(",", "")) for row in rows)
    return f"{times:,}, {rows[0][-1]}, {min(int(row[1]) for row in rows)}"


def main() -> None:
    """Write into a page what its comments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="a Markdown file with the two comments")
    parser.add_argument("numbers", nargs="?", type=Path, help="a report's JSON, whose words go in")
    args = parser.parse_args()
    text = filled(args.page.read_text())
    if args.numbers:
        audit = Audit(json.loads(args.numbers.read_text())["chapters"])
        text = written(text, report(audit), REPORT)
    args.page.write_text(text)


if __name__ == "__main__":
    main()
