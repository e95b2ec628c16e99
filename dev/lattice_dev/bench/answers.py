"""Measures how long questions hold the scheduler's loop: `why`, `plan`, `queue` and `status`, asked of a leader with a long queue.

The loop does nothing else meanwhile than to count the CPU time of its own thread from turn to turn; the baseline is the CPU time of the
whole answer, for which the loop would be held if it computed the answer itself.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from lattice.accounting.answers import Unsettled
from lattice.daemon.clock import ManualClock
from lattice.kube.lasting import LastKnown
from lattice.quota.declared import bindings_of
from lattice.scheduling.conversion.candidates import candidate_of
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.forecast.forecaster import Expected
from lattice.scheduling.model.outcomes import Placed, Waiting
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.queries import context
from lattice.scheduling.queries.quota_view import Remarks
from lattice.scheduling.queries.readers import Reader
from lattice.scheduling.queries.status_rows import Selection
from lattice.views.allocation import Allocation, AllocationSpec, AllocationStatus, Condition, Lifecycle
from lattice.views.cluster import Config, Tenant, VCluster
from lattice.views.ledger import TenantAccount
from lattice.views.meta import Metadata
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.pending_work import PendingWork
from lattice_controllers.scheduler.query_service import QueryService
from lattice_controllers.scheduler.status_rows import StatusCache
from lattice_dev.bench.figures import Aim, Baseline, Figure
from lattice_dev.bench.plan import NOW, crowd

HELD: Final = Aim(10.0)
"""The longest time, in milliseconds, for which anything may hold the loop."""
LISTED: Final = 10_000
AT: Final = "2026-11-21T12:00:00Z"
ASKED: Final = 5
"""Allocations that are asked about, from the head of the queue to its end."""
READER: Final = Reader("user01", frozenset({"physics"}))
DOCUMENT: Final[dict[str, Any]] = {
    "metadata": {"name": "asked", "namespace": "physics"},
    "spec": {"tenant": "physics", "user": "user01", "vcluster": "hpc", "resources": {"nodes": 64}, "lifecycle": {"walltime": "24h"}},
}

Say = Callable[[float], None]


@dataclass
class AnswerCosts:
    """The cost of one kind of question in milliseconds: longest turns of the loop by its thread's CPU and by the clock, and all CPU."""

    turns: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)

    def figure(self, name: str) -> Figure:
        """Returns a figure of this name: the longest turn of all in CPU milliseconds, beside the CPU of the longest answer."""
        detail = f"by the clock {max(self.waits):.1f} ms, with what else runs on this machine"
        return Figure(name, max(self.turns), "ms CPU", HELD, Baseline("ms CPU, the whole answer", max(self.answers)), detail)


def measure(*, quick: bool, say: Say) -> list[Figure]:
    """Returns how long the longest turn of the loop is while each kind of question is answered."""
    nodes, pending = (500, 300) if quick else (5_000, 3_000)
    queries, waiting = _leader(nodes, pending)
    gc.collect()
    gc.freeze()  # as the scheduler does once it has read everything
    try:
        return asyncio.run(_measure(queries, waiting, f"{pending:,} pending on {nodes:,} nodes", say))
    finally:
        gc.unfreeze()


