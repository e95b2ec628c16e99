"""The loop: what-ifs read a scene of now, and a cycle that raises concerns its vcluster alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import Corrupt
from lattice.ledger.proposals import Accepted, Claim, ProposalRefused
from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.model.outcomes import Outcome, Score
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState, QueueScores, ScoreList
from lattice.units import format_time
from lattice.views.allocation import Allocation, AllocationSpec
from lattice.views.meta import Metadata
from lattice_controllers.scheduler.loop import Loop, Remember
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.pending_work import PendingWork
from lattice_controllers.scheduler.write_budget import WriteBudget
from tests.build import node
from tests.unit.scheduler.doubles import FakeLedger
from tests.unit.scheduling.moments import NOW, holding, moment, pending


async def test_a_change_reaches_the_scene_while_nothing_waits() -> None:
    made = living([])
    async with asyncio.TaskGroup() as group:
        running = group.create_task(made.loop.run())
        await made.clock.run_for(0.01)
        made.due.set()
        await made.clock.run_for(0.1)
        running.cancel()
    assert made.refreshed == 1
    assert made.waiting.cycles == 0


async def test_a_change_after_quiet_begins_a_cycle_at_once() -> None:
    made = living([pending(1)])
    async with asyncio.TaskGroup() as group:
        running = group.create_task(made.loop.run())
        await made.clock.run_for(0.0015)
        assert [claim.uid for claim in made.claimed] == [pending(1).uid]
        made.waiting.enqueue(pending(2))
        await made.clock.run_for(0.0015)
        assert made.waiting.cycles == 2
        running.cancel()


@dataclass
class Breaking:
    """A cost function that raises, as long as it is told to."""

    error: Exception | None

    def score(self, candidates: Sequence[Candidate], node_cache: NodeCache, now: float) -> QueueScores:
        """Scores, or the error."""
        if self.error is not None:
            raise self.error
        return ScoreList([Score(0.5)] * len(candidates))


@dataclass
class Living:
    """A loop over a machine of eight nodes with queues in two vclusters, and everything that it did."""

    clock: ManualClock
    state: ClusterState
    waiting: PendingWork
    metrics: SchedulerMetrics
    due: asyncio.Event
    ledger: FakeLedger
    allocations: dict[str, Allocation]
    explained: list[str] = field(default_factory=list)
    judged: list[tuple[str, Sequence[Outcome]]] = field(default_factory=list)
    refreshed: int = 0

    def __post_init__(self) -> None:
        self.loop = Loop(
            self.clock, self.state, self.waiting, self.metrics, self.due, refresher=self, ledger=self.ledger,
            allocations=self.allocations, queue=self, cycle_observers=(self,),
        )  # fmt: skip

    @property
    def claimed(self) -> list[Claim]:
        """What was claimed."""
        return [one for one in self.ledger.proposed if isinstance(one, Claim)]

    def refresh_for_cycle(self, now: float) -> float | None:
        """Nothing has changed beside the loop."""
        del now
        self.refreshed += 1
        return None

    def add(self, key: str, after: float = 0.0, *, late: bool = False) -> None:
        """What is added late is explained; else it was placed."""
        del after
        if late:
            self.explained.append(key)

    def begin_turn(self, vcluster: str, candidates: Sequence[Candidate], now: float, cycle: int) -> Remember:
        """Keeps what is decided."""
        del candidates, now, cycle
        return lambda outcomes: self.judged.append((vcluster, outcomes))

    def failures(self, vcluster: str) -> float:
        """What the metric says."""
        return self.metrics.registry.get_sample_value("lattice_scheduling_cycle_failures_total", {"vcluster": vcluster}) or 0.0


def living(queue: Sequence[Candidate], *, held: int = 0, budget: WriteBudget | None = None, reserved: Mapping[str, float] = {}) -> Living:
    context = moment(8, (holding(900, tuple(range(held))),) if held else (), tuple(queue))
    clock, metrics, due = ManualClock(NOW), SchedulerMetrics(), asyncio.Event()
    allocations = {
        one.uid: Allocation(metadata=Metadata(name=one.name, uid=one.uid, creation_timestamp=format_time(NOW)), spec=AllocationSpec())
        for one in queue
    }
    waiting = PendingWork(clock, context.state, metrics, due, budget=budget)
    for candidate in queue:
        waiting.enqueue(candidate, format_time(reserved[candidate.uid]) if candidate.uid in reserved else None)
    return Living(clock, context.state, waiting, metrics, due, FakeLedger(by_hand=True), allocations)


async def run(made: Living, seconds: float) -> None:
    """Run the loop for so long by its clock, woken every tenth of a second as by other changes."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(made.loop.run())
        for _ in range(max(1, round(seconds * 10))):
            made.due.set()
            await made.clock.run_for(0.1)
        running.cancel()
    made.state.validate()


