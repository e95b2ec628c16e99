"""What a node may read of work: the rows of its plan decide, and one read serves all who ask."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import Denied, NotFound, Retry
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import ALLOCATIONS, PLANS
from lattice.ledger.plans import PlanRow, format_plan
from lattice.views import Node
from lattice.views.ledger import Plan
from lattice_gateway.works import KEPT_SECONDS, FoundWork, WorkQuestion, Works

NODES = {name: msgspec.convert({"metadata": {"name": name}, "status": {"index": index}}, Node) for name, index in (("n1", 0), ("n2", 1), ("far", 64))}  # fmt: skip


class Site:
    """Allocations and plans on a fake API server, and a gateway whose cache of plans the test fills."""

    def __init__(self, cluster: type[FakeCluster] = FakeCluster) -> None:
        self.clock = ManualClock()
        self.cluster = cluster(self.clock)
        self.cached: dict[str, Plan] = {}
        self.works = Works(self.cluster, self.clock, NODES, self.cached)
        self.rows: list[PlanRow] = []

    async def submit(self, name: str, **status: Any) -> str:
        """An Allocation with this status; its uid."""
        made = await self.cluster.create(ALLOCATIONS, {"metadata": {"name": name}, "spec": {"script": f"#!/bin/sh\n# {name}"}}, "physics")
        await self.cluster.patch(ALLOCATIONS, name, {"status": status}, "physics", subresource="status")
        return str(made["metadata"]["uid"])

    async def plan(self, *rows: PlanRow, group: str = "group-0000", cached: bool = True) -> None:
        """The plan as the scheduler writes it; `cached`: the gateway's watch has brought it."""
        body: Mapping[str, Any] = {"metadata": {"name": group}, "spec": {"seq": 1, "text": format_plan(rows)}}
        if group in self.cluster.snapshot(PLANS):
            await self.cluster.patch(PLANS, group, {"spec": body["spec"]})
        else:
            await self.cluster.create(PLANS, body)
        if cached:
            self.cached[group] = await self.cluster.get(PLANS, group, type=Plan)

    async def find(self, node: str, uid: str, *, name: str = "job", **fields: Any) -> FoundWork:
        given: dict[str, Any] = {"attempt": 1, "generation": 1, "namespace": "physics", "name": name}
        return await self.works.find(WorkQuestion(node, uid, **given | fields))

    def reads(self, plural: str = "allocations") -> int:
        return len([sent for sent in self.cluster.sent if sent.verb == "get" and sent.resource.plural == plural])


def row(uid: str, *nodes: str, order: str = "run", cause: str = "", reporter: str = "", name: str = "job", attempt: int = 1) -> PlanRow:
    return PlanRow(order, cause, uid, attempt, 1, 7, reporter or nodes[0], "n1:1", "physics", name, nodes[0], nodes)


async def refused(site: Site, node: str, uid: str, **fields: Any) -> str:
    with pytest.raises(Denied) as caught:
        await site.find(node, uid, **fields)
    return caught.value.reason


