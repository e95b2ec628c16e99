"""The scheduling loop: at a change it runs one cycle for each vcluster, claims what was placed, and keeps the reasons of the rest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Protocol

from lattice.daemon import starts
from lattice.daemon.clock import Clock
from lattice.daemon.guard import Failure, Guard
from lattice.daemon.logs import event
from lattice.ledger.proposals import Accepted, Claim, ProposalRefused, Verdict
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.cycle.ranges import RANGES, asks_for_more, extended
from lattice.scheduling.model.outcomes import Outcome, Placed, Waiting
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.queries.context import ABOUT_NODES
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.units import format_time
from lattice.views.allocation import Allocation
from lattice.workflow.mutexes import mutexes_of
from lattice_controllers.scheduler.committer import LedgerAccess
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.pending_work import PendingWork, ReconcileQueue

log = logging.getLogger(__name__)

GATHER_SECONDS, LONGEST_REST_SECONDS = 0.001, 0.02
"""Least time that changes gather before a cycle, and most time that a cycle waits after the end of the one before."""
PLAN_SECONDS = 0.2
"""How long the status of a placed allocation waits for the plan, which is written first because it starts the work."""
EXPLAIN_SECONDS = 0.2
"""How long a reason must stand before the status shows it: work that starts at once is then written once."""
Remember = Callable[[Sequence[Outcome]], None]


class SceneRefresher(Protocol):
    """Brings the cluster state up to date before a cycle; `CacheUpdater` is the implementation."""

    def refresh_for_cycle(self, now: float) -> float | None:
        """Updates the cluster state to `now`; returns when time alone changes it next, seconds since the epoch; None: never."""
        ...


class CycleObserver(Protocol):
    """Is shown what each cycle reads and decides: the recorder and the optimality monitor."""

    def begin_turn(self, vcluster: str, candidates: Sequence[Candidate], now: float, cycle: int) -> Remember:
        """Receives what a vcluster's cycle, number `cycle`, is about to read.

        Returns a function that is called with the cycle's outcomes before they are acted on, or never where the cycle fails.
        """
        ...


class ClaimObserver(Protocol):
    """Is told of accepted claims: the cache updater and the forecasts."""

    def claim_confirmed(self, uid: str) -> None:
        """Receives the uid of an allocation whose claim the ledger has accepted."""
        ...


class Loop:
    """Runs scheduling cycles over the pending work of all vclusters, as long as a term lasts.

    An error in a vcluster's cycle concerns that vcluster alone: its claims of this cycle are given back, its work gets the reason
    NotYetEvaluated, and it is tried again after growing pauses. Allocations whose reason changed, or whose claim was answered, are added to
    `queue`, so that the reconciler writes their status.
    """

    def __init__(
        self, clock: Clock, state: ClusterState, pending: PendingWork, metrics: SchedulerMetrics, cycle_due: asyncio.Event, *,
        refresher: SceneRefresher, ledger: LedgerAccess, allocations: Mapping[str, Allocation], queue: ReconcileQueue,
        claim_observers: Sequence[ClaimObserver] = (), cycle_observers: Sequence[CycleObserver] = (),
    ) -> None:  # fmt: skip
        self.state = state
        self.pending = pending
        self._clock = clock
        self._metrics = metrics
        self._due = cycle_due
        self._refresher = refresher
        self._ledger = ledger
        self._allocations = allocations
        self._queue = queue
        self._claim_observers = claim_observers
        self._cycle_observers = cycle_observers
        self._guard = Guard(clock, "scheduling cycle")
        self._again_at: float | None = None
        self._took, self._ended = 0.0, float("-inf")

    async def run(self) -> None:
        """Runs cycles until cancelled: soon after `cycle_due` is set, and at the latest after the shortest interval of the vclusters.

        While the ledger is paused it runs none; without pending work it only brings the cluster state up to date.
        """
        async with asyncio.TaskGroup() as answers:
            while True:
                try:
                    async with asyncio.timeout(self._pause()):
                        await self._due.wait()
                        await self._gather()
                except TimeoutError:
                    pass  # the interval is over
                self._due.clear()
                if self._ledger.paused:
                    continue
                if self.pending.candidates:
                    self._cycle(answers)
                else:
                    self._refresher.refresh_for_cycle(self._clock.now())  # what-ifs read the cluster state while nothing waits

    async def _gather(self) -> None:
        """Waits a moment so that changes gather: 1 ms, or until the last cycle's end is as long ago as that cycle took, 20 ms at most."""
        rest = self._ended + min(self._took, LONGEST_REST_SECONDS) - self._clock.monotonic()
        await self._clock.sleep(max(GATHER_SECONDS, rest))

    def _pause(self) -> float:
        """Returns the longest wait for the next cycle, in seconds, if nothing changes: the shortest interval of the vclusters with work
        (1 s without any), or less where work is to be judged again before.
        """
        longest = min((self.state.policy(vcluster).interval for vcluster in self.pending.known_vclusters()), default=1.0)
        return longest if self._again_at is None else max(0.01, min(longest, self._again_at - self._clock.now()))

    def _order(self) -> list[str]:
        """Returns the vclusters in the order of their turns: those that lend before those that borrow, the latter by their priority."""
        borrowing = {vcluster: self.state.policy(vcluster).borrowing for vcluster in self.pending.known_vclusters()}
        return sorted(borrowing, key=lambda name: (borrowing[name].borrow, -borrowing[name].priority, name))

    def _cycle(self, answers: asyncio.TaskGroup) -> None:
        """Runs one round: updates the cluster state, gives every vcluster its turn, extends ranges, and proposes what was placed to the
        ledger.

        A vcluster whose turn fails, or pauses after a failure, has its work marked NotYetEvaluated. `answers`: the group in which the
        ledger's answers are awaited.
        """
        self.pending.cycles += 1
        began, now = self._clock.monotonic(), self._clock.now()
        wakes = [self._refresher.refresh_for_cycle(now)]
        if self.state.quota_usage is not None:
            for vcluster in self.pending.known_vclusters():  # what everybody asks for is known before anybody is admitted
                self.state.quota_usage.ask(self.pending.queue(vcluster), now)
        placed: list[Placed] = []
        for vcluster in self._order():
            failure = self._guard.waits(vcluster) or self._turn(vcluster, now, placed, wakes)
            if failure is not None:
                self._unjudged(vcluster, failure)
                wakes.append(now + max(0.0, failure.due - self._clock.monotonic()))
        self._extend(placed, now)
        for one in placed:
            starts.reached(self._clock, "queue", one.candidate.uid, at=began)
            self._claim(one, answers)
            starts.reached(self._clock, "cycle", one.candidate.uid)
        for vcluster in self.pending.remove_empty_queues():
            self._guard.drop(vcluster)
        self._again_at = min((wake for wake in wakes if wake is not None), default=None)
        self._ended = self._clock.monotonic()
        self._took = self._ended - began

    def _extend(self, placed: Sequence[Placed], now: float) -> None:
        """Gives placed ranges more of the nodes still free after every vcluster's turn, by changing `placed` and the cluster state; nothing
        where no range was placed.

        Observers are shown it as a turn of its own, `RANGES`; where it fails, the ranges keep what their turns gave them.
        """
        ranges = [one.candidate for one in placed if asks_for_more(one)]
        if not ranges:
            return
        self.state.set_waiting(name for name in self.pending.known_vclusters() if self._waits_for_nodes(name))
        remember = self._begin_turn(RANGES, ranges, now)
        found: list[Placed] = []
        if self._guard.attempt(RANGES, lambda: found.extend(extended(self.state, ranges, now))) is None:
            remember(found)
        more = {one.candidate.uid: one.nodes for one in found}
        for one in placed:
            one.nodes = more.get(one.candidate.uid, one.nodes)
            if one.candidate.uid not in self.state.holders:  # it failed in between
                self.state.claim(one.candidate, one.nodes, now)

    def _waits_for_nodes(self, vcluster: str) -> bool:
        """Tells whether a vcluster has pending work left that waits for nodes, or that no cycle has judged yet."""
        holders, reasons = self.state.holders, self.pending.reasons
        said = (reasons.get(one.uid) for one in self.pending.queue(vcluster) if one.uid not in holders)
        return any(one is None or one.reason in ABOUT_NODES for one in said)

    def _turn(self, vcluster: str, now: float, placed: list[Placed], wakes: list[float | None]) -> Failure | None:
        """Runs the cycle of one vcluster, decided as a whole before any of it is acted on; returns None, or its failure, which is counted
        and gives back its claims and reservations.

        What was placed is appended to `placed`, the times at which waiting work should be judged again to `wakes`.
        """
        began = self._clock.monotonic()
        queue = list(self.pending.queue(vcluster))
        reservations = dict(self.state.backfill_reservations.get(vcluster, {}))
        remember = self._begin_turn(vcluster, queue, now)
        outcomes: list[Outcome] = []
        failure = self._guard.attempt(vcluster, lambda: outcomes.extend(decide(self.state, vcluster, queue, now)))
        if failure is not None:
            self._metrics.cycle_failures.labels(vcluster).inc()
            self.state.drop_claims(candidate.uid for candidate in queue)
            self.state.restore_reservations(vcluster, reservations)
            return failure
        remember(outcomes)
        self._follow_moves(vcluster)
        for outcome in outcomes:
            match outcome:
                case Placed():
                    placed.append(outcome)
                    if self.state.quota_usage is not None:
                        self.state.quota_usage.drop(outcome.candidate.uid)
                case Waiting():
                    self._wait(outcome)
                    wakes.append(outcome.wake)
        self._metrics.cycle_seconds.labels(vcluster).observe(self._clock.monotonic() - began)
        return None

    def _unjudged(self, vcluster: str, failure: Failure) -> None:
        """Gives all pending work of a vcluster whose cycle has failed the reason NotYetEvaluated, and enqueues it where its status is to
        show that.
        """
        times = "once" if failure.count == 1 else f"{failure.count} times in a row"
        message = (
            f'the scheduling cycle of vCluster "{vcluster}" has failed {times} ({failure.reason}) and is tried again; '
            "other vClusters go on; operators find the cause in the scheduler's log"
        )
        for candidate in list(self.pending.queue(vcluster)):
            self._wait(Waiting(candidate, "NotYetEvaluated", message))

    def _claim(self, placed: Placed, answers: asyncio.TaskGroup) -> None:
        """Proposes a placement to the ledger as a claim, and takes its candidate out of the queue until the answer; gives the nodes back
        where the object is gone.
        """
        candidate, nodes = placed.candidate, placed.nodes
        allocation = self._allocations.get(candidate.uid)
        self.pending.withdraw(candidate.uid)
        if allocation is None:
            self.state.drop_holder(candidate.uid)
            return
        self.pending.claiming.add(candidate.uid)
        if placed.score is not None:
            self.pending.scores[candidate.uid] = placed.score
        if placed.backfilled:
            self._metrics.backfilled.labels(candidate.vcluster).inc()
        answer = self._ledger.propose(
            Claim(
                uid=candidate.uid,
                attempt=max(1, allocation.status.attempt),
                generation=allocation.metadata.generation,
                user=allocation.spec.user,
                tenant=candidate.tenant,
                vcluster=candidate.vcluster,
                kind=allocation.spec.lifecycle.type[0],
                reporter=nodes[0],
                nodes=nodes,
                sensitive=candidate.sensitive,
                walltime=None if candidate.walltime is None else ceil(candidate.walltime),
                mutex="+".join(mutexes_of(allocation)),
            )
        )
        answers.create_task(self._claimed(candidate, answer))

    async def _claimed(self, candidate: Candidate, answer: asyncio.Future[Verdict]) -> None:
        """Awaits the ledger's verdict on a claim: tells observers where it is accepted, else gives the nodes back and makes a cycle due;
        counts either.

        Enqueues the allocation either way, so that its status is written: at once, but 0.2 s later where the claim is accepted, so that
        its plan comes first.
        """
        verdict = await answer
        self.pending.claiming.discard(candidate.uid)
        accepted = isinstance(verdict, Accepted)
        self._metrics.proposals.labels(candidate.vcluster, "accepted" if accepted else "rejected").inc()
        if accepted:
            self._metrics.placements.labels(candidate.vcluster).inc()
            for observer in self._claim_observers:
                observer.claim_confirmed(candidate.uid)
        else:
            self.state.drop_holder(candidate.uid)
            self._due.set()
            if isinstance(verdict, ProposalRefused):
                event(log, "The ledger refused a claim", allocation=candidate.key, reason=verdict.reason, message=verdict.message)
        self._queue.add(candidate.uid, PLAN_SECONDS if accepted else 0.0)

    def _follow_moves(self, vcluster: str) -> None:
        """Keeps, counts and logs the backfill reservations that this vcluster's cycle moved later or dropped."""
        for move in self.state.moves.get(vcluster, ()):
            self.pending.moves[move.uid] = move
            self._metrics.reservation_moves.labels(vcluster, move.cause).inc()
            candidate = self.pending.candidates.get(move.uid)
            after = "gone" if move.after is None else format_time(move.after)
            key = candidate.key if candidate is not None else move.uid
            event(log, "A reservation moved", allocation=key, reason=move.cause, before=format_time(move.before), after=after)

    def _wait(self, waiting: Waiting) -> None:
        """Keeps the reason that a cycle found for a candidate, and enqueues the allocation where its status is to show it, in 0.2 s."""
        if self.pending.record_reason(waiting):
            self._queue.add(waiting.candidate.uid, EXPLAIN_SECONDS, late=True)

    def _begin_turn(self, vcluster: str, queue: Sequence[Candidate], now: float) -> Remember:
        """Shows the observers what a turn is about to read; returns a function that shows all of them its outcomes."""
        remembering = [observer.begin_turn(vcluster, queue, now, self.pending.cycles) for observer in self._cycle_observers]
        return partial(_remember_all, remembering)


def _remember_all(remembering: Sequence[Remember], outcomes: Sequence[Outcome]) -> None:
    """Shows the outcomes of a turn to every observer."""
    for remember in remembering:
        remember(outcomes)
