"""`securefl profiles`, and what `compare` says of simulated devices, on folders written by hand."""

from __future__ import annotations

import math

import pytest
from click.testing import CliRunner
from hand_made import (
    PARTICIPANTS,
    QUALITIES,
    encrypted_match,
    message,
    metrics,
    plain_match,
    write_run,
)

from securefl.federation.ledger import AUTHORITY, SERVER
from securefl.report.selection import client_lines, quality_lines, who_read_what
from securefl.types import Kind
from securefl_cli.main import main

FEDPROF = "selection.name=fedprof"
NOTHING = "The server could read nothing of a profile but its score."
SCORES_ALONE = (
    "The authority could read scores alone, one for each client and round, before they were "
    "rounded; never a profile."
)
UNIT_ALONE = (
    "Each client could read nothing of others; it was told the unit that profiles are measured in."
)


def invoke(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def words(line):
    return line.split()


def test_a_client_has_its_last_divergence_and_its_score(tmp_path):
    """λ = exp(-α div), by the α of the settings; clients by quality and by how often they were."""
    run = write_run(
        tmp_path / "run",
        FEDPROF,
        "selection.alpha=10",
        "selection.alpha_by_client={client-3 = 2.0}",
        participants=PARTICIPANTS,
        qualities=QUALITIES,
    )
    lines = client_lines(run)
    assert [(x.client, x.quality, x.times_selected, x.measured_in) for x in lines] == [
        ("client-10", "normal", 3, 3),
        ("client-2", "normal", 2, 2),
        ("client-1", "irrelevant", 0, 1),
        ("client-3", "blurred", 1, 1),
    ]
    assert [x.measured for x in lines] == [0.05, 0.03, 0.4, 0.2]
    expected = [math.exp(-0.5), math.exp(-0.3), math.exp(-4), math.exp(-0.4)]
    assert [x.score for x in lines] == pytest.approx(expected)


def test_scores_of_theorem_1_are_those_on_record(tmp_path):
    """They follow from the clients' sizes, which the folder does not have."""
    settings = (FEDPROF, "selection.alpha=theorem1")
    lines = client_lines(write_run(tmp_path / "run", *settings, participants=PARTICIPANTS))
    assert {x.client: x.score for x in lines} == {
        "client-1": 0.02,
        "client-2": 0.7,
        "client-3": 0.15,
        "client-10": 0.8,
    }


def test_shares_by_quality_are_of_all_clients_and_of_all_selections(tmp_path):
    """Of six selections normal clients had five, and the irrelevant one had none."""
    run = write_run(tmp_path / "run", FEDPROF, participants=PARTICIPANTS, qualities=QUALITIES)
    found = [(x.quality, x.n_clients, x.client_share, x.selected_share) for x in quality_lines(run)]
    assert found == [
        ("normal", 2, 0.5, 5 / 6),
        ("irrelevant", 1, 0.25, 0),
        ("blurred", 1, 0.25, 1 / 6),
    ]


@pytest.mark.parametrize(
    ("ledger", "sentences"),
    [
        (encrypted_match(), [NOTHING, SCORES_ALONE, UNIT_ALONE, "Scores released"]),
        (
            encrypted_match(plain=("profile",)),
            [
                "read each profile whole and the scores.",
                SCORES_ALONE,
                UNIT_ALONE,
                "Scores released by the authority: 2.",
            ],
        ),
        (
            plain_match(),
            [
                "read each profile whole.",
                "The authority was sent nothing of profiles.",
                "Each client could read nothing of others.",
            ],
        ),
        (
            [message("selection/loss", "a", SERVER, "plaintext", kind=Kind.SELECTION)],
            ["No profile was sent.", "read the mean loss of each client that it asked."],
        ),
        (
            [message("update/parameters", "a", SERVER, "plaintext", kind=Kind.PARAMETERS)],
            ["No profile was sent."],
        ),
    ],
)
def test_who_read_what_is_what_the_ledger_has(ledger, sentences):
    """Each form of the match leaves its own account."""
    found = who_read_what(ledger)
    assert len(found) == len(sentences)
    for sentence, line in zip(sentences, found, strict=True):
        assert sentence in line


def test_a_message_that_should_not_be_is_named():
    """A profile at the authority, or at a client, is not passed over."""
    strange = [
        message("profile", "client-1", AUTHORITY, "ciphertext", 61),
        message("profile", SERVER, "client-2", "plaintext", 60),
        message("profile/other", "client-1", SERVER, "plaintext", 60),
    ]
    _, authority, client = who_read_what([*encrypted_match(), *strange])[:3]
    assert authority == "The authority could read profile and profile/score."
    assert client == "Each client was sent profile and profile/unit."
    assert "profile/other and the scores" in who_read_what([*encrypted_match(), *strange])[0]


def test_officers_are_not_taken_for_an_authority(tmp_path):
    """The ledger has them in its place, and none of them could read a score."""
    ledger = encrypted_match()
    settings = (FEDPROF, "exchange.encrypt=profiles", "exchange.officers=3")
    write_run(tmp_path / "run", *settings, participants=PARTICIPANTS, ledger=ledger)
    said = invoke("profiles", tmp_path / "run").stdout
    assert f"{NOTHING} No officer could read a score or a profile. " in said
    assert said.endswith("Scores opened by officers: 2.\n")
    (tmp_path / "run" / "ledger.jsonl").unlink()
    said = invoke("profiles", tmp_path / "run").stdout
    assert said.endswith("\nWho could read what is not known: no ledger.\n")
    assert "uthority" not in said
    _, officers, *_ = who_read_what([*ledger, message("profile", "a", AUTHORITY, "ciphertext")], 3)
    assert officers == "The officers could read profile and profile/score."
    assert "The officers were sent nothing of profiles." in who_read_what(plain_match(), 3)


def test_the_command_prints_clients_qualities_and_who_read_what(tmp_path):
    """Two tables and a paragraph."""
    ledger = encrypted_match()
    settings = (FEDPROF, "exchange.encrypt=profiles")
    run = {"participants": PARTICIPANTS, "qualities": QUALITIES, "ledger": ledger}
    write_run(tmp_path / "run", *settings, **run)
    result = invoke("profiles", tmp_path / "run")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert words(lines[1]) == ["Client", "Quality", "Selected", "measured", "Divergence", "λ"]
    assert words(lines[2]) == ["client-10", "normal", "3", "3", "0.0500", "0.607"]
    assert ["normal", "2", "50.0", "%", "83.3", "%"] in map(words, lines)
    account = f"{NOTHING} {SCORES_ALONE} {UNIT_ALONE} Scores released by the authority: 2."
    assert lines[-1] == account


def test_a_selector_that_measures_nothing_has_no_such_columns(tmp_path):
    """Random selection has counts alone; AFL has losses and no score."""
    write_run(tmp_path / "random", "selection.name=random", participants=PARTICIPANTS)
    lines = invoke("profiles", tmp_path / "random").stdout.splitlines()
    assert words(lines[0]) == ["Client", "Selected"]
    write_run(tmp_path / "afl", "selection.name=afl", participants=PARTICIPANTS)
    lines = invoke("profiles", tmp_path / "afl").stdout.splitlines()
    assert words(lines[1]) == ["Client", "Selected", "measured", "Mean", "loss"]


@pytest.mark.parametrize(
    ("settings", "participants", "message"),
    [
        ((), (), "selects none; make one that does with `securefl run --select fedprof`"),
        ((FEDPROF,), (), "no round is complete; go on with `securefl run --resume"),
    ],
)
def test_a_run_without_selections_is_one_clear_line(tmp_path, settings, participants, message):
    """It says what to do instead."""
    write_run(tmp_path / "run", *settings, participants=participants)
    result = invoke("profiles", tmp_path / "run")
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("selections.jsonl", '{"round": "one"}\n', "selections.jsonl: damaged"),
        ("selections.jsonl", "nonsense\n", "selections.jsonl: damaged"),
        ("qualities.json", "[]", "qualities.json: damaged"),
        ("ledger.jsonl", "{}\n", "ledger.jsonl: damaged"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path, file, content, message):
    """The line names the file."""
    write_run(tmp_path / "run", FEDPROF, participants=PARTICIPANTS)
    (tmp_path / "run" / file).write_text(content)
    result = invoke("profiles", tmp_path / "run")
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_no_folder_at_all_is_one_clear_line(tmp_path):
    """As in all commands that read a run."""
    result = invoke("profiles", tmp_path / "none")
    assert result.exit_code == 1
    assert "is no run's folder" in result.stderr


def test_names_from_outside_are_shown_escaped(tmp_path):
    """A quality in a folder from elsewhere cannot steer the terminal."""
    qualities = QUALITIES | {"client-1": "bad\x1b[2J"}
    write_run(tmp_path / "run", FEDPROF, participants=PARTICIPANTS, qualities=qualities)
    result = invoke("profiles", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout


def test_compare_has_the_cost_where_devices_are_simulated(tmp_path):
    """Two columns, and a second picture beside the first."""
    write_run(tmp_path / "one", "run.name=one", rows=metrics([0.5, 0.9], 1800, 2.5))
    write_run(tmp_path / "two", "run.name=two", rows=metrics([0.5, 0.8], 900, 1.5))
    result = invoke("compare", tmp_path / "one", tmp_path / "two", "--out", tmp_path / "both.png")
    assert result.exit_code == 0, result.output
    rows = {words(line)[0]: words(line) for line in result.stdout.splitlines() if line.strip()}
    assert rows["one"][6:8] == ["1", "5"]
    assert rows["two"][6:8] == ["0.5", "3"]
    assert f"Cost: {tmp_path / 'both-cost.png'}" in result.stdout
    assert (tmp_path / "both-cost.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_devices_has_no_cost_to_compare(tmp_path):
    """Its cells are empty, and nothing is drawn."""
    write_run(tmp_path / "one", "run.name=one", rows=metrics([0.5], 3600, 2.5))
    write_run(tmp_path / "two", "run.name=two", rows=metrics([0.5]))
    plot = ("--out", tmp_path / "both.png")
    result = invoke("compare", tmp_path / "one", tmp_path / "two", *plot)
    rows = {words(line)[0]: words(line) for line in result.stdout.splitlines() if line.strip()}
    assert rows["one"][6:8] == ["1", "2.5"]
    assert rows["two"][6:8] == ["-", "-"]
    assert not (tmp_path / "both-cost.png").exists()
    assert "Wh" not in invoke("compare", tmp_path / "two", *plot).stdout
