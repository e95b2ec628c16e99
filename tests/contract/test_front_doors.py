"""Webhook and gateway as programs beside a real kube-apiserver, with the rights and configurations that ship."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import yaml
from grpc import aio

from lattice.errors import Denied, Rejected
from lattice.kube.aiohttp import connect
from lattice.kube.resources import ALLOCATIONS, NODES, TENANTS
from lattice.rpc.v1.agent_pb2_grpc import add_AgentServicer_to_server
from lattice_dev import ports
from tests import servers
from tests.contract.policy_scenes import FILES, bind_agents, collection
from tests.servers import ROOT, ApiServer
from tests.unit.gateway.authority import Authority
from tests.unit.gateway.test_gateway import FakeAgent, says

API = "lattice.dev/v1alpha1"
GROUP = "/apis/lattice.dev/v1alpha1"
ROOMS = ("", "controllers", "agent", "webhooks", "gateway", "dev")
SENTENCE = 'allocation rejected: tenant "physics" would exceed max_nodes quota (current: 195, requested: 10, limit: 200)'


@dataclass(frozen=True)
class Site:
    """An API server with everything that ships, and both programs beside it."""

    server: ApiServer
    gateway_port: int
    authority: Authority


def _program(module: str, server: ApiServer, user: str, *flags: str) -> subprocess.Popen[bytes]:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(str(ROOT / room) for room in ROOMS)}
    command = [sys.executable, "-W", "error", "-m", module, "--kubeconfig", str(server.kubeconfig_for(user)), *flags]
    return subprocess.Popen(command, env=environ, cwd=server.directory)


def _install(server: ApiServer, webhook: str) -> None:
    ca = base64.b64encode(server.ca.read_bytes()).decode()
    for file in sorted(FILES.glob("*.yaml"), key=lambda path: (path.name != "namespaces.yaml", path.name == "webhooks.yaml", path.name)):
        text = file.read_text().replace("${WEBHOOK_URL}", webhook).replace("${CA_BUNDLE}", ca)
        for manifest in yaml.safe_load_all(text):
            answer = server.request("POST", collection(manifest), manifest)
            assert answer.ok, f"{manifest['kind']} {manifest['metadata']['name']}: {answer.message}"


def _people(server: ApiServer) -> None:
    """physics, whose users are alice and bob, and its namespace, as the operator would make them."""
    quota = {"quota": {"maxNodes": 200}, "defaultVCluster": "hpc-batch"}
    tenant = {"apiVersion": API, "kind": "Tenant", "metadata": {"name": "physics"}, "spec": quota}
    assert server.request("POST", f"{GROUP}/tenants", tenant).ok
    status = {"status": {"use": {"usedNodes": 195, "usedAllocations": 1}}}
    assert server.request("PATCH", f"{GROUP}/tenants/physics/status", status, content_type=servers.MERGE).ok
    vcluster = {"apiVersion": API, "kind": "VCluster", "metadata": {"name": "hpc-batch"}, "spec": {"defaults": {"walltime": "1h"}}}
    assert server.request("POST", f"{GROUP}/vclusters", vcluster).ok
    namespace = {"metadata": {"name": "physics", "labels": {"lattice.dev/tenant": "physics"}}}
    assert server.request("POST", "/api/v1/namespaces", namespace).ok
    binding = {
        "metadata": {"name": "users"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "lattice-tenant-user"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name} for name in ("alice", "bob")],
    }
    assert server.request("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/physics/rolebindings", binding).ok


def _answers(port: int, path: str, ca: Path) -> bool:
    import urllib.request

    context = ssl.create_default_context(cafile=str(ca))
    with urllib.request.urlopen(f"https://127.0.0.1:{port}{path}", context=context, timeout=5) as answer:
        return bool(answer.status == 200)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if servers.programs() is None:
        pytest.skip("etcd and kube-apiserver are not built: run `make up` once, or set KUBEBUILDER_ASSETS")
    with (
        servers.running(tmp_path_factory.mktemp("front-doors")) as server,
        ports.claimed(3) as (webhook_port, gateway_port, agents_port),
    ):
        server.install_all()
        certificate, key = map(str, servers.issue(server.directory, "front-door"))
        agents = Authority(tmp_path_factory.mktemp("agents"), "agents-ca")
        shown = agents.pair("lattice:gateway")
        programs = [
            _program("lattice_webhooks", server, "lattice:webhook", "--listen", f"127.0.0.1:{webhook_port}", "--certificate", certificate, "--key", key, "--answer-everybody"),
            _program(
                "lattice_gateway", server, "lattice:gateway", "--listen", f"127.0.0.1:{gateway_port}", "--certificate", certificate, "--key", key,
                "--agent-listen", f"127.0.0.1:{agents_port}", "--agent-certificate", shown.certificate, "--agent-key", shown.key, "--agent-ca", str(agents.path),
            ),
        ]  # fmt: skip
        try:
            _install(server, f"https://127.0.0.1:{webhook_port}")
            _people(server)
            servers.until(lambda: _answers(webhook_port, "/readyz", server.ca), "the webhook is ready", within=20)
            servers.until(lambda: _answers(gateway_port, "/healthz", server.ca), "the gateway answers", within=20)
            servers.until(lambda: "spec.user" in _filled(server), "the webhook is asked", within=20)
            yield Site(server, gateway_port, agents)
        finally:
            for program in programs:
                program.terminate()
            assert [program.wait(10) for program in programs] == [0, 0]


def _filled(server: ApiServer) -> str:
    """A dry run as the administrator, who may set nothing for others: what the webhook fills in."""
    answer = server.request("POST", f"{GROUP}/namespaces/physics/allocations", submission("probe"), query={"dryRun": "All"})
    return "spec.user" if answer.ok and answer.body["spec"].get("user") else answer.message


def submission(name: str, **spec: Any) -> dict[str, Any]:
    body = {"entrypoint": "hostname", **spec}
    return {"apiVersion": API, "kind": "Allocation", "metadata": {"name": name, "namespace": "physics"}, "spec": body}


async def test_a_bare_submission_is_filled_in_and_kept(site: Site) -> None:
    async with connect(str(site.server.kubeconfig_for("alice")), user_agent="test") as alice:
        made = await alice.create(ALLOCATIONS, submission("bare"), "physics")
        again = await alice.create(ALLOCATIONS, submission("dry"), "physics", dry_run=True)
    for obj in (made, again):
        assert obj["spec"]["user"] == "alice"
        assert (obj["spec"]["tenant"], obj["spec"]["vcluster"]) == ("physics", "hpc-batch")
        assert obj["spec"]["lifecycle"]["walltime"] == "1h"
        assert obj["metadata"]["finalizers"] == ["lattice.dev/release"]


async def test_what_could_never_run_is_refused_with_its_sentence(site: Site) -> None:
    async with connect(str(site.server.kubeconfig_for("alice")), user_agent="test") as alice:
        with pytest.raises(Rejected) as quota:
            await alice.create(ALLOCATIONS, submission("much", resources={"nodes": 10}), "physics")
        assert SENTENCE in quota.value.message
        with pytest.raises(Rejected) as vcluster:
            await alice.create(ALLOCATIONS, submission("lost", vcluster="x"), "physics")
        assert 'vCluster "x" not found. Available: hpc-batch' in vcluster.value.message
        with pytest.raises(Denied, match="bob"):
            await alice.create(ALLOCATIONS, submission("forged", user="bob"), "physics")


async def test_a_tenant_with_work_is_not_deleted(site: Site) -> None:
    async with connect(str(site.server.kubeconfig), user_agent="test") as admin:
        with pytest.raises((Rejected, Denied)):
            await admin.delete(TENANTS, "physics")


@pytest.fixture
async def agent(site: Site) -> AsyncIterator[None]:
    """An agent of node n1, and an allocation of alice that ended there."""
    pair = site.authority.pair("lattice:agent:n1", dns=("n1",))
    server = aio.server()
    add_AgentServicer_to_server(FakeAgent(says("hello from n1")), server)
    credentials = grpc.ssl_server_credentials([pair.contents()], site.authority.pem.encode(), require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        await _printed(site, port)
        yield
    finally:
        await server.stop(None)


async def _printed(site: Site, port: int) -> None:
    """An allocation of alice that ended on n1, whose agent listens on this port."""
    async with connect(str(site.server.kubeconfig_for("alice")), user_agent="test") as alice:
        await alice.create(ALLOCATIONS, submission("printed"), "physics")
    bind_agents(site.server, "n1")
    async with connect(str(site.server.kubeconfig_for("lattice:agent:n1", ("lattice:agents",))), user_agent="test") as agent:
        await agent.create(NODES, {"apiVersion": API, "kind": "LatticeNode", "metadata": {"name": "n1"}})
        await agent.patch(NODES, "n1", {"status": {"address": f"127.0.0.1:{port}"}}, subresource="status")
    async with connect(str(site.server.kubeconfig_for("lattice:operator")), user_agent="test") as operator:
        await operator.patch(NODES, "n1", {"status": {"state": "Ready"}}, subresource="status")
    async with connect(str(site.server.kubeconfig_for("lattice:scheduler")), user_agent="test") as scheduler:
        stamp = {
            "status": "True",
            "reason": "Completed",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "observedGeneration": 1,
        }
        conditions = [{"type": kind, **stamp} for kind in ("Scheduled", "Finished", "Ready")]
        status = {"attempt": 1, "nodes": "n1", "conditions": conditions}
        await scheduler.patch(ALLOCATIONS, "printed", {"status": status}, "physics", subresource="status")


async def _logs(site: Site, user: str, query: str = "") -> tuple[int, list[Any]]:
    certificate, key = servers.issue(site.server.directory, user)
    trust = ssl.create_default_context(cafile=str(site.server.ca))
    trust.load_cert_chain(certificate, key)
    url = f"https://127.0.0.1:{site.gateway_port}/api/v1/namespaces/physics/allocations/printed/logs{query}"
    async with aiohttp.ClientSession() as session, asyncio.timeout(30), session.get(url, ssl=trust) as response:
        return response.status, [json.loads(line) for line in (await response.read()).splitlines()]


async def test_the_owner_reads_logs_by_certificate_and_others_do_not(site: Site, agent: None) -> None:
    expected = {"node": "n1", "stream": "stdout", "time": "1970-01-01T00:00:01.000000Z", "text": "hello from n1"}
    for query in ("", "?follow=true"):
        assert await _logs(site, "alice", query) == (200, [expected, {"end": True}])
    status, (refusal,) = await _logs(site, "bob")
    assert (status, refusal["reason"]) == (403, "NotYourWork")
    status, (refusal,) = await _logs(site, "mallory")
    assert (status, refusal["reason"]) == (403, "LogsForbidden")


async def test_an_unknown_token_is_refused_by_the_api_server(site: Site) -> None:
    trust = ssl.create_default_context(cafile=str(site.server.ca))
    url = f"https://127.0.0.1:{site.gateway_port}/v1/namespaces/physics/allocations/printed/logs"
    headers = {"Authorization": "Bearer nonsense"}
    async with aiohttp.ClientSession() as session, session.get(url, ssl=trust, headers=headers) as response:
        assert response.status == 401
