"""The gateway asked how far an allocation's nodes are with the steps before and after its work."""

from __future__ import annotations

import json
from typing import Any

from lattice.rpc.v1 import agent_pb2 as pb
from tests.unit.gateway.test_gateway import World, says, world

__all__ = ["world"]
STEPS = "/v1/steps/physics/job"


async def asked(world: World, *, status: int = 200, allowed: bool = True, **options: Any) -> dict[str, Any]:
    if allowed:
        world.cluster.grants.add(("alice", "get", "allocations", "job"))
    async with world.get(STEPS, **options) as response:
        body = await response.read()
        assert response.status == status, body
        return json.loads(body)  # type: ignore[no-any-return]


async def test_each_node_is_asked_for_the_steps_of_the_present_attempt_the_head_first(world: World) -> None:
    first, second = await world.agent("n1", says()), await world.agent("n2", says())
    first.steps = [pb.StepProgress(name="scope", state=pb.STEP_DONE)]
    second.steps = [pb.StepProgress(name="images", state=pb.STEP_BEGUN, since=5.0, bytes=1, size=9, waits="r", waits_since=6)]
    await world.allocation(nodes="n[1-2]", head="n2", attempt=1)
    found = await asked(world)
    assert found["attempt"] == 1
    assert [node["node"] for node in found["nodes"]] == ["n2", "n1"]
    assert found["nodes"][0]["steps"] == [
        {
            "name": "images",
            "state": "Begun",
            "since": 5.0,
            "bytes": 1,
            "size": 9,
            "begun": 0.0,
            "done": 0.0,
            "waits": "r",
            "waitsSince": 6.0,
        }
    ]
    assert found["nodes"][1]["steps"][0]["state"] == "Done"


async def test_of_work_that_runs_the_head_alone_is_asked_until_it_undoes_something(world: World) -> None:
    head, other = await world.agent("n1", says()), await world.agent("n2", says())
    head.steps = other.steps = [pb.StepProgress(name="hooks", state=pb.STEP_DONE)]
    await world.allocation(nodes="n[1-2]", head="n1", attempt=1, startTime="2026-01-01T00:00:00Z")
    found = await asked(world)
    assert ([node["node"] for node in found["nodes"]], found["leftOut"]) == (["n1"], 1)
    head.steps = [pb.StepProgress(name="hooks", state=pb.STEP_UNDOING)]
    assert [node["node"] for node in (await asked(world))["nodes"]] == ["n1", "n2"]


async def test_a_node_that_cannot_be_asked_is_named_with_the_reason(world: World) -> None:
    await world.node("n1", "")
    await world.allocation(nodes="n1", head="n1", attempt=1)
    (node,) = (await asked(world))["nodes"]
    assert (node["steps"], node["message"]) == ([], "the agent of node n1 has not said where it listens")


async def test_who_may_not_get_the_allocation_is_told_nothing(world: World) -> None:
    await world.allocation(nodes="n1", head="n1", attempt=1)
    refused = await asked(world, allowed=False, status=403)
    assert "AllocationForbidden" in json.dumps(refused)