async def test_a_node_reads_the_work_that_its_row_names_and_no_more_of_the_object_than_it_needs() -> None:
    site = Site()
    uid = await site.submit("job", attempt=1)
    await site.plan(row(uid, "n1", "n2"))
    found = await site.find("n2", uid)
    assert found.starts
    sent = msgspec.json.decode(found.body)
    assert sent["spec"] == {"script": "#!/bin/sh\n# job"}
    assert sent["status"] == {"attempt": 1}
    assert sent["metadata"].keys() <= {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp"}


async def test_work_of_other_nodes_of_other_groups_and_work_that_waits_is_refused() -> None:
    site = Site()
    here, elsewhere, held = (
        await site.submit("job", attempt=1, reporter="n1"),
        await site.submit("far", attempt=1),
        await site.submit("held"),
    )
    await site.plan(row(here, "n1"))
    await site.plan(row(elsewhere, "far", name="far"), group="group-0001")
    assert await refused(site, "n2", here) == "NotYourWork"
    assert await refused(site, "n1", elsewhere, name="far") == "NotYourWork"
    assert await refused(site, "n1", held, name="held") == "NotYourWork"
    assert await refused(site, "n1", held, name="held", attempt=0) == "NotYourWork"
    assert await refused(site, "unknown", here) == "NotYourWork"
    assert await refused(site, "n1", here, attempt=2) == "NotYourWork"


async def test_a_row_that_only_answers_what_the_node_has_reported_gives_no_right() -> None:
    site = Site()
    uid = await site.submit("job", attempt=1, reporter="far")
    await site.plan(PlanRow("stop", "n", uid, 1, 0, 0, "", "", "", "", "", ("n1",)))
    assert await refused(site, "n1", uid) == "NotYourWork"


async def test_a_stop_row_still_tells_what_is_ended_but_starts_nothing() -> None:
    site = Site()
    uid = await site.submit("job", attempt=1)
    await site.plan(row(uid, "n1", order="stop", cause="c"))
    assert not (await site.find("n1", uid)).starts


async def test_who_reports_an_attempt_reads_it_until_its_end_is_written() -> None:
    site = Site()
    uid = await site.submit("job", attempt=1, reporter="n1")
    assert (await site.find("n1", uid)).generation == 1
    assert await refused(site, "n2", uid) == "NotYourWork"
    finished = {"type": "Finished", "status": "True", "reason": "Completed", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    await site.cluster.patch(ALLOCATIONS, "job", {"status": {"conditions": [finished]}}, "physics", subresource="status")
    with pytest.raises(NotFound) as caught:
        await site.find("n1", uid)
    assert caught.value.reason == "AttemptOver"
    with pytest.raises(NotFound):
        await site.find("n1", "another-uid")


async def test_a_thousand_nodes_cost_one_read_of_the_object() -> None:
    site = Site()
    uid = await site.submit("job", attempt=1)
    await site.plan(row(uid, "n1", "n2"))
    before = site.reads()
    await asyncio.gather(*(site.find(("n1", "n2")[number % 2], uid) for number in range(1000)))
    assert site.reads() - before == 1
    await site.clock.run_for(KEPT_SECONDS)
    await site.find("n1", uid)
    assert site.reads() - before == 2


async def test_a_raised_generation_and_a_stale_version_are_read_afresh() -> None:
    site = Site()
    uid = await site.submit("job", attempt=1)
    await site.plan(row(uid, "n1"))
    first = await site.find("n1", uid)
    with pytest.raises(Retry):
        await site.find("n1", uid, generation=2)
    await site.cluster.patch(ALLOCATIONS, "job", {"spec": {"hold": True}}, "physics")
    assert (await site.find("n1", uid, generation=2)).generation == 2
    version = msgspec.json.decode(first.body)["metadata"]["resourceVersion"]
    assert msgspec.json.decode((await site.find("n1", uid, stale=version)).body)["metadata"]["resourceVersion"] != version


async def test_a_plan_that_the_watch_has_not_brought_yet_is_read_once_for_all_who_ask() -> None:
    site = Site()
    uid = await site.submit("job", attempt=1)
    await site.plan(row(uid, "n1", "n2"), cached=False)
    await asyncio.gather(*(site.find(("n1", "n2")[number % 2], uid) for number in range(100)))
    assert site.reads("nodegroupplans") == 1


async def test_an_object_of_the_same_name_is_another_one() -> None:
    site = Site()
    uid = await site.submit("job", attempt=1)
    await site.plan(row(uid, "n1"))
    await site.cluster.delete(ALLOCATIONS, "job", "physics")
    await site.submit("job", attempt=1)
    with pytest.raises(NotFound):
        await site.find("n1", uid)


class BehindCluster(FakeCluster):
    """An API server whose watch cache stands still from the moment at which `stop` is called."""

    behind: Mapping[str, Any] | None = None

    def stop(self) -> None:
        self.behind = self.snapshot(ALLOCATIONS)

    async def get(self, resource: Any, name: str, namespace: str = "", *, cached: bool = False, **options: Any) -> Any:
        if not cached or self.behind is None:
            return await super().get(resource, name, namespace, **options)
        await super().list(resource, namespace)  # is asked, and answers what it has
        if f"{namespace}/{name}" not in self.behind:
            raise NotFound(f"{namespace}/{name}", reason="NotFound")
        return self.behind[f"{namespace}/{name}"]


async def test_a_cache_that_does_not_know_the_object_yet_is_not_believed() -> None:
    site = Site(BehindCluster)
    assert isinstance(site.cluster, BehindCluster)
    site.cluster.stop()
    uid = await site.submit("job", attempt=1)
    await site.plan(row(uid, "n1"))
    assert (await site.find("n1", uid)).generation == 1


async def test_a_cache_that_knows_the_object_before_this_one_is_not_believed() -> None:
    site = Site(BehindCluster)
    assert isinstance(site.cluster, BehindCluster)
    await site.submit("job", attempt=1)
    site.cluster.stop()
    await site.cluster.delete(ALLOCATIONS, "job", "physics")
    uid = await site.submit("job", attempt=1)
    await site.plan(row(uid, "n1"))
    assert msgspec.json.decode((await site.find("n1", uid)).body)["metadata"]["uid"] == uid


@pytest.mark.parametrize("noise", ["", "x", "9" * 5000], ids=["its version", "no version", "a number without end"])
async def test_a_cache_that_is_behind_is_not_believed_where_a_newer_object_is_asked_for(noise: str) -> None:
    site = Site(BehindCluster)
    assert isinstance(site.cluster, BehindCluster)
    uid = await site.submit("job", attempt=1)
    await site.plan(row(uid, "n1"))
    site.cluster.stop()
    first = msgspec.json.decode((await site.find("n1", uid)).body)["metadata"]["resourceVersion"]
    await site.cluster.patch(ALLOCATIONS, "job", {"spec": {"hold": True}}, "physics")
    newest = (await site.cluster.get(ALLOCATIONS, "job", "physics"))["metadata"]["resourceVersion"]
    assert (await site.find("n1", uid, generation=2)).generation == 2
    found = msgspec.json.decode((await site.find("n1", uid, stale=noise or first)).body)
    assert found["metadata"]["resourceVersion"] == newest != first