async def test_a_cycle_that_raises_leaves_the_other_vclusters_at_work_and_says_so_of_its_own() -> None:
    broken, sound = pending(1, vcluster="hpc"), pending(2, vcluster="ml")
    made = living([broken, sound])
    made.state.scorings["hpc"] = Breaking(ZeroDivisionError("a weight of nothing"))
    await run(made, 0.05)
    assert [claim.uid for claim in made.claimed] == [sound.uid]
    assert [vcluster for vcluster, _ in made.judged] == ["ml"]
    told = made.waiting.reasons[broken.uid]
    assert told.reason == "NotYetEvaluated"
    assert 'the scheduling cycle of vCluster "hpc" has failed once (ZeroDivisionError) and is tried again' in told.message
    assert made.explained == [broken.uid]
    assert (made.failures("hpc"), made.failures("ml")) == (1.0, 0.0)


async def test_a_new_scheduler_plans_reservations_in_the_order_in_which_another_gave_them_and_tells_what_moves_them() -> None:
    first, second, third = (pending(number, nodes=8) for number in (1, 2, 3))
    given = {second.uid: NOW - 100, third.uid: NOW - 200}
    made = living([first, second, third], held=2, reserved=given)
    await run(made, 0.05)
    promised = made.state.backfill_reservations["hpc"]
    assert list(promised) == [third.uid, second.uid, first.uid]
    assert [one.given for one in promised.values()][:2] == [NOW - 200, NOW - 100]
    assert made.state.reserved_since("hpc", first.uid) == promised[first.uid].given > NOW - 1
    made.state.node_cache.put(node(7, "g1", usable=False, state="Drained"))
    await run(made, 0.05)
    assert {move.cause for move in made.waiting.moves.values()} == {"NodesLost"}
    moved = made.metrics.registry.get_sample_value("lattice_scheduling_reservation_moves_total", {"vcluster": "hpc", "cause": "NodesLost"})
    assert moved == 3
    assert made.state.reserved_since("hpc", third.uid) == NOW - 200, "their places are kept for when the node is back"


async def test_a_failing_cycle_is_tried_again_later_and_later_and_counts_once_it_works() -> None:
    broken = pending(1)
    made = living([broken])
    scoring = made.state.scorings["hpc"] = Breaking(KeyError("x"))
    await run(made, 20.0)
    assert 5 <= made.failures("hpc") <= 8  # at 0, 0.2, 0.6, 1.4, 3, 6.2, 12.6 seconds, whatever else wakes the loop
    scoring.error = None
    await run(made, 60.0)
    assert [claim.uid for claim in made.claimed] == [broken.uid]
    assert broken.uid not in made.waiting.reasons


async def test_work_that_arrives_while_its_vcluster_backs_off_is_told_at_once() -> None:
    made = living([pending(1)])
    made.state.scorings["hpc"] = Breaking(KeyError("x"))
    await run(made, 5.0)
    late, failures = pending(3), made.failures("hpc")
    made.waiting.enqueue(late)
    await run(made, 0.05)
    assert made.failures("hpc") == failures
    assert made.waiting.reasons[late.uid].reason == "NotYetEvaluated"


