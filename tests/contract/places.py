"""Where the contract suite runs: two kinds of its own, on the fake and on a real API server that can be killed and compacted."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lattice.kube.cluster import Cluster
from lattice.kube.kubeconfig import ClusterConfig, load
from lattice.kube.resources import Resource
from tests.e2e.waiting import patient
from tests.servers import ApiServer
from tests.servers import until as wait_until

WIDGETS = Resource("contract.example.com", "v1", "widgets", "Widget", namespaced=True, status=True)
GADGETS = Resource("contract.example.com", "v1", "gadgets", "Gadget", namespaced=False)


@dataclass(frozen=True)
class Place:
    """A cluster, and a namespace of the test's own in it."""

    cluster: Cluster
    namespace: str


def definition(resource: Resource) -> dict[str, Any]:
    """A CRD without a schema worth the name, with one selectable field."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": {**anything, "properties": {"color": {"type": "string"}}}, "status": anything}}
    version: dict[str, Any] = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "selectableFields": [{"jsonPath": ".spec.color"}],
    }
    if resource.status:
        version["subresources"] = {"status": {}}
    names = {"plural": resource.plural, "singular": resource.kind.lower(), "kind": resource.kind, "listKind": resource.kind + "List"}
    scope = "Namespaced" if resource.namespaced else "Cluster"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.name},
        "spec": {"group": resource.group, "scope": scope, "names": names, "versions": [version]},
    }


def install(server: ApiServer) -> ClusterConfig:
    """Have the suite's kinds served; the administrator's configuration."""
    for resource in (WIDGETS, GADGETS):
        server.install(definition(resource))
    return load(str(server.kubeconfig))


class Outage:
    """kill -9 of a kube-apiserver, and its return on the same port."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._command: Any = server.children[-1].args

    def begin(self) -> None:
        """Kill it."""
        child = self._server.children.pop()
        child.kill()
        child.wait()

    def end(self) -> None:
        """Start it again, and wait until it is ready."""
        with (self._server.directory / "kube-apiserver.log").open("ab") as log:
            self._server.children.append(subprocess.Popen(self._command, stdout=log, stderr=log))
        wait_until(lambda: self._server.request("GET", "/readyz").ok, "kube-apiserver is back", within=60)


def compact(server: ApiServer) -> None:
    """Have etcd forget every version before its newest."""

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"http://127.0.0.1:{server.etcd_port}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - loopback
            decoded: dict[str, Any] = json.load(answer)
        return decoded

    revision = ask("/v3/kv/range", {"key": "Lw=="})["header"]["revision"]
    ask("/v3/kv/compaction", {"revision": revision, "physical": True})


async def until(predicate: Callable[[], bool], *, within: float = 30.0, shows: Callable[[], object] = lambda: "") -> None:
    """Wait until the predicate holds; else fail with what was last seen. `within`: seconds on a quiet machine, as in tests/e2e."""
    within = patient(within)
    deadline = time.monotonic() + within
    while not predicate():
        assert time.monotonic() < deadline, f"not within {within} s; last seen: {shows()}"
        await asyncio.sleep(0.02)
