"""Quota trees as the webhook judges them: fresh from the server, for both kinds, with Koordinator's kinds or without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from lattice.admission import Request
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change
from lattice.kube.resources import ALLOCATIONS, ELASTIC_QUOTAS, KOORDINATOR_PROFILES, KOORDINATOR_QUOTAS, Resource
from lattice.views import ElasticQuota
from lattice_webhooks.groups import Declarations
from lattice_webhooks.quotas import Inventory, QuotaCaches, QuotaGatherer
from tests.unit.webhooks.test_webhook import Running, allocation, made, mutated, refusal, started


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with started(tmp_path) as found:
        yield found


def quota(name: str, parent: str = "", **spec: Any) -> dict[str, Any]:
    return made("ElasticQuota", name, {"max": {"nodes": 10}, **({"parent": parent} if parent else {}), **spec})


async def allowed(running: Running, obj: dict[str, Any], **changes: Any) -> str:
    """Empty when it is allowed, else the sentence."""
    answer = await running.caller.review("/validate", obj, **changes)
    return "" if answer["allowed"] else str(answer["status"]["message"])


async def test_a_group_is_judged_by_what_the_server_has_now(running: Running) -> None:
    child = quota("theory", "physics", min={"nodes": 3})
    assert 'parent "physics" of "theory" does not exist' in await allowed(running, child)
    await running.cluster.create(ELASTIC_QUOTAS, quota("physics", isParent=True, min={"nodes": 5}))
    assert await allowed(running, child) == ""
    await running.cluster.create(ELASTIC_QUOTAS, child)
    assert "sum: 6, limit: 5" in await allowed(running, quota("lab", "physics", min={"nodes": 3}))


async def test_a_dry_run_leaves_nothing_behind(running: Running) -> None:
    for _ in range(2):
        assert await allowed(running, quota("theory")) == ""
    assert "does not exist" in await allowed(running, quota("low", "theory"))


async def test_work_that_has_not_ended_keeps_its_group(running: Running) -> None:
    standing = quota("theory", bindings=[{"tenant": "physics"}])
    await running.cluster.create(ELASTIC_QUOTAS, standing)
    assert await allowed(running, quota("gone"), operation="DELETE", old=quota("gone")) == ""
    await running.cluster.create(ALLOCATIONS, {**allocation(tenant="physics"), "metadata": {"name": "job"}}, "physics")
    assert "1 allocations that have not ended" in await allowed(running, standing, operation="DELETE", old=standing)
    ended = [{"type": kind, "status": "True", "reason": "Completed"} for kind in ("Finished", "Ready")]
    await running.cluster.patch(ALLOCATIONS, "job", {"status": {"conditions": ended}}, "physics", subresource="status")
    assert await allowed(running, standing, operation="DELETE", old=standing) == ""


async def test_an_amount_that_does_not_read_is_refused_before_the_schema_speaks(running: Running) -> None:
    answer = await running.caller.review("/mutate", quota("a", min={"nodes": -1}))
    assert (answer["allowed"], answer["status"]["message"].partition(".")[0]) == (False, 'ElasticQuota "a": spec')
    assert "spec.min.nodes is -1, and the least is 0" in answer["status"]["message"]


async def test_a_profile_makes_the_root_that_its_children_name(running: Running) -> None:
    spec = {"quotaName": "root", "nodeSelector": {"matchLabels": {"zone": "a"}}}
    profile = {**made("ElasticQuotaProfile", "p", spec), "apiVersion": KOORDINATOR_PROFILES.api_version}
    profile["metadata"]["namespace"] = "ns"
    await running.cluster.create(KOORDINATOR_PROFILES, profile, "ns")
    await running.cluster.create(ELASTIC_QUOTAS, quota("other"))
    metadata = {"name": "theirs", "namespace": "ns"}
    await running.cluster.create(
        KOORDINATOR_QUOTAS,
        {"apiVersion": KOORDINATOR_QUOTAS.api_version, "kind": "ElasticQuota", "metadata": metadata, "spec": {"max": {"cpu": 4}}},
        "ns",
    )
    assert "ElasticQuota ns/theirs (scheduling.sigs.k8s.io)" in await allowed(running, quota("theirs"))
    assert "parents are root" in await allowed(running, quota("a", "nowhere"))


async def test_reviews_at_the_same_time_share_readings_that_begin_after_them(running: Running) -> None:
    class Counting:
        """The cluster, with its lists counted and slow."""

        lists = 0

        async def list(self, resource: Resource, **options: Any) -> Any:
            self.lists += resource == ELASTIC_QUOTAS
            await asyncio.sleep(0)
            return await running.cluster.list(resource, **options)

    counting = Counting()
    gatherer = QuotaGatherer(cast("Cluster", counting), QuotaCaches.of_cluster(running.cluster, running.clock), {}, Inventory())
    asked = Request("ElasticQuota", "CREATE", quota("a"), {})
    await asyncio.gather(*(gatherer.of_tree(asked) for _ in range(20)))
    assert counting.lists <= 2
    await running.cluster.create(ELASTIC_QUOTAS, quota("new"))
    assert [each.name for each in (await gatherer.of_tree(asked)).declared] == ["new"]


async def test_what_is_published_of_a_group_counts_at_once_and_lays_nothing_out_again(running: Running) -> None:
    bound = quota("own", bindings=[{"tenant": "physics"}], admission={"nodes": 5})
    await running.cluster.create(ELASTIC_QUOTAS, bound)
    filled = await mutated(running.caller, allocation())
    assert await refusal(running, filled, "never there") == ""
    await running.cluster.patch(ELASTIC_QUOTAS, "own", {"status": {"childRequest": {"nodes": "5"}}}, subresource="status")
    assert "(submitted: 5, requested: 1, limit: 5)" in await refusal(running, filled, "limit: 5")
    heard = Declarations()
    read = [await running.cluster.get(ELASTIC_QUOTAS, "own", type=ElasticQuota)]
    await running.cluster.patch(ELASTIC_QUOTAS, "own", {"status": {"used": {"nodes": "5"}}}, subresource="status")
    read.append(await running.cluster.get(ELASTIC_QUOTAS, "own", type=ElasticQuota))
    await running.cluster.patch(ELASTIC_QUOTAS, "own", {"spec": {"max": {"nodes": 9}}})
    read.append(await running.cluster.get(ELASTIC_QUOTAS, "own", type=ElasticQuota))
    versions = []
    for old, new in ((read[0], read[1]), (read[1], read[2]), (read[2], None)):
        heard.on_change(Change("own", old, new))
        versions.append(heard.version)
    assert versions == [0, 1, 2]


async def test_naming_a_leaf_asks_for_the_right_and_the_own_leaf_does_not(running: Running) -> None:
    for each in (quota("own", bindings=[{"tenant": "physics"}]), quota("lab")):
        await running.cluster.create(ELASTIC_QUOTAS, each)
    filled = await mutated(running.caller, allocation(quota="lab"))
    assert 'alice may not use quota "lab"' in await allowed(running, filled)
    assert running.cluster.reviews[-1] == "alice use elasticquotas lab"
    running.cluster.grants.add(("alice", "use", "elasticquotas", "lab"))
    assert await allowed(running, filled) == ""
    asked = len(running.cluster.reviews)
    assert await allowed(running, await mutated(running.caller, allocation(quota="own"))) == ""
    assert len(running.cluster.reviews) == asked


async def test_a_group_that_takes_no_submissions_counts_what_a_node_has(running: Running) -> None:
    await running.cluster.create(ELASTIC_QUOTAS, quota("own", bindings=[{"tenant": "physics"}], admission={"nodes": 0}))
    filled = await mutated(running.caller, allocation())
    assert "takes no submissions: its admission of nodes is 0" in await refusal(running, filled, "takes no submissions")
