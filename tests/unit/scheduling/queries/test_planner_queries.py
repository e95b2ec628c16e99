"""Long answers come from a scene of their own, which stands exactly as the loop's did when the question was asked."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.outcomes import Waiting
from lattice.scheduling.preemption.victims import PreemptionLimits
from lattice.scheduling.queries.changes import changes
from lattice.scheduling.queries.context import QueryContext
from lattice.scheduling.queries.planner_queries import PlannerQueries, QuerySnapshot, queues
from lattice.scheduling.queries.what_if import planned_outcomes
from lattice.scheduling.recording.codec import encoded
from lattice.scheduling.recording.record import rebuild, take_query_snapshot, take_snapshot
from tests.unit.scheduling.moments import ALICE, NOW, OPERATOR, VCLUSTERS, moments
from tests.unit.scheduling.recording.test_record import Site
from tests.unit.scheduling.state.test_quota_usage import DEPARTMENT, asks, site


def glimpse_of(context: QueryContext) -> QuerySnapshot:
    moment = take_query_snapshot(context.state, list(context.candidates.values()), context.now)
    return QuerySnapshot(moment, context.waiting, context.expected, {}, {}, PreemptionLimits(), context.number)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_a_scene_of_a_glance_decides_what_the_scene_itself_decides_next(seed: int) -> None:
    made = Site(seed)
    for _ in range(3):
        made.happen()
        made.turns()
    made.happen()
    waiting = [one for queue in made.queues.values() for one in queue.values()]
    other = rebuild(take_query_snapshot(made.state, waiting, made.now))
    other.validate()
    for name, queued in made.queues.items():
        queue = list(queued.values())
        assert encoded(list(decide(other, name, queue, made.now))) == encoded(list(decide(made.state, name, queue, made.now)))


def test_a_glance_under_a_quota_tree_counts_what_no_cycle_has_seen_yet() -> None:
    state = site(12, DEPARTMENT)
    assert state.quota_usage is not None
    first, second = asks(1, "a", 4), asks(2, "b", 12)
    state.quota_usage.ask([first], NOW)
    other = rebuild(take_query_snapshot(state, [first, second], NOW))
    other.validate()
    state.validate()
    assert other.quota_usage is not None
    assert other.quota_usage.demands() == state.quota_usage.demands()
    queue = [first, second]
    assert encoded(list(decide(other, first.vcluster, queue, NOW))) == encoded(list(decide(state, first.vcluster, queue, NOW)))


@settings(max_examples=40, deadline=None)
@given(moments())
def test_questions_leave_the_scheduler_as_it_was_and_find_what_it_would_find_itself(context: QueryContext) -> None:
    state, now = context.state, context.now
    for vcluster in VCLUSTERS:
        mine = [one for one in context.candidates.values() if one.vcluster == vcluster]
        for outcome in decide(state, vcluster, mine, now):
            if not isinstance(outcome, Waiting):
                state.drop_holder(outcome.candidate.uid)
    before, last_reservations = take_snapshot(state, "", (), now, 0), dict(state.last_reservations)
    planner = PlannerQueries(glimpse_of(context), OPERATOR)
    asked = list(context.candidates.values())
    answers = {one.uid: planner.why(one.uid) for one in asked}
    outcomes = planner.planned_outcomes(asked)
    assert take_snapshot(state, "", (), now, 0) == before
    assert state.last_reservations == last_reservations
    planner.context.state.validate()
    queued = {name: [each for each in asked if each.vcluster == name] for name in VCLUSTERS}
    for one in asked:
        assert answers[one.uid].changes == list(changes(state, one, now, queues=queued))
    assert encoded(outcomes) == encoded(planned_outcomes(context, asked))


@settings(max_examples=20, deadline=None)
@given(moments())
def test_a_queue_is_shown_as_it_stood_when_it_was_asked_for(context: QueryContext) -> None:
    snapshot = glimpse_of(context)
    shown = queues(snapshot, VCLUSTERS, ALICE, 100, "")
    for uid in list(context.state.holders):
        context.state.drop_holder(uid)
    context.state.set_windows(())
    assert queues(snapshot, VCLUSTERS, ALICE, 100, "") == shown
    assert sum(queue.pending for queue in shown.vclusters) == len(context.candidates)
