"""How far a cycle lies from the bound: measured seldom, the vclusters in turn, in a process that changes nothing."""

from __future__ import annotations

import asyncio

import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import Retry
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.outcomes import Outcome
from lattice.scheduling.optimum.formulation import Formulation, formulate, value_of
from lattice.scheduling.optimum.solver import Bucket, Job, best_plan, upper_bound
from lattice_controllers.scheduler.bound_worker import packed, unpacked
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.optimality import BOUND_SECONDS, OptimalityMonitor, in_a_process
from tests.unit.scheduling.moments import NOW, moment, pending


class Solver:
    """Gives what it is told, and keeps what it was asked."""

    def __init__(self, bound: float) -> None:
        self.bound = bound
        self.asked: list[Formulation] = []

    async def __call__(self, question: Formulation) -> float:
        """The bound."""
        self.asked.append(question)
        if self.bound < 0:
            raise Retry("no", reason="NoBound")
        return self.bound


def decided(*nodes: int, vcluster: str = "hpc") -> tuple[OptimalityMonitor, Solver, list[Outcome], SchedulerMetrics, ManualClock]:
    """A cycle over eight nodes with work of these sizes."""
    context = moment(8, (), ())
    clock, metrics, solver = ManualClock(NOW), SchedulerMetrics(), Solver(6.0)
    queue = [pending(number, nodes=count, vcluster=vcluster) for number, count in enumerate(nodes, 1)]
    outcomes = list(decide(context.state, vcluster, queue, NOW))
    return OptimalityMonitor(clock, context.state, metrics, solve=solver), solver, outcomes, metrics, clock


def ratio(metrics: SchedulerMetrics, vcluster: str = "hpc") -> float | None:
    return metrics.registry.get_sample_value("lattice_scheduling_bound_ratio", {"vcluster": vcluster})


async def measured(bounds: OptimalityMonitor) -> None:
    async with asyncio.TaskGroup() as group:
        running = group.create_task(bounds.run())
        for _ in range(10):
            await asyncio.sleep(0)
        running.cancel()


async def test_the_value_of_a_cycle_is_held_against_the_bound_of_what_was_free_before_it() -> None:
    bounds, solver, outcomes, metrics, _ = decided(6, 4)
    bounds.judged("hpc", outcomes)
    await measured(bounds)
    (question,) = solver.asked
    assert sum(bucket.free for bucket in question.buckets) == 8
    assert [job.nodes for job in question.jobs] == [6, 4]
    assert ratio(metrics) == pytest.approx(value_of(outcomes) / 6.0)


async def test_a_cycle_that_places_nothing_is_not_measured() -> None:
    bounds, solver, outcomes, metrics, _ = decided(9)
    bounds.judged("hpc", outcomes)
    await measured(bounds)
    assert (solver.asked, ratio(metrics)) == ([], None)


async def test_one_cycle_a_minute_is_measured_and_the_vclusters_take_turns() -> None:
    bounds, solver, outcomes, _, clock = decided(1)
    taken = []
    for _ in range(600):
        for vcluster in ("hpc", "ml"):
            before = len(solver.asked)
            bounds.judged(vcluster, outcomes)
            await measured(bounds)
            taken += [vcluster] * (len(solver.asked) - before)
        await clock.run_for(1.0)
    assert len(taken) == 600 / BOUND_SECONDS
    assert taken[:4] == ["hpc", "ml", "hpc", "ml"]


async def test_a_question_without_an_answer_changes_no_figure_and_stops_nothing() -> None:
    bounds, solver, outcomes, metrics, clock = decided(1)
    solver.bound = -1.0
    bounds.judged("hpc", outcomes)
    await measured(bounds)
    assert ratio(metrics) is None
    solver.bound = 1.0
    await clock.run_for(BOUND_SECONDS)
    bounds.judged("hpc", outcomes)
    await measured(bounds)
    assert ratio(metrics) == pytest.approx(0.5)


def test_a_question_arrives_as_it_was_packed() -> None:
    every, one = frozenset({0, 1}), frozenset({1})
    jobs = (Job(3.0, 2, every), Job(2.0, 2, one, alike=True), Job(1.0, 1, every))
    question = Formulation(jobs, (Bucket("a", "g", 2), Bucket("", "h", 1)))
    assert unpacked(packed(question)) == question


async def test_the_process_answers_as_the_solver_does() -> None:
    question = Formulation((Job(3.0, 2, frozenset({0, 1})), Job(2.0, 2, frozenset({1}))), (Bucket("a", "g", 2), Bucket("a", "h", 1)))
    assert await in_a_process(question) == upper_bound(question.jobs, question.buckets)


def test_lent_nodes_and_those_that_the_cycle_gave_count_in_the_question() -> None:
    context = moment(8, (), ())
    outcomes = list(decide(context.state, "hpc", [pending(1, nodes=3)], NOW))
    node_cache = context.state.node_cache
    without = formulate(node_cache, [pending(1, nodes=6)], [0.5])
    with_given = formulate(node_cache, [pending(1, nodes=6)], [0.5], given=[0, 1, 2])
    assert value_of(outcomes) == pytest.approx(1.5)
    assert best_plan(without.jobs, without.buckets).value == 0
    assert best_plan(with_given.jobs, with_given.buckets).value == pytest.approx(3.0)
