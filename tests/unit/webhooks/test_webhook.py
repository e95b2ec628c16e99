"""The webhook as the API server meets it: HTTPS, AdmissionReview in, an answer out, nothing changed."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import Rejected
from lattice.kube import patches
from lattice.kube.resources import ALLOCATIONS, CONFIGS, NAMESPACES, NODES, RESERVATIONS, TENANTS, VCLUSTERS
from lattice_webhooks.__main__ import Outside, Settings, Webhook, build
from tests.unit.gateway.authority import Authority, Pair
from tests.unit.gateway.reviews import ReviewingCluster

API = "lattice.dev/v1alpha1"


def made(kind: str, name: str, spec: dict[str, Any] | None = None, labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name, "labels": labels or {}}, "spec": spec or {}}


async def site(cluster: ReviewingCluster) -> None:
    """physics with a quota of 200 nodes, its namespace, two vclusters, one node."""
    await cluster.create(TENANTS, made("Tenant", "physics", {"quota": {"maxNodes": 200}, "defaultVCluster": "hpc-batch"}))
    await cluster.patch(TENANTS, "physics", {"status": {"use": {"usedNodes": 195, "usedAllocations": 1}}}, subresource="status")
    await cluster.create(VCLUSTERS, made("VCluster", "hpc-batch", {"defaults": {"walltime": "1h"}}))
    await cluster.create(VCLUSTERS, made("VCluster", "interactive"))
    await cluster.create(NODES, made("LatticeNode", "n1"))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "physics", "labels": {"lattice.dev/tenant": "physics"}}}
    await cluster.create(NAMESPACES, namespace)


class Caller:
    """Calls the webhook as the API server does."""

    def __init__(self, session: aiohttp.ClientSession, port: int, trust: ssl.SSLContext) -> None:
        self._session = session
        self._base = f"https://localhost:{port}"
        self._trust = trust

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        async with self._session.post(self._base + path, data=io.BytesIO(body), ssl=self._trust) as response:
            return response.status, await response.read()

    async def review(self, path: str, obj: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
        old = changes.get("old")
        kind = (obj or old or {})["kind"]
        request = {
            "uid": "u-1",
            "kind": {"group": "lattice.dev", "version": "v1alpha1", "kind": kind},
            "operation": changes.get("operation", "CREATE"),
            "namespace": "physics" if kind == "Allocation" else "",
            "subResource": changes.get("sub_resource", ""),
            "userInfo": {"username": changes.get("user", "alice"), "groups": ["system:authenticated"]},
            "object": obj,
            "oldObject": old,
            "dryRun": changes.get("dry_run", True),
        }
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        status, answer = await self.post(path, json.dumps(review).encode())
        assert status == 200, answer
        decoded = json.loads(answer)
        assert (decoded["kind"], decoded["response"]["uid"]) == ("AdmissionReview", "u-1")
        response: dict[str, Any] = decoded["response"]
        return response


class Running:
    """A webhook that runs, with what surrounds it."""

    def __init__(self, cluster: ReviewingCluster, clock: ManualClock, caller: Caller, webhook: Webhook, authority: Authority) -> None:
        self.cluster, self.clock, self.caller, self.webhook, self.authority = cluster, clock, caller, webhook, authority


def showing(trusted: Authority, shown: Pair | None) -> ssl.SSLContext:
    """The context of a client that shows a certificate, or none."""
    context = ssl.create_default_context(cadata=trusted.pem)
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    return context


@asynccontextmanager
async def started(directory: Path) -> AsyncIterator[Running]:
    clock = ManualClock()
    cluster = ReviewingCluster(clock)
    await site(cluster)
    authority = Authority(directory)
    pair = authority.pair("lattice-webhook", dns=("localhost",))
    clients = Authority(directory, "clients-ca")
    settings = Settings(listen="127.0.0.1:0", certificate=pair.certificate, key=pair.key, client_ca=str(clients.path))
    webhook = build(settings, Outside(cluster, clock))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(webhook.run())
        async with asyncio.timeout(60):
            _, port = await webhook.listening.address
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            caller = Caller(session, port, showing(authority, clients.pair("kube-apiserver")))
            yield Running(cluster, clock, caller, webhook, authority)
        task.cancel()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with started(tmp_path) as found:
        yield found


def allocation(**spec: Any) -> dict[str, Any]:
    return made("Allocation", "job", {"entrypoint": "hostname", "resources": {"nodes": 1}, **spec})


async def mutated(caller: Caller, obj: dict[str, Any], **changes: Any) -> dict[str, Any]:
    response = await caller.review("/mutate", obj, **changes)
    assert response["allowed"] is True
    if "patch" not in response:
        return obj
    assert response["patchType"] == "JSONPatch"
    patched: dict[str, Any] = patches.apply(obj, json.loads(base64.b64decode(response["patch"])))
    return patched


async def test_a_bare_submission_is_filled_in_by_a_patch_and_then_accepted(running: Running) -> None:
    filled = await mutated(running.caller, allocation())
    assert filled["spec"] | {"entrypoint": "", "resources": {}} == {
        "entrypoint": "",
        "resources": {},
        "user": "alice",
        "tenant": "physics",
        "vcluster": "hpc-batch",
        "lifecycle": {"walltime": "1h"},
    }
    assert filled["metadata"]["finalizers"] == ["lattice.dev/release"]
    assert (await running.caller.review("/validate", filled)) == {"uid": "u-1", "allowed": True}


async def test_what_is_accepted_when_it_is_filled_in_says_so_and_what_is_refused_waits_for_its_sentence(running: Running) -> None:
    assert (await mutated(running.caller, allocation()))["judged"] is True
    response = await running.caller.review("/mutate", allocation(resources={"nodes": 4}))
    assert "the cluster has 1" in response["warnings"][0]
    refused = allocation(resources={"nodes": 10})
    assert "judged" not in await mutated(running.caller, refused)
    assert "judged" not in await mutated(running.caller, {**refused, "judged": True}), "another webhook changed what was accepted"
    assert "judged" not in await mutated(running.caller, made("VCluster", "new", {}))


async def test_who_has_set_its_fields_is_taken_out_of_a_new_allocation_unless_somebody_applied_it(running: Running) -> None:
    """From then on the API server keeps none of it either, which would cost each write of a status as much as the rest."""
    created, applied = {"manager": "lattice", "operation": "Update"}, {"manager": "flux", "operation": "Apply"}
    for managers, kept in (([created], False), ([created, applied], True), ([], True)):
        obj = allocation()
        obj["metadata"]["managedFields"] = managers
        assert ("managedFields" in (await mutated(running.caller, obj))["metadata"]) is kept
        refused = allocation(resources={"nodes": 10})
        refused["metadata"]["managedFields"] = managers
        assert ("managedFields" in (await mutated(running.caller, refused))["metadata"]) is kept
        assert "managedFields" in (await mutated(running.caller, obj, old=allocation(), operation="UPDATE"))["metadata"]


async def test_a_tenant_without_a_default_vcluster_is_told_which_there_are(running: Running) -> None:
    await running.cluster.patch(TENANTS, "physics", {"spec": {"defaultVCluster": None}})
    response = await running.caller.review("/mutate", allocation())
    assert response["allowed"] is False
    assert 'tenant "physics" has no default vCluster: name one of hpc-batch, interactive' in response["status"]["message"]


async def test_the_books_sentence_reaches_the_person(running: Running) -> None:
    filled = await mutated(running.caller, allocation(resources={"nodes": 10}))
    response = await running.caller.review("/validate", filled)
    assert response["allowed"] is False
    status = response["status"]
    sentence = 'allocation rejected: tenant "physics" would exceed max_nodes quota (current: 195, requested: 10, limit: 200)'
    assert status["message"].startswith(f'Allocation "job": {sentence}')
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert [(cause["reason"], cause["field"]) for cause in status["details"]["causes"]] == [("QuotaExceeded", "spec.resources.nodes")]


async def test_warnings_are_passed_on(running: Running) -> None:
    filled = await mutated(running.caller, allocation(resources={"nodes": 4}))
    response = await running.caller.review("/validate", filled)
    assert response["allowed"] is True
    assert "the cluster has 1" in response["warnings"][0]


async def refusal(running: Running, filled: dict[str, Any], words: str) -> str:
    """The message once it has these words, or is none: the webhook's cache hears of a change in a moment."""
    message = ""
    for _ in range(200):
        message = (await running.caller.review("/validate", filled)).get("status", {}).get("message", "")
        if words in message if words else not message:
            break
    return message


