"""DAGs on the API server in memory: members made once and none too early, whichever process is stopped after which of its writes."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lattice.accounting.records import Records
from lattice.daemon.clock import ManualClock
from lattice.errors import Rejected, Stale
from lattice.kube.fake import FakeCluster
from lattice.kube.informer import Change, Informer
from lattice.kube.resources import ALLOCATIONS, DAGS, TENANTS, VCLUSTERS, Resource
from lattice.lifecycle.settle import is_final
from lattice.units import format_time
from lattice.views import Allocation, VCluster
from lattice.views.dag import DagGate
from lattice.workflow.members import SPEC_HASH
from lattice.workflow.release import WITHOUT_EDGES, EdgesUnmet, Released
from lattice_controllers.operator.dag_members import MemberIndex, MemberMaker
from lattice_controllers.operator.dags import Dags
from lattice_controllers.operator.metrics import OperatorMetrics
from lattice_controllers.scheduler.dag_gates import DagGates
from lattice_controllers.scheduler.dependencies import Dependencies

KEY = "physics/pipeline"
FINAL = ("Completed", "Failed", "Cancelled")


class Stopped(BaseException):
    """The process was killed: nothing in it catches this."""


class Mortal:
    """A cluster as one process reaches it: after so many writes it is killed, which no `except Exception` sees."""

    def __init__(self, cluster: FakeCluster, writes: int) -> None:
        self._cluster, self.left = cluster, writes

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._cluster, verb)
        if verb not in ("create", "patch", "replace", "delete"):
            return call

        async def write(*args: Any, **options: Any) -> Any:
            if self.left <= 0:
                raise Stopped
            answer = await call(*args, **options)
            self.left -= 1
            if self.left <= 0:
                raise Stopped
            return answer

        return write


class World:
    """The objects, a player of the nodes, and an operator and a scheduler that may be killed after any of their writes."""

    def __init__(self, ends: dict[str, str]) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(self.clock)
        self.ends = ends
        self.ran: list[str] = []
        """Names of the members that were started, in their order."""

    async def add(self, resource: Resource, name: str, spec: dict[str, Any], namespace: str = "", **metadata: Any) -> None:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name, **metadata}, "spec": spec}
        await self.cluster.create(resource, body, namespace)

    async def submit(self, *members: dict[str, Any], **spec: Any) -> None:
        await self.add(TENANTS, "physics", {"namespaces": ["physics"]})
        await self.add(VCLUSTERS, "hpc", {"policy": "Backfill", "tenants": ["*"]})
        defaults = {"vcluster": "hpc", "entrypoint": "true", "lifecycle": {"walltime": "5m"}}
        await self.add(
            DAGS, "pipeline", {"tenant": "physics", "user": "alice", "defaults": defaults, "members": list(members), **spec}, "physics"
        )

    def dag(self) -> dict[str, Any]:
        return self.cluster.snapshot(DAGS).get(KEY, {})

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.dag().get("status", {})
        return status

    def members(self) -> dict[str, dict[str, Any]]:
        return {key.partition("/pipeline.")[2]: one for key, one in self.cluster.snapshot(ALLOCATIONS).items() if "/pipeline." in key}

    async def write(self, cluster: Any, one: Allocation, phase: str, reason: str = "") -> None:
        """A write of a member's status, as scheduler and reporter make it."""
        now = format_time(self.clock.now())
        status: dict[str, Any] = {"phase": phase}
        if phase in FINAL:
            derived = {"Finished": True, "Ready": phase == "Completed", "Stalled": phase != "Completed"}
            base = {"reason": reason or phase, "message": "", "lastTransitionTime": now, "observedGeneration": 1}
            status["endTime"] = now
            status["conditions"] = [{"type": kind, "status": str(true), **base} for kind, true in derived.items()]
        else:
            status["startTime"] = now
        meta = one.metadata
        patch = {"metadata": {"resourceVersion": meta.resource_version}, "status": status}
        await cluster.patch(ALLOCATIONS, meta.name, patch, meta.namespace, subresource="status")

    @contextlib.asynccontextmanager
    async def operator(self, writes: int = 10**9) -> AsyncIterator[Mortal]:
        """An operator's part for DAGs over a connection that dies after so many writes."""
        mortal, index, records = Mortal(self.cluster, writes), MemberIndex(), Records()
        cluster: Any = mortal
        maker = MemberMaker(cluster, self.clock, index, records)
        vclusters: dict[str, VCluster] = {}
        dags = Dags(cluster, self.clock, index, maker, vclusters, lambda _tenant: "", OperatorMetrics())
        allocations = Informer(self.cluster, ALLOCATIONS, type=Allocation, clock=self.clock, on_change=dags.on_allocation)
        declared = Informer(self.cluster, DAGS, clock=self.clock, on_change=lambda change: dags.queue.add(change.key))
        async with self._running(allocations.run(), declared.run(), dags.queue.run()):
            yield mortal

    @contextlib.asynccontextmanager
    async def scheduler(self, writes: int = 10**9, lag: float = 0.0) -> AsyncIterator[Mortal]:
        """A scheduler's edges and gates, with nodes without end: what may start runs, and then ends as `ends` says.

        `lag`: by how many seconds, at most, the watch of Allocations is behind that of DAGs.
        """
        mortal, objects, rng = Mortal(self.cluster, writes), dict[str, Allocation](), random.Random(int(lag * 10))
        unsaid: deque[Change[Allocation]] = deque()
        reported = [""]
        gates = DagGates(lambda: reported[0] if unsaid else informers[0].reported_version)
        dependencies = Dependencies(self.clock, objects, Records(), {}, gates)

        def changed(change: Change[Allocation]) -> None:
            if change.old is not None and (change.new is None or change.new.metadata.uid != change.old.metadata.uid):
                objects.pop(change.old.metadata.uid, None)
            if change.new is not None:
                objects[change.new.metadata.uid] = change.new
            whole = gates.on_allocation(change)
            dependencies.on_allocation(change)
            dependencies.on_whole(whole)
            reported[0] = change.new.metadata.resource_version if change.new is not None else reported[0]

        def said(change: Change[Allocation]) -> None:
            unsaid.append(change)
            if not lag or not informers[0].synced.is_set():
                changed(unsaid.popleft())

        async def say() -> None:
            while lag:
                await self.clock.sleep(rng.uniform(0.0, lag))
                while unsaid and rng.random() < 0.8:
                    changed(unsaid.popleft())

        def judged(change: Change[DagGate]) -> None:
            dependencies.on_whole(gates.on_dag(change))

        async def work() -> None:
            await informers[0].synced.wait()
            await informers[1].synced.wait()
            dependencies.started()
            while True:
                for one in list(objects.values()):
                    with contextlib.suppress(Stale):
                        await self._step(mortal, one, dependencies, gates)
                await self.clock.sleep(0.1)

        informers: list[Any] = [
            Informer(self.cluster, ALLOCATIONS, type=Allocation, clock=self.clock, on_change=said),
            Informer(self.cluster, DAGS, type=DagGate, clock=self.clock, on_change=judged),
        ]
        async with self._running(*(informer.run() for informer in informers), say(), work()):
            yield mortal

    async def _step(self, cluster: Any, one: Allocation, dependencies: Dependencies, gates: DagGates) -> None:
        """One step of one member."""
        name = one.metadata.name.partition(".")[2]
        if is_final(one.status):
            if one.metadata.deletion_timestamp and not dependencies.awaited(one.metadata.uid):
                patch = {"metadata": {"finalizers": [], "resourceVersion": one.metadata.resource_version}}
                await cluster.patch(ALLOCATIONS, one.metadata.name, patch, one.metadata.namespace)
            return
        if one.spec.cancel is not None or one.metadata.deletion_timestamp:
            await self.write(cluster, one, "Cancelled")
            return
        if one.status.phase == "Running":
            await self.write(cluster, one, self.ends.get(name, "Completed"))
            return
        verdict = gates.judged(one, dependencies.judge(one) if one.spec.depends_on else WITHOUT_EDGES).verdict
        match verdict:
            case Released():
                assert self.status().get("complete"), f"{name} started before all members were there"
                self.ran.append(name)
                try:
                    await self.write(cluster, one, "Running")
                except Stale:
                    self.ran.pop()
                    raise
            case EdgesUnmet(reason, _):
                await self.write(cluster, one, "Cancelled", reason)

    @contextlib.asynccontextmanager
    async def _running(self, *works: Any) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def settle(self, *mortals: Mortal, seconds: float = 60) -> None:
        """Lets time pass until the DAG has ended or is gone, or a process was killed."""
        for _ in range(int(seconds / 0.5)):
            await self.clock.run_for(0.5)
            if any(one.left <= 0 for one in mortals) or self.status().get("phase") in FINAL or not self.dag():
                return

    def final(self) -> dict[str, Any]:
        """What must come out the same whatever happened on the way."""
        states = {one["name"]: (one["phase"], one.get("reason", "")) for one in self.status()["members"]}
        return {"phase": self.status()["phase"], "states": states, "counts": self.status()["counts"], "ran": sorted(set(self.ran))}


