"""The scenes of fairness in small: the aims that `lattice-dev bench fairness` holds a whole machine against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from lattice_dev.bench import fairness, scenes
from lattice_dev.bench.fairness import FairnessSize
from lattice_dev.bench.figures import Figure

SMALL = FairnessSize(nodes=32, days=2.5, crowd=400, jobs=0)


@pytest.mark.parametrize(
    "scene", [pytest.param(fairness.wide, id="a job on all nodes"), pytest.param(fairness.crowd, id="a colleague's crowd")]
)
def test_nobody_waits_long_for_being_wide_or_for_a_colleague(scene: Callable[[FairnessSize], Iterator[Figure]]) -> None:
    size = replace(SMALL, days=1.3)
    assert {figure.name: (figure.value, figure.detail) for figure in scene(size) if not figure.met} == {}


def test_shares_count_between_tenants_that_are_all_above_their_target() -> None:
    log = scenes.shares(SMALL.days, (0.1, 0.7, 0.7), SMALL.nodes)
    found = fairness.used_by(fairness.play(log, SMALL.nodes), SMALL, lambda one: one.job.tenant)
    assert found["b"] > 1.4 * found["c"]


def test_no_reservation_of_a_made_log_is_lost_late_or_moved() -> None:
    done = fairness.play(scenes.made(600, 0.95, 3, 32), 32)
    tally = done.reservations
    assert tally.given > 100
    assert (tally.lost, tally.late, tally.moved) == (0, 0, {})
