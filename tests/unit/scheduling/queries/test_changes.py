"""The smallest changes that would start work now: each is true when it is tried, none smaller is, and nothing remains of the search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.outcomes import Placed, Waiting
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import ANY, PREFERRED, REQUIRED, SPREAD, TIGHT, Candidate, NodeHolder
from lattice.scheduling.queries.answers import Change
from lattice.scheduling.queries.changes import MOST_QUESTIONS, changes, search
from lattice.scheduling.queries.what_if import undone
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.units import parse_duration
from lattice.views.ledger import TenantAccount
from lattice_dev.bench.plan import plain_node
from tests.build import job

NOW = 1_000_000.0
HOUR = 3600.0


def state(nodes: int = 8, **facts: Any) -> ClusterState:
    made = ClusterState(accounts={"physics": TenantAccount()}, start_allowance=0.0, overrun_seconds=0.0)
    for index in range(nodes):
        made.node_cache.put(replace(plain_node(index), **facts))
    return made


def running(made: ClusterState, number: int, nodes: range, left: float) -> None:
    made.put_holder(
        NodeHolder(
            uid=f"r{number}", key=f"physics/r{number}", tenant="physics", user="alice", vcluster="hpc", preemption_class=5,
            nodes=tuple(nodes), since=NOW - 1, started=NOW - 1, end=NOW + left, walltime=left + 1,
        )
    )  # fmt: skip


def by_kind(found: tuple[Change, ...]) -> dict[str, str]:
    return {change.kind: change.value for change in found}


def starts(made: ClusterState, candidate: Candidate, *others: Candidate) -> bool:
    with undone(made):
        outcomes = {one.candidate.uid: one for one in decide(made, candidate.vcluster, [*others, candidate], NOW)}
        return isinstance(outcomes[candidate.uid], Placed)


def test_fewer_nodes_are_the_most_that_start() -> None:
    made = state()
    running(made, 0, range(5), HOUR)
    (change,) = changes(made, job(1, 6), NOW)
    assert (change.kind, change.value, change.text) == ("Nodes", "3", "3 nodes instead of 6")


def test_a_shorter_walltime_ends_before_the_reservation_of_who_waits_first() -> None:
    made = state()
    running(made, 0, range(5), 2 * HOUR)
    queue = [job(1, 8), job(2, 3, walltime=5 * HOUR)]
    list(decide(made, "hpc", queue, NOW))
    found = changes(made, queue[1], NOW, queues={"hpc": queue})
    (change,) = found
    assert change.kind == "Walltime"
    seconds = parse_duration(change.value)
    assert seconds == pytest.approx(2 * HOUR, abs=120)
    assert starts(made, replace(queue[1], walltime=seconds), queue[0])
    assert not starts(made, replace(queue[1], walltime=seconds + 60), queue[0])


def test_a_maintenance_leaves_the_time_until_it_begins() -> None:
    made = state()
    made.set_windows([ReservationWindow("maint", NOW + 2 * HOUR, NOW + 4 * HOUR, 0xFF, maintenance=True)])
    assert by_kind(changes(made, job(1, 8, walltime=24 * HOUR), NOW)) == {"Walltime": "2h"}


def test_the_change_and_the_sentence_name_the_same_walltime_to_the_minute() -> None:
    made = state()
    made.set_windows([ReservationWindow("maint", NOW + 5 * HOUR + 34 * 60 + 17, NOW + 9 * HOUR, 0xFF, maintenance=True)])
    asked = job(1, 8, walltime=24 * HOUR)
    (told,) = decide(made, "hpc", [asked], NOW)
    assert isinstance(told, Waiting)
    assert "a walltime of at most 5h34m starts now" in told.message
    assert by_kind(changes(made, asked, NOW)) == {"Walltime": "5h34m"}


def test_unbounded_work_is_told_the_walltime_that_would_start() -> None:
    made = state()
    made.set_windows([ReservationWindow("maint", NOW + 90 * 60, NOW + 4 * HOUR, 0xFF, maintenance=True)])
    (change,) = changes(made, job(1, 8, walltime=None), NOW)
    assert change.text == "a walltime of 1h30m instead of none"


def test_another_gpu_type_is_named_only_where_it_starts() -> None:
    made = state(4, gpus=4, gpu_type="GH200")
    for index, kind in ((4, "A100"), (5, "MI300A")):
        made.node_cache.put(replace(plain_node(index), gpus=4, gpu_type=kind))
    running(made, 0, range(5), HOUR)
    asked = job(1, 1, need=Need(gpus=4, gpu_type="gh200"))
    assert by_kind(changes(made, asked, NOW, gpu_types=("A100", "GH200", "MI300A"))) == {"GpuType": "MI300A"}


def test_another_vcluster_is_named_only_where_it_starts() -> None:
    made = ClusterState(accounts={"physics": TenantAccount()})
    homes = ["hpc", "hpc", "ml", "ml", "dev"]
    for index, home in enumerate(homes):
        made.node_cache.put(replace(plain_node(index), home=home))
    made.policies = {name: Policy(name, home=True) for name in ("hpc", "ml", "dev")}
    running(made, 0, range(2), HOUR)
    found = changes(made, job(1, 2, vcluster_open=False), NOW, vclusters=("hpc", "ml", "dev"))
    assert by_kind(found) == {"VCluster": "ml"}


def test_its_own_reservation_does_not_stand_in_its_way() -> None:
    made = state()
    running(made, 0, range(5), HOUR)
    asked = job(1, 8)
    list(decide(made, "hpc", [asked], NOW))
    assert asked.uid in made.backfill_reservations["hpc"]
    assert by_kind(changes(made, asked, NOW, queues={"hpc": [asked]})) == {"Nodes": "3"}
    assert asked.uid in made.backfill_reservations["hpc"]


def test_work_that_was_given_nodes_during_the_search_is_left_alone() -> None:
    made = state()
    running(made, 0, range(5), HOUR)
    asked, other = job(1, 6), job(2, 3)
    steps = search(made, asked, NOW, queues={"hpc": [other, asked]})
    next(steps)
    made.claim(other, (5, 6, 7), NOW)
    made.claim(asked, (), NOW)
    before = dict(made.holders)
    assert [change for change in steps if change is not None] == []
    assert made.holders == before
    made.validate()


@pytest.mark.parametrize(
    "candidate",
    [job(1), job(1, 9, held=True), job(1, 9, blocked=("NeverFits", "no")), job(1, 9, not_before=NOW + 5)],
    ids=["starts as it is", "held", "blocked", "later"],
)
def test_nothing_is_said_where_no_change_of_the_request_helps(candidate: Candidate) -> None:
    assert changes(state(), candidate, NOW) == ()


def test_a_full_quota_is_helped_by_fewer_nodes_only() -> None:
    made = state()
    made.accounts = {"physics": TenantAccount(max_nodes=5, used_nodes=1)}
    assert by_kind(changes(made, job(1, 7), NOW)) == {"Nodes": "4"}


def test_the_questions_are_bounded_and_nothing_remains_between_them() -> None:
    made = state(64)
    running(made, 0, range(63), HOUR)
    queue = [job(number, 2 + number % 7) for number in range(30)]
    list(decide(made, "hpc", queue, NOW))
    before = (dict(made.holders), {name: dict(kept) for name, kept in made.backfill_reservations.items()})
    steps = 0
    for _ in search(made, queue[3], NOW, vclusters=[f"v{number}" for number in range(40)], queues={"hpc": queue}):
        steps += 1
        assert (dict(made.holders), {name: dict(kept) for name, kept in made.backfill_reservations.items()}) == before
    made.validate()
    assert steps <= MOST_QUESTIONS + 3


def test_tight_work_is_told_the_most_nodes_although_less_may_have_to_stand_in_fewer_groups() -> None:
    made = state(0)
    for index in range(20):
        made.node_cache.put(replace(plain_node(index), group=f"g{index // 10}"))
    running(made, 0, range(4), HOUR)
    running(made, 1, range(10, 14), HOUR)
    asked = job(1, 14, topology=TIGHT)
    assert not starts(made, replace(asked, minimum=8, maximum=8)), "8 have to stand in one group, of which 6 nodes are free"
    assert starts(made, replace(asked, minimum=12, maximum=12))
    assert by_kind(changes(made, asked, NOW)) == {"Nodes": "12"}
    assert by_kind(changes(made, replace(asked, minimum=9, maximum=9), NOW)) == {"Nodes": "6"}


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_no_greater_number_of_nodes_than_the_one_named_starts_whatever_the_topology(data: st.DataObject) -> None:
    made = state(0)
    for index in range(12):
        group, fingerprint = data.draw(st.integers(0, 3)), data.draw(st.sampled_from("ab"))
        made.node_cache.put(replace(plain_node(index), group=f"g{group}", fingerprint=fingerprint))
    held = data.draw(st.sets(st.integers(0, 11), max_size=9))
    for number, index in enumerate(sorted(held)):
        running(made, number, range(index, index + 1), HOUR)
    topology, conformance = data.draw(st.sampled_from((ANY, TIGHT, SPREAD))), data.draw(st.sampled_from((PREFERRED, REQUIRED)))
    asked = job(50, data.draw(st.integers(2, 12)), topology=topology, conformance=conformance)
    starting = [count for count in range(1, asked.minimum + 1) if starts(made, replace(asked, minimum=count, maximum=count))]
    named = by_kind(changes(made, asked, NOW)).get("Nodes")
    if asked.minimum in starting:
        assert named is None
    else:
        assert named == (str(max(starting)) if starting else None)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8)), max_size=3),
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), max_size=3),
    st.tuples(st.integers(1, 9), st.integers(1, 8)),
)
def test_every_change_named_is_true_and_the_next_smaller_one_is_not(
    held: list[tuple[int, int]], ahead: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    made = state()
    first = 0
    for number, (count, hours) in enumerate(held):
        last = min(8, first + count)
        if last > first:
            running(made, number, range(first, last), hours * HOUR)
        first = last
    others = [job(number, nodes, walltime=hours * HOUR) for number, (nodes, hours) in enumerate(ahead)]
    mine = job(50, asked[0], walltime=asked[1] * HOUR)
    queue = [*others, mine]
    found = by_kind(changes(made, mine, NOW, queues={"hpc": queue}))
    if "Nodes" in found:
        count = int(found["Nodes"])
        assert starts(made, replace(mine, minimum=count, maximum=count), *others)
        assert not starts(made, replace(mine, minimum=count + 1, maximum=count + 1), *others)
    if "Walltime" in found:
        seconds = int(parse_duration(found["Walltime"]))
        assert seconds % 60 == 0
        longer = min(seconds + 60, asked[1] * HOUR)
        assert starts(made, replace(mine, walltime=float(seconds)), *others)
        assert not starts(made, replace(mine, walltime=float(longer)), *others)
    if starts(made, mine, *others):
        assert not found
    made.validate()
