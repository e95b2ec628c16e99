"""The gateway asked for the launches of an allocation, and to end one: rights, old agents, and nodes that do not answer."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from lattice.rpc.v1 import agent_pb2 as pb
from tests.unit.gateway.test_gateway import World, says, world

__all__ = ["world"]
LAUNCHES = "/v1/launches/physics/job"


async def asked(world: World, query: str = "", *, status: int = 200, **options: Any) -> dict[str, Any]:
    """The answer to alice, who may read her logs."""
    world.cluster.grants.add(("alice", "get", "allocations/logs", "job"))
    async with world.get(LAUNCHES + query, **options) as response:
        body = await response.read()
        assert response.status == status, body
        return await response.json()  # type: ignore[no-any-return]


async def test_the_head_is_asked_for_the_launches_and_each_is_named_as_a_step(world: World) -> None:
    head = await world.agent("n1", says())
    await world.allocation(nodes="n[1-2]", head="n1", attempt=1, number=12)
    head.launches = [
        pb.LaunchesReport(launches=[pb.LaunchRow(number=0, state="Completed", command="./a")]),
        pb.LaunchesReport(
            launches=[pb.LaunchRow(number=1, state="Odd", code=7)], dropped=2, totals=pb.LaunchTotals(total=4, completed=3, failed=1)
        ),
    ]
    found = await asked(world, "?limit=50")
    assert [(row["step"], row["state"]) for row in found["rows"]] == [("12.0", "Completed"), ("12.1", "Failed")]
    (part,) = found["attempts"]
    assert (part["dropped"], part["launches"]["total"]) == (2, 4)
    assert head.asked_launches[0].limit == 50


async def test_an_agent_of_an_older_release_is_named_as_such_beside_the_totals_of_the_status(world: World) -> None:
    await world.agent("n1", says())
    await world.allocation(nodes="n1", head="n1", attempt=1, number=12, launches={"total": 3, "completed": 3})
    (part,) = (await asked(world))["attempts"]
    assert "older release" in part["incomplete"]
    assert part["launches"]["total"] == 3


async def test_a_number_that_is_none_is_refused(world: World) -> None:
    await world.agent("n1", says())
    await world.allocation(nodes="n1", head="n1", attempt=1)
    assert "limit=many" in str(await asked(world, "?limit=many", status=400))


async def ordered(world: World, *pieces: bytes, user: str = "alice", status: int = 200) -> dict[str, Any]:
    """The answer to an order whose body comes in these pieces."""

    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
            await asyncio.sleep(0.05)

    trust = ssl.create_default_context(cadata=world.authority.pem)
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {user}-token"}) as session,
        session.post(f"https://localhost:{world.port}{LAUNCHES}", ssl=trust, data=body()) as response,
    ):
        answer = await response.read()
        assert response.status == status, answer
        return await response.json()  # type: ignore[no-any-return]


async def test_an_order_in_several_pieces_ends_the_launch_and_names_who_cancelled(world: World) -> None:
    head = await world.agent("n1", says())
    await world.allocation(nodes="n[1-2]", head="n1", attempt=1, number=12)
    world.cluster.grants.add(("alice", "patch", "allocations", "job"))
    answer = await ordered(world, b'{"number": 3, "rea', b'son": "enough\\u001b[2J"}')
    assert (answer["ending"], answer["graceSeconds"]) == (True, 30.0)
    (asked_for,) = head.ended_launches
    assert (asked_for.number, asked_for.attempt, asked_for.why) == (3, 1, "cancelled by alice: enough [2J")
    assert "no launch 4" in str(await ordered(world, b'{"number": 4}', status=404))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"number": -1}', b'{"number": 2147483648}', b'{"number": "3"}', b" " * 5000], ids=repr
)
async def test_what_is_no_order_is_refused_and_ends_nothing(world: World, body: bytes) -> None:
    head = await world.agent("n1", says())
    await world.allocation(nodes="n1", head="n1", attempt=1)
    world.cluster.grants.add(("alice", "patch", "allocations", "job"))
    await ordered(world, body, status=400)
    assert head.ended_launches == []


async def test_who_may_not_cancel_or_read_the_allocation_may_not_so_with_its_launches(world: World) -> None:
    head = await world.agent("n1", says())
    await world.allocation(nodes="n1", head="n1", attempt=1)
    await ordered(world, b'{"number": 3}', status=403)  # alice's own, but the verb patch is missing
    world.cluster.grants.add(("bob", "patch", "allocations", "job"))
    await ordered(world, b'{"number": 3}', user="bob", status=403)  # the verb, and another's work
    async with world.get(LAUNCHES, user="bob") as response:
        assert response.status == 403
    assert (head.ended_launches, head.asked_launches) == ([], [])
    world.cluster.grants |= {("eve", "patch", "allocations", "job"), ("eve", "manage", "tenants", "physics")}
    assert (await ordered(world, b'{"number": 3}', user="eve"))["ending"]
