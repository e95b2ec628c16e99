"""Which nodes a new leader takes for alive: those that an operator has heard which lives, else those that answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lattice.daemon.clock import ManualClock
from lattice.kube.fake import FakeCluster
from lattice.kube.informer import Change
from lattice.kube.resources import LEASES, NODE_LEASE_NAMESPACE
from lattice.ledger.commit import Book
from lattice.ledger.plans import plan_name
from lattice.ledger.reports import ANNOTATION, UNHEARD, NodeReport, format_report
from lattice.units import format_time
from lattice.views.cluster import Lease, LeaseSpec, Node, NodeOptions, NodeStatus
from lattice.views.meta import Metadata
from lattice_controllers.scheduler.node_liveness import FEW_NODES, OPERATOR_LEASE, await_live_nodes, silent_groups
from lattice_controllers.scheduler.nodes import Nodes

NAMESPACE = "lattice-system"
SOUND = {ANNOTATION: format_report(NodeReport(1, 0, "boot", "inst"))}


class Site:
    """So many Ready nodes that a new leader has not heard, and what it called."""

    def __init__(self, count: int) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(self.clock)
        self.called: list[str] = []
        self.nodes = Nodes(self.cluster, self.clock, Book.empty("term", "commit"), asyncio.Event())
        for index in range(count):
            name = f"n{index:03d}"
            self.nodes.indices[name], self.nodes.names[index] = index, name
            status = NodeStatus(state="Ready", index=index, hollow=True)
            self.nodes.on_node(Change(name, None, Node(metadata=Metadata(name=name), status=status)))
        self.nodes.leases_synced()

    def usable(self) -> int:
        return sum(facts.usable for facts in self.nodes.node_cache.nodes.values())

    def call(self, group: str) -> None:
        """Its nodes answer at once."""
        self.called.append(group)
        for name, index in self.nodes.indices.items():
            if plan_name(index) == group:
                self.beat(name)

    def beat(self, name: str) -> None:
        lease = Lease(metadata=Metadata(name=name, namespace=NODE_LEASE_NAMESPACE, annotations=SOUND), spec=LeaseSpec())
        self.nodes.on_lease(Change(f"{NODE_LEASE_NAMESPACE}/{name}", lease, lease))

    async def operator(self, unheard: str, *, renews: bool, age: float) -> None:
        """An operator's Lease that says so, last renewed `age` seconds ago by its clock, and again each second or never."""
        stamp = format_time(self.clock.now() - age, micro=True)
        spec = {"holderIdentity": "o", "renewTime": stamp}
        body: dict[str, Any] = {"metadata": {"name": OPERATOR_LEASE, "annotations": {UNHEARD: unheard}}, "spec": spec}
        await self.cluster.create(LEASES, body, NAMESPACE)
        while renews:
            await self.clock.sleep(1.0)
            stamp = format_time(self.clock.now() - age, micro=True)
            await self.cluster.patch(LEASES, OPERATOR_LEASE, {"spec": {"renewTime": stamp}}, NAMESPACE)

    async def hear(self, unheard: str | None, *, renews: bool = True, age: float = 60.0, seconds: float = 30.0) -> float:
        """Seconds until it is known who lives."""
        async with asyncio.TaskGroup() as group:
            operator = group.create_task(self.operator(unheard, renews=renews, age=age)) if unheard is not None else None
            began = self.clock.monotonic()
            hearing = group.create_task(self.timed())
            await self.clock.run_for(seconds)
            assert hearing.done()
            if operator is not None:
                operator.cancel()
        return hearing.result() - began

    async def timed(self) -> float:
        await await_live_nodes(self.cluster, self.clock, self.nodes, call=self.call, options=NodeOptions(), namespace=NAMESPACE)
        return self.clock.monotonic()


@pytest.mark.parametrize("age", [pytest.param(60.0, id="a clock behind ours"), pytest.param(-60.0, id="a clock before ours")])
async def test_an_operator_that_renews_and_has_heard_every_node_is_taken_at_its_word(age: float) -> None:
    site = Site(200)
    assert site.usable() == 0
    assert 0.5 < await site.hear("0", age=age) < 2.0
    assert (site.usable(), site.called) == (200, [])


async def test_an_operator_that_renewed_a_moment_ago_is_taken_at_its_word_at_once() -> None:
    site = Site(200)
    assert await site.hear("0", renews=False, age=5.0) < 0.3
    assert (site.usable(), site.called) == (200, [])


@pytest.mark.parametrize(
    ("unheard", "renews", "age"),
    [
        pytest.param("0", False, 7.0, id="a Lease that nobody renews"),
        pytest.param("0", False, -7.0, id="a Lease of the future that nobody renews"),
        pytest.param("1", True, 0.0, id="a node that the operator has not heard"),
        pytest.param("-", True, 0.0, id="an operator that does not know yet"),
        pytest.param(None, False, 0.0, id="no operator"),
    ],
)
async def test_where_the_operator_cannot_tell_the_nodes_are_asked(unheard: str | None, renews: bool, age: float) -> None:
    site = Site(200)
    assert await site.hear(unheard, renews=renews, age=age) < 8.0
    assert (site.usable(), len(site.called)) == (200, 4)
    assert not site.nodes.trusted


async def test_few_nodes_are_asked_at_once() -> None:
    site = Site(FEW_NODES)
    assert await site.hear("0") < 0.3
    assert (site.usable(), len(site.called)) == (FEW_NODES, 1)


def test_nothing_is_sure_while_no_node_of_a_plan_has_spoken_or_has_a_young_heartbeat() -> None:
    site, now = Site(130), 1_800_000_000.0

    def lease(name: str, age: float) -> tuple[str, Lease]:
        spec = LeaseSpec(renew_time=format_time(now - age, micro=True))
        return f"{NODE_LEASE_NAMESPACE}/{name}", Lease(metadata=Metadata(name=name, namespace=NODE_LEASE_NAMESPACE), spec=spec)

    restored = dict(lease(name, 60.0) for name in site.nodes.indices)
    assert silent_groups(site.nodes, restored, now, 10.0) == {"group-0000", "group-0001", "group-0002"}
    site.beat("n070")
    assert silent_groups(site.nodes, restored, now, 10.0) == {"group-0000", "group-0002"}
    usual = restored | dict([lease("n000", 9.9), lease("n129", 3.0)])
    assert silent_groups(site.nodes, usual, now, 10.0) == set()
    assert silent_groups(site.nodes, {}, now, 10.0) == {"group-0000", "group-0002"}
