"""The gateway asked what nodes do, and for the page of a support ticket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from lattice.kube.resources import ALLOCATIONS, NODES, PLANS
from lattice.ledger.plans import RUN, PlanRow, format_plan, plan_name
from lattice.rpc.v1 import agent_pb2 as pb
from tests.unit.gateway.test_gateway import API, Silence, World, says, world

__all__ = ["world"]
MINE, THEIRS = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
STRAY = "33333333-3333-4333-8333-333333333333"


async def asked(world: World, path: str, *, status: int = 200, **options: Any) -> dict[str, Any]:
    async with world.get(path, **options) as response:
        body = await response.read()
        assert response.status == status, body
        return json.loads(body)  # type: ignore[no-any-return]


def row(uid: str, namespace: str, name: str) -> PlanRow:
    return PlanRow(RUN, "", uid, 1, 1, 7, "n1", "", namespace, name, "n1", ("n1",))


async def plan(world: World, *rows: PlanRow) -> None:
    spec = {"seq": 1, "text": format_plan(rows)}
    await world.cluster.create(PLANS, {"apiVersion": API, "kind": "NodeGroupPlan", "metadata": {"name": plan_name(0)}, "spec": spec})
    await world.cluster.patch(NODES, "n1", {"status": {"index": 0}}, subresource="status")
    gateway = world.gateway
    assert gateway is not None
    async with asyncio.timeout(60):
        while plan_name(0) not in gateway._plans.objects or gateway._nodes.objects["n1"].status.index != 0:  # noqa: ASYNC110 - views tell nobody
            await asyncio.sleep(0.01)


async def node_with_work(world: World) -> None:
    agent = await world.agent("n1", says())
    attempts = [pb.AttemptReport(uid=uid, attempt=1, stage="Running") for uid in (MINE, THEIRS, STRAY)]
    agent.report = pb.NodeReport(version="0.1.0", heartbeat=5.0, prologue_hooks=["10-check"], attempts=attempts)
    await plan(world, row(MINE, "physics", "mine"), row(THEIRS, "chemistry", "theirs"))
    world.cluster.grants.add(("alice", "get", "latticenodes", "n1"))


async def test_a_reader_sees_the_work_that_he_may_get_and_the_number_of_the_rest(world: World) -> None:
    await node_with_work(world)
    world.cluster.grants.add(("alice", "get", "allocations", "mine"))
    found = await asked(world, "/v1/node/n1")
    assert [(one["namespace"], one["name"], one["number"]) for one in found["attempts"]] == [("physics", "mine", 7)]
    assert found["hidden"] == 2
    assert THEIRS not in json.dumps(found)
    assert (found["version"], found["prologueHooks"]) == ("0.1.0", ["10-check"])


async def test_who_may_get_all_work_sees_also_what_no_plan_names(world: World) -> None:
    await node_with_work(world)
    world.cluster.grants.add(("alice", "get", "allocations", ""))
    found = await asked(world, "/v1/node/n1")
    assert [one["name"] for one in found["attempts"]] == ["mine", "theirs", ""]
    assert found["hidden"] == 0


async def test_who_may_not_get_the_node_is_told_nothing(world: World) -> None:
    await node_with_work(world)
    world.cluster.grants.clear()
    assert "NodeForbidden" in json.dumps(await asked(world, "/v1/node/n1", status=403))


async def test_silent_nodes_hold_the_page_up_for_three_seconds_together(world: World) -> None:
    silent = [await world.agent(name, says()) for name in ("n1", "n2", "n3")]
    answering = await world.agent("n4", says())
    await world.allocation(nodes="n[1-4]", head="n4", attempt=1)
    uid = (await world.cluster.get(ALLOCATIONS, "job", "physics"))["metadata"]["uid"]
    answering.report = pb.NodeReport(
        attempts=[pb.AttemptReport(uid=uid, attempt=1, stage="Running"), pb.AttemptReport(uid=THEIRS, attempt=1)]
    )
    world.cluster.grants.add(("alice", "get", "allocations", "job"))
    async with asyncio.timeout(60):  # the ways to all of them stand before their three seconds begin
        while any(node.get("message") for node in (await asked(world, "/v1/diagnosis/physics/job"))["nodes"]):
            pass
    silence = Silence()
    for agent in silent:
        agent.silence = silence
    found = await asked(world, "/v1/diagnosis/physics/job")
    assert silence.most == 3, "none was given up before all were asked"
    assert [node["node"] for node in found["nodes"]] == ["n4", "n1", "n2", "n3"]
    assert [row["name"] for row in found["nodes"][0]["attempts"]] == ["job"]
    assert all("has not answered within 3 s" in node["message"] for node in found["nodes"][1:])
    assert THEIRS not in json.dumps(found)


async def test_the_last_lines_are_for_those_who_may_read_the_output(world: World) -> None:
    await world.agent("n1", says("one", "two"))
    await world.allocation(user="bob", nodes="n1", head="n1", attempt=1)
    world.cluster.grants.add(("alice", "get", "allocations", "job"))
    found = await asked(world, "/v1/diagnosis/physics/job")
    assert (found["output"], "is not the work of" in found["outputMessage"]) == ([], True)
    world.cluster.grants.add(("bob", "get", "allocations", "job"))
    found = await asked(world, "/v1/diagnosis/physics/job", user="bob")
    assert found["output"] == [{"node": "n1", "lines": ["one", "two"], "message": ""}]


async def test_the_page_of_work_that_the_reader_may_not_get_is_refused(world: World) -> None:
    await world.allocation(nodes="n1", head="n1", attempt=1)
    assert "AllocationForbidden" in json.dumps(await asked(world, "/v1/diagnosis/physics/job", status=403))
