"""Questions about the queue, through the gateway to the scheduler that leads: who asks, what he may see, and over mTLS alone."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from lattice.accounting.answers import Unsettled
from lattice.daemon.clock import SystemClock
from lattice.errors import NotFound, Retry
from lattice.kube.resources import ALLOCATIONS, CONFIGS, LEASES
from lattice.scheduling.queries.answers import (
    CYCLES_SCHEMA,
    PLAN_SCHEMA,
    QUEUE_SCHEMA,
    WHY_SCHEMA,
    CycleLog,
    Cycles,
    Plan,
    Queues,
    Stretch,
    Why,
    Work,
)
from lattice.scheduling.queries.quota_answers import GATES_SCHEMA, QUOTA_SCHEMA, QuotaExplanation, Quotas
from lattice.scheduling.queries.readers import Reader
from lattice.scheduling.queries.status_rows import Selection
from lattice.software.answers import PlannedImages
from lattice_controllers.scheduler.answers import ANNOTATION, AnswerServer, ServerFiles
from lattice_controllers.scheduler.status_rows import StatusAnswer
from tests.unit.gateway.authority import Pair
from tests.unit.gateway.test_gateway import World, started

AT = "2026-11-21T12:00:00Z"
BODY = {"allocations": [{"metadata": {"name": "a", "namespace": "physics"}, "spec": {"tenant": "physics"}}]}


@dataclass
class NotingQueries:
    """Answers little, and notes what it was asked by whom."""

    asked: list[tuple[Any, ...]] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    """What `why` and `queue` were to be no older than."""
    waits: bool = True
    """Whether any work waits."""
    images: list[PlannedImages] = field(default_factory=list)
    """What registries say of the images of a plan."""
    tag: str = "7"
    """Of the answer to `status`, and its version."""

    async def why(self, uid: str, reader: Reader, *, version: str = "") -> Why:
        self.asked.append(("why", uid, reader))
        self.versions.append(version)
        if uid == "gone" or not self.waits:
            raise NotFound("it waits for nothing", reason="NotPending")
        return Why(schema=WHY_SCHEMA, allocation=Work(namespace="physics", name="job", uid=uid), reason="WaitingForNodes")

    async def plan(
        self, allocations: Sequence[dict[str, Any]], reader: Reader, *, optimal: bool, images: Sequence[PlannedImages] = ()
    ) -> Plan:
        self.asked.append(("plan", allocations, reader, optimal))
        self.images = list(images)
        return Plan(schema=PLAN_SCHEMA, at=AT, allocations=[])

    async def queue(self, vcluster: str, reader: Reader, limit: int, *, version: str = "") -> Queues:
        self.asked.append(("queue", vcluster, reader, limit))
        self.versions.append(version)
        if version == "999":
            raise Retry("the cache is behind", reason="CacheBehind")
        return Queues(schema=QUEUE_SCHEMA, at=AT, vclusters=[])

    async def status(self, selection: Selection, *, version: str, wide: bool) -> StatusAnswer:
        self.asked.append(("status", selection, version, wide))
        if version == "999":
            raise Retry("the cache is behind", reason="CacheBehind")
        return StatusAnswer(self.tag, 1, self.tag, -inf, inf, rows=msgspec.Raw(b"[]"), details=msgspec.Raw(b"[]"))

    async def unsettled(self, tenants: frozenset[str], user: str) -> Unsettled:
        raise NotFound(f"nothing of {user} in {sorted(tenants)}", reason="NotAsked")

    async def quota(self, reader: Reader) -> Quotas:
        self.asked.append(("quota", reader))
        return Quotas(QUOTA_SCHEMA, AT, [])

    async def explain_quota(self, uid: str, reader: Reader) -> QuotaExplanation:
        self.asked.append(("explain", uid, reader))
        work = Work(namespace="physics", name="job", uid=uid)
        return QuotaExplanation(GATES_SCHEMA, AT, work, "physics", "hpc", 1, holds=False, preemptible=True)


class SomeRecords:
    """Two recorded cycles."""

    async def cycles(self) -> Cycles:
        return Cycles(schema=CYCLES_SCHEMA, stretches=[Stretch(file="cycles-000000000007.log", first=7, last=8)])

    async def cycle(self, number: int) -> CycleLog:
        if number not in (0, 7, 8):
            raise NotFound(f"cycle {number} is not in this log: it holds 7 to 8", reason="CycleNotRecorded")
        return CycleLog(cycle=number or 8, log=b"\x00\xff")


@dataclass
class Site:
    """A gateway, and a scheduler that may lead."""

    world: World
    queries: NotingQueries
    port: int = 0
    leads: bool = True

    async def get(self, path: str, *, user: str = "alice") -> tuple[int, dict[str, Any]]:
        async with asyncio.timeout(60), self.world.get(path, user=user) as response:
            return response.status, json.loads(await response.read())

    async def post(self, body: object, *, user: str = "alice") -> tuple[int, dict[str, Any]]:
        trust = ssl.create_default_context(cadata=self.world.authority.pem)
        async with (
            asyncio.timeout(60),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
            session.post(
                f"https://localhost:{self.world.port}/v1/plan", ssl=trust, json=body, headers={"Authorization": f"Bearer {user}-token"}
            ) as response,
        ):
            return response.status, json.loads(await response.read())

    async def directly(self, client: Pair | None) -> tuple[int, dict[str, Any]]:
        """Ask the scheduler itself, with a certificate of the nodes' authority, or none."""
        trust = ssl.create_default_context(cadata=self.world.authority.pem)
        if client is not None:
            trust.load_cert_chain(client.certificate, client.key)
        async with (
            asyncio.timeout(60),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
            session.get(f"https://127.0.0.1:{self.port}/v1/queue?user=alice", ssl=trust, server_hostname="lattice-scheduler") as response,
        ):
            return response.status, json.loads(await response.read())

    async def lease(self, *, holder: str = "leader", url: str | None = None) -> None:
        """What the leader writes."""
        metadata = {"name": "lattice-scheduler", "annotations": {ANNOTATION: url or f"https://127.0.0.1:{self.port}"}}
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": AT}
        await self.world.cluster.create(
            LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}, "lattice-system"
        )


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with started(tmp_path, SystemClock()) as world, scheduler(world) as made:
        world.cluster.grants |= {
            ("alice", "get", "allocations", "*"), ("alice", "list", "allocations", "none"), ("alice", "create", "allocations", "*"),
        }  # fmt: skip
        yield made


