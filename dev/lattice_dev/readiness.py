"""Checks whether the cluster is ready: tenants have their namespaces, nodes are Ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lattice import errors
from lattice.kube import resources
from lattice.kube.blocking import BlockingCluster


@dataclass(frozen=True)
class Objects:
    """The objects that must be there: tenants carried out by the operator, and nodes in state Ready."""

    cluster: BlockingCluster
    tenants: Sequence[str]
    nodes: Sequence[str]
    hollow: int

    def missing(self) -> str:
        """Asks the cluster; returns the first thing that is missing, with numbers, or the error of the cluster; empty: all is there."""
        try:
            return self._missing_tenant() or self._missing_node()
        except errors.LatticeError as error:
            return str(error)

    def _missing_tenant(self) -> str:
        """Returns which tenant is not Ready, and why; empty where all are. Raises NotFound for one that does not exist."""
        for name in self.tenants:
            tenant = self.cluster.get(resources.TENANTS, name)
            ready = {c["type"]: c for c in tenant.get("status", {}).get("conditions", [])}.get("Ready", {})
            if ready.get("status") != "True":
                return f"tenant {name} is not Ready: {ready.get('message') or 'the operator has not seen it yet'}"
        return ""

    def _missing_node(self) -> str:
        """Returns which nodes are not Ready, at most four, or how many hollow ones are; empty where all are."""
        found = {item["metadata"]["name"]: item.get("status", {}) for item in self.cluster.list(resources.NODES).items}
        late = [
            f"{node} is {found.get(node, {}).get('state', 'not registered')}"
            for node in self.nodes
            if found.get(node, {}).get("state") != "Ready"
        ]
        hollow = sum(1 for status in found.values() if status.get("hollow") and status.get("state") == "Ready")
        if not late and hollow >= self.hollow:
            return ""
        return ", ".join(late[:4]) or f"{hollow} of {self.hollow} hollow nodes are Ready"
