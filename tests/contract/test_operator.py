"""The operator's program on a real API server, with the rights of its own role and nothing more, and with kopf."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import kopf
import pytest
from kopf.testing import KopfRunner

from lattice.kube.aiohttp import connect
from lattice.kube.resources import TENANTS
from lattice.ledger.reports import ANNOTATION, NodeReport, format_report
from lattice.models.ledger import SHARDS
from lattice_controllers.operator.kinds import KopfKinds, connection_of, registry_of, settings_of
from tests import servers
from tests.contract import places
from tests.contract.policy_scenes import GROUP, LEASES, Person, agent, collection, manifests
from tests.servers import MERGE, ApiServer

PATHS = ("", "controllers", "dev")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    if servers.programs() is None:
        pytest.skip("etcd and kube-apiserver are not built: run `make up` once, or set KUBEBUILDER_ASSETS")
    with servers.running(tmp_path_factory.mktemp("operator")) as running:
        running.install_all()
        for manifest in manifests(running):
            assert running.request("POST", collection(manifest), manifest, query={"fieldValidation": "Strict"}).ok
        yield running


def start(server: ApiServer, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """An operator with the rights of its role."""
    paths = os.pathsep.join(str(servers.ROOT / path) for path in PATHS)
    command = [sys.executable, "-m", "lattice_controllers.operator", f"--kubeconfig={server.kubeconfig_for('lattice:operator')}"]
    with log.open("ab") as stream:
        return subprocess.Popen([*command, *arguments], stdout=stream, stderr=stream, env={**os.environ, "PYTHONPATH": paths})


@pytest.fixture
def operator(server: ApiServer) -> Iterator[subprocess.Popen[bytes]]:
    log = server.directory / "operator.log"
    process = start(server, log, "--lease-seconds=3")
    yield process
    process.send_signal(signal.SIGTERM)
    code = process.wait(15)
    text = log.read_text()
    assert code == 0, text[-4000:]
    assert "forbidden" not in text, text[-8000:]
    assert "NotWritten" not in text, text[-8000:]
    assert "Traceback" not in text, text[-8000:]


def status(server: ApiServer, path: str) -> dict[str, Any]:
    found: dict[str, Any] = (server.request("GET", f"{GROUP}/{path}").body or {}).get("status") or {}
    return found


def ready(server: ApiServer, path: str) -> str:
    return next((entry["reason"] for entry in status(server, path).get("conditions", []) if entry["type"] == "Ready"), "")


def kind(name: str, kind_name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "lattice.dev/v1alpha1", "kind": kind_name, "metadata": {"name": name}, "spec": spec}


def test_the_operators_rights_are_enough_for_all_it_does(server: ApiServer, operator: subprocess.Popen[bytes]) -> None:
    put = server.request
    access = {"users": ["alice"], "groups": ["phys"], "admins": ["carol"]}
    assert put("POST", f"{GROUP}/tenants", kind("physics", "Tenant", {"access": access})).ok
    assert put("POST", f"{GROUP}/vclusters", kind("hpc", "VCluster", {"nodes": {"selector": {"group": ["g0"]}}})).ok
    assert put("POST", f"{GROUP}/latticeconfigs", kind("lattice", "LatticeConfig", {})).ok
    for path in ("tenants/physics", "vclusters/hpc", "latticeconfigs/lattice"):
        servers.until(
            lambda path=path: ready(server, path) == "InForce", f"{path} is in force ({server.directory}/operator.log)", within=20
        )
    alice, carol = Person(server, "alice"), Person(server, "carol")
    allocations = f"{GROUP}/namespaces/physics/allocations"
    servers.until(lambda: alice("GET", allocations).ok and alice("GET", f"{GROUP}/tenants/physics").ok, "alice is a member", within=10)
    assert alice("GET", "/api/v1/namespaces/physics").ok
    spec = {"user": "alice", "tenant": "physics", "vcluster": "hpc", "entrypoint": "true", "lifecycle": {"walltime": "1m"}}
    made = alice("POST", allocations, kind("a", "Allocation", spec))
    assert made.ok, made.message
    servers.until(lambda: carol("PATCH", f"{allocations}/a", {"spec": {"hold": True}}).ok, "carol manages the tenant", within=10)
    servers.until(lambda: _in_use(server, "tenants/physics") and _in_use(server, "vclusters/hpc"), "both are in use", within=10)
    assert "is in use" in put("DELETE", f"{GROUP}/tenants/physics").message
    _node_becomes_ready_and_drains(server)
    assert alice("DELETE", f"{allocations}/a").ok
    servers.until(lambda: not _in_use(server, "tenants/physics") and not _in_use(server, "vclusters/hpc"), "neither is in use", within=10)
    for path in ("tenants/physics", "vclusters/hpc"):
        assert put("DELETE", f"{GROUP}/{path}").ok
        servers.until(partial(_gone, server, path), f"{path} is gone", within=10)
    servers.until(lambda: alice("GET", allocations).status == 403, "alice is no member any more", within=10)


def _in_force(server: ApiServer, path: str) -> bool:
    return ready(server, path) == "InForce"


def _gone(server: ApiServer, path: str) -> bool:
    return server.request("GET", f"{GROUP}/{path}").status == 404


def _in_use(server: ApiServer, path: str) -> bool:
    return any(entry["type"] == "InUse" and entry["status"] == "True" for entry in status(server, path).get("conditions", []))


def _node_becomes_ready_and_drains(server: ApiServer) -> None:
    n1, scheduler = agent(server, "n1"), Person(server, "lattice:scheduler")
    _scheduler_leads(scheduler)
    assert n1("POST", f"{GROUP}/latticenodes", kind("n1", "LatticeNode", {"group": "g0"})).ok
    healthy = {"status": {"health": "Healthy", "fingerprint": "6.1"}}
    servers.until(lambda: n1("PATCH", f"{GROUP}/latticenodes/n1/status", healthy).ok, "the operator has bound the agent of n1", within=10)
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}}
    assert n1("POST", LEASES, lease).ok
    assert scheduler("PATCH", f"{GROUP}/latticenodes/n1/status", {"status": {"index": 0}}).ok
    report = {"metadata": {"annotations": {ANNOTATION: format_report(NodeReport(2, 0, "b", "i"))}}}
    assert n1("PATCH", f"{LEASES}/n1", report).ok
    servers.until(lambda: status(server, "latticenodes/n1").get("state") == "Ready", "n1 is Ready", within=10)
    servers.until(lambda: status(server, "vclusters/hpc").get("ready") == 1, "hpc counts it", within=10)
    olga = Person(server, "olga", ("lattice:operator", "system:authenticated"))
    assert olga("PATCH", f"{GROUP}/latticenodes/n1", {"spec": {"drain": {"reason": "fan", "by": "olga"}}}).ok
    servers.until(lambda: status(server, "latticenodes/n1").get("state") == "Drained", "n1 is Drained", within=10)
    told = {"HeartbeatFresh", "DrainRequested", "DrainComplete"}
    servers.until(lambda: told <= _told(server), "the transitions are told as events", within=10)


def _scheduler_leads(scheduler: Person) -> None:
    """Makes an empty Ledger: a node that has an index, and no Ledger, would mean that it was lost."""
    status = {
        "epoch": 1, "term": "t", "seq": 1, "commit": "c", "nextNumber": 1, "recoveries": 0, "totalNodes": 1, "sensitive": {"used": 0},
        "tenants": {}, "shards": ["1||"] * SHARDS,
    }  # fmt: skip
    assert scheduler("POST", f"{GROUP}/ledgers", kind("lattice", "Ledger", {})).ok
    written = scheduler("PATCH", f"{GROUP}/ledgers/lattice/status", {"status": status})
    assert written.ok, written.message


def _told(server: ApiServer) -> set[str]:
    return {event["reason"] for event in server.request("GET", "/apis/events.k8s.io/v1/namespaces/default/events").body["items"]}


def test_kopf_names_what_people_declare_and_writes_nothing_into_it(server: ApiServer) -> None:
    named: list[tuple[str, str]] = []
    stack = contextlib.AsyncExitStack()

    async def login() -> kopf.AiohttpSession:
        cluster = await stack.enter_async_context(connect(str(server.kubeconfig), user_agent="lattice-contract"))
        return connection_of(cluster)

    registry = registry_of(login, lambda resource, name: named.append((resource.kind, name)))

    @kopf.on.cleanup(registry=registry)
    async def close(**_: Any) -> None:
        await stack.aclose()

    made = server.request("POST", f"{GROUP}/tenants", kind("seen", "Tenant", {}))
    with KopfRunner(["run", "--all-namespaces", "--standalone"], registry=registry, settings=settings_of(), timeout=30) as runner:
        servers.until(lambda: ("Tenant", "seen") in named, "kopf names the tenant", within=20)
        assert server.request("POST", f"{GROUP}/vclusters", kind("seen", "VCluster", {})).ok
        servers.until(lambda: ("VCluster", "seen") in named, "kopf names the vcluster", within=20)
        standing = server.request("GET", f"{GROUP}/tenants/seen").body["metadata"]
        assert standing["resourceVersion"] == made.body["metadata"]["resourceVersion"]
        assert not standing.keys() & {"annotations", "finalizers"}
        named.clear()
        assert server.request("DELETE", f"{GROUP}/tenants/seen").ok
        servers.until(lambda: ("Tenant", "seen") in named, "kopf names the tenant that is gone", within=20)
    assert runner.exit_code == 0, runner.output
    assert server.request("DELETE", f"{GROUP}/vclusters/seen").ok


async def test_kopf_runs_in_our_loop_and_its_end_leaves_no_task_and_ends_none_of_ours(server: ApiServer) -> None:
    named: set[str] = set()
    async with connect(str(server.kubeconfig), user_agent="lattice-contract") as cluster, asyncio.TaskGroup() as group:
        before = asyncio.all_tasks()
        running = group.create_task(KopfKinds(cluster).run(lambda _resource, name: named.add(name)))
        await cluster.create(TENANTS, kind("shared", "Tenant", {}))
        await places.until(lambda: "shared" in named, shows=lambda: named)
        ours = group.create_task(asyncio.Event().wait())
        running.cancel()
        await asyncio.wait([running])
        assert asyncio.all_tasks() == before | {ours}
        ours.cancel()
        await cluster.delete(TENANTS, "shared")


def test_what_is_declared_around_the_death_of_the_api_server_is_in_force_after_its_return(server: ApiServer, tmp_path: Path) -> None:
    log = tmp_path / "operator.log"
    process = start(server, log, "--lease-seconds=4")
    try:
        assert server.request("POST", f"{GROUP}/tenants", kind("first", "Tenant", {})).ok
        servers.until(lambda: _in_force(server, "tenants/first"), f"it works ({log})", within=20)
        outage = places.Outage(server)
        assert server.request("PATCH", f"{GROUP}/tenants/first", {"spec": {"access": {"users": ["alice"]}}}, content_type=MERGE).ok
        outage.begin()
        time.sleep(6)  # longer than the Lease: the term ends, and another begins
        outage.end()
        assert server.request("POST", f"{GROUP}/tenants", kind("second", "Tenant", {})).ok
        servers.until(lambda: _in_force(server, "tenants/second"), f"a tenant made afterwards is in force ({log})", within=30)
        servers.until(lambda: Person(server, "alice")("GET", f"{GROUP}/tenants/first").ok, "alice may read hers", within=30)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0, log.read_text()[-4000:]


@contextlib.contextmanager
def two_operators(server: ApiServer) -> Iterator[list[subprocess.Popen[bytes]]]:
    """One that leads, named `first`, and a standby, named `second`; killed at the end."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name in ("first", "second"):
            processes.append(start(server, server.directory / f"operator-{name}.log", "--lease-seconds=2", f"--identity={name}"))
            if name == "first":
                servers.until(lambda: _holder(server) == "first", "the first one leads", within=15)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_killed_operator_is_replaced_by_the_next(server: ApiServer) -> None:
    with two_operators(server) as (first, _):
        first.kill()
        servers.until(lambda: _holder(server) == "second", "the second one leads", within=15)
        assert server.request("POST", f"{GROUP}/tenants", kind("after", "Tenant", {})).ok
        servers.until(lambda: _in_force(server, "tenants/after"), "the second one works", within=15)


