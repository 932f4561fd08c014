"""The one style of plots: series that can be told apart, names that do not cover each other."""

from __future__ import annotations

import itertools

import pytest

from pipeline.views.curves import Point, curve_files
from pipeline.views.plots import COLOURS, MAX_SERIES, draw, limits, looks, shorten, spread


def test_no_two_series_of_a_panel_have_a_colour_or_a_marker_in_common() -> None:
    found = list(looks([f"n{i}" for i in range(MAX_SERIES)]).values())
    for one, other in itertools.combinations(found, 2):
        assert one.colour != other.colour
        assert one.marker != other.marker


def test_where_colours_come_again_markers_do_not_come_with_them() -> None:
    found = list(looks([f"n{i}" for i in range(3 * MAX_SERIES)]).values())
    assert len({(look.colour, look.marker) for look in found}) == 3 * MAX_SERIES


def test_colours_of_the_first_four_series_differ_in_grey() -> None:
    def grey(colour: str) -> float:
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    shades = sorted(grey(c) for c in COLOURS[:4])
    assert all(b - a > 2 for a, b in itertools.pairwise(shades))


@pytest.mark.parametrize(
    "wanted", [[], [5.0], [0.0, 0.0, 0.0], [99.0, 100.0], [50, 10, 52, 51], [-20.0, 300.0]]
)
def test_names_keep_their_order_and_their_distance_and_stay_inside(wanted: list[float]) -> None:
    places = spread(wanted, 11, 100)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for a, b in itertools.pairwise(order):
        assert places[b] - places[a] >= 11 - 1e-9
    assert all(0 <= p <= 100 for p in places)


def test_names_with_room_stay_where_their_lines_end() -> None:
    assert spread([10.0, 40.0, 80.0], 11, 100) == [10.0, 40.0, 80.0]


def test_more_names_than_room_go_on_above() -> None:
    places = spread([0.0] * 20, 11, 100)
    assert places == [11.0 * i for i in range(20)]


def test_limits_hold_all_values_and_a_constant_has_room_around_it() -> None:
    low, high = limits([1.0, 3.0, float("nan")])
    assert low < 1.0
    assert high > 3.0
    low, high = limits([0.5, 0.5])
    assert low < 0.5 < high
    assert limits([]) == (0.0, 1.0)


def test_a_picture_is_the_same_for_the_same_data_whatever_was_drawn_before() -> None:
    points = [Point("train", "return/mean", i, i / 9) for i in range(9)]
    before = curve_files(points, "r")
    draw(3, 2, lambda figure: figure.subplots().plot([1, 2]))
    assert curve_files(points, "r") == before


def test_a_change_of_settings_is_a_row_and_a_line_of_the_learning_curve() -> None:
    points = [Point("train", "return/mean", i, i / 9) for i in range(9)]
    plain, marked = curve_files(points, "r"), curve_files(points, "r", [(3, "ppo.epochs: 1 → 2")])
    assert b"settings,ppo.epochs: 1 \xe2\x86\x92 2,3,,,\r\n" in marked["learning_curve.csv"]
    assert marked["learning_curve.png"] != plain["learning_curve.png"]


def test_a_run_without_any_point_and_a_name_with_dollars_make_a_picture() -> None:
    assert curve_files([], "no $points^")["learning_curve.png"].startswith(b"\x89PNG")
    files = curve_files([Point("evaluate", "dev/$a_b$", 0, 0.5, 0.4, 0.6)], "r")
    assert files["learning_curve.png"].startswith(b"\x89PNG")
    assert b"dev/$a_b$" in files["learning_curve.csv"]


def test_long_names_are_cut_and_short_ones_kept() -> None:
    assert shorten("abc") == "abc"
    assert len(shorten("x" * 100)) == 30