@asynccontextmanager
async def scheduler(world: World) -> AsyncIterator[Site]:
    pair = world.authority.pair("lattice:scheduler", dns=("lattice-scheduler",))
    made = Site(world, NotingQueries())
    files = ServerFiles(pair.certificate, pair.key, str(world.authority.path))
    server = AnswerServer(
        files,
        SystemClock(),
        queries=lambda: made.queries if made.leads else None,
        leader=lambda: "vm-2-1234",
        records=lambda: SomeRecords() if made.leads else None,
    )
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.run("127.0.0.1:0", lambda _host, port: listening.set_result(port)))
        async with asyncio.timeout(60):
            made.port = await listening
        yield made
        task.cancel()


async def test_why_is_answered_with_the_identity_of_who_asks_and_the_namespaces_that_he_may_list(site: Site) -> None:
    await site.lease()
    await site.world.allocation()
    site.world.cluster.grants.add(("alice", "list", "allocations", ""))
    status, body = await site.get("/v1/why/physics/job")
    assert (status, body["schema"], body["reason"]) == (200, WHY_SCHEMA, "WaitingForNodes")
    (kind, uid, reader), *_ = site.queries.asked
    assert (kind, uid) == ("why", body["allocation"]["uid"])
    assert reader == Reader("alice", frozenset({"physics"}), everything=True)  # the fake authoriser knows no namespaces


async def test_without_the_right_to_list_nothing_of_the_tenant_is_named(site: Site) -> None:
    await site.lease()
    await site.world.allocation()
    assert (await site.get("/api/v1/why/physics/job"))[0] == 200
    assert site.queries.asked[0][2] == Reader("alice")


async def test_who_may_not_read_the_allocation_is_told_no_more_than_he_said(site: Site) -> None:
    await site.lease()
    await site.world.allocation()
    status, body = await site.get("/v1/why/physics/job", user="eve")
    assert (status, body["reason"]) == (403, "AllocationForbidden")
    assert "eve" in body["message"]
    assert site.queries.asked == []
    assert (await site.get("/v1/queue", user="nobody"))[0] == 401


async def test_the_queue_is_for_everybody_who_is_known(site: Site) -> None:
    await site.lease()
    assert (await site.get("/v1/queue/hpc?namespaces=physics,lab&limit=7", user="eve"))[0] == 200
    assert site.queries.asked == [("queue", "hpc", Reader("eve"), 7)]
    assert (await site.get("/v1/queue?limit=many"))[1]["reason"] == "ParameterInvalid"
    assert (await site.get("/v1/queue?color=red"))[1]["message"] == "the parameter color is not known; known are namespaces, limit, version"


