"""Answers of the scheduler: what stands before work, in order and in numbers, and nothing that the reader may not know."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.cli import explained
from lattice.cli.render.queues import queue_lines
from lattice.cli.verbs import plan as plan_verb
from lattice.errors import NotFound
from lattice.quota.forest import Forest, TreeSpec
from lattice.quota.groups import Group
from lattice.scheduling.cluster.eligibility import admitted_nodes, census_of
from lattice.scheduling.forecast.forecaster import Expected
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.outcomes import Outcome
from lattice.scheduling.model.policy import BACKFILL, SENSITIVE_RESERVATION, Borrowing, Limits, Policy
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.preemption.victims import preemption
from lattice.scheduling.queries.answers import ANSWERS, PLAN_SCHEMA, Census, Part, Plan, Preemption
from lattice.scheduling.queries.context import QueryContext, census, eligible_nodes
from lattice.scheduling.queries.explanation import sacrifice, why
from lattice.scheduling.queries.queueing import queues
from lattice.scheduling.queries.readers import OTHER_TENANTS, YOU, YOUR_TENANT, Reader
from lattice.scheduling.queries.what_if import planned_outcomes, plans_for
from lattice.units import format_time
from tests.build import node, uid
from tests.unit.scheduling.moments import ALICE, MARK, NOW, OPERATOR, VCLUSTERS, holding, moment, moments, pending

SCHEMAS = Path(__file__).resolve().parents[4] / "docs" / "reference" / "schemas"


def trial(context: QueryContext, asked: Sequence[Candidate]) -> dict[str, Outcome]:
    """The outcome of each by uid, were they submitted now."""
    mine = {candidate.uid for candidate in asked}
    return {outcome.candidate.uid: outcome for outcome in planned_outcomes(context, asked) if outcome.candidate.uid in mine}


def strict(schema: str) -> dict[str, Any]:
    """The published schema, in which nothing else may stand than what is described."""
    document: dict[str, Any] = json.loads((SCHEMAS / f"{schema.split('/', 1)[1].replace('/', '-')}.json").read_text())
    for definition in document["$defs"].values():
        definition["additionalProperties"] = False
    return document


no_deadline = settings(deadline=None, max_examples=60)

VALIDATORS = {schema: jsonschema.Draft202012Validator(strict(schema)) for schema in ANSWERS}


def checked(answer: Part) -> dict[str, Any]:
    """The answer as JSON, which its published schema admits."""
    document: dict[str, Any] = json.loads(msgspec.json.encode(answer))
    VALIDATORS[document["schema"]].validate(document)
    return document


def planned(context: QueryContext, *asked: Any, reader: Reader = ALICE) -> Plan:
    plans = plans_for(context, asked, trial(context, asked), reader)
    return Plan(schema=PLAN_SCHEMA, at=format_time(context.now), allocations=plans)


def sacrificed(context: QueryContext, candidate: Candidate, reader: Reader) -> Preemption:
    """What would be preempted for it, as this reader is told."""
    node_cache = context.state.node_cache
    eligible = [index for index in admitted_nodes(node_cache, candidate.need) if node_cache.nodes[index].usable]
    free = [index for index in eligible if index not in node_cache.taken]
    found = preemption(
        replace(candidate, preemption_class=10), context.holders.values(), node_cache.nodes, eligible, free, context.state.policies, NOW
    )
    return sacrifice(context, found, reader)


def everything_said(context: QueryContext, reader: Reader) -> str:
    """Every answer about every allocation of the reader, as JSON and as text for people."""
    texts = []
    for found in context.candidates.values():
        if reader.may_name(found.user, found.key):
            answer = why(context, found.uid, reader, preemption=sacrificed(context, found, reader))
            texts += [json.dumps(checked(answer)), *explained.sentences("1", answer, NOW)]
    shown = queues(context, VCLUSTERS, reader, 200)
    texts += [json.dumps(checked(shown)), *queue_lines(shown, now=NOW, width=0, plot_width=80, wide=True, color=False)]
    plan = planned(context, pending(900, nodes=3), pending(901, nodes=50), reader=reader)
    texts += [json.dumps(checked(plan)), *plan_verb.sentences(plan, NOW)]
    return "\n".join(texts)


# Who may know what


@pytest.mark.parametrize(
    ("user", "key", "whose"),
    [("alice", "elsewhere/a", YOU), ("bob", "physics/b", YOUR_TENANT), ("bob", "lab/b", OTHER_TENANTS), ("", "lab/b", OTHER_TENANTS)],
)
def test_work_is_yours_your_tenants_or_of_others(user: str, key: str, whose: str) -> None:
    assert ALICE.whose(user, key) == whose
    assert ALICE.may_name(user, key) == (whose != OTHER_TENANTS)
    assert OPERATOR.may_name(user, key)


@no_deadline
@given(moments())
def test_no_foreign_name_stands_in_any_answer_to_an_ordinary_reader(context: QueryContext) -> None:
    assert MARK not in everything_said(context, ALICE)


def test_who_may_list_everything_reads_every_name() -> None:
    context = moment(4, (holding(1, (0, 1), 2),), (pending(2, 2, nodes=4), pending(3, nodes=4)))
    said = everything_said(context, OPERATOR)
    assert f"{MARK}-run-1" in said
    assert f"{MARK}-job-2" in said


@no_deadline
@given(moments())
def test_answers_leave_the_scene_as_it_was(context: QueryContext) -> None:
    cluster_state = context.state
    need = pending(1).need

    def state() -> object:
        census_now = census_of(cluster_state.node_cache, need)
        return copy.deepcopy((cluster_state.holders, census_now, cluster_state.backfill_reservations, cluster_state.lists))

    before = state()
    everything_said(context, ALICE)
    assert state() == before
    cluster_state.validate()


# why


def test_holders_stand_in_the_order_in_which_they_end_and_others_are_counted() -> None:
    held = (
        holding(1, (0,), 1, end=NOW + 900), holding(2, (1, 2), 0, end=NOW + 60), holding(3, (3, 4, 5), 2, end=NOW + 30),
        holding(4, (6,), 3, end=NOW + 300),
    )  # fmt: skip
    answer = why(moment(8, held, (pending(9, nodes=8),)), uid(9), ALICE)
    assert [(one.whose, one.nodes, one.allocations, one.work.name if one.work else "") for one in answer.blockers] == [
        ("you", 2, 1, "run-2"), ("your tenant", 1, 1, "run-1"), ("other tenants", 4, 2, ""),
    ]  # fmt: skip
    others = answer.blockers[-1]
    assert (others.first, others.until) == (format_time(NOW + 30), format_time(NOW + 300))
    assert answer.nodes is not None
    assert (answer.nodes.needed, answer.nodes.eligible, answer.nodes.free) == (8, 8, 1)


def test_an_attempt_of_its_own_that_ends_does_not_stand_before_it() -> None:
    own = msgspec.structs.replace(holding(1, (0, 1)), uid=uid(1), releasing=True)
    found = why(moment(2, (own,), (pending(1, nodes=2),)), uid(1), ALICE)
    assert found.blockers == []


def test_a_position_counts_those_only_that_could_start() -> None:
    queue = tuple(pending(number, nodes=9 if number == 3 else 1) for number in range(1, 6))
    reasons = {uid(1): ("Held", ""), uid(2): ("NotBefore", ""), uid(3): ("NeverFits", "")}
    found = why(moment(2, (holding(90, (0, 1)),), queue, said=reasons), uid(5), ALICE).queue
    assert found is not None
    assert (found.position, found.of) == (2, 2)


def test_what_no_nodes_would_start_now_has_no_position() -> None:
    queue = (pending(1, held=True), pending(2, not_before=NOW + 60), pending(3))
    context = moment(2, (holding(90, (0, 1)),), queue)
    assert [why(context, uid(number), ALICE).queue is None for number in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize(
    "message",
    ['needs 1 node, and vCluster "desks" starts in strict order of submission', '1 is free; vCluster "x" goes by order of submission'],
)
def test_no_class_is_advised_where_submission_decides(message: str) -> None:
    assert "class" not in explained.next_step("BehindHigherPriority", "7", message).removesuffix("no class or score changes it")
    assert "raise the class" in explained.next_step(
        "BehindHigherPriority", "7", "1 of them is kept by backfill reservations of 1 allocation"
    )


def test_work_of_which_nobody_knows_the_end_is_said_to_be_unbounded() -> None:
    answer = why(moment(2, (holding(1, (0, 1), end=None),), (pending(9, nodes=2),)), uid(9), ALICE)
    assert answer.blockers[0].until is None
    assert "unbounded" in "\n".join(explained.sentences("9", answer, NOW))


def test_the_position_counts_from_the_head_of_its_own_vcluster() -> None:
    queue = (pending(1, 2, nodes=4), pending(2, nodes=4, preemption_class=9), pending(3, nodes=4), pending(4, vcluster="ml"))
    answer = why(moment(2, (), queue), uid(3), ALICE)
    assert answer.queue is not None
    assert (answer.queue.vcluster, answer.queue.position, answer.queue.of) == ("hpc", 3, 3)
    assert [(one.kind, one.whose, one.allocations) for one in answer.blockers] == [("Ahead", "you", 1), ("Ahead", "other tenants", 1)]


def test_held_work_has_no_blockers_and_quota_shows_what_the_tenant_runs() -> None:
    context = moment(4, (holding(1, (0, 1), 1), holding(2, (2,), 2)), (pending(8), pending(9)), said={uid(8): ("Held", "x"), uid(9): (
        "WaitingForQuotaHeadroom", "x")})  # fmt: skip
    assert why(context, uid(8), ALICE).blockers == []
    assert [(one.whose, one.nodes) for one in why(context, uid(9), ALICE).blockers] == [("your tenant", 2)]


def test_work_that_waits_for_its_share_of_the_quota_tree_is_told_what_runs_in_the_groups_that_share_it() -> None:
    holders = (holding(1, (0, 1, 2), 0, quota="theory"), holding(2, (3, 4, 5, 6), 2, quota="lab"), holding(3, (7,), 3, quota="bio"))
    said = {uid(9): ("WaitingForQuotaShare", "x")}
    for most, whose in ((3, [("you", 3)]), (9, [("you", 3), ("other tenants", 4)])):
        context = moment(8, holders, (pending(9, nodes=2, quota="theory"),), said=said)
        groups = (
            Group("physics", min={"nodes": 6}, max={"nodes": 7}, is_parent=True), Group("theory", "physics", max={"nodes": most}),
            Group("lab", "physics", max={"nodes": 9}), Group("bio", max={"nodes": 9}),
        )  # fmt: skip
        context.state.plant(Forest([TreeSpec(groups=groups)]))
        quota_usage = context.state.quota_usage
        assert quota_usage is not None
        quota_usage.forest.capacity("", {"nodes": 8})
        quota_usage.ask(context.candidates.values(), NOW)
        assert [(one.whose, one.nodes) for one in why(context, uid(9), ALICE).blockers] == whose
        context.state.validate()


def test_the_work_that_fills_a_limit_of_the_vcluster_stands_before_what_it_blocks() -> None:
    holders = (holding(1, (0,)), holding(2, (1,), 1), holding(3, (2,), 2), holding(4, (3,), vcluster="ml"))
    for limits, blocked_by in (
        (Limits(max_running_per_user=1), ["run-1"]),
        (Limits(max_nodes_per_tenant=2), ["run-1", "run-2"]),
        (Limits(max_nodes=3), ["run-1", "run-2", "1 of other tenants"]),
    ):
        context = moment(8, holders, (pending(9),), said={uid(9): ("WaitingForQuotaHeadroom", "no room")})
        context.state.policies["hpc"] = Policy("hpc", limits=limits)
        found = why(context, uid(9), ALICE).blockers
        assert [one.work.name if one.work else f"{one.allocations} of {one.whose}" for one in found] == blocked_by, limits


def test_all_work_on_nodes_stands_before_what_waits_for_power() -> None:
    context = moment(8, (holding(1, (0,)), holding(2, (1, 2), 2, vcluster="ml")), (pending(9),), said={uid(9): ("PowerBudget", "short")})
    assert [(one.kind, one.whose, one.nodes) for one in why(context, uid(9), ALICE).blockers] == [
        ("Holder", "you", 1), ("Holder", "other tenants", 2),
    ]  # fmt: skip


def test_reservations_and_nodes_out_of_service_are_counted_on_the_nodes_that_fit() -> None:
    windows = (
        ReservationWindow("firmware", NOW + 600, NOW + 1200, 0b11, maintenance=True),
        ReservationWindow(f"{MARK}-lab", NOW, NOW + 60, 0b1, tenants=frozenset({f"{MARK}-lab"})),
    )
    answer = why(moment(4, (), (pending(9, nodes=4),), windows=windows, unusable=frozenset({3})), uid(9), ALICE)
    assert [(one.kind, one.name, one.nodes) for one in answer.blockers] == [
        ("Reservation", "", 1), ("Reservation", "firmware", 2), ("Unavailable", "Draining", 1),
    ]  # fmt: skip


def test_a_window_that_begins_between_the_end_and_the_end_after_a_slow_start_stands_in_its_way() -> None:
    waiting = pending(9, nodes=4)
    assert waiting.walltime is not None
    end = NOW + waiting.walltime + waiting.grace

    def kinds(start: float) -> list[str]:
        windows = (ReservationWindow("firmware", start, start + 600, 0b11, maintenance=True),)
        return [one.kind for one in why(moment(4, (), (waiting,), windows=windows), uid(9), ALICE).blockers]

    assert (kinds(end + 30), kinds(end + 61)) == (["Reservation"], [])


def test_nodes_that_are_at_home_elsewhere_stand_in_nobodys_way_unless_they_are_lent() -> None:
    windows = (ReservationWindow("firmware", NOW + 600, NOW + 1200, 0b1100, maintenance=True),)
    context = moment(4, (holding(1, (0,)), holding(2, (2,), vcluster="ml")), (pending(9, nodes=4),), windows=windows)
    for index in (2, 3):
        context.state.node_cache.put(node(index, f"g{index // 4}", home="ml"))
    lends = Policy("ml", home=True, borrowing=Borrowing(lend=True, max_duration=7200.0))
    context.state.policies["ml"] = lends
    answer = why(context, uid(9), ALICE)
    assert [(one.kind, one.nodes) for one in answer.blockers] == [("Holder", 1)]
    assert answer.nodes == Census(needed=4, eligible=2, usable=2, free=1)
    context.state.policies["hpc"] = Policy("hpc", borrowing=Borrowing(borrow=True))
    answer = why(context, uid(9), ALICE)
    assert [(one.kind, one.nodes) for one in answer.blockers] == [("Holder", 1), ("Holder", 1), ("Reservation", 2)]
    assert answer.nodes == Census(needed=4, eligible=4, usable=4, free=2)
    context.state.policies["ml"] = Policy("ml", home=True, borrowing=Borrowing(lend=True, max_duration=1800.0))
    assert why(context, uid(9), ALICE).nodes == Census(needed=4, eligible=2, usable=2, free=1), "its hour is longer than what is lent"


@no_deadline
@given(moments(), st.integers(0, 1023))
def test_the_census_counts_the_nodes_that_may_be_used_with_node_lists_and_without(context: QueryContext, listed: int) -> None:
    node_cache = context.state.node_cache
    for candidate in context.candidates.values():
        for asked in (candidate, replace(candidate, need=Need(without=listed))):
            fitting = eligible_nodes(context, asked)
            usable = {index for index in fitting if node_cache.nodes[index].usable}
            free = usable - node_cache.taken.keys()
            assert census(context, asked) == Census(needed=asked.minimum, eligible=len(fitting), usable=len(usable), free=len(free))


def test_what_is_not_pending_is_not_found() -> None:
    with pytest.raises(NotFound, match="does not have it in a queue"):
        why(moment(1), uid(1), ALICE)


def test_the_forecast_is_told_with_both_odds_or_with_its_reason() -> None:
    queue = (pending(1, nodes=2), pending(2, nodes=2))
    expected = {uid(1): Expected(NOW + 600, NOW + 1200), uid(2): Expected(reason="UnboundedWork")}
    context = moment(1, (), queue, expected=expected)
    first = "\n".join(explained.sentences("1", why(context, uid(1), ALICE), NOW))
    assert f"{format_time(NOW + 600)} (in 10m) as likely as not, 9 times of 10 by {format_time(NOW + 1200)} (in 20m)" in first
    assert "not known: UnboundedWork" in "\n".join(explained.sentences("2", why(context, uid(2), ALICE), NOW))


# queue


def test_runs_of_others_are_one_line_with_counts() -> None:
    queue = (pending(1, 2, nodes=4), pending(2, 3, nodes=5), pending(3, nodes=2), pending(4, 2, nodes=1))
    shown = queues(moment(2, (), queue), ["hpc"], ALICE, 200).vclusters[0]
    assert [(one.position, one.whose, one.count, one.nodes) for one in shown.entries] == [
        (1, "other tenants", 2, 9), (3, "you", 1, 2), (4, "other tenants", 1, 1),
    ]  # fmt: skip
    lines = queue_lines(queues(moment(2, (), queue), ["hpc"], ALICE, 200), now=NOW, width=80, plot_width=0, wide=False, color=False)
    assert [line.split()[0] for line in lines[2:]] == ["1-2", "3", "4"]


def test_held_and_too_early_work_is_counted_apart_and_stands_behind_what_could_start() -> None:
    queue = (
        pending(1, held=True, preemption_class=9), pending(2, not_before=NOW + 60, preemption_class=9), pending(3, 2),
        pending(4, 2, held=True, nodes=2), pending(5),
    )  # fmt: skip
    found = queues(moment(1, (), queue), ["hpc"], ALICE, 200)
    shown = found.vclusters[0]
    assert (shown.pending, shown.apart) == (5, {"Held": 2, "NotBefore": 1})
    assert [(one.position, one.whose, one.count) for one in shown.entries] == [
        (1, "other tenants", 1), (2, "you", 1), (0, "you", 1), (0, "you", 1), (0, "other tenants", 1),
    ]  # fmt: skip
    lines = queue_lines(found, now=NOW, width=0, plot_width=0, wide=False, color=False)
    assert lines[0] == "hpc: Backfill, 2 pending, 2 held, 1 not before their time, the first 10 that are blocked hold reservations"
    assert [line.split()[0] for line in lines[2:4]] == ["1", "2"]


@no_deadline
@given(st.integers(1, 40), st.integers(1, 12))
def test_what_the_limit_leaves_out_is_counted(pending_count: int, limit: int) -> None:
    queue = tuple(pending(number) for number in range(pending_count))
    shown = queues(moment(1, (), queue), ["hpc"], ALICE, limit).vclusters[0]
    assert (len(shown.entries), shown.left_out) == (min(limit, pending_count), max(0, pending_count - limit))


def test_a_policy_that_holds_no_reservations_shows_none() -> None:
    context = moment(1, (), (pending(1),))
    for kind, depth in ((BACKFILL, 10), (SENSITIVE_RESERVATION, 0)):
        context.state.policies["hpc"] = Policy("hpc", kind)
        shown = queues(context, ["hpc"], ALICE, 10)
        lines = queue_lines(shown, now=NOW, width=80, plot_width=0, wide=False, color=False)
        assert (shown.vclusters[0].depth, "hold reservations" in lines[0]) == (depth, depth > 0)


def test_an_unknown_vcluster_is_not_found_with_those_that_are() -> None:
    with pytest.raises(NotFound, match=r'no vcluster "gpu". Known: hpc, ml'):
        queues(moment(1), VCLUSTERS, ALICE, 10, only="gpu")


def test_a_window_in_months_does_not_make_the_hours_to_come_too_small_to_read() -> None:
    def length(*windows: ReservationWindow) -> float:
        found = queues(moment(4, (holding(1, (0, 1), end=NOW + 7200),), windows=windows), ["hpc"], ALICE, 10).timeline
        assert found is not None
        return found.step_seconds * len(found.points)

    tonight, in_months = (
        ReservationWindow("tonight", NOW + 36000, NOW + 43200, 0b1),
        ReservationWindow("later", NOW + 1e7, NOW + 1e7 + 3600, 0b1),
    )
    assert length() == length(in_months) < 14400
    assert 43200 <= length(tonight, in_months) < 86400


def test_the_timeline_ends_work_at_its_end_and_starts_what_is_pending_when_expected() -> None:
    queue = (pending(5, nodes=2, walltime=3570.0),)
    context = moment(
        4, (holding(1, (0, 1), end=NOW + 1200), holding(2, (2,), end=None)), queue, expected={uid(5): Expected(NOW + 1200, NOW)}
    )
    found = queues(context, ["hpc"], ALICE, 10).timeline
    assert found is not None
    by_time = {round(index * found.step_seconds): point for index, point in enumerate(found.points)}
    assert (by_time[0].running, by_time[0].planned) == (3, 0)
    assert (by_time[1200].running, by_time[1200].planned) == (1, 2)
    assert (found.points[-1].running, found.points[-1].planned) == (1, 0)


@no_deadline
@given(st.integers(0, 20000), st.integers(-20000, 20000), st.booleans())
def test_the_timeline_starts_nothing_before_its_time_whatever_was_forecast(opens: int, forecast: int, running: bool) -> None:
    queue = (pending(5, nodes=2, not_before=NOW + opens),)
    held = (holding(1, (0, 1), end=NOW + 300),) if running else ()
    found = queues(moment(4, held, queue, expected={uid(5): Expected(NOW + forecast, NOW + forecast)}), ["hpc"], ALICE, 10).timeline
    assert found is not None
    early = [index for index, point in enumerate(found.points) if point.planned and index * found.step_seconds < opens]
    assert early == []
    if running and opens > 0:
        assert found.step_seconds * len(found.points) < 1500, "the next minutes are hidden by what begins hours later"


@no_deadline
@given(moments(), st.integers(20, 200))
def test_the_plot_fits_the_terminal(context: QueryContext, width: int) -> None:
    shown = queues(context, VCLUSTERS, ALICE, 5)
    lines = queue_lines(shown, now=NOW, width=width, plot_width=width, wide=False, color=False)
    plot = [line for line in lines if "┤" in line or "└" in line]
    assert all(len(line) <= width for line in plot)
    assert not any("\x1b" in line for line in lines)


def test_colours_change_nothing_but_the_colour() -> None:
    shown = queues(moment(4, (holding(1, (0, 1)),), ()), ["hpc"], ALICE, 5)
    plain, painted = (queue_lines(shown, now=NOW, width=80, plot_width=80, wide=False, color=color) for color in (False, True))
    assert plain != painted
    assert [line.replace("\x1b[32m", "").replace("\x1b[0m", "") for line in painted] == plain


# plan


def test_work_that_fits_starts_now_and_says_where() -> None:
    plan = planned(moment(8, (holding(1, (0,)),)), pending(9, nodes=4))
    one = plan.allocations[0]
    assert one.verdict == "Now"
    assert one.placement is not None
    assert (one.placement.count, sum(group.nodes for group in one.placement.groups)) == (4, 4)
    assert one.quota is not None
    assert (one.quota.nodes.used, one.quota.nodes.after) == (0, 4)
    assert plan_verb.sentences(plan, NOW)[0] == "physics/job-9 starts now"


def test_a_range_is_planned_with_its_least_number_and_what_it_would_get_now() -> None:
    context = moment(12, (holding(1, (0,)),))
    for _ in range(2):
        placed = planned(context, pending(9, nodes=2, maximum=8)).allocations[0].placement
        assert placed is not None
        assert (placed.count, placed.least, placed.most) == (5, 2, 8), "a third of the 9 that are left beside its 2"
    assert "5 nodes (asks for 2-8) in" in "\n".join(plan_verb.sentences(planned(context, pending(9, nodes=2, maximum=8)), NOW))
    waits = moment(12, (holding(1, (0,)),), (pending(3, nodes=12),))
    contested = planned(waits, pending(9, nodes=2, maximum=8, walltime=60.0)).allocations[0].placement
    assert contested is not None
    assert contested.count == 2, "somebody waits for the same nodes"


def test_each_of_several_is_planned_after_those_before_it() -> None:
    plan = planned(moment(4), pending(1, nodes=3), pending(2, nodes=3), pending(3, nodes=40))
    assert [one.verdict for one in plan.allocations] == ["Now", "Later", "Never"]
    assert plan.allocations[1].quota is not None
    assert plan.allocations[1].quota.nodes.used == 3
    assert "can never start: NeverFits" in "\n".join(plan_verb.sentences(plan, NOW))


def test_pending_work_that_comes_first_is_planned_first() -> None:
    context = moment(4, (), (pending(1, 2, nodes=4, preemption_class=9),))
    assert planned(context, pending(9, nodes=1)).allocations[0].verdict == "Later"


@no_deadline
@given(moments())
def test_a_trial_gives_the_outcome_of_the_real_cycle(context: QueryContext) -> None:
    asked = pending(900, nodes=2)
    tried = trial(context, [asked])[asked.uid]
    assert tried == trial(context, [asked])[asked.uid]
    assert tried.candidate == asked
