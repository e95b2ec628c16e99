"""Objects and facts for the tests of admission: a small site with two tenants and three vclusters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from lattice.admission import Facts, Request, Requester, Verdict, admit, judge
from lattice.admission.verdicts import Accepted, Refused
from lattice.views import Tenant, VCluster

NOW = 1_800_000_000.0


def tenant(name: str = "physics", *, used_nodes: int = 0, used_allocations: int = 0, **spec: Any) -> Tenant:
    use = {"usedNodes": used_nodes, "usedAllocations": used_allocations}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec, "status": {"use": use}}, Tenant)


def vcluster(name: str = "hpc-batch", **spec: Any) -> VCluster:
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, VCluster)


def facts(*, tenants: tuple[Tenant, ...] = (), vclusters: tuple[VCluster, ...] = (), **changes: Any) -> Facts:
    """alice, in a namespace of physics, on a site of 100 nodes."""
    base = Facts(
        requester=Requester("alice"),
        now=NOW,
        namespace_tenant="physics",
        namespaces={"physics": "physics", "chem": "chemistry"},
        tenants={entry.metadata.name: entry for entry in tenants or (tenant(), tenant("chemistry"))},
        vclusters={entry.metadata.name: entry for entry in vclusters or (vcluster(),)},
        nodes=100,
        rights=frozenset(),
    )
    return replace(base, **changes)


def allocation(**spec: Any) -> dict[str, Any]:
    """An Allocation as alice submits it; lifecycle and resources are merged, None takes a field out."""
    body: dict[str, Any] = {"entrypoint": "hostname", "lifecycle": {"walltime": "1h"}, "resources": {"nodes": 2}}
    for key, value in spec.items():
        body[key] = {**body.get(key, {}), **value} if key in ("lifecycle", "resources") and isinstance(value, dict) else value
    cleaned = {key: value for key, value in body.items() if value is not None}
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "Allocation",
        "metadata": {"name": "job", "namespace": "physics"},
        "spec": cleaned,
    }


def submit(obj: dict[str, Any], known: Facts | None = None) -> Verdict:
    return admit(Request.creation(obj), known or facts())


def change(old: dict[str, Any], new: dict[str, Any], known: Facts | None = None) -> Verdict:
    return judge(Request("Allocation", "UPDATE", new, old, "physics"), known or facts())


def refused(verdict: Verdict) -> Refused:
    assert isinstance(verdict, Refused), verdict
    return verdict


def accepted(verdict: Verdict) -> Accepted:
    assert isinstance(verdict, Accepted), verdict
    return verdict
