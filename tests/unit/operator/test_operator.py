"""The operator against an API server in memory and a clock that moves when told: levels in, writes out, none twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import generate_latest

from lattice.daemon.clock import ManualClock
from lattice.errors import Retry
from lattice.kube.fake import FakeCluster
from lattice.kube.informer import Informer
from lattice.kube.resources import (
    ALLOCATIONS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIGS,
    EVENTS,
    LEASES,
    LEDGERS,
    NAMESPACES,
    NODE_LEASE_NAMESPACE,
    NODES,
    ROLE_BINDINGS,
    TENANTS,
    VCLUSTERS,
    Resource,
)
from lattice.ledger.format import Row, encode_shard
from lattice.ledger.reports import ANNOTATION, NodeReport, format_report
from lattice.units import format_time
from lattice_controllers.operator.__main__ import Operator, Outside
from lattice_controllers.operator.kinds import RESYNC_SECONDS, Kinds, Named
from lattice_controllers.operator.ledger import LedgerMirror
from lattice_controllers.operator.metrics import OperatorMetrics

UID = "11111111-1111-1111-1111-111111111111"
API = "lattice.dev/v1alpha1"


class InformedKinds:
    """`Kinds` for the fake: informers name what changed."""

    def __init__(self, cluster: FakeCluster, clock: ManualClock) -> None:
        self._cluster = cluster
        self._clock = clock

    async def run(self, named: Named) -> None:
        async with asyncio.TaskGroup() as group:
            for resource in (TENANTS, VCLUSTERS, CONFIGS):
                group.create_task(self._follow(resource, named))

    async def _follow(self, resource: Resource, named: Named) -> None:
        await Informer(self._cluster, resource, clock=self._clock, on_change=lambda change: named(resource, change.key)).run()


class SilentKinds:
    """`Kinds` that tells of nothing by itself, as a watch from a version that is to come; `tell` is what a handler calls."""

    def __init__(self) -> None:
        self.tell: Named = lambda _resource, _name: None

    async def run(self, named: Named) -> None:
        self.tell = named
        await asyncio.Event().wait()


class World:
    """A cluster in memory, a clock, and a running operator."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(self.clock)
        self.kinds: Kinds = InformedKinds(self.cluster, self.clock)
        self.measured = OperatorMetrics()
        self.beats: dict[str, int] = {}
        self.operator = self._new()

    def _new(self) -> Operator:
        return Operator(Outside(self.cluster, self.clock, self.kinds), self.measured, "test")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Operator]:
        self.operator = self._new()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.operator.run())
            await self.clock.run_for(3)
            try:
                yield self.operator
            finally:
                self.operator.usage.validate(self.operator.allocations.objects)
                self.operator.nodes.beats.validate()
                task.cancel()

    async def add(self, resource: Resource, name: str, spec: dict[str, Any] | None = None, namespace: str = "", **metadata: Any) -> None:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name, **metadata}, "spec": spec or {}}
        await self.cluster.create(resource, body, namespace)

    async def node(self, name: str, *, index: int | None = 0, group: str = "g0", healthy: bool = True) -> None:
        await self.add(NODES, name, {"group": group})
        facts: dict[str, Any] = {"health": "Healthy" if healthy else "Unhealthy", "fingerprint": "6.1/0.1"}
        if index is not None:
            facts["index"] = index
        await self.cluster.patch(NODES, name, {"status": facts}, subresource="status")
        await self.beat(name)

    async def beat(self, *names: str) -> None:
        for name in names:
            self.beats[name] = self.beats.get(name, 0) + 1
            annotations = {ANNOTATION: format_report(NodeReport(self.beats[name], 0, "b", "i"))}
            if self.beats[name] == 1:
                await self.add(LEASES, name, {"holderIdentity": name}, NODE_LEASE_NAMESPACE, annotations=annotations)
            else:
                await self.cluster.patch(LEASES, name, {"metadata": {"annotations": annotations}}, NODE_LEASE_NAMESPACE)

    async def live(self, seconds: float, *names: str) -> None:
        """Let time pass while these nodes renew every ten seconds."""
        while seconds > 0:
            step = min(10.0, seconds)
            await self.clock.run_for(step)
            await self.beat(*names)
            seconds -= step
        await self.clock.run_for(0.5)

    async def ready_nodes(self, *names: str) -> None:
        for index, name in enumerate(names):
            await self.node(name, index=index)
        await self.live(10, *names)

    def status(self, resource: Resource, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.cluster.snapshot(resource)[name].get("status", {})
        return status

    def state(self, name: str) -> str:
        return str(self.status(NODES, name).get("state"))

    def condition(self, resource: Resource, name: str, kind: str = "Ready") -> dict[str, Any]:
        found: dict[str, Any] = next((c for c in self.status(resource, name).get("conditions", []) if c["type"] == kind), {})
        return found

    def writes(self, *resources: Resource) -> int:
        return len(self.cluster.writes(*resources))

    async def ledger(self, *rows: Row, tenants: dict[str, Any] | None = None) -> None:
        status = {
            "epoch": 1, "term": "t", "seq": len(rows) + len(self.cluster.written), "commit": "c", "nextNumber": 1, "recoveries": 0,
            "totalNodes": 4, "sensitive": {"max": 0, "used": 0}, "tenants": tenants or {},
            "shards": [encode_shard(rows), *["1||"] * 63],
        }  # fmt: skip
        if "lattice" not in self.cluster.snapshot(LEDGERS):
            await self.add(LEDGERS, "lattice")
        standing = self.cluster.snapshot(LEDGERS)["lattice"]
        await self.cluster.replace(LEDGERS, "lattice", {**standing, "status": status}, subresource="status")


def row(*nodes: int, tenant: str = "physics", vcluster: str = "hpc") -> Row:
    return Row(UID, 1, 1, "alice", tenant, vcluster, "B", "h", nodes[0], nodes)


@pytest.fixture
def world() -> World:
    return World()


# --- nodes ----------------------------------------------------------------------------------------------------------


async def test_a_node_that_reports_with_everything_becomes_ready_in_one_patch(world: World) -> None:
    async with world.running():
        await world.node("n1")
        await world.clock.run_for(2)
        before = world.writes(NODES)
        await world.live(10, "n1")
        assert world.state("n1") == "Ready"
        assert world.condition(NODES, "n1")["reason"] == "HeartbeatFresh"
        assert before <= world.writes(NODES) <= before + 1


async def test_heartbeats_of_a_ready_node_write_nothing(world: World) -> None:
    async with world.running():
        await world.ready_nodes("n1")
        before = world.writes(NODES, EVENTS)
        await world.live(300, "n1")
        assert world.writes(NODES, EVENTS) == before


async def test_silence_degrades_then_downs_and_names_the_heartbeat_it_was_judged_on(world: World) -> None:
    async with world.running():
        await world.ready_nodes("n1", "n2")
        last = world.beats["n2"]
        await world.live(28, "n1")
        assert world.state("n2") == "Ready"
        await world.live(5, "n1")
        assert world.state("n2") == "Degraded"
        assert world.condition(NODES, "n2")["reason"] == "HeartbeatMissed"
        await world.live(50, "n1")
        assert world.state("n2") == "Degraded"
        await world.live(20, "n1")
        assert (world.state("n2"), world.status(NODES, "n2")["heartbeat"]) == ("Down", last)
        assert world.state("n1") == "Ready"
        await world.live(10, "n1", "n2")
        assert world.state("n2") == "Ready"
        reasons = [event["reason"] for event in world.cluster.snapshot(EVENTS).values() if event["regarding"]["name"] == "n2"]
        assert sorted(reasons) == ["HeartbeatFresh", "HeartbeatFresh", "HeartbeatLost", "HeartbeatMissed"]
        assert b'lattice_nodes_total{state="Ready"} 2.0' in generate_latest(world.measured.registry)


async def test_a_clock_that_jumps_makes_nobody_silent_and_hides_no_silence(world: World) -> None:
    async with world.running():
        await world.ready_nodes("n1", "n2")
        for seconds in (86_400.0, -2 * 86_400.0):
            world.clock.jump(seconds)
            await world.live(20, "n1", "n2")
            assert [world.state(name) for name in ("n1", "n2")] == ["Ready", "Ready"]
        await world.live(15, "n1")
        world.clock.jump(-86_400.0)
        await world.live(20, "n1")
        assert [world.state(name) for name in ("n1", "n2")] == ["Ready", "Degraded"]


async def test_a_restarted_operator_counts_silence_from_its_own_start(world: World) -> None:
    async with world.running():
        await world.ready_nodes("n1")
    world.clock.advance(500)
    async with world.running():
        before = world.writes(NODES)
        await world.clock.run_for(25)
        assert world.state("n1") == "Ready"
        assert world.writes(NODES) == before
        await world.clock.run_for(10)
        assert world.state("n1") == "Degraded"


async def test_while_the_watch_is_lost_nobody_is_silent_and_afterwards_silence_starts_from_zero(world: World) -> None:
    async with world.running():
        await world.ready_nodes("n1")
        await world.clock.run_for(20)
        faults = [world.cluster.fail(Retry("away"), verb=verb, resource=LEASES, times=10**6) for verb in ("list", "watch")]
        world.cluster.end_watches(Retry("away"))
        await world.clock.run_for(120)
        assert world.state("n1") == "Ready"
        for fault in faults:
            fault.times = 0
        world.cluster.bookmark()
        await world.clock.run_for(25)
        assert world.state("n1") == "Ready"
        await world.clock.run_for(60)
        assert world.state("n1") == "Degraded"


async def test_a_process_that_stood_still_blames_nobody(world: World) -> None:
    async with world.running():
        await world.ready_nodes("n1")
        world.clock.advance(200)
        await world.clock.run_for(5)
        assert world.state("n1") == "Ready"
        await world.clock.run_for(30)
        assert world.state("n1") == "Degraded"


async def test_when_most_nodes_fall_silent_at_once_down_waits_ten_minutes(world: World) -> None:
    names = [f"n{index:02d}" for index in range(16)]
    async with world.running():
        await world.ready_nodes(*names)
        await world.live(200, *names[:4])
        assert {world.state(name) for name in names[4:]} == {"Degraded"}
        assert {world.condition(NODES, name)["reason"] for name in names[4:]} == {"ManyNodesSilent"}
        await world.live(460, *names[:4])
        assert {world.state(name) for name in names[4:]} == {"Down"}
        assert {world.state(name) for name in names[:4]} == {"Ready"}


async def test_a_node_without_index_or_health_waits_and_says_for_what(world: World) -> None:
    async with world.running():
        await world.node("n1", index=None)
        await world.node("n2", index=1, healthy=False)
        await world.live(10, "n1", "n2")
        assert (world.state("n1"), world.condition(NODES, "n1")["message"]) == ("Booting", "the node reports; missing: index")
        assert (world.state("n2"), world.condition(NODES, "n2")["reason"]) == ("Booting", "Unhealthy")
        await world.live(620, "n1", "n2")
        assert (world.state("n1"), world.state("n2")) == ("Booting", "Failed")
        await world.cluster.patch(NODES, "n2", {"status": {"health": "Healthy"}}, subresource="status")
        await world.live(10, "n1", "n2")
        assert world.state("n2") == "Ready"


async def test_a_node_that_finds_itself_unfit_is_degraded_with_its_own_words_and_comes_back(world: World) -> None:
    said = {"type": "Healthy", "status": "False", "reason": "StateUnwritable", "message": "its state directory has 3 MiB free"}
    async with world.running():
        await world.ready_nodes("n1")
        standing = world.status(NODES, "n1")["conditions"]
        unfit = {"health": "Unhealthy", "conditions": [*standing, {**said, "lastTransitionTime": standing[0]["lastTransitionTime"]}]}
        await world.cluster.patch(NODES, "n1", {"status": unfit}, subresource="status")
        await world.live(10, "n1")
        shown = world.condition(NODES, "n1")
        assert (world.state("n1"), shown["reason"]) == ("Degraded", "Unhealthy")
        assert shown["message"] == "the node reports; missing: health (its state directory has 3 MiB free)"
        await world.cluster.patch(NODES, "n1", {"status": {"health": "Healthy"}}, subresource="status")
        await world.live(10, "n1")
        assert world.state("n1") == "Ready"


async def test_a_node_is_drained_only_when_the_ledger_names_no_holder(world: World) -> None:
    async with world.running():
        await world.ready_nodes("n1", "n2")
        await world.ledger(row(0, 1))
        await world.cluster.patch(NODES, "n1", {"spec": {"drain": {"reason": "fan", "by": "olga"}}})
        await world.live(20, "n1", "n2")
        assert (world.state("n1"), world.condition(NODES, "n1")["message"]) == ("Draining", "drain: fan (by olga)")
        await world.ledger()
        await world.live(5, "n1", "n2")
        assert (world.state("n1"), world.condition(NODES, "n1")["reason"]) == ("Drained", "DrainComplete")
        await world.ledger(row(0))
        await world.live(5, "n1", "n2")
        assert world.state("n1") == "Draining"
        await world.ledger()
        await world.live(5, "n1", "n2")
        await world.cluster.patch(NODES, "n1", {"spec": {"drain": None}})
        await world.live(10, "n1", "n2")
        assert world.state("n1") == "Ready"


async def test_rows_are_those_of_the_last_reading_though_the_ledger_went_or_came_back_at_the_same_seq(world: World) -> None:
    mirror = LedgerMirror(world.cluster, world.clock)

    async def held() -> tuple[int | None, int | None, int | None]:
        await mirror.read()
        found = asyncio.gather(mirror.holders_of_node(0), mirror.holders_of_tenant("physics"), mirror.holders_of_vcluster("hpc"))
        await world.clock.run_for(1)
        first, second, third = await found
        return first, second, third

    assert await held() == (0, 0, 0)
    await world.ledger(row(0, 1))
    assert await held() == (1, 1, 1)
    stored = world.cluster.snapshot(LEDGERS)["lattice"]
    status = {**stored["status"], "shards": [encode_shard([row(1), row(2)]), *["1||"] * 63]}
    await world.cluster.replace(LEDGERS, "lattice", {**stored, "status": status}, subresource="status")
    assert await held() == (0, 2, 2)
    await world.cluster.delete(LEDGERS, "lattice")
    assert await held() == (None, 2, 2), "a tenant that has work waits for it"


async def test_an_operator_that_starts_while_the_ledger_is_lost_knows_of_no_holder_and_not_that_there_is_none(world: World) -> None:
    mirror = LedgerMirror(world.cluster, world.clock)
    await mirror.read()
    counts = asyncio.gather(mirror.holders_of_node(0), mirror.holders_of_tenant("physics"), mirror.holders_of_vcluster("hpc"))
    await world.clock.run_for(1)
    assert tuple(await counts) == (0, 0, 0), "no scheduler has led yet"
    mirror.expect()
    counts = asyncio.gather(mirror.holders_of_node(0), mirror.holders_of_tenant("physics"), mirror.holders_of_vcluster("hpc"))
    await world.clock.run_for(1)
    assert tuple(await counts) == (None, None, None)
    await world.ledger(row(0, 1))
    await mirror.read()
    assert (await mirror.holders_of_node(0), await mirror.holders_of_tenant("physics")) == (1, 1)


async def test_no_node_is_drained_by_an_operator_that_starts_while_the_ledger_is_lost(world: World) -> None:
    async with world.running():
        await world.ready_nodes("n1")
        await world.cluster.patch(NODES, "n1", {"spec": {"drain": {"reason": "fan", "by": "olga"}}})
        await world.live(20, "n1")
        assert world.state("n1") == "Draining"
        await world.ledger()
        await world.live(5, "n1")
        assert world.state("n1") == "Drained"


async def test_a_node_is_not_drained_while_the_ledger_is_lost(world: World) -> None:
    await world.ledger(row(1))
    async with world.running():
        await world.ready_nodes("n1")
        await world.cluster.delete(LEDGERS, "lattice")
        await world.cluster.patch(NODES, "n1", {"spec": {"drain": {"reason": "fan", "by": "olga"}}})
        await world.live(20, "n1")
        assert world.state("n1") == "Draining"
        await world.ledger()
        await world.live(5, "n1")
        assert world.state("n1") == "Drained"


async def test_disable_is_at_once_and_enable_needs_a_heartbeat(world: World) -> None:
    async with world.running():
        await world.ready_nodes("n1")
        await world.cluster.patch(NODES, "n1", {"spec": {"disable": {"reason": "smoke", "by": "olga"}}})
        await world.clock.run_for(0.5)
        assert world.state("n1") == "Disabled"
        await world.clock.run_for(100)
        await world.cluster.patch(NODES, "n1", {"spec": {"disable": None}})
        await world.clock.run_for(2)
        assert (world.state("n1"), world.condition(NODES, "n1")["reason"]) == ("Disabled", "ReturnPending")
        await world.live(10, "n1")
        assert world.state("n1") == "Ready"


async def test_a_state_patch_that_meets_a_change_is_decided_again(world: World) -> None:
    async with world.running():
        await world.ready_nodes("n1")
        await world.ledger()
        await world.cluster.patch(NODES, "n1", {"spec": {"drain": {"reason": "fan"}}})
        world.cluster.lose_answer("patch", NODES, "n1")
        await world.live(10, "n1")
        assert world.state("n1") == "Drained"


# --- tenants --------------------------------------------------------------------------------------------------------

PHYSICS = {"access": {"users": ["alice"], "groups": ["phys"], "admins": ["carol"]}, "quota": {"maxNodes": 8}}
DECLARED = ((TENANTS, "physics"), (VCLUSTERS, "hpc"), (CONFIGS, "lattice"))
ALL = (TENANTS, NAMESPACES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, EVENTS)


def names_of(objects: dict[str, Any]) -> list[str]:
    return sorted(objects)


async def test_a_tenant_gets_its_namespace_and_bindings_and_nothing_is_written_twice(world: World) -> None:
    await world.add(TENANTS, "physics", PHYSICS)
    async with world.running():
        namespace = world.cluster.snapshot(NAMESPACES)["physics"]
        assert namespace["metadata"]["labels"] == {"lattice.dev/tenant": "physics"}
        bindings = world.cluster.snapshot(ROLE_BINDINGS)
        assert names_of(bindings) == ["physics/lattice-tenant-admin", "physics/lattice-tenant-secrets", "physics/lattice-tenant-user"]
        assert [subject["name"] for subject in bindings["physics/lattice-tenant-secrets"]["subjects"]] == [
            "lattice:gateway",
            "lattice-gateway",
        ]
        assert [subject["name"] for subject in bindings["physics/lattice-tenant-user"]["subjects"]] == ["alice", "phys"]
        assert names_of(world.cluster.snapshot(CLUSTER_ROLES)) == ["lattice-tenant-physics-admin", "lattice-tenant-physics-user"]
        rule = world.cluster.snapshot(CLUSTER_ROLES)["lattice-tenant-physics-admin"]["rules"][0]
        assert (rule["resourceNames"], rule["verbs"]) == (["physics"], ["get", "manage"])
        assert (world.condition(TENANTS, "physics")["status"], world.condition(TENANTS, "physics", "InUse")["status"]) == ("True", "False")
        before = world.writes(*ALL)
        world.operator.tenants.queue.add("physics")
        await world.clock.run_for(700)
        assert world.writes(*ALL) == before


async def test_access_that_shrinks_is_taken_away(world: World) -> None:
    await world.add(TENANTS, "physics", PHYSICS)
    async with world.running():
        await world.cluster.patch(TENANTS, "physics", {"spec": {"access": {"users": ["bob"], "groups": [], "admins": []}}})
        await world.clock.run_for(1)
        bindings = world.cluster.snapshot(ROLE_BINDINGS)
        assert names_of(bindings) == ["physics/lattice-tenant-secrets", "physics/lattice-tenant-user"]
        assert [subject["name"] for subject in bindings["physics/lattice-tenant-user"]["subjects"]] == ["bob"]
        assert names_of(world.cluster.snapshot(CLUSTER_ROLE_BINDINGS)) == ["lattice-tenant-physics-user"]


async def test_a_namespace_that_is_not_the_tenants_is_not_adopted(world: World) -> None:
    await world.add(NAMESPACES, "shared")
    await world.add(NAMESPACES, "theirs", labels={"lattice.dev/tenant": "chemistry"})
    await world.add(NAMESPACES, "labelled", labels={"lattice.dev/tenant": "physics"})
    await world.add(TENANTS, "physics", {**PHYSICS, "namespaces": ["shared", "theirs", "labelled"]})
    async with world.running():
        ready = world.condition(TENANTS, "physics")
        assert (ready["status"], ready["reason"]) == ("False", "NamespaceTaken")
        assert "kubectl label namespace shared lattice.dev/tenant=physics" in ready["message"]
        assert 'belongs to tenant "chemistry"' in ready["message"]
        assert world.condition(TENANTS, "physics", "Stalled")["status"] == "True"
        assert "labels" not in world.cluster.snapshot(NAMESPACES)["shared"]["metadata"]
        assert {key.split("/")[0] for key in world.cluster.snapshot(ROLE_BINDINGS)} == {"labelled"}, "no right where it is not the tenant's"


async def test_a_namespace_that_the_tenant_drops_loses_its_label_and_bindings(world: World) -> None:
    await world.add(TENANTS, "physics", {**PHYSICS, "namespaces": ["one", "two"]})
    async with world.running():
        await world.cluster.patch(TENANTS, "physics", {"spec": {"namespaces": ["two"]}})
        await world.clock.run_for(1)
        assert "lattice.dev/tenant" not in world.cluster.snapshot(NAMESPACES)["one"]["metadata"].get("labels", {})
        assert {key.split("/")[0] for key in world.cluster.snapshot(ROLE_BINDINGS)} == {"two"}


async def test_use_and_limits_are_mirrored_from_the_ledger_when_they_change(world: World) -> None:
    await world.add(TENANTS, "physics", PHYSICS)
    async with world.running():
        await world.ledger(row(0, 1), tenants={"physics": {"maxNodes": 8, "usedNodes": 2, "usedAllocations": 1}})
        await world.clock.run_for(6)
        assert world.status(TENANTS, "physics")["use"] == {"maxNodes": 8, "usedNodes": 2, "usedAllocations": 1}
        assert world.condition(TENANTS, "physics", "InUse")["status"] == "True"
        before = world.writes(TENANTS)
        await world.clock.run_for(200)
        assert world.writes(TENANTS) == before
        await world.ledger(tenants={"physics": {"usedNodes": 0, "usedAllocations": 0}})
        await world.clock.run_for(6)
        assert world.status(TENANTS, "physics")["use"] == {"usedNodes": 0, "usedAllocations": 0}
        assert world.condition(TENANTS, "physics", "InUse")["status"] == "False"


async def submit(
    world: World, name: str, *, ended: float | None = None, tenant: str = "physics", labels: dict[str, str] | None = None
) -> None:
    spec = {"tenant": tenant, "user": "alice", "vcluster": "hpc", "entrypoint": "true"}
    status: dict[str, Any] = {}
    if ended is not None:
        at = format_time(world.clock.now() - ended)
        said = {"status": "True", "reason": "Completed", "lastTransitionTime": at}
        status = {"endTime": at, "conditions": [{"type": "Finished", **said}, {"type": "Ready", **said}]}
    await world.add(ALLOCATIONS, name, spec, "physics", labels=labels or {})
    await world.cluster.patch(ALLOCATIONS, name, {"status": status}, "physics", subresource="status")


async def test_a_deleted_tenant_waits_for_its_work_and_then_goes(world: World) -> None:
    await world.add(TENANTS, "physics", PHYSICS)
    await submit(world, "a")
    async with world.running():
        assert world.condition(TENANTS, "physics", "InUse")["status"] == "True"
        await world.ledger(row(0))
        await world.cluster.delete(TENANTS, "physics")
        await world.clock.run_for(5)
        assert world.condition(TENANTS, "physics")["reason"] == "DeletionWaits"
        await world.cluster.delete(ALLOCATIONS, "a", "physics")
        await world.clock.run_for(5)
        assert "physics" in world.cluster.snapshot(TENANTS)
        await world.ledger()
        await world.clock.run_for(5)
        assert world.cluster.snapshot(TENANTS) == {}
        assert world.cluster.snapshot(ROLE_BINDINGS) == world.cluster.snapshot(CLUSTER_ROLES) == {}
        assert "physics" in world.cluster.snapshot(NAMESPACES)


# --- declared kinds whose events are missed -----------------------------------------------------------------------------


async def test_what_is_declared_without_an_event_is_in_force_after_the_next_resync(world: World) -> None:
    world.kinds = SilentKinds()
    async with world.running():
        await world.add(TENANTS, "physics", PHYSICS)
        await world.add(VCLUSTERS, "hpc")
        await world.add(CONFIGS, "lattice", {})
        await world.clock.run_for(RESYNC_SECONDS + 1)
        ready = [world.condition(resource, name)["reason"] for resource, name in DECLARED]
        assert ready == ["InForce", "InForce", "InForce"]
        before = world.writes(*ALL, VCLUSTERS, CONFIGS)
        await world.clock.run_for(10 * RESYNC_SECONDS)
        assert world.writes(*ALL, VCLUSTERS, CONFIGS) == before


async def test_a_tenant_that_went_without_an_event_is_known_no_longer_after_the_next_resync(world: World) -> None:
    await world.add(TENANTS, "physics", PHYSICS)
    world.kinds = SilentKinds()
    async with world.running() as operator:
        await world.clock.run_for(RESYNC_SECONDS + 1)
        assert set(operator.tenants.known) == {"physics"}
        await world.cluster.patch(TENANTS, "physics", {"metadata": {"finalizers": None}})
        await world.cluster.delete(TENANTS, "physics")
        await world.clock.run_for(RESYNC_SECONDS + 1)
        assert set(operator.tenants.known) == set()


async def test_a_handler_that_comes_late_in_a_former_term_writes_nothing(world: World) -> None:
    world.kinds = kinds = SilentKinds()
    async with world.running():
        pass
    await world.add(TENANTS, "physics", PHYSICS)
    before = world.writes(*ALL)
    kinds.tell(TENANTS, "physics")
    await world.clock.run_for(RESYNC_SECONDS)
    assert world.writes(*ALL) == before


# --- vclusters, configuration, retention ------------------------------------------------------------------------------


async def test_a_vcluster_counts_the_nodes_that_its_work_uses_and_shows_a_shared_home(world: World) -> None:
    await world.add(VCLUSTERS, "hpc", {"nodes": {"selector": {"group": ["g0"]}}})
    await world.add(VCLUSTERS, "ml", {"nodes": {"selector": {"group": ["g1"]}}})
    await world.add(VCLUSTERS, "all")
    async with world.running():
        await world.ready_nodes("n1", "n2")
        await world.node("n3", index=2, group="g1", healthy=False)
        await world.live(10, "n1", "n2", "n3")
        counts = {name: (world.status(VCLUSTERS, name)["nodes"], world.status(VCLUSTERS, name)["ready"]) for name in ("hpc", "ml", "all")}
        assert counts == {"hpc": (2, 2), "ml": (1, 0), "all": (0, 0)}
        await world.cluster.patch(VCLUSTERS, "ml", {"spec": {"nodes": None}})
        await world.live(3, "n1", "n2", "n3")
        assert world.status(VCLUSTERS, "all")["nodes"] == 1  # what is at home nowhere any more
        assert world.condition(VCLUSTERS, "hpc", "HomeConflict") == {}
        await world.cluster.patch(VCLUSTERS, "ml", {"spec": {"nodes": {"selector": {"group": ["g0", "g1"]}}}})
        await world.live(3, "n1", "n2", "n3")
        assert "n[1-2] (2 nodes) also in ml" in world.condition(VCLUSTERS, "hpc", "HomeConflict")["message"]
        before = world.writes(VCLUSTERS)
        await world.live(400, "n1", "n2", "n3")
        assert world.writes(VCLUSTERS) == before


@pytest.mark.parametrize(
    ("weights", "reason", "says"),
    [
        ({"priority": "200m", "waitTime": "1.1"}, "WeightsNormalised", "sum to 1.3: each is divided by 1.3"),
        ({"priority": 0}, "WeightsIgnored", "the balanced weights are in force"),
    ],
    ids=["not 1", "all 0"],
)
async def test_weights_that_do_not_sum_to_1_are_said_and_no_longer_once_they_do(
    world: World, weights: dict[str, Any], reason: str, says: str
) -> None:
    await world.add(VCLUSTERS, "hpc", {"weights": weights})
    async with world.running():
        await world.clock.run_for(1)
        found = world.condition(VCLUSTERS, "hpc", "WeightsChanged")
        assert (found["reason"], says in found["message"]) == (reason, True)
        await world.cluster.patch(VCLUSTERS, "hpc", {"spec": {"weights": {"priority": "0.4", "waitTime": "600m"}}})
        await world.clock.run_for(1)
        assert world.condition(VCLUSTERS, "hpc", "WeightsChanged") == {}


async def test_a_vcluster_shows_the_policy_and_the_state_in_force_given_or_not(world: World) -> None:
    await world.add(VCLUSTERS, "plain")
    await world.add(VCLUSTERS, "vault", {"policy": "SensitiveReservation", "state": "Closed"})

    def shown() -> dict[str, tuple[str, str]]:
        return {name: (world.status(VCLUSTERS, name)["policy"], world.status(VCLUSTERS, name)["state"]) for name in ("plain", "vault")}

    async with world.running():
        await world.live(3)
        assert shown() == {"plain": ("Backfill", "Open"), "vault": ("SensitiveReservation", "Closed")}
        await world.cluster.patch(VCLUSTERS, "vault", {"spec": {"policy": None, "state": None}})
        await world.live(3)
        assert shown()["vault"] == ("Backfill", "Open")


async def test_a_deleted_vcluster_waits_for_its_work(world: World) -> None:
    await world.add(VCLUSTERS, "hpc")
    await submit(world, "a")
    async with world.running():
        await world.cluster.delete(VCLUSTERS, "hpc")
        await world.clock.run_for(3)
        assert world.condition(VCLUSTERS, "hpc")["message"] == "1 allocations are not final, 0 still hold nodes"
        await world.cluster.delete(ALLOCATIONS, "a", "physics")
        await world.clock.run_for(3)
        assert world.cluster.snapshot(VCLUSTERS) == {}


async def test_options_are_hot_and_contradictions_leave_the_last_good_ones_in_force(world: World) -> None:
    await world.add(CONFIGS, "lattice", {"nodes": {"heartbeatTimeout": "20s", "gracePeriod": "10s"}})
    async with world.running() as operator:
        assert (operator.nodes.timing.timeout, operator.nodes.timing.grace) == (20, 10)
        assert world.condition(CONFIGS, "lattice")["status"] == "True"
        await world.cluster.patch(CONFIGS, "lattice", {"spec": {"nodes": {"heartbeatTimeout": "5s"}}})
        await world.clock.run_for(1)
        assert operator.nodes.timing.timeout == 20
        assert "heartbeatTimeout is 5s" in world.condition(CONFIGS, "lattice", "Stalled")["message"]
        await world.cluster.patch(CONFIGS, "lattice", {"spec": {"nodes": {"heartbeatTimeout": "40s"}}})
        await world.clock.run_for(1)
        assert operator.nodes.timing.timeout == 40
        assert world.condition(CONFIGS, "lattice", "Stalled") == {}
        await world.cluster.delete(CONFIGS, "lattice")
        await world.clock.run_for(1)
        assert operator.nodes.timing.timeout == 40, "who deletes them changes nothing"
        (told,) = [one for one in world.cluster.snapshot(EVENTS).values() if one["reason"] == "ConfigGone"]
        assert (told["type"], told["regarding"]["kind"], told["regarding"]["name"]) == ("Warning", "LatticeConfig", "lattice")
        await world.add(CONFIGS, "lattice", {"nodes": {"heartbeatTimeout": "50s"}})
        await world.clock.run_for(1)
        assert operator.nodes.timing.timeout == 50


async def test_final_allocations_go_after_their_retention_unless_a_gitops_tool_tracks_them(world: World) -> None:
    await world.add(TENANTS, "physics", {**PHYSICS, "finishedRetention": "1h"})
    await submit(world, "old", ended=3700)
    await submit(world, "young", ended=100)
    await submit(world, "running")
    await submit(world, "tracked", ended=99999, labels={"app.kubernetes.io/instance": "prod"})
    await submit(world, "elsewhere", ended=3700, tenant="unknown")
    async with world.running():
        await world.clock.run_for(60)
        assert names_of(world.cluster.snapshot(ALLOCATIONS)) == [f"physics/{name}" for name in ("elsewhere", "running", "tracked", "young")]
        await world.clock.run_for(3600)
        assert names_of(world.cluster.snapshot(ALLOCATIONS)) == [f"physics/{name}" for name in ("elsewhere", "running", "tracked")]


async def test_of_more_finished_allocations_than_a_tenant_may_keep_the_oldest_go_before_their_retention(world: World) -> None:
    await world.add(CONFIGS, "lattice", {"submission": {"maxFinishedPerTenant": 100}})
    await world.add(TENANTS, "physics", {**PHYSICS, "finishedRetention": "7d"})
    for number in range(330):
        await submit(world, f"a{number:03d}", ended=1000 - number)
    await submit(world, "running")
    await submit(world, "tracked", ended=99999, labels={"app.kubernetes.io/instance": "prod"})
    await submit(world, "elsewhere", ended=99999, tenant="unknown")
    async with world.running():
        await world.clock.run_for(40)
        newest = [f"a{number:03d}" for number in range(230, 330)]
        assert names_of(world.cluster.snapshot(ALLOCATIONS)) == [f"physics/{name}" for name in (*newest, "elsewhere", "running", "tracked")]
