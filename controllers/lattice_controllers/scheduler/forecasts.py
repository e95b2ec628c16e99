"""Forecasts of the start of all pending work: made beside the cycles, learnt from what ends, scored when work starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from lattice.daemon.clock import Clock
from lattice.daemon.guard import Guard
from lattice.lifecycle.conditions import condition
from lattice.models.conditions import FINISHED
from lattice.scheduling.forecast.forecaster import Expected, Forecaster, foresee, work_of
from lattice.scheduling.model.outcomes import Waiting
from lattice.scheduling.model.strategies import strategy_of
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.queries.situation import planned
from lattice.units import parse_time
from lattice.views.allocation import Allocation
from lattice_controllers.scheduler.loop import Loop
from lattice_controllers.scheduler.metrics import SchedulerMetrics

FORECAST_SECONDS = 2.0
"""Between two forecasts, where a cycle ran in between."""
RAN = frozenset({"Completed", "TaskFailed", "WalltimeExceeded"})
"""Ends that tell how long such work runs."""


class Forecasts:
    """The forecaster of one term; `took` hears of each new forecast, by uid."""

    def __init__(
        self, clock: Clock, loop: Loop, metrics: SchedulerMetrics, *, candidate: Callable[[Allocation], Candidate],
        took: Callable[[Mapping[str, Expected]], object], stopped: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.forecaster = Forecaster()
        self._clock = clock
        self._loop = loop
        self._metrics = metrics
        self._candidate = candidate
        self._took = took
        self._stopped = stopped
        self._learnt: set[str] = set()
        self._turn = asyncio.Lock()
        self._guard = Guard(clock, "forecast")

    async def run(self) -> None:
        """Foresee until cancelled; the long part runs in a thread, so that no cycle waits for it."""
        seen = -1
        while True:
            await self._clock.sleep(FORECAST_SECONDS)
            if self._loop.cycles != seen and self._loop.candidates and not self._loop.awaiting_nodes and not self._stopped():
                seen = self._loop.cycles
                if self._guard.waits("") is None:
                    async with self._turn:
                        await self._guard.attempt_async("", self._foresee)

    async def suppose(self, outcomes: Sequence[Waiting]) -> dict[str, Expected]:
        """When work that is not submitted would start, given what the planner said of it; nothing of it is remembered."""
        async with self._turn:
            loop, now = self._loop, self._clock.now()
            names = {*loop.vclusters(), *(outcome.candidate.vcluster for outcome in outcomes)}
            queues = {name: in_line(loop, name, outcomes) for name in names}
            view = self.forecaster.look(loop.scene, queues, now, [*loop.reasons.values(), *outcomes])
            foreseen = await asyncio.to_thread(foresee, view, self.forecaster.run_times)
            return self.forecaster.suppose(view, foreseen, [outcome.candidate.uid for outcome in outcomes])

    async def _foresee(self) -> None:
        began, loop = self._clock.monotonic(), self._loop
        queues = {name: in_line(loop, name) for name in loop.vclusters()}
        view = self.forecaster.look(loop.scene, queues, self._clock.now(), list(loop.reasons.values()))
        foreseen = await asyncio.to_thread(foresee, view, self.forecaster.run_times)
        found = self.forecaster.conclude(view, foreseen)
        self._took({uid: expected for uid, expected in found.items() if uid in loop.candidates})
        self._metrics.forecast_seconds.observe(self._clock.monotonic() - began)

    # -- what came true -----------------------------------------------------------------------------

    def started(self, uid: str) -> None:
        """The ledger gave it nodes: its predictions are scored."""
        kept = self.forecaster.started(uid, self._clock.now())
        if kept is None:
            return
        self._metrics.eta_error.labels("first").observe(abs(kept.first_error))
        self._metrics.eta_error.labels("last").observe(abs(kept.last_error))
        coverage = self.forecaster.calibration.coverage
        if coverage is not None:
            self._metrics.eta_coverage.set(coverage)

    def learn(self, allocation: Allocation) -> None:
        """An end teaches how long such work runs; told twice, it counts once."""
        status, uid = allocation.status, allocation.metadata.uid
        finished = condition(status.conditions, FINISHED)
        if finished is None or finished.reason not in RAN or not status.start_time or not status.end_time or uid in self._learnt:
            return
        candidate = self._candidate(allocation)
        if candidate.walltime is not None:
            self._learnt.add(uid)
            ran = max(0.0, parse_time(status.end_time) - parse_time(status.start_time))
            self.forecaster.learn(work_of(candidate, status.node_count, candidate.walltime), ran)

    def drop_allocation(self, uid: str) -> None:
        """Its object is gone."""
        self._learnt.discard(uid)
        self.forecaster.forget(uid)

    def load(self, allocations: Iterable[Allocation]) -> None:
        """What ended before this term, in the order in which it did."""
        for allocation in sorted(allocations, key=lambda one: (one.status.end_time or "", one.metadata.uid)):
            self.learn(allocation)


def in_line(loop: Loop, vcluster: str, more: Sequence[Waiting] = ()) -> list[Candidate]:
    """The queue of a vcluster in the order in which a cycle plans it, and `more` work among it by its score."""
    scores = {**loop.scores, **{outcome.candidate.uid: outcome.score for outcome in more if outcome.score is not None}}
    queue = [*loop.queue(vcluster), *(outcome.candidate for outcome in more if outcome.candidate.vcluster == vcluster)]
    if strategy_of(loop.scene.policy(vcluster)).first_come:
        queue.sort(key=lambda one: (one.submitted, one.key))
    else:
        queue.sort(key=lambda one: (-scores[one.uid].total if one.uid in scores else 0.0, one.submitted, one.key))
    return planned(loop.scene, vcluster, queue)
