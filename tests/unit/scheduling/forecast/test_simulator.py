"""The queues played forward: the naive plan's starts, EASY's starts, and the never-optimistic slots."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.replay.engine import Estimates, Policy, simulate
from lattice.replay.workload import Workload
from lattice.scheduling.cluster.node_cache import NEVER
from lattice.scheduling.forecast import simulator
from lattice.scheduling.forecast.simulator import BackfillSimulator
from lattice.scheduling.forecast.simulator_input import BACKFILL, FIRST_FIT, IN_ORDER, ColumnWindow, Job, RunningWork, SimulatorInput
from lattice_dev.bench.plan import naive

SETS = ((0,), (1,), (1, 0), (1, 2), (0, 1, 2))
seconds = st.integers(1, 40).map(float)


@st.composite
def stages(draw: st.DrawFn) -> SimulatorInput:
    """Up to three queues on three columns, running work, sometimes a cap and a window."""
    capped = draw(st.booleans())
    closed = draw(st.booleans())

    def job() -> Job:
        expected = draw(seconds | st.just(NEVER) if draw(st.integers(0, 9)) == 0 else seconds)
        believed = expected if expected == NEVER else expected + draw(st.integers(0, 20))
        caps = ((0, 1),) if capped and draw(st.booleans()) else ()
        after = float(draw(st.integers(1, 30))) if draw(st.integers(0, 5)) == 0 else 0.0
        return Job(
            draw(st.integers(0, 4)),
            draw(st.integers(1, 7)),
            expected,
            believed,
            caps,
            after,
            0 if closed and draw(st.integers(0, 5)) == 0 else -1,
        )

    held = []
    for _ in range(draw(st.integers(0, 5))):
        columns = draw(st.dictionaries(st.integers(0, 2), st.integers(1, 2), min_size=1))
        expected = draw(seconds) if draw(st.integers(0, 7)) else NEVER
        believed = expected if expected == NEVER else expected + draw(st.integers(0, 20))
        held.append(RunningWork(tuple(sorted(columns.items())), expected, believed))
    queues = tuple(tuple(job() for _ in range(draw(st.integers(0, 8)))) for _ in range(draw(st.integers(1, 3))))
    column_windows: tuple[ColumnWindow, ...] = ()
    if closed:
        start = draw(st.integers(0, 40))
        column_windows = (
            ColumnWindow(float(start), float(start + draw(st.integers(1, 30))), frozenset(draw(st.sets(st.integers(0, 2), min_size=1)))),
        )
    return SimulatorInput(
        free=tuple(draw(st.integers(0, 4)) for _ in range(3)),
        sets=SETS,
        held=tuple(held),
        queues=queues,
        room=(draw(st.integers(1, 3)),) if capped else (),
        column_windows=column_windows,
        modes=tuple(draw(st.sampled_from([BACKFILL, BACKFILL, FIRST_FIT, IN_ORDER])) for _ in queues),
    )


@settings(max_examples=250, deadline=None)
@given(stages())
def test_the_starts_are_those_of_the_naive_plan(stage: SimulatorInput) -> None:
    assert BackfillSimulator(stage).run() == naive(stage)


@settings(max_examples=60, deadline=None)
@given(stages(), st.integers(1, 10))
def test_nodes_are_never_promised_twice(stage: SimulatorInput, slot: int) -> None:
    starts = BackfillSimulator(stage, float(slot)).run()
    jobs = [
        (at, job) for queue, found in zip(stage.queues, starts, strict=True) for job, at in zip(queue, found, strict=True) if at < NEVER
    ]
    total = sum(stage.free) + sum(count for held in stage.held for _column, count in held.columns)
    for moment in {at for at, _job in jobs}:
        running = sum(job.nodes for at, job in jobs if at <= moment < at + job.expected)
        holding = sum(count for held in stage.held if held.expected > moment for _column, count in held.columns)
        assert running + holding <= total


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 60), st.integers(0, 40)), min_size=1, max_size=25),
    st.sampled_from(list(Estimates)),
)
def test_work_submitted_at_one_moment_starts_when_easy_starts_it(asked: list[tuple[int, int, int]], estimates: Estimates) -> None:
    nodes, run, more = (array("q", column) for column in zip(*asked, strict=True))
    estimate = array("q", (ran + extra for ran, extra in zip(run, more, strict=True)))
    jobs = Workload(array("q", range(len(nodes))), array("q", [0] * len(nodes)), run, estimate, nodes, nodes)
    believed = estimate if estimates is Estimates.USER else run
    queue = tuple(Job(0, count, float(ran), float(said)) for count, ran, said in zip(nodes, run, believed, strict=True))
    assert BackfillSimulator(SimulatorInput((8,), ((0,),), (), (queue,))).run() == [
        [float(at) for at in simulate(jobs, 8, Policy.EASY, estimates)]
    ]


def test_slots_round_ends_up_so_nothing_starts_before_its_nodes_are_free() -> None:
    stage = SimulatorInput((0,), ((0,),), (RunningWork(((0, 2),), 95.0, 200.0),), ((Job(0, 2, 10.0, 20.0), Job(0, 2, 10.0, 20.0)),))
    assert BackfillSimulator(stage).run() == [[95.0, 105.0]]
    assert BackfillSimulator(stage, 60.0).run() == [[120.0, 180.0]]


def test_work_that_needs_nodes_of_unbounded_work_starts_never_and_delays_nobody() -> None:
    held = (RunningWork(((0, 2),), NEVER, NEVER), RunningWork(((0, 1),), 50.0, 50.0))
    stage = SimulatorInput((1,), ((0,),), held, ((Job(0, 3, 10.0, 10.0), Job(0, 1, 90.0, 90.0), Job(0, 2, 10.0, 10.0)),))
    assert BackfillSimulator(stage).run() == [[NEVER, 0.0, 90.0]]


def test_a_full_cap_keeps_its_own_work_waiting_and_nobody_else() -> None:
    held = (RunningWork(((0, 1),), 40.0, 40.0, ((0, 1),)),)
    capped, free = Job(0, 1, 10.0, 10.0, ((0, 1),)), Job(0, 3, 10.0, 10.0)
    assert BackfillSimulator(SimulatorInput((3,), ((0,),), held, ((capped, free),), room=(0,))).run() == [[40.0, 0.0]]


def test_work_that_would_cross_a_window_waits_for_its_end_and_the_windows_own_starts_in_it() -> None:
    crossing, short, own = Job(0, 2, 100.0, 100.0), Job(0, 2, 30.0, 30.0), Job(0, 2, 5.0, 5.0, after=50.0, window=0)
    stage = SimulatorInput((2,), ((0,),), (), ((crossing, short, own),), column_windows=(ColumnWindow(50.0, 80.0, frozenset({0})),))
    assert BackfillSimulator(stage).run() == [[80.0, 0.0, 50.0]]


def test_what_one_queue_starts_uses_up_the_nodes_that_another_queues_head_can_spare() -> None:
    head, long, longer = Job(0, 5, 28.0, 44.0), Job(1, 1, 28.0, 44.0), Job(1, 1, 13.0, 15.0)
    stage = SimulatorInput((3, 1), ((0,), (0, 1)), (RunningWork(((0, 3),), 2.0, 8.0),), ((head,), (long, longer)))
    assert BackfillSimulator(stage).run() == naive(stage) == [[2.0], [0.0, 2.0]]


def test_many_shapes_are_played_coarser_and_stay_in_order() -> None:
    jobs = tuple(Job(0, 8, 100.0 + number, 200.0 + number) for number in range(simulator.MOST_SHAPES + 10))
    starts = BackfillSimulator(SimulatorInput((8,), ((0,),), (), (jobs,))).run()[0]
    assert all(later - sooner == job.expected for (sooner, later), job in zip(pairwise(starts), jobs, strict=False))


@pytest.mark.parametrize("mode", [BACKFILL, FIRST_FIT, IN_ORDER])
def test_each_mode_treats_a_short_one_behind_a_blocked_one_its_way(mode: str) -> None:
    held = (RunningWork(((0, 1),), 50.0, 50.0),)
    wide, long, short = Job(0, 2, 10.0, 10.0), Job(0, 1, 90.0, 90.0), Job(0, 1, 20.0, 20.0)
    starts = BackfillSimulator(SimulatorInput((1,), ((0,),), held, ((wide, long, short),), modes=(mode,))).run()[0]
    assert starts == {BACKFILL: [50.0, 60.0, 0.0], FIRST_FIT: [90.0, 0.0, 50.0], IN_ORDER: [50.0, 60.0, 60.0]}[mode]