async def test_what_a_user_has_in_the_tenant_is_counted_only_where_the_tenant_limits_its_users(running: Running) -> None:
    for name, phase in (("runs", "Running"), ("waits", "Pending"), ("new", ""), ("done", "Completed")):
        one = allocation(tenant="physics", user="alice")
        await running.cluster.create(ALLOCATIONS, {**one, "metadata": {"name": name}}, "physics")
        held = {"nodes": "n[1-3]", "nodeCount": 3} if phase in ("Running", "Completed") else {}
        ended = [{"type": kind, "status": "True", "reason": "Completed"} for kind in ("Finished", "Ready") if phase == "Completed"]
        await running.cluster.patch(
            ALLOCATIONS, name, {"status": {"phase": phase, "conditions": ended, **held}}, "physics", subresource="status"
        )
    filled = await mutated(running.caller, allocation())
    assert (await running.caller.review("/validate", filled))["allowed"] is True
    for limits, numbers in (
        ({"maxNodes": 3}, "max_nodes quota (current: 3, requested: 1, limit: 3)"),
        ({"maxRunning": 1}, "max_running quota (current: 1, requested: 1, limit: 1)"),
        ({"maxPending": 2}, "max_pending quota (current: 2, requested: 1, limit: 2)"),
    ):
        await running.cluster.patch(TENANTS, "physics", {"spec": {"quota": {"perUser": None}}})
        await running.cluster.patch(TENANTS, "physics", {"spec": {"quota": {"perUser": limits}}})
        assert f'user "alice" of tenant "physics" would exceed {numbers}' in await refusal(running, filled, numbers)
    filled["spec"]["user"] = "bob"
    running.cluster.grants.add(("alice", "runas", "tenants", "physics"))
    assert (await running.caller.review("/validate", filled))["allowed"] is True