def member(name: str, *edges: tuple[str, str], **spec: Any) -> dict[str, Any]:
    waits = [{"ref": ref, "condition": condition} for ref, condition in edges]
    return {"name": name, "spec": spec, **({"dependsOn": waits} if waits else {})}


GRAPHS: dict[str, tuple[list[dict[str, Any]], dict[str, str]]] = {
    "the book's pipeline": (
        [
            member("preprocess"), member("train", ("preprocess", "Success")), member("evaluate", ("train", "Success")),
            member("notify", ("train", "Failure")),
        ],
        {},
    ),
    "the book's pipeline, failing": (
        [
            member("preprocess"), member("train", ("preprocess", "Success")), member("evaluate", ("train", "Success")),
            member("notify", ("train", "Failure")),
        ],
        {"train": "Failed"},
    ),
    "a clean-up whatever happens": (
        [member("run"), member("clean", ("run", "Any")), member("then", ("clean", "Success"), ("run", "Success"))],
        {"run": "Failed"},
    ),
    "a failure that nothing catches": ([member("a"), member("b", ("a", "Success")), member("c")], {"a": "Failed"}),
    "a diamond": ([member("a"), member("b", ("a", "Any")), member("c", ("a", "Success")), member("d", ("b", "Any"), ("c", "Success"))], {}),
}  # fmt: skip


