"""What the pictures of a run show is what its folder says."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hand_made import PARTICIPANTS, QUALITIES, metrics, plain_match, write_run
from matplotlib.colors import to_hex

from securefl.report import plots
from securefl.report.finish import pictures
from securefl.report.plots import PALETTE, cost_figure, png, scores_figure, selections_figure
from securefl.selection.round_participants import RoundParticipants

FEDPROF = "selection.name=fedprof"
ALL_TRAIN = (RoundParticipants(1, {"client-2": 1, "client-3": 1}, ("client-2", "client-3")),)


@pytest.fixture
def record(tmp_path):
    """Three rounds of FedProf on four clients of three qualities."""
    return write_run(tmp_path / "run", FEDPROF, participants=PARTICIPANTS, qualities=QUALITIES)


def bars(figure):
    """Each group of bars as its label, its heights and its colour."""
    (axes,) = figure.axes
    return {
        group.get_label(): ([bar.get_height() for bar in group], to_hex(group[0].get_facecolor()))
        for group in axes.containers
    }


def names_below(figure):
    return [text.get_text() for text in figure.axes[0].get_xticklabels()]


def heat(figure):
    """The heat map's values, NaN where it is grey."""
    return figure.axes[0].images[0].get_array().filled(math.nan)


def test_bars_stand_by_quality_and_then_by_count(record):
    """Normal clients first, the most selected of them before the others; one colour each."""
    figure = selections_figure(record)
    assert names_below(figure) == ["client-10", "client-2", "client-1", "client-3"]
    assert bars(figure) == {
        "normal": ([3, 2], PALETTE["normal"]),
        "irrelevant": ([0], PALETTE["irrelevant"]),
        "blurred": ([1], PALETTE["blurred"]),
    }
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["normal", "irrelevant", "blurred"]


def test_bars_have_one_colour_where_no_quality_is_known(record):
    """There is nothing to explain then."""
    figure = selections_figure(replace(record, qualities={}))
    assert names_below(figure) == ["client-10", "client-2", "client-3", "client-1"]
    assert len(bars(figure)) == 1
    assert not figure.legends


def test_qualities_of_a_users_own_task_have_colours_of_their_own(record):
    """No two qualities look the same."""
    qualities = QUALITIES | {"client-1": "of a scanner", "client-3": "old"}
    drawn = bars(selections_figure(replace(record, qualities=qualities)))
    assert list(drawn) == ["normal", "of a scanner", "old"]
    assert len({colour for _, colour in drawn.values()}) == 3


def test_many_clients_have_no_names_below(tmp_path):
    """Five hundred names would be a black bar."""
    qualities = {f"client-{i}": "normal" for i in range(1, 501)}
    run = write_run(tmp_path / "run", FEDPROF, participants=PARTICIPANTS, qualities=qualities)
    figure = selections_figure(run)
    assert names_below(figure) == []
    assert figure.axes[0].get_xlabel() == "500 clients"


def test_a_score_stands_until_the_next_one(record):
    """Rows are clients by quality, columns rounds; a round without a score repeats the last."""
    figure = scores_figure(record)
    expected = [[0.9, 0.7, 0.7], [0.8, 0.8, 0.8], [0.02, 0.02, 0.02], [0.1, 0.15, 0.15]]
    np.testing.assert_array_equal(heat(figure), expected)
    axes, colourbar = figure.axes
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert (labels, list(axes.get_yticks())) == (["normal", "irrelevant", "blurred"], [0.5, 2, 3])
    assert axes.get_xlim() == (0.5, 3.5)
    assert colourbar.get_ylabel() == "score λ"


def test_a_client_without_a_score_is_grey(tmp_path):
    """What was measured in round 2 for the first time was not 0 in round 1."""
    participants = (
        RoundParticipants(1, {"a": 1}, ("a",), measured={"a": 2.0}),
        RoundParticipants(2, {"b": 1}, ("b",), measured={"b": 3.0}),
    )
    run = write_run(tmp_path / "run", "selection.name=afl", participants=participants)
    figure = scores_figure(run)
    np.testing.assert_array_equal(heat(figure), [[2.0, 2.0], [math.nan, 3.0]])
    assert figure.axes[1].get_ylabel() == "mean loss"
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["a", "b"]


def test_there_is_no_heat_map_where_nothing_is_measured(tmp_path):
    """Random selection asks no client for anything."""
    participants = [RoundParticipants(1, {"a": 1}, ("a",))]
    run = write_run(tmp_path / "run", "selection.name=random", participants=participants)
    assert scores_figure(run) is None
    assert scores_figure(replace(run, participants=())) is None


