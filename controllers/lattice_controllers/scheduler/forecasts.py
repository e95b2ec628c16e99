"""Forecasts the start of all pending work beside the cycles; learns run times from work that ends, and scores itself as work starts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from lattice.daemon.clock import Clock
from lattice.daemon.guard import Guard
from lattice.lifecycle.conditions import condition
from lattice.models.conditions import FINISHED
from lattice.scheduling.forecast.forecaster import Expected, Forecaster, features_of, foresee
from lattice.scheduling.model.outcomes import Waiting
from lattice.scheduling.model.strategies import strategy_of
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.queries import context
from lattice.scheduling.queries.context import planned
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.units import parse_time
from lattice.views.allocation import Allocation
from lattice_controllers.scheduler.committer import LedgerAccess
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.pending_work import CandidateSource, PendingWork

FORECAST_SECONDS = 2.0
"""Time between two forecasts; none is made where no cycle ran in between."""
RAN = frozenset({"Completed", "OutOfMemory", "TaskFailed", "WalltimeExceeded"})
"""Reasons of an end that tell how long such work runs: the work was not stopped from outside."""


class ForecastReceiver(Protocol):
    """Keeps the last forecast and shows it to people; `Expectations` is the implementation."""

    @property
    def found(self) -> Mapping[str, context.Expected]:
        """Returns the last forecast, by uid of the pending allocation; empty before the first."""
        ...

    def accept_forecast(self, found: Mapping[str, Expected]) -> int:
        """Replaces the forecast, by uid; returns how many allocations are enqueued for a write of their status because of it."""
        ...


class Forecasts:
    """Runs the forecaster during one term, and gives each new forecast to `expectations`."""

    def __init__(
        self, clock: Clock, state: ClusterState, pending: PendingWork, metrics: SchedulerMetrics, *, ledger: LedgerAccess,
        candidates: CandidateSource, expectations: ForecastReceiver,
    ) -> None:  # fmt: skip
        self.forecaster = Forecaster()
        self._clock = clock
        self._state = state
        self._pending = pending
        self._metrics = metrics
        self._ledger = ledger
        self._candidates = candidates
        self._expectations = expectations
        self._learnt: set[str] = set()
        self._turn = asyncio.Lock()
        self._guard = Guard(clock, "forecast")

    async def run(self) -> None:
        """Makes a forecast every 2 s, until cancelled, where a cycle has run since, work is pending, no cycle awaits nodes, and the ledger
        is not paused; the long part runs in a thread.

        A failed forecast is logged, and the next one delayed.
        """
        seen = -1
        while True:
            await self._clock.sleep(FORECAST_SECONDS)
            pending = self._pending
            if pending.cycles != seen and pending.candidates and not pending.awaiting_nodes and not self._ledger.paused:
                seen = pending.cycles
                if self._guard.waits("") is None:
                    async with self._turn:
                        await self._guard.attempt_async("", self._foresee)

    @property
    def found(self) -> Mapping[str, context.Expected]:
        """Returns the last forecast of all pending work, by uid; empty before the first."""
        return self._expectations.found

    async def suppose(self, outcomes: Sequence[Waiting]) -> dict[str, Expected]:
        """Returns, by uid, when work that is not submitted would start; `outcomes` are what a planned cycle said of that work.

        The forecast of pending work is made anew for it, in a thread, and not kept.
        """
        async with self._turn:
            pending, now = self._pending, self._clock.now()
            names = {*pending.vclusters(), *(outcome.candidate.vcluster for outcome in outcomes)}
            queues = {name: in_line(self._state, pending, name, outcomes) for name in names}
            snapshot = self.forecaster.take_snapshot(self._state, queues, now, [*pending.reasons.values(), *outcomes])
            foreseen = await asyncio.to_thread(foresee, snapshot, self.forecaster.run_times)
            return self.forecaster.suppose(snapshot, foreseen, [outcome.candidate.uid for outcome in outcomes])

    async def _foresee(self) -> None:
        """Makes one forecast of all pending work, its long part in a thread, hands it to `expectations`, and measures the time."""
        began, pending = self._clock.monotonic(), self._pending
        queues = {name: in_line(self._state, pending, name) for name in pending.vclusters()}
        snapshot = self.forecaster.take_snapshot(self._state, queues, self._clock.now(), list(pending.reasons.values()))
        foreseen = await asyncio.to_thread(foresee, snapshot, self.forecaster.run_times)
        found = self.forecaster.conclude(snapshot, foreseen)
        self._expectations.accept_forecast({uid: expected for uid, expected in found.items() if uid in pending.candidates})
        self._metrics.forecast_seconds.observe(self._clock.monotonic() - began)

    # -- what came true -----------------------------------------------------------------------------

    def claim_confirmed(self, uid: str) -> None:
        """Scores, in metrics, the first and the last forecast of an allocation, by uid, that the ledger has just given nodes.

        An allocation without a forecast is passed over.
        """
        kept = self.forecaster.started(uid, self._clock.now())
        if kept is None:
            return
        self._metrics.eta_error.labels("first").observe(abs(kept.first_error))
        self._metrics.eta_error.labels("last").observe(abs(kept.last_error))
        coverage = self.forecaster.calibration.coverage
        if coverage is not None:
            self._metrics.eta_coverage.set(coverage)

    def learn(self, allocation: Allocation) -> None:
        """Learns the run time of an allocation that has ended by itself or at its walltime, once each.

        Every other one, and one without a walltime, is passed over.
        """
        status, uid = allocation.status, allocation.metadata.uid
        finished = condition(status.conditions, FINISHED)
        if finished is None or finished.reason not in RAN or not status.start_time or not status.end_time or uid in self._learnt:
            return
        candidate = self._candidates.candidate(allocation)
        if candidate.walltime is not None:
            self._learnt.add(uid)
            ran = max(0.0, parse_time(status.end_time) - parse_time(status.start_time))
            self.forecaster.learn(features_of(candidate, status.node_count, candidate.walltime), ran)

    def drop_allocation(self, uid: str) -> None:
        """Drops the predictions of the start of an allocation, by uid, whose object is gone, and the note that its run time was learnt."""
        self._learnt.discard(uid)
        self.forecaster.drop_allocation(uid)

    def learn_from(self, allocations: Iterable[Allocation]) -> None:
        """Learns, as `learn` does, from all of these allocations that have ended, in the order of their ends."""
        for allocation in sorted(allocations, key=lambda one: (one.status.end_time or "", one.metadata.uid)):
            self.learn(allocation)


def in_line(state: ClusterState, pending: PendingWork, vcluster: str, more: Sequence[Waiting] = ()) -> list[Candidate]:
    """Returns the candidates of a vcluster in the order in which a cycle considers them: by score, or by submission if the policy says so.

    Holders of backfill reservations come before others. `more` are outcomes of work that is not submitted, sorted in among the rest.
    """
    scores = {**pending.scores, **{outcome.candidate.uid: outcome.score for outcome in more if outcome.score is not None}}
    queue = [*pending.queue(vcluster), *(outcome.candidate for outcome in more if outcome.candidate.vcluster == vcluster)]
    if strategy_of(state.policy(vcluster)).first_come:
        queue.sort(key=lambda one: (one.submitted, one.key))
    else:
        queue.sort(key=lambda one: (-scores[one.uid].total if one.uid in scores else 0.0, one.submitted, one.key))
    return planned(state, vcluster, queue)