def test_an_operator_that_wakes_when_another_leads_takes_nothing_back(server: ApiServer) -> None:
    with two_operators(server) as (first, _):
        assert server.request("POST", f"{GROUP}/tenants", kind("slept", "Tenant", {"access": {"users": ["alice"]}})).ok
        servers.until(lambda: _users(server, "slept") == ["alice"], "the first one works", within=15)
        first.send_signal(signal.SIGSTOP)
        servers.until(lambda: _holder(server) == "second", "the second one leads", within=15)
        changed = {"spec": {"access": {"users": ["bob"]}}}
        assert server.request("PATCH", f"{GROUP}/tenants/slept", changed, content_type=MERGE).ok
        servers.until(lambda: _users(server, "slept") == ["bob"], "the second one works", within=15)
        first.send_signal(signal.SIGCONT)
        log = server.directory / "operator-first.log"
        servers.until(lambda: "TermEnded" in log.read_text(), f"the first one knows that its term is over ({log})", within=15)
        assert (_holder(server), _users(server, "slept")) == ("second", ["bob"])


def _users(server: ApiServer, tenant: str) -> list[str]:
    binding = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{tenant}/rolebindings/lattice-tenant-user"
    return [subject["name"] for subject in (server.request("GET", binding).body or {}).get("subjects") or []]


def _holder(server: ApiServer) -> str:
    body = server.request("GET", "/apis/coordination.k8s.io/v1/namespaces/lattice-system/leases/lattice-operator").body
    return str((body.get("spec") or {}).get("holderIdentity", ""))