async def test_what_a_failed_cycle_claimed_is_free_again_and_promises_before_it_stand() -> None:
    wide = pending(1, nodes=8, preemption_class=9)
    made = living([wide], held=4)
    await run(made, 0.05)
    promised = dict(made.state.backfill_reservations["hpc"])
    assert set(promised) == {wide.uid}
    small, unreadable = pending(2, walltime=60.0, preemption_class=8), pending(3, walltime="an hour", preemption_class=1)
    for candidate in (small, unreadable):
        made.waiting.enqueue(candidate)
    await run(made, 0.05)
    assert made.failures("hpc") == 1
    assert made.claimed == []
    assert set(made.state.holders) == {holding(900, ()).uid}
    assert made.state.backfill_reservations["hpc"] == promised


async def test_what_is_corrupt_stops_the_loop() -> None:
    made = living([pending(1)])
    made.state.scorings["hpc"] = Breaking(Corrupt("torn", reason="Torn"))
    with pytest.raises(BaseExceptionGroup) as raised:
        await run(made, 1.0)
    assert raised.group_contains(Corrupt)


async def test_that_work_waits_for_nodes_is_no_news_before_it_is_known_which_are_alive() -> None:
    crowded, held = pending(1, nodes=4), pending(2, held=True)
    made = living([crowded, held], held=8)
    made.waiting.awaiting_nodes = True
    await run(made, 0.2)
    assert made.explained == [held.uid], "what waits by its own wish is told at once"
    made.waiting.awaiting_nodes = False
    await run(made, 0.2)
    assert made.explained == [held.uid, crowded.uid]


def measured(made: Living, name: str, vcluster: str) -> float:
    """A metric of one vcluster; 0 before it has a value."""
    return made.metrics.registry.get_sample_value(name, {"vcluster": vcluster}) or 0.0


async def test_the_queue_depth_is_what_waits_also_after_the_last_one_was_cancelled() -> None:
    queue = [pending(number, nodes=8, vcluster="hpc") for number in (1, 2)]
    made = living(queue, held=8)
    assert measured(made, "lattice_scheduling_queue_depth", "hpc") == 2
    await run(made, 0.1)
    assert measured(made, "lattice_scheduling_queue_depth", "hpc") == 2
    for one in queue:
        made.waiting.clear_placed(one.uid)
    assert measured(made, "lattice_scheduling_queue_depth", "hpc") == 0


async def test_a_claim_that_the_ledger_accepts_counts_as_a_placement_and_one_that_it_refuses_does_not() -> None:
    queue = [pending(number, vcluster="hpc") for number in (1, 2)]
    made = living(queue)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(made.loop.run())
        await made.clock.run_for(0.1)
        first, second = made.ledger.answers
        first.set_result(Accepted())
        second.set_result(ProposalRefused("QuotaExceeded", "no room"))
        await made.clock.run_for(0.1)
        running.cancel()
    assert measured(made, "lattice_scheduling_placements_total", "hpc") == 1
    assert made.metrics.registry.get_sample_value("lattice_scheduling_proposals_total", {"vcluster": "hpc", "result": "rejected"}) == 1


async def test_a_reason_in_other_words_is_shown_again_only_where_the_write_budget_has_room() -> None:
    spent = ManualClock()
    for budget, shown in ((WriteBudget(spent, burst=1), 2), (WriteBudget(spent, burst=0), 1)):
        broken = pending(1)
        made = living([broken], budget=budget)
        made.state.scorings["hpc"] = Breaking(ZeroDivisionError("a weight of nothing"))
        await run(made, 60)
        newest, told = made.waiting.reasons[broken.uid], made.waiting.shown(broken.uid)
        assert told is not None
        assert (len(made.explained), told.reason) == (shown, newest.reason)
        assert told.message != newest.message, "it has failed again since it was shown last"