async def test_what_waits_in_the_vcluster_is_counted_only_where_the_vcluster_limits_it(running: Running) -> None:
    for name, phase, user in (
        ("runs", "Running", "alice"),
        ("waits", "Pending", "alice"),
        ("new", "", "bob"),
        ("done", "Completed", "bob"),
    ):
        one = allocation(tenant="physics", user=user, vcluster="hpc-batch")
        await running.cluster.create(ALLOCATIONS, {**one, "metadata": {"name": name}}, "physics")
        await running.cluster.patch(ALLOCATIONS, name, {"status": {"phase": phase}}, "physics", subresource="status")
    other = allocation(tenant="chemistry", user="carol", vcluster="hpc-batch")
    await running.cluster.create(ALLOCATIONS, {**other, "metadata": {"name": "foreign"}}, "chemistry")
    filled = await mutated(running.caller, allocation())
    for limits, numbers in (
        (
            {"maxPendingPerUser": 1},
            'user "alice" would exceed maxPendingPerUser of vCluster "hpc-batch" (current: 1, requested: 1, limit: 1)',
        ),
        ({"maxPendingPerTenant": 2}, 'tenant "physics" would exceed maxPendingPerTenant of vCluster "hpc-batch" (current: 2,'),
        ({"maxPending": 3}, 'all its work would exceed maxPending of vCluster "hpc-batch" (current: 3, requested: 1, limit: 3)'),
    ):
        await running.cluster.patch(VCLUSTERS, "hpc-batch", {"spec": {"limits": None}})
        await running.cluster.patch(VCLUSTERS, "hpc-batch", {"spec": {"limits": limits}})
        assert numbers in await refusal(running, filled, numbers)
        await running.cluster.patch(VCLUSTERS, "hpc-batch", {"spec": {"limits": {name: limit + 1 for name, limit in limits.items()}}})
        assert await refusal(running, filled, "") == ""


async def test_submitting_for_others_asks_for_the_right(running: Running) -> None:
    filled = await mutated(running.caller, allocation(user="bob"))
    response = await running.caller.review("/validate", filled)
    assert (response["allowed"], response["status"]["code"]) == (False, 403)
    running.cluster.grants.add(("argo", "runas", "tenants", "physics"))
    assert (await running.caller.review("/validate", filled, user="argo"))["allowed"] is True


async def test_a_longer_walltime_asks_for_the_right_and_the_rest_of_an_update_asks_for_nothing(running: Running) -> None:
    old = await mutated(running.caller, allocation())
    longer = {**old, "spec": {**old["spec"], "lifecycle": {"walltime": "2h"}}}
    held = {**old, "spec": {**old["spec"], "hold": True}}
    refused = await running.caller.review("/validate", longer, old=old, operation="UPDATE")
    assert refused["status"]["details"]["causes"][0]["reason"] == "WalltimeExtension"
    asked = len(running.cluster.reviews)
    assert (await running.caller.review("/validate", held, old=old, operation="UPDATE"))["allowed"] is True
    assert len(running.cluster.reviews) == asked
    running.cluster.grants.add(("alice", "extend", "tenants", "physics"))
    assert (await running.caller.review("/validate", longer, old=old, operation="UPDATE"))["allowed"] is True


