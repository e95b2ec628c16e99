"""Usage and history through the gateway: who may see whose hours, and what is asked wrongly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lattice.accounting.charges import Charge
from lattice.accounting.records import rows_text
from lattice.daemon.clock import SystemClock
from lattice.kube.resources import TENANTS, USAGE_RECORDS
from lattice.units import format_time
from tests.build import uid
from tests.unit.gateway.test_gateway import API, World, started


def charge(number: int, user: str, now: float, tenant: str = "physics") -> Charge:
    ended = int(now) - 3600
    return Charge(
        uid(number), 1, 1, number, tenant, tenant, f"job-{number}", "", user, "", "hpc", 2, 8, ended - 3600, ended - 3600, ended - 3600,
        ended, "Completed", "Completed", 0, 7200, 28800, 5,
    )  # fmt: skip


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A gateway with records of two tenants; no scheduler answers. alice is a member of physics, carol its admin, sam sees everything."""
    clock = SystemClock()
    async with started(tmp_path, clock) as made:
        made.cluster.tokens |= {f"{user}-token": user for user in ("alice", "bob", "carol", "sam")}
        made.cluster.grants |= {("alice", "get", "tenants", "physics"), ("bob", "get", "tenants", "physics"),
                                ("carol", "get", "tenants", "physics"), ("carol", "manage", "tenants", "physics"),
                                ("sam", "list", "allocations", "*")}  # fmt: skip
        for tenant, charges in (
            ("physics", [charge(1, "alice", clock.now()), charge(2, "bob", clock.now())]),
            ("ml", [charge(3, "alice", clock.now(), "ml")]),
        ):
            month = format_time(charges[0].ended)[:7]
            spec = {"tenant": tenant, "month": month, "part": 0, "rows": rows_text(charges)}
            metadata = {"name": f"{tenant}-{month}"}
            await made.cluster.create(USAGE_RECORDS, {"apiVersion": API, "kind": "UsageRecord", "metadata": metadata, "spec": spec})
            budget = {"budget": {"nodeHours": 8}} if tenant == "physics" else {}
            await made.cluster.create(TENANTS, {"apiVersion": API, "kind": "Tenant", "metadata": {"name": tenant}, "spec": budget})
        async with asyncio.timeout(60):
            while (await ask(made, "/v1/usage", "sam"))[1].get("attempts") != 3:
                pass  # the records are on their way
        yield made


async def ask(world: World, path: str, user: str) -> tuple[int, dict[str, Any]]:
    async with asyncio.timeout(60), world.get(path, user=user) as response:
        return response.status, json.loads(await response.read())


async def test_everybody_reads_his_own_hours_in_all_tenants(world: World) -> None:
    status, found = await ask(world, "/v1/usage?user=me", "alice")
    assert (status, found["schema"], found["nodeHours"]) == (200, "lattice.dev/usage/v1", 4.0)
    assert {part["name"] for part in found["tenants"]} == {"physics", "ml"}
    assert [(one["scope"], one["nodeHours"]["used"], one["fraction"]) for one in found["budgets"]] == [("Tenant", 4.0, 0.5)]
    assert "what runs now and what has just ended is missing" in found["incomplete"]


def timeless(found: dict[str, Any]) -> dict[str, Any]:
    """An answer without what depends on the second in which it was asked for."""
    return {**found, "at": "", "since": "", "budgets": [{**one, "runsOut": ""} for one in found["budgets"]]}


async def test_the_books_spelling_asks_the_same(world: World) -> None:
    for user in ("alice", "carol"):
        _, asked = await ask(world, "/v1/usage?tenant=physics&days=90", user)
        status, found = await ask(world, "/api/v1/tenants/physics/usage?days=90", user)
        assert status == 200
        assert timeless(found) == timeless(asked)
    status, refused = await ask(world, "/api/v1/tenants/ml/usage", "bob")
    assert (status, refused["reason"]) == (403, "UsageForbidden")


async def test_a_member_reads_sums_an_admin_names_and_a_stranger_nothing(world: World) -> None:
    _, member = await ask(world, "/v1/usage?tenant=physics", "alice")
    assert (member["nodeHours"], {part["name"] for part in member["users"]}) == (4.0, {"alice", "others"})
    _, chief = await ask(world, "/api/v1/usage?tenant=physics", "carol")
    assert {part["name"] for part in chief["users"]} == {"alice", "bob"}
    status, refused = await ask(world, "/v1/usage?tenant=ml", "bob")
    assert (status, refused["reason"]) == (403, "UsageForbidden")
    assert 'tenant "ml"' in refused["message"]
    status, refused = await ask(world, "/v1/usage?tenant=physics&user=bob", "alice")
    assert (status, refused["reason"]) == (403, "UsageForbidden")
    _, everything = await ask(world, "/v1/usage", "sam")
    assert everything["nodeHours"] == 6.0


@pytest.mark.parametrize(
    ("user", "query", "numbers"),
    [
        ("alice", "", {1, 3}), ("alice", "?tenant=physics", {1}), ("carol", "?tenant=physics", {1, 2}),
        ("sam", "?number=1,3-9", {1, 3}), ("sam", "?number=2", {2}), ("sam", "?name=nothing", set()),
        ("carol", "?tenant=physics&user=bob", {2}), ("sam", "", {1, 2, 3}), ("bob", "?state=failed", set()), ("bob", "?state=completed,FAILED", {2}), ("sam", "?until=3h", set()),
        ("sam", "?since=2020-02-29&until=2021-01-01", set()), ("sam", "?since=2020-02-29", {1, 2, 3}),
    ],
)  # fmt: skip
async def test_history_holds_the_rows_that_the_reader_may_see(world: World, user: str, query: str, numbers: set[int]) -> None:
    status, found = await ask(world, f"/v1/history{query}", user)
    assert (status, {row["number"] for row in found["rows"]}) == (200, numbers), found


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("usage?month=1", "the parameter month is not known"), ("usage?days=0", "a whole number from 1 to 3650"),
        ("history?state=Exploded", "the parameter state is 'Exploded'"), ("history?since=yesterday", "the parameter since"),
        ("history?since=1d&until=2d", "lies after until ("),
        ("history?since=2w", "or how long ago, such as 30d or 12h"), ("history?since=2026-02-30", "a day such as 2026-12-01 (UTC)"),
        ("history?since=2999-01-01", "the parameter since (2999-01-01T00:00:00Z) lies in the future"),
        ("history?until=2020-02-29", "lies after until (2020-02-29T00:00:00Z); without it: 7 days ago"), ("history?limit=100000", "from 1 to 10000"),
    ],
)  # fmt: skip
async def test_what_is_asked_wrongly_is_named(world: World, query: str, says: str) -> None:
    status, refused = await ask(world, f"/v1/{query}", "alice")
    assert (status, refused["reason"]) == (400, "ParameterInvalid")
    assert says in refused["message"]


async def test_a_tenant_that_never_was_is_not_one_that_used_nothing_and_one_that_is_gone_is_remembered(world: World) -> None:
    for verb in ("usage", "history"):
        status, refused = await ask(world, f"/v1/{verb}?tenant=phisics", "sam")
        assert (status, refused["reason"]) == (404, "TenantUnknown")
        assert 'no tenant "phisics"' in refused["message"]
    await world.cluster.delete(TENANTS, "ml")
    status, found = await ask(world, "/v1/usage?tenant=ml", "sam")
    assert (status, found["nodeHours"]) == (200, 2.0)
