"""The cycle: wakes at a change, asks `lattice.scheduling`, proposes what it placed, keeps what it explained."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.ledger.commit import Book
from lattice.ledger.proposals import Accepted, Claim, Proposal, Refused, Verdict
from lattice.scheduling.cycle import decide
from lattice.scheduling.machine import UNHEARD, Machine
from lattice.scheduling.outcomes import Placed, Waiting
from lattice.scheduling.scene import Scene
from lattice.scheduling.work import Candidate
from lattice.views.allocation import Allocation
from lattice_controllers.scheduler.metrics import SchedulerMetrics

log = logging.getLogger(__name__)

DEBOUNCE_SECONDS = 0.004
EXPLAIN_AGAIN_SECONDS = 30.0


class Loop:
    """Pending work and its cycle; `explained` hears of uids whose reason is to be shown, `placed` of those that were."""

    def __init__(
        self, clock: Clock, book: Book, machine: Machine, metrics: SchedulerMetrics, *,
        propose: Callable[[Proposal], asyncio.Future[Verdict]], allocation: Callable[[str], Allocation | None],
        explained: Callable[[str], None], placed: Callable[[str], None], stopped: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.interval = 1.0
        self.cycles = 0
        self.candidates: dict[str, Candidate] = {}
        self.claiming: set[str] = set()
        self.reasons: dict[str, Waiting] = {}
        self.hearing_until = 0.0
        """Until then (monotonic) nodes that were not heard of are no news: this process has only just begun to listen."""
        self._clock = clock
        self._book = book
        self._machine = machine
        self.scene = Scene(machine)
        self._metrics = metrics
        self._propose = propose
        self._allocation = allocation
        self._explained = explained
        self._placed = placed
        self._stopped = stopped
        self._wake = asyncio.Event()
        self._shown: dict[str, tuple[str, str, float]] = {}
        self._answers: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Something changed: run a cycle at once."""
        self._wake.set()

    def want(self, candidate: Candidate) -> None:
        """It waits for nodes."""
        if candidate.uid in self.claiming or self.candidates.get(candidate.uid) == candidate:
            return
        self.candidates[candidate.uid] = candidate
        self.wake()

    def drop(self, uid: str) -> None:
        """It does not wait any more."""
        self.candidates.pop(uid, None)
        self.reasons.pop(uid, None)
        self._shown.pop(uid, None)

    async def run(self) -> None:
        """Cycle until cancelled: at a change at once, else each interval."""
        async with asyncio.TaskGroup() as answers:
            while True:
                try:
                    async with asyncio.timeout(self._pause()):
                        await self._wake.wait()
                        await self._clock.sleep(DEBOUNCE_SECONDS)
                except TimeoutError:
                    pass  # the interval is over
                self._wake.clear()
                if self.candidates and not self._stopped():
                    self._cycle(answers)

    def _pause(self) -> float:
        """Seconds to the next cycle when nothing happens."""
        now = self._clock.now()
        wakes = [waiting.wake - now for waiting in self.reasons.values() if waiting.wake is not None]
        return max(0.01, min([self.interval, *wakes]))

    def _cycle(self, answers: asyncio.TaskGroup) -> None:
        began = self._clock.monotonic()
        self.cycles += 1
        self.scene.accounts = self._book.accounts
        queues: dict[str, list[Candidate]] = {}
        for candidate in self.candidates.values():
            queues.setdefault(candidate.vcluster, []).append(candidate)
        for vcluster in sorted(queues):
            for outcome in decide(self.scene, vcluster, queues[vcluster], self._clock.now()):
                match outcome:
                    case Placed(candidate, nodes):
                        self._claim(candidate, nodes, answers)
                    case Waiting():
                        self._wait(outcome)
        self._metrics.cycle_seconds.labels("all").observe(self._clock.monotonic() - began)
        self._metrics.queue_depth.labels("all").set(len(self.candidates))

    def _claim(self, candidate: Candidate, nodes: tuple[int, ...], answers: asyncio.TaskGroup) -> None:
        allocation = self._allocation(candidate.uid)
        self.drop(candidate.uid)
        if allocation is None:
            self.scene.drop_holder(candidate.uid)
            return
        self.claiming.add(candidate.uid)
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
            )
        )
        answers.create_task(self._claimed(candidate, nodes, answer))

    async def _claimed(self, candidate: Candidate, nodes: tuple[int, ...], answer: asyncio.Future[Verdict]) -> None:
        verdict = await answer
        self.claiming.discard(candidate.uid)
        accepted = isinstance(verdict, Accepted)
        self._metrics.proposals.labels(candidate.vcluster, "accepted" if accepted else "rejected").inc()
        self.scene.drop_holder(candidate.uid)
        self._machine.take([node for node in nodes if node in self._book.holders])
        if not accepted and isinstance(verdict, Refused):
            event(log, "The ledger refused a claim", allocation=candidate.key, reason=verdict.reason, message=verdict.message)
        self._placed(candidate.uid)

    def _wait(self, waiting: Waiting) -> None:
        uid = waiting.candidate.uid
        now = self._clock.monotonic()
        if now < self.hearing_until and UNHEARD in waiting.message:
            return
        self.reasons[uid] = waiting
        reason, message, since = self._shown.get(uid, ("", "", 0.0))
        if reason != waiting.reason or (message != waiting.message and now - since > EXPLAIN_AGAIN_SECONDS):
            self._shown[uid] = (waiting.reason, waiting.message, now)
            self._explained(uid)
