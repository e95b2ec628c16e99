"""The work that a new Allocation depends on is found among objects and records of its own tenant, and nowhere else."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from lattice.accounting.charges import charges_of
from lattice.accounting.records import rows_text
from lattice.admission import Request
from lattice.daemon.clock import ManualClock
from lattice.kube.cluster import Cluster
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import ALLOCATIONS, USAGE_RECORDS
from lattice.workflow.references import WorkReference
from lattice_webhooks.predecessors import AT_ONCE, LOOK_SECONDS, MOST_ASKED, PredecessorSearch, find_predecessors
from tests.build import allocation, condition


async def site() -> FakeCluster:
    """Work of two tenants, one of it a service, and the record of work that is gone (number 77)."""
    cluster = FakeCluster(ManualClock())
    for tenant, name, number, kind in (
        ("physics", "prep", 12, "Bounded"),
        ("physics", "web", 13, "Unbounded"),
        ("bio", "secret", 14, "Bounded"),
    ):
        body: dict[str, Any] = {
            "apiVersion": "lattice.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": name, "namespace": tenant},
            "spec": {"tenant": tenant, "lifecycle": {"type": kind}},
        }  # fmt: skip
        await cluster.create(ALLOCATIONS, body, tenant)
        await cluster.patch(ALLOCATIONS, name, {"status": {"number": number}}, tenant, subresource="status")
    over = (condition("Finished", "True", "Completed"), condition("Ready"))
    gone = allocation(1, *over, spec={"tenant": "physics"}, name="old", status_number=77, status_phase="Completed")
    spec = {"tenant": "physics", "month": "2026-11", "rows": rows_text(charges_of(gone))}
    await cluster.create(
        USAGE_RECORDS, {"apiVersion": "lattice.dev/v1alpha1", "kind": "UsageRecord", "metadata": {"name": "u"}, "spec": spec}
    )
    return cluster


def asks(*refs: str) -> Request:
    edges = [{"ref": ref, "condition": "Any"} for ref in refs]
    body = {"metadata": {"name": "new", "namespace": "physics"}, "spec": {"tenant": "physics", "dependsOn": edges}}
    return Request("Allocation", "CREATE", body, {}, "physics")


@pytest.mark.parametrize("more", [0, MOST_ASKED], ids=("asked one by one", "listed"))
async def test_objects_and_records_of_the_tenant_are_found_by_number_and_by_name(more: int) -> None:
    cluster = await site()
    nobody = [f"nobody-{place}" for place in range(more)]
    found = await find_predecessors(
        cluster, asks("prep", "12", "physics/web", "13", "77", "14", "bio/secret", "secret", "Bad Name", *nobody)
    )
    assert found == {
        WorkReference(0, "physics", "prep"): "Bounded", WorkReference(number=12): "Bounded",
        WorkReference(0, "physics", "web"): "Unbounded", WorkReference(number=13): "Unbounded", WorkReference(number=77): "",
    }  # fmt: skip


async def test_work_that_depends_on_nothing_asks_nothing() -> None:
    assert await find_predecessors(FakeCluster(ManualClock()), asks()) == {}


class SilentCluster:
    """Answers nothing, and counts who waits for that at the same time."""

    def __init__(self) -> None:
        self.waiting = self.most = 0

    async def get(self, *_: object, **__: object) -> None:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1

    list = get


async def test_a_flood_of_submissions_that_depend_on_something_asks_for_few_at_a_time_and_is_left_to_the_scheduler() -> None:
    cluster = SilentCluster()
    search = PredecessorSearch(cast("Cluster", cluster))
    begun = asyncio.get_running_loop().time()
    found = await asyncio.gather(*(search.predecessors_of(asks("12", "prep"), "physics") for _ in range(50)))
    assert (set(found), cluster.most, cluster.waiting) == ({None}, AT_ONCE, 0)
    assert asyncio.get_running_loop().time() - begun < 2 * LOOK_SECONDS


async def test_nothing_is_looked_for_in_a_tenant_that_is_not_the_namespaces() -> None:
    cluster = SilentCluster()
    assert await PredecessorSearch(cast("Cluster", cluster)).predecessors_of(asks("12"), "bio") is None
    assert not cluster.most


async def test_the_search_finds_what_is_there() -> None:
    assert await PredecessorSearch(await site()).predecessors_of(asks("12"), "physics") == {WorkReference(number=12): "Bounded"}
    assert await PredecessorSearch(await site()).predecessors_of(asks(), "physics") == {}
