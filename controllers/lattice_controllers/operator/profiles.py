"""Makes, for each of Koordinator's ElasticQuotaProfiles, the ElasticQuota that is the root of its tree, with the sum of its nodes.

Koordinator's own controller makes the same object: one that exists and does not carry our label is left alone. A fault of a profile is
written into an annotation of it, since its kind has no conditions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import LatticeError, NotFound, Rejected
from lattice.kube.cluster import Cluster, PatchKind
from lattice.kube.resources import KOORDINATOR_PROFILES, KOORDINATOR_QUOTAS
from lattice.lifecycle.hardware import counted
from lattice.lifecycle.node import DEGRADED, DRAINING, READY
from lattice.quota.amounts import WIDEST, quantity, resource_of
from lattice.quota.declared import PREFIX, TreeSettings, tree_id_of, tree_of
from lattice.quota.groups import ROOT
from lattice.quota.selection import traits_of
from lattice.scheduling.state.node_amounts import node_amounts
from lattice.units import quantity_bytes
from lattice.views import KoordinatorProfile, KoordinatorQuota, Node

log = logging.getLogger(__name__)

MANAGER: Final = "lattice-operator"
SECONDS: Final = 10.0
"""Time between two sums of each profile's nodes, the same as Koordinator's."""
ABSENT_SECONDS: Final = 60.0
"""Time between two checks whether the cluster has Koordinator's kinds."""
MANAGED: Final = {"app.kubernetes.io/managed-by": "lattice"}
FAULT: Final = "lattice.dev/fault"
"""The annotation of a profile that says why its tree is not as it was asked for."""
COUNTED: Final = frozenset({READY, DEGRADED, DRAINING})


