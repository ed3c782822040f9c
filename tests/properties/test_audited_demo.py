"""The table of the demo's audits: each answer is the JSON's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import audit_table
from audit_table import END, READ, Audit
from audited_demo import BEGIN

WHO = ("whoever has the final model", "every client, and the server")


def number(name, value, low=None, high=None):
    return {"name": name, "value": value, "low": low, "high": high}


def section(verdict="weak", numbers=(), **tables):
    named = [{"title": title.replace("_", " "), "rows": rows} for title, rows in tables.items()]
    said = {"title": "A section", "words": f"It {verdict}."}
    made = {"verdict": verdict, "trials": "", "attacked": True, **said}
    return made | {"numbers": list(numbers), "tables": named}


def audit(form="ciphertext"):
    """Of a run in which the server read updates of this form."""
    update = [
        "update/parameters",
        "one client's own values",
        form,
        "parameters",
        "5 parties",
        "",
        "",
        "",
    ]
    total = ["*/mean", "totals over clients", "plaintext", "statistics", "authority", "", "", ""]
    image = "the trained model, mini-batches of 1"
    return Audit({
        "exposure": section(
            numbers=[number(READ, 60_000), number("leaks in the folder", 1), number("leaks", 2)],
            What_the_server_received=[update, total],
        ),
        "membership": section(
            numbers=[
                number("AUC, loss", 0.5, 0.4, 0.6),
                number("AUC, LiRA", 0.7, 0.65, 0.75),
                number("AUC, rounds", 0.9, 0.8, 1.0),
            ],
            Attacks=[["loss", WHO[0]], ["LiRA", WHO[0]], ["rounds", WHO[1]]],
        ),
        "inversion": section(
            numbers=[
                number(f"{image}: PSNR, baseline", 13.0, 12.0, 14.0),
                number(f"{image}: PSNR, exact", 30.0, 29.0, 31.0),
                number(f"{image}: PSNR, none", 10.0, 9.0, 11.0),
                number(f"{image}: PSNR, joint", 28.0, 27.0, 29.0),
            ]
        ),
        "tracing": section(numbers=[number("AUC, difference of two sums", 0.9, 0.8, 1.0)]),
        "epsilon": section(numbers=[number("ε at most", "inf"), number("ε at least, records", 1)]),
        "encryption": section(
            "holds", Decrypted=[["*/mean", "5", "–", "1,000", "30,000", "authority"]]
        ),
    })  # fmt: skip


def answers(found):
    rows = [line.strip("| ").split(" | ") for line in found.splitlines()]
    return {question: tuple(cells) for question, *cells in rows}


def table(**columns):
    return answers(audit_table.table(columns))


def test_what_several_runs_say_alike_stands_once():
    one = audit()
    other = Audit({**one.sections, "tracing": section("holds")})
    found = audit_table.sentences({"plain": one, "sealed": other}).splitlines()
    assert [line for line in found if "holds" in line] == [
        "| A section | sealed | It holds. |",
        "| A section | plain, sealed | It holds. |",
    ]
    assert found.count("| A section | plain, sealed | It weak. |") == 4


def test_a_verdict_stands_above_its_numbers():
    found = table(sealed=audit())
    assert found["**Encryption**"] == ("**holds**",)
    of = audit().sections
    logs = Audit({**of, "encryption": of["encryption"] | {"attacked": False, "trials": "More."}})
    assert table(sealed=logs)["**Encryption**"] == ("**checked**",)
    assert logs.words("encryption").endswith(". *Trials:* More.")
    assert found[READ] == ("60,000",)


def test_leaks_of_the_folder_and_of_the_wire_are_added():
    assert table(a=audit())["messages and files that are not as the settings promise"] == ("3",)


def test_the_best_attack_is_of_those_that_one_party_can_make():
    """The strongest of all needs more than the final model; some attacks nobody can make."""
    found = table(a=audit())
    assert found[f"best AUC of {WHO[0]}"] == ("0.700 (0.650 to 0.750), LiRA",)
    assert found[f"best AUC of {WHO[1]}"] == ("0.900 (0.800 to 1.000), rounds",)
    assert found["best AUC of a server that reads single clients' updates"] == (
        "nobody reads them",
    )


def test_what_nobody_could_do_is_in_brackets():
    """Who reads no single update has no gradient to invert."""
    found = table(plain=audit("plaintext"), sealed=audit())
    assert found["who reads single clients' updates"] == ("server", "nobody")
    assert found["who reads the statistics that normalise a batch"] == ("server", "server")
    assert found["– the best without them"] == (
        "28.0 (27.0 to 29.0), joint",
        "[28.0 (27.0 to 29.0), joint]",
    )


def test_infinity_is_no_bound():
    assert table(a=audit())["ε of a record at most"] == ("no bound",)


def test_openings_are_by_somebody_and_of_so_many():
    found = table(a=audit())["totals opened, by whom, of how many clients at least"]
    assert found == ("1,000, authority, 5",)


def test_only_what_stands_between_the_comments_changes():
    page = f"before\n{BEGIN}old\n{END}\nafter\n"
    assert audit_table.written(page, "new\n", BEGIN) == f"before\n{BEGIN}new\n{END}\nafter\n"
    with pytest.raises(SystemExit, match="lacks"):
        audit_table.written("before\nafter\n", "new\n")
