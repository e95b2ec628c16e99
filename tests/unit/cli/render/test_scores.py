"""The score of an allocation as people read it: by factor in `why`, in one column of the wide list, in the details."""

from __future__ import annotations

import json
from typing import Any

from lattice.cli.render.answers import score_lines
from lattice.kube.resources import VCLUSTERS
from lattice.models.conditions import SCHEDULED
from lattice.scheduling.queries.answers import Ranking
from lattice.units import format_time
from tests.unit.cli.conftest import NOW, Bench

TERMS = {
    "f1": "0.500",
    "f2": "0.135",
    "f3": "1.000",
    "f4": "0.800",
    "f5": "0.500",
    "f6": "1.000",
    "f7": "0.500",
    "f8": "0.167",
    "f9": "1.000",
}
SINCE = format_time(NOW - 300)


def waiting(total: str = "0.650") -> dict[str, Any]:
    """A status of one that waits, scored with the balanced weights: 0.647 points."""
    condition = {"type": SCHEDULED, "status": "False", "reason": "WaitingForNodes", "message": "needs 4", "lastTransitionTime": SINCE}
    return {"number": 2, "phase": "Pending", "conditions": [condition], "score": {"total": total, "terms": TERMS}}


def test_why_shows_value_weight_and_points_of_each_factor_that_counts(bench: Bench) -> None:
    bench.cluster.create(VCLUSTERS, {"metadata": {"name": "hpc-batch"}, "spec": {}})
    bench.allocation("b", number=2, status=waiting("0.647"))
    lines = [line.strip() for line in bench.run("why", "2").out.splitlines()]
    assert "Score:  0.647" in lines
    at = lines.index("Score:  0.647")
    assert [line.split() for line in lines[at + 1 : at + 9]] == [
        ["FACTOR", "VALUE", "WEIGHT", "POINTS"],
        ["class", "0.500", "0.200", "0.100"],
        ["waiting", "0.135", "0.200", "0.027"],
        ["fair", "share", "1.000", "0.200", "0.200"],
        ["topology", "0.800", "0.150", "0.120"],
        ["data", "0.500", "0.100", "0.050"],
        ["backlog", "1.000", "0.050", "0.050"],
        ["conformance", "1.000", "0.100", "0.100"],
    ]


def test_a_budget_that_takes_from_the_score_is_said(bench: Bench) -> None:
    bench.cluster.create(VCLUSTERS, {"metadata": {"name": "hpc-batch"}, "spec": {}})
    bench.allocation("b", number=2, status=waiting("0.324"))
    assert "0.324, of which the tenant's budget leaves 50.1%" in bench.run("why", "2").out
    assert json.loads(bench.run("why", "2", "-o", "json").out)["score"]["multiplier"] == 0.501


def test_without_the_vcluster_the_values_are_shown_without_weights(bench: Bench) -> None:
    bench.allocation("b", number=2, status=waiting())
    out = bench.run("why", "2").out
    assert "FACTOR" in out
    assert "WEIGHT" not in out


def test_the_wide_list_and_the_details_show_the_total(bench: Bench) -> None:
    bench.allocation("b", number=2, status=waiting())
    head, row = bench.run("status", "-o", "wide").out.splitlines()[:2]
    assert "SCORE" in head.split()
    assert "0.650" in row.split()
    assert "Score:" in bench.run("status", "2").out
    assert "0.650" not in bench.run("status").out


def test_nothing_is_shown_of_what_was_never_scored() -> None:
    assert score_lines(None) == []
    assert score_lines(Ranking(total=0.5)) == ["0.500"]