async def test_a_tenant_in_use_is_not_deleted(running: Running) -> None:
    tenant = made("Tenant", "physics")
    assert (await running.caller.review("/validate", None, old=tenant, operation="DELETE"))["allowed"] is True
    await running.cluster.create(ALLOCATIONS, allocation(tenant="physics"), "physics")
    response = await running.caller.review("/validate", None, old=tenant, operation="DELETE")
    assert response["status"]["details"]["causes"][0]["reason"] == "InUse"


def reservation(name: str, **spec: Any) -> dict[str, Any]:
    return made("Reservation", name, {"nodes": "n1", "start": "2099-12-01T08:00:00Z", "duration": "2h", **spec})


def cause(response: dict[str, Any]) -> str:
    reason: str = response["status"]["details"]["causes"][0]["reason"]
    return reason


async def test_a_reservation_over_running_work_or_another_reservation_is_refused(running: Running) -> None:
    await running.cluster.create(ALLOCATIONS, allocation(lifecycle={"type": "Unbounded"}), "physics")
    await running.cluster.patch(ALLOCATIONS, "job", {"status": {"phase": "Running", "nodes": "n1"}}, "physics", subresource="status")
    response = await running.caller.review("/validate", reservation("maint"))
    assert cause(response) == "NodesBusy"
    assert "1 allocation on n1 may run into the first window" in response["status"]["message"]
    ignoring = reservation("maint", ignoreRunning=True)
    assert (await running.caller.review("/validate", ignoring))["allowed"] is True
    await running.cluster.create(RESERVATIONS, ignoring)
    await running.clock.run_for(1)
    response = await running.caller.review("/validate", reservation("other", ignoreRunning=True))
    assert cause(response) == "ReservationOverlaps"


async def test_a_reservation_that_is_newer_than_the_cache_is_asked_for(running: Running) -> None:
    running.cluster.silent = True
    await running.cluster.create(RESERVATIONS, reservation("course", users=["bob"]))
    filled = await mutated(running.caller, allocation(reservation="course"))
    assert cause(await running.caller.review("/validate", filled)) == "ReservationNotAllowed"
    filled = await mutated(running.caller, allocation(reservation="nothing"))
    assert cause(await running.caller.review("/validate", filled)) == "ReservationUnknown"


async def test_a_namespace_that_is_newer_than_the_cache_is_asked_for(running: Running) -> None:
    running.cluster.silent = True
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fresh", "labels": {"lattice.dev/tenant": "biology"}}}
    await running.cluster.create(NAMESPACES, namespace)
    await running.cluster.create(TENANTS, made("Tenant", "biology", {"namespaces": ["fresh"], "defaultVCluster": "hpc-batch"}))
    request = {
        "uid": "u-1", "operation": "CREATE", "namespace": "fresh", "object": allocation(), "userInfo": {"username": "alice"},
        "kind": {"group": "lattice.dev", "kind": "Allocation"},
    }  # fmt: skip
    _, answer = await running.caller.post("/mutate", json.dumps({"apiVersion": "admission.k8s.io/v1", "request": request}).encode())
    patch = json.loads(base64.b64decode(json.loads(answer)["response"]["patch"]))
    assert {"op": "add", "path": "/spec/tenant", "value": "biology"} in patch


@pytest.mark.parametrize("changes", [{"operation": "CONNECT"}, {"sub_resource": "status", "operation": "UPDATE"}])
async def test_what_is_not_judged_here_is_let_through(running: Running, changes: dict[str, Any]) -> None:
    for path in ("/mutate", "/validate"):
        assert await running.caller.review(path, allocation(entrypoint=""), **changes) == {"uid": "u-1", "allowed": True}


async def test_what_is_no_review_is_a_bad_request(running: Running) -> None:
    for body in (b"", b"{", b"[]", b'{"apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "1", "operation": "CREATE"}}', b"\xff"):
        status, _ = await running.caller.post("/validate", body)
        assert status == 400


async def test_a_review_writes_nothing(running: Running) -> None:
    before = len(running.cluster.written)
    filled = await mutated(running.caller, allocation())
    await running.caller.review("/validate", filled)
    assert len(running.cluster.written) == before