async def undisturbed(members: list[dict[str, Any]], ends: dict[str, str]) -> tuple[dict[str, Any], int, int]:
    """How a DAG ends when nobody is killed, and how many writes operator and scheduler make."""
    world = World(ends)
    await world.submit(*members)
    async with world.operator() as operator, world.scheduler() as scheduler:
        await world.settle()
        return world.final(), 10**9 - operator.left, 10**9 - scheduler.left


EXPECTED = {
    "the book's pipeline": ("Completed", 3), "the book's pipeline, failing": ("Completed", 3), "a clean-up whatever happens": ("Completed", 2),
    "a failure that nothing catches": ("Failed", 2), "a diamond": ("Completed", 4),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
async def test_a_dag_ends_as_the_book_says(name: str) -> None:
    final, _, _ = await undisturbed(*GRAPHS[name])
    assert (final["phase"], len(final["ran"])) == EXPECTED[name], final


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("lag", [0.0, 1.5])
async def test_an_operator_and_a_scheduler_stopped_after_any_write_end_in_the_same_state(name: str, lag: float) -> None:
    members, ends = GRAPHS[name]
    final, of_operator, of_scheduler = await undisturbed(members, ends)
    kills = [(writes, 10**9) for writes in range(1, of_operator + 1)] + [(10**9, writes) for writes in range(1, of_scheduler + 1)]
    for writes in kills:
        world = World(ends)
        await world.submit(*(reversed(members) if lag else members))  # a follower may become known before what it waits for
        async with world.operator(writes[0]) as operator, world.scheduler(writes[1], lag) as scheduler:
            await world.settle(operator, scheduler)
        async with world.operator(), world.scheduler(lag=lag):
            await world.settle()
        assert world.final() == final, writes
        assert len(world.ran) == len(set(world.ran)), f"started twice: {world.ran}"


async def test_reconciling_again_writes_nothing() -> None:
    world = World({})
    await world.submit(*GRAPHS["a diamond"][0])
    async with world.operator() as operator, world.scheduler():
        await world.settle()
        before = operator.left
        await world.clock.run_for(700)
        assert operator.left == before


async def test_a_member_that_the_server_refuses_cancels_all() -> None:
    world = World({})
    await world.submit(member("a"), member("b"), member("c", ("a", "Any")))
    world.cluster.fail(Rejected("no such field"), verb="create", resource=ALLOCATIONS, name="pipeline.c")
    async with world.operator(), world.scheduler():
        await world.settle()
    assert (world.status()["phase"], world.ran) == ("Failed", [])
    made = next(one for one in world.status()["conditions"] if one["type"] == "Made")
    assert (made["reason"], '"c" was refused' in made["message"]) == ("MemberRefused", True), made
    assert {one["phase"] for one in world.status()["members"]} == {"Cancelled"}


async def test_a_name_that_somebody_else_has_cancels_all_and_leaves_that_alone() -> None:
    world = World({})
    await world.submit(member("a"), member("b"))
    await world.add(ALLOCATIONS, "pipeline.b", {"tenant": "physics", "user": "bob"}, "physics", annotations={SPEC_HASH: "other"})
    async with world.operator():
        await world.clock.run_for(5)
    assert world.members()["b"]["spec"] == {"tenant": "physics", "user": "bob"}
    made = next(one for one in world.status()["conditions"] if one["type"] == "Made")
    assert made["reason"] == "NameTaken"


async def test_a_member_that_admission_refuses_is_refused_before_any_is_made() -> None:
    world = World({})
    await world.submit(member("a"), member("b", lifecycle={"gracePeriod": "16m"}))
    async with world.operator(), world.scheduler():
        await world.settle()
    assert (world.status()["phase"], world.members()) == ("Failed", {})


async def test_a_held_dag_starts_nothing_until_it_is_released() -> None:
    world = World({})
    await world.submit(member("a"), member("b", ("a", "Success")), hold=True)
    async with world.operator(), world.scheduler():
        await world.clock.run_for(10)
        assert (world.ran, len(world.members()), world.status()["phase"]) == ([], 2, "Running")
        assert next(one["reason"] for one in world.status()["conditions"] if one["type"] == "Ready") == "Held"
        await world.cluster.patch(DAGS, "pipeline", {"spec": {"hold": None}}, "physics")
        await world.settle()
    assert (world.ran, world.status()["phase"]) == (["a", "b"], "Completed")


async def test_a_cancelled_dag_ends_all_members_wherever_its_operator_was_stopped() -> None:
    for writes in range(1, 12):
        world = World({})
        await world.submit(member("a"), member("b", ("a", "Success")), member("c"), cancel={"reason": "wrong input"}, hold=True)
        async with world.operator(writes) as operator, world.scheduler():
            await world.settle(operator)
        async with world.operator(), world.scheduler():
            await world.settle()
        assert (world.status()["phase"], world.ran) == ("Cancelled", []), writes


async def test_a_deleted_dag_goes_once_its_members_are_gone() -> None:
    world = World({})
    await world.submit(member("a"), member("b", ("a", "Success")), hold=True)
    async with world.operator(), world.scheduler():
        await world.clock.run_for(5)
        assert len(world.members()) == 2
        await world.cluster.delete(DAGS, "pipeline", "physics")
        await world.settle()
    assert (world.dag(), world.members(), world.ran) == ({}, {}, [])


async def test_a_deleted_member_is_not_made_again() -> None:
    world = World({})
    await world.submit(member("a"), member("b", ("a", "Success")), hold=True)
    async with world.operator(), world.scheduler():
        await world.clock.run_for(5)
        await world.cluster.delete(ALLOCATIONS, "pipeline.a", "physics")
        await world.clock.run_for(5)
    async with world.operator(), world.scheduler():
        await world.settle()
        assert set(world.members()) == {"b"}
    assert (world.status()["phase"], world.ran) == ("Cancelled", [])


async def test_members_are_made_in_the_order_in_which_they_are_written_and_bound_once_all_exist() -> None:
    names = [f"m{place}" for place in range(140)]
    chain = [member(name, *((one, "Success") for one in names[max(0, place - 1) : place])) for place, name in enumerate(names)]
    world = World({})
    await world.submit(*reversed(chain))
    world.cluster.fail(Stale("not now"), verb="create", resource=ALLOCATIONS, name="pipeline.m0")
    async with world.operator(), world.scheduler():
        await world.settle(seconds=120)
    assert (world.status()["phase"], world.ran) == ("Completed", names)


async def test_a_member_that_is_deleted_while_others_are_made_stays_until_all_exist() -> None:
    world = World({})
    await world.submit(member("b", ("a", "Any")), member("a"))
    async with world.scheduler():
        async with world.operator(1):  # dies when it has made one of them
            await world.clock.run_for(2)
        async with world.operator(2):
            await world.clock.run_for(2)
        made = set(world.members())
        for name in made:
            await world.cluster.delete(ALLOCATIONS, f"pipeline.{name}", "physics")
        await world.clock.run_for(5)
        assert set(world.members()) == made
        async with world.operator():
            await world.settle()
    assert world.status()["phase"] in FINAL
