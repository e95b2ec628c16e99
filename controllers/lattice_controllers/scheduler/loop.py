"""The cycle: wakes at a change, asks `lattice.scheduling` for each vcluster, proposes what it placed, keeps what it explained."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from math import ceil

from lattice.daemon.clock import Clock
from lattice.daemon.guard import Failure, Guard
from lattice.daemon.logs import event
from lattice.ledger.proposals import Accepted, Claim, Proposal, Refused, Verdict
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.cycle.ranges import RANGES, asks_for_more, extended
from lattice.scheduling.model.outcomes import Outcome, Placed, Score, Waiting
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.queries.situation import ABOUT_NODES
from lattice.scheduling.state.reserved import Move
from lattice.scheduling.state.scene import Scene
from lattice.units import format_time, parse_time
from lattice.views.allocation import Allocation
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.write_budget import WriteBudget

log = logging.getLogger(__name__)

DEBOUNCE_SECONDS, LONGEST_DEBOUNCE_SECONDS = 0.004, 0.02
"""How long changes gather before a cycle: as long as the last cycle took, between these two."""
EXPLAIN_AGAIN_SECONDS = 30.0
OF_NODES = frozenset({"WaitingForNodes", "NodesUnavailable", "BehindHigherPriority", "NeverFits"})
"""Reasons that may be gone as soon as the nodes were heard."""
Look = Callable[[str, Sequence[Candidate], float], Callable[[Sequence[Outcome]], None]]
"""The recorder's: a vcluster, what waits there, now."""


