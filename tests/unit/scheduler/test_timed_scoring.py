"""The cost function is timed where it is asked, and scores as it does without a watch."""

from __future__ import annotations

from lattice.daemon.clock import ManualClock
from lattice.scheduling.policy import Policy
from lattice.scheduling.scoring import Scoring
from lattice.scheduling.shares import Shares, Standing
from lattice_controllers.scheduler.timed_scoring import TimedScoring
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
    clock, took = ManualClock(NOW), list[tuple[str, float]]()
    made = TimedScoring({"hpc": Policy("hpc")}, clock, lambda vcluster, seconds: took.append((vcluster, round(seconds, 6))))
    made.shares = SlowShares(clock)
    queue, machine = [pending(1, 0), pending(2, 2)], moment(4).scene.machine
    scores = list(made.score(queue, machine, NOW))
    assert took == [("hpc", 0.5)], "two tenants were asked about"
    assert scores == list(Scoring(policies={"hpc": Policy("hpc")}).score(queue, machine, NOW))
    made.score([], machine, NOW)
    assert len(took) == 1, "nothing was scored"
