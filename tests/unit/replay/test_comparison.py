"""The summary that people read: arrows, units, and reports that are none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lattice.errors import Rejected
from lattice.replay.comparison import change, check_report, summary
from lattice.replay.measures import Measures, Replayed, measure
from lattice.replay.plain import alike

from .test_measures import ran


def found(name: str = "base") -> Measures:
    return measure(name, Replayed(alike(4), [ran("a", 0, 0, 3600, 2), ran("b", 0, 3600, 7200, 4)]), {}, 1800.0)


@pytest.mark.parametrize(
    ("before", "after", "points", "shown"),
    [
        (10, 12, False, "↑ 20%"),
        (2.5, 2.1, False, "↓ 16%"),
        (0.844, 0.823, True, "↓ 2.1%"),
        (5, 5, False, "="),
        (0, 3, False, "↑ from 0"),
        (1000, 1001, False, "="),
    ],
)
def test_a_change_is_an_arrow_and_how_much(before: float, after: float, points: bool, shown: str) -> None:
    assert change(before, after, points=points) == shown


def test_a_summary_says_every_section_and_what_is_not_executed() -> None:
    lines = summary(found().document())
    assert lines[0] == "=== RM-Replay Results: base ==="
    assert [line for line in lines if line.endswith(":") and not line.startswith(" ")] == [
        "Utilisation:", "Wait time:", "Fairness (Jain's index):", "Tenant share deviation:", "Backfill:", "Reservations:", "Preemptions:", "Target wait:",
    ]  # fmt: skip
    assert "  not executed yet: the replay starts and ends work, it preempts none" in lines
    assert "  50.0% of the jobs waited at most 30m" in lines


def test_a_comparison_shows_the_other_number_and_the_change() -> None:
    other = replace(found("boost"), utilisation=0.5, backfilled=3).document()
    lines = summary(other, found().document())
    assert "  of all node-hours: 50.0% (base: 75.0%) ↓ 25.0%" in lines
    assert "  backfilled jobs: 3 (base: 0) ↑ from 0" in lines


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ([], "r.json is no report of a replay"),
        ({"kind": "ReplayReport", "format": 2}, "r.json is a report of format 2, this program reads format 1"),
        ({"kind": "ReplayReport", "format": 1}, "r.json is a report that lacks 'jobs'"),
    ],
)
def test_what_is_no_report_is_refused(document: object, sentence: str) -> None:
    with pytest.raises(Rejected, match=sentence):
        check_report(document, "r.json")
