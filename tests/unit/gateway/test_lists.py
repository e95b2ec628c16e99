"""Lists from memory: the rows that the API server would give who asks, and nothing to whoever may not list."""

from __future__ import annotations

import pytest

from lattice.kube.resources import NODES, VCLUSTERS
from lattice.scheduling.queries.node_rows import NODES_SCHEMA
from lattice.scheduling.queries.row_shapes import STATUS_SCHEMA
from lattice.scheduling.queries.status_rows import Selection
from tests.unit.gateway.test_questions import Site, site

__all__ = ["site"]
LISTERS = {("alice", "list", "allocations", ""), ("alice", "list", "latticenodes", "")}


async def test_rows_are_for_whoever_may_list_and_mine_are_those_of_who_asks(site: Site) -> None:
    await site.lease()
    site.world.cluster.grants |= LISTERS
    status, body = await site.get("/v1/status?namespace=physics&mine=true&states=Pending,Running&after=1.5&version=5&wide=true")
    assert (status, body["schema"], body["user"], body["version"]) == (200, STATUS_SCHEMA, "alice", "7")
    selection = Selection(namespace="physics", user="alice", states=frozenset({"Pending", "Running"}), after=1.5)
    assert site.queries.asked == [("status", selection, "5", True)]
    await site.get("/v1/status?user=bob&vcluster=hpc")
    assert site.queries.asked[1] == ("status", Selection(user="bob", vcluster="hpc"), "", False)


async def test_who_may_only_get_is_denied_and_the_scheduler_is_not_asked(site: Site) -> None:
    await site.lease()
    for user in ("eve", "bob"):
        status, body = await site.get("/v1/status?namespace=physics", user=user)
        assert (status, body["reason"]) == (403, "ListForbidden")
        assert (await site.get("/v1/nodes", user=user))[1]["reason"] == "ListForbidden"
    assert site.queries.asked == []
    assert (await site.get("/v1/status", user="nobody"))[0] == 401


async def test_the_right_is_asked_for_in_the_namespace_that_is_listed(site: Site) -> None:
    await site.lease()
    site.world.cluster.grants |= LISTERS
    seen = len(site.world.cluster.reviewed)
    await site.get("/v1/status?namespace=physics")
    await site.get("/v1/status?namespace=lab")
    await site.get("/v1/status")
    asked = [(one["verb"], one["resource"], one["namespace"], one["name"]) for one in site.world.cluster.reviewed[seen:]]
    assert asked == [("list", "allocations", namespace, "") for namespace in ("physics", "lab", "")]


@pytest.mark.parametrize(
    "query",
    [
        "namespace=a,b",
        "namespace=../x",
        "namespace=A",
        "colour=red",
        "after=soon",
        "version=-1",
        "of=bob",
        "version=1e3",
        "numbers=a",
        "numbers=1-",
    ],
)
async def test_a_question_that_cannot_be_read_is_refused(site: Site, query: str) -> None:
    await site.lease()
    site.world.cluster.grants |= LISTERS
    status, body = await site.get(f"/v1/status?{query}")
    assert (status, body["reason"]) == (400, "ParameterInvalid")
    assert site.queries.asked == []


async def test_an_answer_that_the_scheduler_would_give_again_is_not_sent_again_and_each_reader_is_named(site: Site) -> None:
    await site.lease()
    site.world.cluster.grants |= LISTERS | {("bob", "list", "allocations", "")}
    assert site.world.gateway is not None
    kept = site.world.gateway._server._lists._answers._entries
    first = (await site.get("/v1/status?namespace=physics&after=1"))[1]
    (before,) = kept.values()
    assert (await site.get("/v1/status?namespace=physics&after=2&version=5"))[1] == first
    assert list(kept.values()) == [before]
    assert (await site.get("/v1/status?namespace=physics", user="bob"))[1]["user"] == "bob"
    site.queries.tag = "8"
    assert (await site.get("/v1/status?namespace=physics"))[1]["version"] == "8"
    assert len(site.queries.asked) == 4


async def test_one_is_asked_for_by_its_number(site: Site) -> None:
    await site.lease()
    site.world.cluster.grants |= LISTERS
    await site.get("/v1/status?namespace=physics&numbers=12-17")
    await site.get("/v1/status?namespace=physics&numbers=012")
    asked = [one[1] for one in site.queries.asked]
    assert asked == [
        Selection(namespace="physics", numbers=(12, 17), called="12-17"), Selection(namespace="physics", numbers=(12, 12), called="012"),
    ]  # fmt: skip


async def test_a_cache_that_is_behind_gives_no_answer(site: Site) -> None:
    await site.lease()
    site.world.cluster.grants |= LISTERS
    status, body = await site.get("/v1/status?namespace=physics&version=999")
    assert (status, body["reason"]) == (503, "CacheBehind")


async def test_a_right_that_is_taken_away_is_gone_as_soon_as_the_authorisers_are_asked_again(site: Site) -> None:
    await site.lease()
    site.world.cluster.grants |= LISTERS
    assert (await site.get("/v1/status?namespace=physics"))[0] == 200
    site.world.cluster.grants -= LISTERS
    assert site.world.gateway is not None
    site.world.gateway._server._rights._answers._entries.clear()  # ten seconds later
    assert (await site.get("/v1/status?namespace=physics"))[0] == 403


async def test_questions_share_a_connection_and_find_the_new_leader(site: Site) -> None:
    await site.lease()
    site.world.cluster.grants |= LISTERS
    assert (await site.get("/v1/status"))[0] == 200
    site.leads = False
    assert (await site.get("/v1/status"))[1]["reason"] == "NotLeading"
    site.leads = True
    assert (await site.get("/v1/status"))[0] == 200


async def test_nodes_come_from_the_gateways_own_cache_with_vclusters_for_who_may_list_them(site: Site) -> None:
    cluster = site.world.cluster
    cluster.grants |= LISTERS
    await cluster.create(NODES, {"metadata": {"name": "n1"}, "spec": {"group": "g0"}})
    spec = {"nodes": {"selector": {"group": ["g0"]}}}
    made = await cluster.create(VCLUSTERS, {"metadata": {"name": "hpc"}, "spec": spec})
    version = made["metadata"]["resourceVersion"]
    status, body = await site.get("/v1/nodes")
    assert (status, body["schema"], [row[0] for row in body["rows"]], body["homes"]) == (200, NODES_SCHEMA, ["n1"], {})
    cluster.grants.add(("bob", "list", "latticenodes", ""))
    cluster.grants.add(("bob", "list", "vclusters", ""))
    assert (await site.get(f"/v1/nodes?vclusters={version}", user="bob"))[1]["homes"] == {"g0": "hpc"}
    assert (await site.get("/v1/nodes?version=many"))[1]["reason"] == "ParameterInvalid"