async def test_more_than_may_wait_is_refused_by_the_count_of_a_moment_ago(running: Running) -> None:
    await running.cluster.create(
        CONFIGS, made("LatticeConfig", "lattice", {"submission": {"maxPendingPerUser": 2, "maxPendingPerTenant": 3}})
    )
    for number, user in enumerate(("alice", "alice", "bob")):
        body = made("Allocation", f"waits-{number}", {"tenant": "physics", "user": user, "hold": number == 0})
        await running.cluster.create(ALLOCATIONS, {**body, "metadata": {"name": f"waits-{number}", "namespace": "physics"}}, "physics")
    obj = await mutated(running.caller, allocation())
    assert (await running.caller.review("/validate", obj))["allowed"]  # not counted yet; nobody waits for it
    await running.clock.run_for(11)
    refusal = (await running.caller.review("/validate", obj))["status"]["message"]
    assert 'user "alice" of tenant "physics" would exceed max_pending quota (current: 2, requested: 1, limit: 2)' in refusal
    theirs = await running.caller.review("/validate", {**obj, "spec": {**obj["spec"], "user": "carol"}}, user="carol")
    assert 'tenant "physics" would exceed max_pending quota (current: 3, requested: 1, limit: 3)' in theirs["status"]["message"]


async def test_a_flood_is_at_its_end_with_the_limit_and_not_with_the_next_count(running: Running) -> None:
    await running.cluster.create(
        CONFIGS, made("LatticeConfig", "lattice", {"submission": {"maxPendingPerUser": 5, "maxPendingPerTenant": 7}})
    )
    obj = await mutated(running.caller, allocation())
    assert all([(await running.caller.review("/validate", obj))["allowed"] for _ in range(10)]), "of a dry run nothing is stored"
    answers = [await running.caller.review("/validate", obj, dry_run=False) for _ in range(8)]
    assert [answer["allowed"] for answer in answers] == [True] * 5 + [False] * 3
    assert "max_pending quota (current: 5, requested: 1, limit: 5)" in answers[-1]["status"]["message"]
    theirs = {**obj, "spec": {**obj["spec"], "user": "carol"}}
    let_in = [(await running.caller.review("/validate", theirs, user="carol", dry_run=False))["allowed"] for _ in range(3)]
    assert let_in == [True, True, False]
    await running.clock.run_for(11)
    assert (await running.caller.review("/validate", obj))["allowed"], "none of them was stored after all"


async def test_only_who_shows_the_api_servers_certificate_is_answered(running: Running, tmp_path: Path) -> None:
    running.caller._trust = showing(running.authority, None)
    for path in ("/mutate", "/validate"):
        status, said = await running.caller.post(path, b"x" * 900_000)
        assert (status, b"show its client certificate" in said) == (403, True)
    running.caller._trust = showing(running.authority, Authority(tmp_path, "strangers-ca").pair("stranger"))
    with pytest.raises((aiohttp.ClientError, ConnectionError)):
        await running.caller.post("/validate", b"{}")


def test_a_webhook_that_asks_for_no_certificate_is_a_decision(tmp_path: Path) -> None:
    pair = Authority(tmp_path).pair("lattice-webhook", dns=("localhost",))
    with pytest.raises(Rejected, match="--client-ca is not given"):
        asyncio.run(building(Settings(certificate=pair.certificate, key=pair.key)))
    asyncio.run(building(Settings(certificate=pair.certificate, key=pair.key, answer_everybody=True)))


async def building(settings: Settings) -> None:
    clock = ManualClock()
    build(settings, Outside(ReviewingCluster(clock), clock))


async def test_a_renewed_certificate_serves_the_next_connection(running: Running, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other-ca")
    other.pair("lattice-webhook", dns=("localhost",))
    await running.clock.run_for(6)
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await running.caller.post("/validate", b"")
    running.caller._trust = showing(other, Pair(str(tmp_path / "kube-apiserver.crt"), str(tmp_path / "kube-apiserver.key")))
    assert (await running.caller.post("/validate", b""))[0] == 400


async def test_readiness_follows_the_caches_and_metrics_count(running: Running) -> None:
    await running.caller.review("/validate", await mutated(running.caller, allocation()))
    assert running.webhook._server.ready() == (True, "reviews are answered")
    labels = {"method": "validate", "status": "200"}
    assert running.webhook._metrics.registry.get_sample_value("lattice_api_requests_total", labels) == 1