async def test_why_is_no_older_than_the_object_and_the_queue_than_the_version_that_its_reader_names(site: Site) -> None:
    await site.lease()
    await site.world.allocation()
    assert (await site.get("/v1/why/physics/job"))[0] == 200
    found = await site.world.cluster.get(ALLOCATIONS, "job", "physics")
    assert (await site.get("/v1/queue?version=12"))[0] == 200
    assert site.queries.versions == [found["metadata"]["resourceVersion"], "12"]
    assert (await site.get("/v1/queue?version=999"))[1]["reason"] == "CacheBehind"
    assert (await site.get("/v1/queue?version=x"))[1]["reason"] == "ParameterInvalid"


async def test_the_quota_tree_is_for_everybody_who_is_known_and_all_its_groups_for_who_may_list_them(site: Site) -> None:
    await site.lease()
    site.world.cluster.grants |= {("alice", "list", "elasticquotas", ""), ("bob", "list", "allocations", "")}
    status, body = await site.get("/v1/quota?namespaces=physics", user="eve")
    assert (status, body["schema"]) == (200, QUOTA_SCHEMA)
    for user in ("bob", "alice"):
        assert (await site.get("/api/v1/quota", user=user))[0] == 200
    assert [reader for _, reader in site.queries.asked] == [Reader("eve"), Reader("bob", everything=True), Reader("alice", groups=True)]
    assert (await site.get("/v1/quota?tree=gpus"))[1]["message"] == "the parameter tree is not known; known is namespaces"
    assert (await site.get("/v1/quota", user="nobody"))[0] == 401


async def test_quota_is_explained_to_whoever_may_read_the_allocation(site: Site) -> None:
    await site.lease()
    await site.world.allocation()
    status, body = await site.get("/v1/quota/explain/physics/job")
    assert (status, body["schema"]) == (200, GATES_SCHEMA)
    assert site.queries.asked == [("explain", body["allocation"]["uid"], Reader("alice"))]
    assert (await site.get("/v1/quota/explain/physics/job", user="eve"))[1]["reason"] == "AllocationForbidden"
    assert (await site.get("/v1/quota/explain/physics/other"))[0] == 404


async def test_a_plan_needs_the_right_to_submit_and_is_for_oneself(site: Site) -> None:
    await site.lease()
    assert (await site.post(BODY, user="eve"))[1]["reason"] == "SubmissionForbidden"
    status, body = await site.post({**BODY, "optimal": True})
    assert (status, body) == (200, {"schema": PLAN_SCHEMA, "at": AT, "allocations": []})
    _, allocations, reader, optimal = site.queries.asked[0]
    assert (allocations[0]["spec"]["user"], reader.user, optimal) == ("alice", "alice", True)
    other = {"allocations": [{**BODY["allocations"][0], "spec": {"tenant": "physics", "user": "bob"}}]}
    assert (await site.post(other))[1]["reason"] == "RunasForbidden"


async def test_a_plan_says_what_its_images_are_refused_for_or_that_nobody_could_check_them(site: Site) -> None:
    await site.lease()
    registries = [{"name": "r.example", "url": "http://127.0.0.1:1"}]
    config = {"metadata": {"name": "lattice"}, "spec": {"software": {"registries": registries}}}
    await site.world.cluster.create(CONFIGS, config)
    asked = [
        {"metadata": {"name": "a", "namespace": "physics"}, "spec": {"tenant": "physics", "environment": environment}}
        for environment in ({"image": "other.example/app"}, {"image": "app:1"}, {"uenv": "app/1:v1"}, {"uenv": "/my/file.squashfs"}, {})
    ]
    assert (await site.post({"allocations": asked}))[0] == 200
    refused, away, nowhere, own, none = site.queries.images
    assert (refused.reason, "other.example is not one of this site's" in refused.message) == ("ImageRefused", True)
    assert (away.reason, "127.0.0.1:1 cannot be asked" in away.message) == ("WaitingForImages", True)
    assert (nowhere.reason, "no registry of software environments" in nowhere.message) == ("ImageRefused", True)
    assert (own, none) == (PlannedImages(), PlannedImages())


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"allocations": []}, "1 to 64 allocations, and 0 are given"),
        ({"allocations": [{}]}, "metadata.namespace"),
        ({"allocation": 1}, "missing required field"),
        ([], "no list of allocations"),
        ({"allocations": [{"metadata": {"namespace": "a"}, "spec": {}}] * 65}, "65 are given"),
    ],
    ids=["empty", "without a namespace", "misspelt", "no object", "too many"],
)
async def test_a_plan_that_is_none_is_refused_with_what_is_wrong(site: Site, body: object, sentence: str) -> None:
    status, said = await site.post(body)
    assert (status, said["reason"]) == (400, "PlanInvalid")
    assert sentence in said["message"]