class Profiles:
    """Brings the root quota of each profile up to date, by reading everything again every 10 s; `nodes` is a live view by name."""

    def __init__(self, cluster: Cluster, clock: Clock, nodes: Mapping[str, Node]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._nodes = nodes

    async def run(self) -> None:
        """Brings the roots of all profiles up to date (`publish`) until cancelled, each time after the pause that it returns."""
        while True:
            await self._clock.sleep(await self.publish())

    async def publish(self) -> float:
        """Brings the roots of all profiles up to date once; returns the seconds until the next time.

        They are 10, or 60 where the cluster lacks Koordinator's kinds. Errors of the API server are logged, not raised.
        """
        try:
            profiles = (await self._cluster.list(KOORDINATOR_PROFILES, type=KoordinatorProfile)).items
            quotas = (await self._cluster.list(KOORDINATOR_QUOTAS, type=KoordinatorQuota)).items
        except NotFound:
            return ABSENT_SECONDS
        except LatticeError as error:
            event(log, "ProfilesNotRead", logging.WARNING, reason=error.reason, message=error.message)
            return SECONDS
        standing = {quota.metadata.key: quota for quota in quotas}
        for profile in profiles:
            try:
                await self._one(profile, standing)
            except LatticeError as error:
                event(
                    log, "ProfileNotCarriedOut", logging.WARNING, profile=profile.metadata.key, reason=error.reason, message=error.message
                )
        return SECONDS

    async def _one(self, profile: KoordinatorProfile, standing: Mapping[str, KoordinatorQuota]) -> None:
        """Brings the root quota of one profile up to date (0 where the profile selects no nodes), and writes into the profile's annotation
        that it does not read or selects no nodes, or removes the annotation; `standing` has Koordinator's quotas by namespace/name.

        It leaves the quota alone where the profile does not read, and, without telling so, where the quota lacks Lattice's label.
        """
        metadata = profile.metadata
        try:
            tree = tree_of(profile)
        except Rejected as error:
            await self._say(profile, error.message)
            return
        chosen = [node for node in self._nodes.values() if tree.nodes.selects(traits_of(node))]
        await self._say(profile, "" if chosen else f"spec.nodeSelector selects none of the {len(self._nodes)} nodes")
        root = root_of(profile, tree, chosen)
        found = standing.get(f"{metadata.namespace}/{profile.spec.quota_name}")
        if found is not None and (not MANAGED.items() <= found.metadata.labels.items() or says(found, root)):
            return
        await self._cluster.patch(
            KOORDINATOR_QUOTAS, profile.spec.quota_name, root, metadata.namespace, kind=PatchKind.APPLY, manager=MANAGER, force=True
        )
        event(log, "TreeRootWritten", profile=metadata.key, quota=profile.spec.quota_name, nodes=len(chosen))

    async def _say(self, profile: KoordinatorProfile, fault: str) -> None:
        """Writes the fault into the profile's annotation where it differs; empty: removes it."""
        metadata = profile.metadata
        if metadata.annotations.get(FAULT, "") == fault:
            return
        patch = {"metadata": {"annotations": {FAULT: fault or None}}}
        await self._cluster.patch(KOORDINATOR_PROFILES, metadata.name, patch, metadata.namespace, manager=MANAGER)


def root_of(profile: KoordinatorProfile, tree: TreeSettings, nodes: Iterable[Node]) -> dict[str, Any]:
    """Returns the root quota of a profile's tree, as an object to apply, in the way in which Koordinator's controller makes it.

    Its min is the profile's share of the sum of those of its nodes (`nodes`) that are Ready, Degraded or Draining, in the resources that
    its annotation names (cpu and memory without one); its max is unbounded.
    """
    total: dict[str, int] = {}
    away: dict[str, int] = {}
    for node in nodes:
        if node.status.state in COUNTED:
            _add(total, node)
            if node.status.state != READY:
                _add(away, node)
    keys = json.loads(profile.metadata.annotations.get(PREFIX + "resource-keys", "") or '["cpu", "memory"]')
    share = {
        key: quantity(resource, total.get(resource, 0) * tree.ratio.numerator // tree.ratio.denominator) for key, resource in _named(keys)
    }
    unschedulable = {key: quantity(resource, away.get(resource, 0)) for key, resource in _named(keys)}
    tree_id, metadata = tree_id_of(profile), profile.metadata
    labels = profile.spec.quota_labels | MANAGED | {
        PREFIX + "profile": metadata.name, PREFIX + "is-root": "true", PREFIX + "is-parent": "true", PREFIX + "parent": ROOT,
        PREFIX + "tree-id": tree_id,
    }  # fmt: skip
    notes = {PREFIX + "total-resource": _json(share), PREFIX + "unschedulable-resource": _json(unschedulable)}
    spec = {"min": share, "max": {key: str(WIDEST) for key in keys}}
    where = {"name": profile.spec.quota_name, "namespace": metadata.namespace, "labels": labels, "annotations": notes}
    return {"apiVersion": KOORDINATOR_QUOTAS.api_version, "kind": KOORDINATOR_QUOTAS.kind, "metadata": where, "spec": spec}


def says(quota: KoordinatorQuota, root: Mapping[str, Any]) -> bool:
    """Tells whether an existing quota has every label and annotation that the root should have, and exactly its min and max."""
    metadata = root["metadata"]
    labels: Mapping[str, str] = metadata["labels"]
    notes: Mapping[str, str] = metadata["annotations"]
    spec: Mapping[str, Any] = {"min": quota.spec.min, "max": quota.spec.max}
    return labels.items() <= quota.metadata.labels.items() and notes.items() <= quota.metadata.annotations.items() and spec == root["spec"]


def _named(keys: Iterable[str]) -> list[tuple[str, str]]:
    """Returns each resource key of Koordinator with the name that quota trees have for it."""
    return [(key, resource_of(key)) for key in keys]


def _add(into: dict[str, int], node: Node) -> None:
    """Adds the resources of one node to the sums, in place."""
    had = counted(node)
    for resource, amount in node_amounts(had.cpus, quantity_bytes(had.memory), had.gpus, had.gpu_type).items():
        into[resource] = into.get(resource, 0) + amount


def _json(amounts: Mapping[str, str]) -> str:
    """Returns amounts as compact JSON."""
    return json.dumps(amounts, separators=(",", ":"))