class Loop:
    """Pending work and its cycles.

    `ready` brings the scene up to date and says when time alone changes it next; `explained` hears of uids whose reason is
    to be shown, `placed` of those whose claim was answered, `confirmed` of those that the ledger holds now, `judged` of what
    a cycle decided, before it is acted on. A cycle that raises concerns its vcluster alone: what it claimed is given back, its
    work is shown as not evaluated, and it is tried again later and later; the other vclusters go on. `look` sees what a cycle is
    about to read, and what it answers hears what was decided.
    """

    def __init__(
        self, clock: Clock, scene: Scene, metrics: SchedulerMetrics, *,
        ready: Callable[[float], float | None], propose: Callable[[Proposal], asyncio.Future[Verdict]],
        allocation: Callable[[str], Allocation | None], explained: Callable[[str], None], placed: Callable[[str], None],
        confirmed: Callable[[str], None], stopped: Callable[[], bool],
        judged: Callable[[str, Sequence[Outcome]], None] = lambda _vcluster, _outcomes: None,
        look: Look = lambda _vcluster, _queue, _now: lambda _outcomes: None, budget: WriteBudget | None = None,
    ) -> None:  # fmt: skip
        self.scene = scene
        self.cycles = 0
        self.candidates: dict[str, Candidate] = {}
        self.claiming: set[str] = set()
        self.reasons: dict[str, Waiting] = {}
        self.scores: dict[str, Score] = {}
        """Of what waits, and of what was placed until its status says so (`clear_placed`)."""
        self.awaiting_nodes = False
        """Whether this process has only just begun to listen: that work waits for nodes is no news yet."""
        self._clock = clock
        self._metrics = metrics
        self._ready = ready
        self._propose = propose
        self._allocation = allocation
        self._explained = explained
        self._placed = placed
        self._confirmed = confirmed
        self._stopped = stopped
        self._judged = judged
        self._look = look
        self._budget = budget or WriteBudget(clock)
        self._guard = Guard(clock, "scheduling cycle")
        self._wake = asyncio.Event()
        self._again_at: float | None = None
        self._took = 0.0
        self._queues: dict[str, dict[str, Candidate]] = {}
        self._shown: dict[str, tuple[Waiting, float]] = {}
        self._reserved: dict[str, float] = {}
        """When reservations were given, as statuses were told."""
        self.moves: dict[str, Move] = {}
        """How the reservation of pending work was moved later last, by uid."""

    def wake(self) -> None:
        """Something changed: run a cycle at once."""
        self._wake.set()

    def enqueue(self, candidate: Candidate) -> None:
        """It waits for nodes."""
        known = self.candidates.get(candidate.uid)
        if candidate.uid in self.claiming or known == candidate:
            return
        if known is None:
            self._inherit(candidate)
        elif known.vcluster != candidate.vcluster:
            self._leave(known)
        self.candidates[candidate.uid] = candidate
        queue = self._queues.setdefault(candidate.vcluster, {})
        queue[candidate.uid] = candidate
        self._metrics.queue_depth.labels(candidate.vcluster).set(len(queue))
        self.wake()

    def _inherit(self, candidate: Candidate) -> None:
        """Takes over the reservation that its status names: an earlier scheduler gave it, or this one before it was on nodes."""
        allocation = self._allocation(candidate.uid)
        given = allocation.status.reserved_at if allocation is not None else None
        if given:
            self.scene.inherit(candidate.vcluster, candidate.uid, parse_time(given))

    def withdraw(self, uid: str) -> None:
        """It does not wait any more."""
        if self.scene.elastic is not None:
            self.scene.elastic.drop(uid)
        candidate = self.candidates.pop(uid, None)
        if candidate is not None:
            self._leave(candidate)
            self.scores.pop(uid, None)
        self.reasons.pop(uid, None)
        self._shown.pop(uid, None)
        self._reserved.pop(uid, None)
        self.moves.pop(uid, None)

    def clear_placed(self, uid: str) -> None:
        """Its status shows where it was placed, or its object is gone."""
        self.withdraw(uid)
        self.scores.pop(uid, None)

    def shown(self, uid: str) -> Waiting | None:
        """Why it waits, in the words that its status is to show; `reasons` has the newest ones."""
        shown = self._shown.get(uid)
        return shown[0] if shown is not None else None

    def vclusters(self) -> list[str]:
        """Where something waits."""
        return [name for name, queue in self._queues.items() if queue]

    def queue(self, vcluster: str) -> Iterable[Candidate]:
        """What waits in a vcluster."""
        return self._queues.get(vcluster, {}).values()

    async def run(self) -> None:
        """Cycle until cancelled: at a change at once, else each interval."""
        async with asyncio.TaskGroup() as answers:
            while True:
                try:
                    async with asyncio.timeout(self._pause()):
                        await self._wake.wait()
                        await self._clock.sleep(max(DEBOUNCE_SECONDS, min(self._took, LONGEST_DEBOUNCE_SECONDS)))
                except TimeoutError:
                    pass  # the interval is over
                self._wake.clear()
                if self._stopped():
                    continue
                if self.candidates:
                    self._cycle(answers)
                else:
                    self._ready(self._clock.now())  # what-ifs read the scene while nothing waits

    def _pause(self) -> float:
        """Seconds to the next cycle when nothing happens."""
        longest = min((self.scene.policy(vcluster).interval for vcluster in self._queues), default=1.0)
        return longest if self._again_at is None else max(0.01, min(longest, self._again_at - self._clock.now()))

    def _order(self) -> list[str]:
        """Those that lend come before those that borrow, and these by their priority."""
        borrowing = {vcluster: self.scene.policy(vcluster).borrowing for vcluster in self._queues}
        return sorted(borrowing, key=lambda name: (borrowing[name].borrow, -borrowing[name].priority, name))

    def _cycle(self, answers: asyncio.TaskGroup) -> None:
        self.cycles += 1
        began, now = self._clock.monotonic(), self._clock.now()
        wakes = [self._ready(now)]
        if self.scene.elastic is not None:
            for queue in self._queues.values():  # what everybody asks for is known before anybody is admitted
                self.scene.elastic.ask(queue.values(), now)
        placed: list[Placed] = []
        for vcluster in self._order():
            failure = self._guard.waits(vcluster) or self._turn(vcluster, now, placed, wakes)
            if failure is not None:
                self._unjudged(vcluster, failure)
                wakes.append(now + max(0.0, failure.due - self._clock.monotonic()))
        self._extend(placed, now)
        for one in placed:
            self._claim(one, answers)
        for vcluster in [name for name, queue in self._queues.items() if not queue]:
            del self._queues[vcluster]
            self._guard.forget(vcluster)
        self._again_at = min((wake for wake in wakes if wake is not None), default=None)
        self._took = self._clock.monotonic() - began

    def _extend(self, placed: Sequence[Placed], now: float) -> None:
        """Gives ranges more of what is free now that every vcluster has had its turn; recorded as a decision of its own."""
        ranges = [one.candidate for one in placed if asks_for_more(one)]
        if not ranges:
            return
        self.scene.waiting = frozenset(name for name in self._queues if self._waits_for_nodes(name))
        remember = self._look(RANGES, ranges, now)
        found: list[Placed] = []
        if self._guard.attempt(RANGES, lambda: found.extend(extended(self.scene, ranges, now))) is None:
            remember(found)
        more = {one.candidate.uid: one.nodes for one in found}
        for one in placed:
            one.nodes = more.get(one.candidate.uid, one.nodes)
            if one.candidate.uid not in self.scene.holders:  # it failed in between
                self.scene.claim(one.candidate, one.nodes, now)

    def _waits_for_nodes(self, vcluster: str) -> bool:
        """Whether work is left in a vcluster that would start if it had nodes."""
        waiting, holders = self._queues[vcluster], self.scene.holders
        said = (self.reasons.get(uid) for uid in waiting if uid not in holders)
        return any(one is None or one.reason in ABOUT_NODES for one in said)

    def _turn(self, vcluster: str, now: float, placed: list[Placed], wakes: list[float | None]) -> Failure | None:
        """The cycle of one vcluster: decided as a whole before anything of it is acted on."""
        began = self._clock.monotonic()
        queue = list(self._queues[vcluster].values())
        promises = dict(self.scene.promises.get(vcluster, {}))
        remember = self._look(vcluster, queue, now)
        outcomes: list[Outcome] = []
        failure = self._guard.attempt(vcluster, lambda: outcomes.extend(decide(self.scene, vcluster, queue, now)))
        if failure is not None:
            self._metrics.cycle_failures.labels(vcluster).inc()
            self.scene.drop_claims(candidate.uid for candidate in queue)
            self.scene.promises[vcluster] = promises
            return failure
        remember(outcomes)
        self._judged(vcluster, outcomes)
        self._follow_moves(vcluster)
        for outcome in outcomes:
            match outcome:
                case Placed():
                    placed.append(outcome)
                    if self.scene.elastic is not None:
                        self.scene.elastic.drop(outcome.candidate.uid)
                case Waiting():
                    self._wait(outcome)
                    wakes.append(outcome.wake)
        self._metrics.cycle_seconds.labels(vcluster).observe(self._clock.monotonic() - began)
        return None

    def _unjudged(self, vcluster: str, failure: Failure) -> None:
        """Its cycle failed: what waits there is not evaluated, and says so."""
        times = "once" if failure.count == 1 else f"{failure.count} times in a row"
        message = (
            f'the scheduling cycle of vCluster "{vcluster}" has failed {times} ({failure.reason}) and is tried again; '
            "other vClusters go on; operators find the cause in the scheduler's log"
        )
        for candidate in list(self._queues[vcluster].values()):
            self._wait(Waiting(candidate, "NotYetEvaluated", message))

    def _claim(self, placed: Placed, answers: asyncio.TaskGroup) -> None:
        candidate, nodes = placed.candidate, placed.nodes
        allocation = self._allocation(candidate.uid)
        self.withdraw(candidate.uid)
        if allocation is None:
            self.scene.drop_holder(candidate.uid)
            return
        self.claiming.add(candidate.uid)
        if placed.score is not None:
            self.scores[candidate.uid] = placed.score
        if placed.backfilled:
            self._metrics.backfilled.labels(candidate.vcluster).inc()
        answer = self._propose(
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
            )
        )
        answers.create_task(self._claimed(candidate, answer))

    async def _claimed(self, candidate: Candidate, answer: asyncio.Future[Verdict]) -> None:
        verdict = await answer
        self.claiming.discard(candidate.uid)
        accepted = isinstance(verdict, Accepted)
        self._metrics.proposals.labels(candidate.vcluster, "accepted" if accepted else "rejected").inc()
        if accepted:
            self._metrics.placements.labels(candidate.vcluster).inc()
            self._confirmed(candidate.uid)
        else:
            self.scene.drop_holder(candidate.uid)
            self.wake()
            if isinstance(verdict, Refused):
                event(log, "The ledger refused a claim", allocation=candidate.key, reason=verdict.reason, message=verdict.message)
        self._placed(candidate.uid)

    def _follow_moves(self, vcluster: str) -> None:
        """Keeps, counts and logs what the cycle moved of reservations."""
        for move in self.scene.moves.get(vcluster, ()):
            self.moves[move.uid] = move
            self._metrics.reservation_moves.labels(vcluster, move.cause).inc()
            candidate = self.candidates.get(move.uid)
            after = "gone" if move.after is None else format_time(move.after)
            key = candidate.key if candidate is not None else move.uid
            event(log, "A reservation moved", allocation=key, reason=move.cause, before=format_time(move.before), after=after)

    def _wait(self, waiting: Waiting) -> None:
        uid = waiting.candidate.uid
        now = self._clock.monotonic()
        if waiting.score is not None:
            self.scores[uid] = waiting.score
        if self.awaiting_nodes and waiting.reason in OF_NODES:
            return
        self.reasons[uid] = waiting
        shown, since = self._shown.get(uid, (None, 0.0))
        reworded = shown is not None and shown.message != waiting.message and now - since > EXPLAIN_AGAIN_SECONDS
        if shown is None or shown.reason != waiting.reason or (reworded and self._budget.try_spend()):
            self._shown[uid] = (waiting, now)
            self._explained(uid)
            self._reserved_told(waiting.candidate)
        elif self._reserved.get(uid) != self.scene.reserved_since(waiting.candidate.vcluster, uid) and self._budget.try_spend():
            self._reserved_told(waiting.candidate)
            self._explained(uid)

    def _reserved_told(self, candidate: Candidate) -> None:
        """The next write of its status says when it was given its reservation."""
        given = self.scene.reserved_since(candidate.vcluster, candidate.uid)
        if given is None:
            self._reserved.pop(candidate.uid, None)
        else:
            self._reserved[candidate.uid] = given

    def _leave(self, candidate: Candidate) -> None:
        queue = self._queues.get(candidate.vcluster)
        if queue is not None:
            queue.pop(candidate.uid, None)
            self._metrics.queue_depth.labels(candidate.vcluster).set(len(queue))