async def _measure(queries: QueryService, waiting: Sequence[str], where: str, say: Say) -> list[Figure]:
    """Returns how long each question holds the loop, asked of ASKED candidates of the queue."""
    chosen = [waiting[place * (len(waiting) - 1) // (ASKED - 1)] for place in range(ASKED)]
    why, plan, queue = AnswerCosts(), AnswerCosts(), AnswerCosts()
    for place, uid in enumerate(chosen, 1):
        await _ask(partial(queries.why, uid, READER), why)
        await _ask(lambda: queries.plan([DOCUMENT], READER, optimal=False), plan)
        await _ask(lambda: queries.queue("", READER, 200), queue)
        say(place / len(chosen))
    rows = AnswerCosts()
    for _ in chosen:  # the first writes every row
        await _ask(lambda: queries.status(Selection(namespace="physics"), version="", wide=False), rows)
    figures = [held.figure(f"loop held by {name}, {where}") for name, held in (("why", why), ("plan", plan), ("queue", queue))]
    return [*figures, rows.figure(f"loop held by status, {LISTED:,} allocations")]


async def _ask(question: Callable[[], Awaitable[object]], held: AnswerCosts) -> None:
    """Asks the question once, and adds to `held` the longest turn and wait of the loop meanwhile, and the processor time of the whole
    process for the answer, all in milliseconds.
    """
    turns, waits = [0.0], [0.0]

    async def watch() -> None:
        """Notes every millisecond how long the loop has worked and waited since; never returns."""
        spent, seen = time.thread_time(), time.monotonic()
        while True:
            await asyncio.sleep(0.001)
            now, at = time.thread_time(), time.monotonic()
            turns.append(now - spent)
            waits.append(at - seen - 0.001)
            spent, seen = now, at

    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch())
        await asyncio.sleep(0.005)
        began = time.process_time()
        await question()
        held.answers.append((time.process_time() - began) * 1e3)
        await asyncio.sleep(0.002)
        watching.cancel()
    held.turns.append(max(turns) * 1e3)
    held.waits.append(max(waits) * 1e3)


class _HeldAllocations:
    """A cache of allocations whose watch brings a change before each question, so that each answer is made anew."""

    def __init__(self, allocations: Sequence[Allocation]) -> None:
        self.objects = {one.metadata.key: one for one in allocations}
        self.version = "1"
        self.lists = 1

    async def reach(self, version: str) -> str:
        """Counts its own version up, and returns the version asked for, or its own where none is."""
        self.version = str(int(self.version) + 1)
        return version or self.version


def _listed(count: int) -> list[Allocation]:
    """Returns pending allocations of one user, as the scheduler holds them."""
    said = Condition(type="Scheduled", status="False", reason="WaitingForNodes", last_transition_time=AT)
    return [
        Allocation(
            metadata=Metadata(name=f"job-{number:05d}", namespace="physics", uid=f"{number:08d}", creation_timestamp=AT),
            spec=AllocationSpec(tenant="physics", user="user01", vcluster="hpc", lifecycle=Lifecycle(walltime="24h")),
            status=AllocationStatus(number=number, phase="Pending", submit_time=AT, conditions=(said,)),
        )
        for number in range(count)
    ]


def _leader(nodes: int, pending: int) -> tuple[QueryService, list[str]]:
    """Returns the query service of a scheduler that has just had a cycle, and the uids of what waits there in order."""
    _, state, crowded = crowd(nodes, pending, seed=1)
    clock = ManualClock(NOW)
    state.accounts = {"physics": TenantAccount()}
    state.policies = {"hpc": Policy("hpc")}

    waiting = PendingWork(clock, state, SchedulerMetrics(), asyncio.Event())
    for outcome in decide(state, "hpc", crowded, NOW):
        match outcome:
            case Placed():
                state.put_holder(state.holders[outcome.candidate.uid])
            case Waiting():
                waiting.enqueue(outcome.candidate)
                waiting.reasons[outcome.candidate.uid] = outcome
    sources, hpc = _Sources(), VCluster(metadata=Metadata(name="hpc"))
    queries = QueryService(
        clock, state, waiting, candidates=sources, numbers=sources, starts=sources, vclusters={"hpc": hpc},
        tenants={"physics": Tenant(metadata=Metadata(name="physics"))}, config=LastKnown[Config]("lattice"), usage=sources,
        quotas=sources, overuse=sources, rows=StatusCache(_HeldAllocations(_listed(LISTED))),
    )  # fmt: skip
    return queries, list(waiting.reasons)


class _Sources:
    """The sources of a query service beside the pending work: nothing is numbered, charged or over, and all starts are an hour away."""

    def __init__(self) -> None:
        self.found: dict[str, context.Expected] = {}
        self.bindings = bindings_of(())

    def candidate(self, allocation: Allocation) -> Candidate:
        """Returns the candidate of an allocation."""
        return candidate_of(allocation, VCluster(metadata=Metadata(name="hpc")), {})

    async def catch_up(self, seconds: float) -> None:
        """Returns at once."""
        del seconds

    def shown_number(self, uid: str) -> int | None:
        """Returns None: no number is known."""
        del uid
        return None

    async def suppose(self, outcomes: Sequence[Waiting]) -> dict[str, context.Expected]:
        """Returns the same expected start for each outcome."""
        return {outcome.candidate.uid: Expected(NOW + 3600.0, NOW + 7200.0) for outcome in outcomes}

    def burst_of(self, tenant: str) -> int:
        """Returns 0: no tenant bursts."""
        del tenant
        return 0

    def unsettled(self) -> Unsettled:
        """Returns that nothing is unsettled."""
        return Unsettled("0", [])

    def remarks(self) -> Remarks:
        """Returns that nothing is remarked."""
        return Remarks()

    def over_since(self) -> dict[str, str]:
        """Returns that no group is over what it may use."""
        return {}