async def test_recorded_cycles_are_for_those_who_may_get_ledgers_cycles(site: Site) -> None:
    await site.lease()
    for path in ("/v1/cycles", "/v1/cycles/8", "/v1/cycles/last"):
        status, body = await site.get(path)
        assert (status, body["reason"]) == (403, "CyclesForbidden")
        assert '"alice" may not read recorded cycles' in body["message"]
    site.world.cluster.grants.add(("bob", "get", "ledgers/cycles", "lattice"))
    assert (await site.get("/v1/cycles", user="bob"))[1]["stretches"] == [{"file": "cycles-000000000007.log", "first": 7, "last": 8}]
    assert (await site.get("/api/v1/cycles/last", user="bob"))[1] == {"cycle": 8, "log": "AP8="}
    status, body = await site.get("/v1/cycles/9", user="bob")
    assert (status, body["reason"]) == (404, "CycleNotRecorded")
    for wrong in ("0", "-1", "first", "1" * 30):
        status, body = await site.get(f"/v1/cycles/{wrong}", user="bob")
        assert (status, body["message"]) == (400, f"'{wrong}' names no cycle: a whole number from 1 on, or last")
    site.leads = False
    assert (await site.get("/v1/cycles", user="bob"))[1]["reason"] == "NotLeading"


async def test_without_a_scheduler_the_answer_says_since_when(site: Site) -> None:
    assert (await site.get("/v1/queue"))[1] == {"reason": "SchedulerAway", "message": "the scheduler has never run on this cluster"}
    await site.lease(holder="")
    status, body = await site.get("/v1/queue")
    assert (status, body["message"]) == (503, f"no scheduler leads since {AT}")


async def test_a_scheduler_that_does_not_listen_any_more_is_silent(site: Site) -> None:
    await site.lease(url="https://127.0.0.1:9")
    status, body = await site.get("/v1/queue")
    assert (status, body["reason"]) == (503, "SchedulerSilent")
    assert body["message"].startswith("the scheduler does not answer at https://127.0.0.1:9: Cannot connect to host 127.0.0.1:9")
    assert "ssl" not in body["message"].lower()


async def test_a_standby_says_who_leads_and_answers_nothing(site: Site) -> None:
    await site.lease()
    site.leads = False
    status, body = await site.get("/v1/queue")
    assert (status, body) == (503, {"reason": "NotLeading", "message": "this scheduler is a standby; vm-2-1234 leads"})
    assert site.queries.asked == []


async def test_what_the_scheduler_does_not_have_is_not_found_here_either(site: Site) -> None:
    await site.lease()
    site.queries.waits = False
    await site.world.allocation()
    assert await site.get("/v1/why/physics/job") == (404, {"reason": "NotPending", "message": "it waits for nothing"})
    assert (await site.get("/v1/why/physics/other"))[0] == 404


@pytest.mark.parametrize("name", ["lattice:agent:n1", "lattice:scheduler", "alice", ""])
async def test_the_scheduler_answers_the_gateway_alone(site: Site, name: str) -> None:
    status, body = await site.directly(site.world.authority.pair(name) if name else None)
    assert (status, body["reason"]) == (403, "NotTheGateway")
    assert site.queries.asked == []


async def test_a_certificate_of_another_authority_is_not_even_heard(site: Site) -> None:
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await site.directly(site.world.clients.pair("lattice:gateway"))


async def test_the_gateway_asks_nobody_but_the_scheduler(site: Site) -> None:
    """An agent's certificate at the address of the Lease is not believed."""
    pair = site.world.authority.pair("lattice:agent:evil", dns=("evil",))
    files = ServerFiles(pair.certificate, pair.key, str(site.world.authority.path))
    server = AnswerServer(files, SystemClock(), queries=lambda: site.queries, leader=lambda: "")
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.run("127.0.0.1:0", lambda _host, port: listening.set_result(port)))
        async with asyncio.timeout(60):
            await site.lease(url=f"https://127.0.0.1:{await listening}")
        status, body = await site.get("/v1/queue")
        task.cancel()
    assert (status, body["reason"]) == (503, "SchedulerSilent")
    assert "lattice-scheduler" in body["message"]
