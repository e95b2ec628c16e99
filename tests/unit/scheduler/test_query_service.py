"""The query service of a leader: answers from a live loop, whose state stays as it was."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest

from lattice.accounting.answers import Unsettled
from lattice.cli.verbs.plan import sentences
from lattice.daemon.clock import ManualClock
from lattice.errors import Denied, NotFound, Rejected, Retry
from lattice.quota.declared import Binding, Bindings, Declared, Source, bindings_of
from lattice.quota.forest import Forest, TreeSpec
from lattice.quota.groups import Group
from lattice.scheduling.conversion.candidates import candidate_of
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.forecast.forecaster import Forecaster
from lattice.scheduling.model.outcomes import Waiting
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.queries.answers import PLAN_SCHEMA, Bound, Plan
from lattice.scheduling.queries.context import Expected
from lattice.scheduling.queries.quota_view import Remarks
from lattice.scheduling.queries.readers import Reader
from lattice.scheduling.recording.record import take_snapshot
from lattice.scheduling.state.cluster_state import ClusterState, mask_of
from lattice.units import format_time
from lattice.views.allocation import Allocation
from lattice.views.cluster import Config, ConfigSpec, SchedulingOptions, Tenant, VCluster
from lattice.views.ledger import TenantAccount
from lattice.views.meta import Metadata
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.pending_work import PendingWork
from lattice_controllers.scheduler.query_service import QueryService
from lattice_controllers.scheduler.status_rows import StatusCache
from tests.build import uid
from tests.unit.scheduler.doubles import AllocationsHeld, known
from tests.unit.scheduling.moments import ALICE, NOW, holding, moment, pending

NO_BINDINGS = bindings_of(())
HPC = VCluster(metadata=Metadata(name="hpc"))


@dataclass
class Sources:
    """What a query service reads beside the pending work."""

    state: ClusterState
    queue: Sequence[Candidate]
    number: Callable[[str], int | None]
    bursting: Mapping[str, int]
    bindings: Bindings
    found: Mapping[str, Expected] = field(default_factory=dict)
    forecaster: Forecaster = field(default_factory=Forecaster)
    caught_up: list[float] = field(default_factory=list)

    def candidate(self, allocation: Allocation) -> Candidate:
        return candidate_of(allocation, HPC, {})

    def shown_number(self, uid: str) -> int | None:
        return self.number(uid)

    async def catch_up(self, seconds: float) -> None:
        self.caught_up.append(seconds)

    async def suppose(self, outcomes: Sequence[Waiting]) -> Mapping[str, Expected]:
        found = self.forecaster.forecast(self.state, {"hpc": [*self.queue, *(one.candidate for one in outcomes)]}, NOW)
        return {one.candidate.uid: found[one.candidate.uid] for one in outcomes}

    def burst_of(self, tenant: str) -> int:
        return self.bursting.get(tenant, 0)

    def unsettled(self) -> Unsettled:
        return Unsettled("0", [])

    def remarks(self) -> Remarks:
        return Remarks()

    def over_since(self) -> Mapping[str, str]:
        return {}


@dataclass
class State:
    """What the service reads, to be looked at and changed by tests."""

    state: ClusterState
    pending: PendingWork
    sources: Sources


def service(
    nodes: int = 4, *, running: int = 3, waiting: int = 4, holders: Sequence[NodeHolder] = (), preemption_class: int = 5,
    bursting: Mapping[str, int] = MappingProxyType({}), limits: SchedulingOptions | None = None, bindings: Bindings = NO_BINDINGS,
    number: Callable[[str], int | None] = lambda _uid: 7,
) -> tuple[QueryService, State]:  # fmt: skip
    """A query service beside work on some nodes, and one that waits for more than are free."""
    queue = (pending(2, nodes=waiting, preemption_class=preemption_class),)
    held = holders or ((holding(1, tuple(range(running)), 1),) if running else ())
    cluster_state, clock = moment(nodes, tuple(held), queue).state, ManualClock(NOW)
    work = PendingWork(clock, cluster_state, SchedulerMetrics(), asyncio.Event())
    for candidate in queue:
        work.enqueue(candidate)
    for outcome in decide(cluster_state, "hpc", queue, NOW):
        assert isinstance(outcome, Waiting)
        work.reasons[outcome.candidate.uid] = outcome
    sources = Sources(cluster_state, queue, number, bursting, bindings)
    config = Config(metadata=Metadata(name="lattice"), spec=ConfigSpec(scheduling=limits or SchedulingOptions()))
    made = QueryService(
        clock, cluster_state, work, candidates=sources, numbers=sources, starts=sources, vclusters={"hpc": HPC},
        tenants={"physics": Tenant(metadata=Metadata(name="physics"))}, config=known(config), usage=sources, quotas=sources,
        overuse=sources, rows=StatusCache(AllocationsHeld({})),
    )  # fmt: skip
    return made, State(cluster_state, work, sources)


def document(nodes: int | str = 1, **spec: Any) -> dict[str, Any]:
    body = {"tenant": "physics", "user": "alice", "vcluster": "hpc", "resources": {"nodes": nodes}, "lifecycle": {"walltime": "5m"}}
    return {"metadata": {"name": "asked", "namespace": "physics"}, "spec": {**body, **spec}}


async def test_why_names_only_changes_that_the_planner_found_true() -> None:
    made, state = service()
    answer = await made.why(uid(2), ALICE)
    assert answer.reason == "WaitingForNodes"
    assert [(change.kind, change.value) for change in answer.changes] == [("Nodes", "1")]
    state.state.validate()


async def test_why_says_what_would_be_preempted_or_why_nothing_is() -> None:
    made, _ = service()
    found = (await made.why(uid(2), ALICE)).preemption
    assert found is not None
    assert bool(found.victims) != bool(found.reason)


def low(number: int, nodes: tuple[int, ...], owner: int = 1, **fields: Any) -> NodeHolder:
    """Work of class 2 that has just begun."""
    return holding(number, nodes, owner, preemption_class=2, started=NOW - 60, walltime=7200.0, end=NOW + 7140, **fields)


async def test_work_of_a_tenant_above_its_share_goes_first() -> None:
    holders = [low(3, (0,)), low(4, (1,), 2)]
    for bursting, whose in (
        ({}, "your tenant"), ({"FOREIGN-lab": 1}, "other tenants"), ({"physics": 1, "FOREIGN-lab": 1}, "your tenant"),
        ({"physics": 1, "FOREIGN-lab": 2}, "other tenants"), ({"physics": 2, "FOREIGN-lab": 1}, "your tenant"),
    ):  # fmt: skip
        made, state = service(4, waiting=3, holders=holders, preemption_class=8, bursting=bursting)
        found = (await made.why(uid(2), ALICE)).preemption
        assert found is not None
        assert [victim.whose for victim in found.victims] == [whose]
        state.state.validate()


async def test_no_more_are_preempted_than_the_configuration_says_and_none_near_its_end() -> None:
    holders = [low(3, (0,)), low(4, (1,))]

    async def reason(limits: SchedulingOptions) -> str:
        made, _ = service(4, waiting=4, holders=holders, preemption_class=8, limits=limits)
        found = (await made.why(uid(2), ALICE)).preemption
        return "" if found is None else found.reason

    assert await reason(SchedulingOptions()) == ""
    assert await reason(SchedulingOptions(victims=1)) == "TooFewFreed"
    assert await reason(SchedulingOptions(near_completion="2h")) == "NoneToPreempt"


async def test_work_on_nodes_that_a_maintenance_takes_soon_is_no_victim() -> None:
    made, state = service(4, waiting=4, holders=[low(3, (0,))], preemption_class=8)
    state.state.set_windows([ReservationWindow("maint", NOW + 600, NOW + 9000, mask_of((0,)), maintenance=True)])
    found = (await made.why(uid(2), ALICE)).preemption
    assert found is not None
    assert (found.victims, found.reason) == ([], "TooFewNodes")


async def test_plan_says_when_work_that_is_not_submitted_would_start() -> None:
    made, state = service()
    before = dict(state.pending.candidates)
    plan = await made.plan([document(4), document(1), document(40)], ALICE, optimal=False)
    later, now, never = plan.allocations
    assert (later.verdict, now.verdict, never.verdict) == ("Later", "Now", "Never")
    assert later.expected_start is not None
    assert later.expected_start.p50 is not None
    assert format_time(NOW) < later.expected_start.p50 <= (later.expected_start.p90 or "")
    assert (later.allocation.uid, later.allocation.number) == ("", None)
    assert state.pending.candidates == before
    state.state.validate()


async def test_the_loop_goes_on_while_changes_are_sought() -> None:
    goes_on, waited = threading.Event(), list[bool]()

    def number(_uid: str) -> int:
        waited.append(goes_on.wait(30))
        return 7

    made, _ = service(64, running=60, waiting=64, number=number)

    async def go_on() -> None:
        goes_on.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(go_on())
        answer = await made.why(uid(2), ALICE)
    assert [change.value for change in answer.changes if change.kind == "Nodes"] == ["4"]
    assert waited
    assert all(waited)


async def test_questions_are_asked_beside_the_loop_and_leave_it_as_it_was() -> None:
    threads: set[int] = set()

    def number(_uid: str) -> int:
        threads.add(threading.get_ident())
        return 7

    made, state = service(number=number)
    cluster_state = state.state
    before, last_reservations = take_snapshot(cluster_state, "hpc", (), NOW, 0), dict(cluster_state.last_reservations)
    pending_queue = cluster_state.pending_queue("hpc").candidates
    await made.why(uid(2), ALICE)
    await made.plan([document(4), document(1)], ALICE, optimal=True)
    await made.queue("", ALICE, 10)
    assert threads
    assert threading.get_ident() not in threads
    assert take_snapshot(cluster_state, "hpc", (), NOW, 0) == before
    assert (cluster_state.last_reservations, cluster_state.pending_queue("hpc").candidates) == (last_reservations, pending_queue)


async def test_a_question_that_nobody_waits_for_any_more_ends_before_the_next_one_is_asked() -> None:
    asked, go_on, inside, most = threading.Event(), threading.Event(), 0, 0

    def number(_uid: str) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        asked.set()
        go_on.wait(60)
        inside -= 1
        return 7

    made, _ = service(number=number)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(made.why(uid(2), ALICE))
        await asyncio.to_thread(asked.wait, 60)
        first.cancel()
        second = group.create_task(made.why(uid(2), ALICE))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not first.done()
        go_on.set()
    assert first.cancelled()
    assert second.result().allocation.number == 7
    assert most == 1


async def test_optimal_proves_a_bound_that_the_plan_does_not_exceed() -> None:
    made, _ = service(8, running=3, waiting=7)
    plan = await made.plan([document(2), document(3)], ALICE, optimal=True)
    assert plan.optimal is not None
    assert 0 < plan.optimal.value <= (plan.optimal.optimal or 0) <= plan.optimal.bound
    assert plan.optimal.status == "proven"


async def test_a_proof_names_the_rules_in_force_that_the_solver_does_not_know() -> None:
    made, state = service(8, running=3, waiting=7)
    promised = "nodes that are promised to work that waits"
    ranged = {**document(2), "spec": {**document(2)["spec"], "resources": {"nodes": "1-4"}}}

    async def asked(given: dict[str, Any]) -> Bound:
        found = (await made.plan([given], ALICE, optimal=True)).optimal
        assert found is not None
        assert found.value <= (found.optimal or found.bound) <= found.bound
        return found

    assert (await asked(document(2))).unknown == [promised]
    of_range = await asked(ranged)
    assert of_range.optimal is None, "no plan is called better that the rule of ranges forbids"
    assert [rule.split()[:3] for rule in of_range.unknown] == [promised.split()[:3], ["that", "a", "range"]]
    state.state.set_windows((ReservationWindow("tonight", NOW + 60, NOW + 1e6, 0b1),))
    kept = await asked(document(2))
    assert kept.unknown == ["nodes that reservations and maintenance keep", promised]
    shown = sentences(Plan(schema=PLAN_SCHEMA, at=format_time(NOW), allocations=[], optimal=kept), NOW)
    assert any("the solver does not know, and the scheduler keeps: nodes that reservations" in line for line in shown)


async def test_a_plan_counts_the_quota_as_the_gate_does_with_claims_that_are_not_confirmed() -> None:
    made, state = service(8, running=3, waiting=7)
    state.state.accounts = {"physics": TenantAccount(max_nodes=8, used_nodes=3, used_allocations=1)}
    state.state.put_holder(holding(9, (3, 4), 1), claimed=True)
    (planned,) = (await made.plan([document(1)], ALICE, optimal=False)).allocations
    assert planned.quota is not None
    assert (planned.quota.nodes.used, planned.quota.nodes.after, planned.quota.nodes.limit) == (5, 6, 8)
    assert planned.quota.allocations.used == 2


async def test_a_tenant_of_others_cannot_be_planned_for() -> None:
    made, _ = service()
    with pytest.raises(Denied, match="is not one of the tenant"):
        await made.plan([{**document(), "metadata": {"name": "x", "namespace": "lab"}}], ALICE, optimal=False)
    with pytest.raises(Denied):
        await made.plan([document(tenant="lab")], ALICE, optimal=False)


async def test_what_cannot_be_read_is_refused_with_its_place() -> None:
    made, _ = service()
    with pytest.raises(Rejected, match="allocation 2 of the plan cannot be read"):
        await made.plan([document(), {"metadata": {"name": 1}}], ALICE, optimal=False)


async def test_what_is_not_pending_and_unknown_vclusters_are_not_found() -> None:
    made, _ = service()
    with pytest.raises(NotFound):
        await made.why("nobody", ALICE)
    with pytest.raises(NotFound):
        await made.queue("nowhere", ALICE, 10)
    assert [queue.pending for queue in (await made.queue("", ALICE, 10)).vclusters] == [1]


def planted(state: State) -> None:
    """A tree of two groups over the nodes; the work that waits belongs to neither."""
    groups = (Group("theory", min={"nodes": 1}, max={"nodes": 3}), Group("lab", min={"nodes": 1}, max={"nodes": 3}))
    state.state.plant(Forest([TreeSpec(groups=groups)]))
    quota_usage = state.state.quota_usage
    assert quota_usage is not None
    quota_usage.forest.capacity("", {"nodes": 4})
    quota_usage.ask(state.pending.candidates.values(), NOW)


async def test_the_groups_that_a_readers_work_would_belong_to_are_his_own() -> None:
    made, state = service()
    assert (await made.quota(ALICE)).trees == []
    planted(state)
    (tree,) = (await made.quota(ALICE)).trees
    assert [(group.name, group.whose) for group in tree.groups] == [("", "others"), ("default", "yours")]
    source = Source("lattice.dev", "theory")
    bound, other = service(bindings=bindings_of([Declared("theory", source, bindings=(Binding("physics"),))]))
    planted(other)
    (tree,) = (await bound.quota(ALICE)).trees
    assert [(group.name, group.whose) for group in tree.groups] == [("theory", "yours"), ("", "others"), ("default", "yours")]
    (tree,) = (await bound.quota(Reader("eve", frozenset()))).trees
    assert [(group.name, group.count) for group in tree.groups] == [("", 2)]


async def test_the_gates_of_work_that_waits_are_explained_and_the_loop_stays_as_it_was() -> None:
    made, state = service()
    planted(state)
    found = await made.explain_quota(uid(2), ALICE)
    assert (found.leaf, [gate.gate for gate in found.gates if gate.first]) == ("default", ["Nodes"])
    assert (await made.explain_quota(uid(1), ALICE)).holds
    with pytest.raises(NotFound):
        await made.explain_quota(uid(77), ALICE)
    state.state.validate()


async def test_who_names_a_version_is_answered_by_a_cache_and_a_queue_that_have_come_to_it() -> None:
    made, read = service()
    for ask in (partial(made.why, uid(2), ALICE), partial(made.queue, "hpc", ALICE, 10)):
        await ask()
        assert read.sources.caught_up == []
        await ask(version="7")
        assert read.sources.caught_up.pop() > 0
        with pytest.raises(Retry, match="cannot be told"):
            await ask(version="8")
