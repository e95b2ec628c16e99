"""The cost function is timed where it finds the totals, and scores as it does without a stopwatch."""

from __future__ import annotations

from functools import partial

import pytest

from lattice.daemon.clock import ManualClock
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.priority.scoring import Scoring
from lattice.scheduling.priority.shares import Shares, Standing
from lattice_controllers.scheduler.metrics import SchedulerMetrics, observe_seconds
from tests.unit.scheduling.moments import NOW, moment, pending


class SlowShares(Shares):
    """Shares of which each answer takes a quarter of a second."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def standing(self, tenant: str, now: float) -> Standing:
        """The standing, after a while."""
        self._clock.advance(0.25)
        return super().standing(tenant, now)


def test_the_time_of_the_cost_function_is_that_of_finding_out_every_total() -> None:
    clock, metrics = ManualClock(NOW), SchedulerMetrics()

    def took(part: str) -> float | None:
        name = f"lattice_scheduling_cost_function_duration_seconds_{part}"
        return metrics.registry.get_sample_value(name, {"vcluster": "hpc"})

    made = Scoring(policies={"hpc": Policy("hpc")}, timed=partial(observe_seconds, clock, metrics.cost_seconds))
    made.shares = SlowShares(clock)
    queue, node_cache = [pending(1, 0), pending(2, 2)], moment(4).state.node_cache
    scores = list(made.score(queue, node_cache, NOW))
    assert took("sum") == pytest.approx(0.5), "two tenants were asked about"
    assert scores == list(Scoring(policies={"hpc": Policy("hpc")}).score(queue, node_cache, NOW))
    assert made.score([], node_cache, NOW).totals == []
    assert took("count") == 1, "nothing was scored"