def test_accuracy_is_drawn_against_the_sum_of_all_rounds():
    """Half an hour and 2 Wh a round; a line for each run."""
    figure = cost_figure(
        {"one": metrics([0.5, 0.75], 1800, 2.0), "other": metrics([0.25], 3600, 0.5)}
    )
    by_time, by_energy = figure.axes
    assert [line.get_xydata().tolist() for line in by_time.lines] == [
        [[0.5, 50], [1.0, 75]],
        [[1.0, 25]],
    ]
    assert [line.get_xydata().tolist() for line in by_energy.lines] == [
        [[2.0, 50], [4.0, 75]],
        [[0.5, 25]],
    ]
    assert [t.get_text() for t in by_time.get_legend().get_texts()] == ["one", "other"]


def test_without_devices_nothing_costs_anything():
    """One run without a clock leaves nothing to compare."""
    assert cost_figure({"one": metrics([0.5])}) is None
    assert cost_figure({"one": metrics([0.5], 1.0, 1.0), "other": metrics([0.5])}) is None
    assert cost_figure({"one": []}) is None


@pytest.mark.parametrize(
    ("settings", "rows", "participants", "more"),
    [
        ((), metrics([0.5]), (), set()),
        (("devices.preset=emnist",), metrics([0.5], 2.0, 0.1), ALL_TRAIN, {"cost.png"}),
        (("selection.name=random",), metrics([0.5]), ALL_TRAIN, {"selections.png"}),
        ((FEDPROF,), metrics([0.5]), PARTICIPANTS, {"selections.png", "scores.png"}),
    ],
)
def test_a_folder_has_the_pictures_that_it_has_something_to_show_for(
    tmp_path, settings, rows, participants, more
):
    """Accuracy and traffic always, and last."""
    run = write_run(
        tmp_path / "run", *settings, rows=rows, participants=participants, ledger=plain_match()
    )
    drawn = pictures(run)
    assert set(drawn) == {"accuracy.png", "traffic.png"} | more
    assert list(drawn)[-2:] == ["accuracy.png", "traffic.png"]
    assert all(content.startswith(b"\x89PNG") for content in drawn.values())


def test_a_picture_can_be_made_of_every_figure(record):
    """Also where no quality is known."""
    assert png(selections_figure(record)).startswith(b"\x89PNG")
    assert png(scores_figure(replace(record, qualities={}))).startswith(b"\x89PNG")


FORMULAS = (r"$\bad{$", r"_$\frac{1}{2}$", r"_\sqrt", "a\u202eb")


def test_names_from_outside_are_no_formulas_and_none_is_hidden(record, monkeypatch):
    """Of metrics, runs, kinds, clients and qualities: what matplotlib would read, or leave out."""
    name, *others = FORMULAS
    renamed = dict(zip(("client-1", "client-2", "client-3"), others, strict=True))

    def of(clients):
        return {renamed.get(client, client): value for client, value in clients.items()}

    strange = replace(
        record,
        qualities=dict(zip(others, FORMULAS, strict=False)),
        participants=tuple(
            replace(row, selected=of(row.selected), scores=of(row.scores))
            for row in record.participants
        ),
    )
    for shown in (strange, replace(strange, qualities={})):
        assert png(selections_figure(shown))
        assert png(scores_figure(shown))
    sent = [replace(entry, kind=name) for entry in plain_match()]
    assert png(plots.traffic_figure(sent))
    rounds = [replace(of, metric=name) for of in metrics([0.5, 0.6], 1.0, 1.0)]
    assert png(cost_figure(dict.fromkeys(FORMULAS, rounds)))
    drawn = []
    monkeypatch.setattr(plots, "png", drawn.append)
    plots.score_plot(dict.fromkeys(FORMULAS, rounds))
    assert png(drawn[0])
    legend = [text.get_text().strip() for text in drawn[0].axes[0].get_legend().get_texts()]
    unescaped = [text.replace(r"\$", "$") for text in legend]
    assert unescaped == [*FORMULAS[:3], r"a\u202eb"]


@pytest.mark.parametrize("rounds", [1, 3, 7, 200])
def test_rounds_are_whole(monkeypatch, rounds):
    """No tick of a plot by round lies between two rounds."""
    monkeypatch.setattr(plots, "png", lambda figure: figure)
    figure = plots.score_plot({"run": metrics([0.5] * rounds)})
    for axes in figure.axes:
        assert axes.get_xlabel() == "round"
        ticks = axes.get_xticks()
        assert np.array_equal(ticks, ticks.round())
