"""Installs what the repository ships: CRDs, then roles, policies and webhooks, each by server-side apply."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from lattice import errors
from lattice.inventory import InventoryNode
from lattice.kube import resources
from lattice.kube.blocking import BlockingCluster
from lattice.kube.cluster import PatchKind
from lattice.kube.resources import Resource
from lattice_dev.waiting import Clock, wait_until

MANAGER = "lattice-dev"
HERE = Path(__file__).parent
_FLOW = ("flowcontrol.apiserver.k8s.io", "v1")
_KINDS = {
    resource.kind: resource
    for resource in (
        *resources.LATTICE,
        resources.CRDS, resources.NAMESPACES, resources.CONFIG_MAPS, resources.SERVICE_ACCOUNTS,
        resources.ROLES, resources.ROLE_BINDINGS, resources.CLUSTER_ROLES, resources.CLUSTER_ROLE_BINDINGS,
        resources.ADMISSION_POLICIES, resources.ADMISSION_POLICY_BINDINGS, resources.MUTATING_WEBHOOKS, resources.VALIDATING_WEBHOOKS,
        Resource(*_FLOW, "flowschemas", "FlowSchema", namespaced=False, status=True),
        Resource(*_FLOW, "prioritylevelconfigurations", "PriorityLevelConfiguration", namespaced=False, status=True),
    )
}  # fmt: skip
BEFORE_SCHEMAS = frozenset({"lattice-allocation-spec", "lattice-allocation-status"})
"""Policies with rules that a schema held before; they are applied before the schema, so that the rules hold at every moment."""
ENFORCED_SECONDS = 5.0
"""Time after which an API server enforces a policy that is new or changed; it looks once a second."""
SUPERSEDED = ("lattice-allocation-owner", "lattice-allocation-limits")
"""Policies, each with a binding of its name, of versions before: what they hold stands in others, and each costs every creation."""
_ORDER = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Role", "PriorityLevelConfiguration")
_WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")

HOLLOW_ROLES: tuple[dict[str, Any], ...] = (
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "lattice-dev-hollow"},
        "rules": [
            {
                "apiGroups": ["lattice.dev"],
                "resources": ["nodegroupplans", "latticeconfigs", "latticenodes"],
                "verbs": ["get", "list", "watch"],
            },
            {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]},
            {"apiGroups": [""], "resources": ["groups"], "resourceNames": ["lattice:agents"], "verbs": ["impersonate"]},
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "lattice-dev-hollow"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "lattice-dev-hollow"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "lattice:hollow"}],
    },
)


METRICS_READER: tuple[dict[str, Any], ...] = (
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "lattice-metrics", "namespace": "lattice-system"}},
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "lattice-dev-metrics"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "lattice-metrics-reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "lattice-metrics", "namespace": "lattice-system"}],
    },
)


def shipped(part: str) -> Path:
    """Returns the folder `crds`, or the chart's `files`: that of the repository, else that of the installed package.

    Raises NotFound where neither is there.
    """
    in_tree = {"crds": HERE.parents[1] / "crds", "files": HERE.parents[1] / "charts" / "lattice" / "files"}[part]
    installed = HERE / "share" / part
    for directory in (in_tree, installed):
        if directory.is_dir():
            return directory
    raise errors.NotFound(f"neither {in_tree} nor {installed} is there: this installation is incomplete", reason="NotInstalled")


def read_manifests(directory: Path, values: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns every object of the YAML files of a folder, not of those below it, `${NAME}` replaced by `values`, in an order in which they
    can be applied.

    Raises Rejected for a kind that lattice-dev does not install.
    """
    found = [manifest for path in sorted(directory.glob("*.yaml")) for manifest in _read(path, values)]
    rank = {kind: number for number, kind in enumerate(_ORDER)}
    return sorted(found, key=lambda manifest: rank.get(manifest["kind"], len(rank)))


def _read(path: Path, values: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yields the manifests of a file with these values filled in. Raises Rejected for a kind that is not installed so."""
    text = path.read_text()
    for name, value in values.items():
        text = text.replace("${" + name + "}", value)
    for manifest in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # the C form of the safe loader
        if manifest is None:
            continue
        if manifest.get("kind") not in _KINDS:
            raise errors.Rejected(
                f"{path} holds a {manifest.get('kind')}, a kind that is not installed by lattice-dev", reason="UnknownKind"
            )
        yield manifest


def apply(cluster: BlockingCluster, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Creates or changes one object by server-side apply, taking over fields that others own; returns the object as stored."""
    resource = _KINDS[manifest["kind"]]
    metadata = manifest["metadata"]
    namespace = metadata.get("namespace", "") if resource.namespaced else ""
    answer: dict[str, Any] = cluster.patch(
        resource, metadata["name"], manifest, namespace, kind=PatchKind.APPLY, manager=MANAGER, force=True
    )
    return answer


def install_all(cluster: BlockingCluster, clock: Clock, *, webhook: str, authority: Path, hollow: bool) -> int:
    """Applies CRDs, waits until each is served, and applies the chart's plain files and what `hollow` nodes need; returns how many objects
    of Lattice's CRDs and of these files there are. Kinds of Koordinator are made only where they are missing.

    Webhooks are left out when `webhook`, their URL, is empty; over an earlier version superseded policies are deleted. Raises Retry where a
    CRD is not served in 120 s.
    """
    definitions = read_manifests(shipped("crds"), {})
    foreign = read_manifests(shipped("crds") / "koordinator", {})
    bundle = base64.b64encode(authority.read_bytes()).decode()
    files = read_manifests(shipped("files"), {"WEBHOOK_URL": webhook, "CA_BUNDLE": bundle})
    chosen = [manifest for manifest in files if webhook or manifest["kind"] not in _WEBHOOKS]
    upgraded = any(item["metadata"]["name"] == "allocations.lattice.dev" for item in cluster.list(resources.CRDS).items)
    install_schemas(cluster, clock, definitions, ahead=chosen if upgraded else ())
    for manifest in foreign:
        create_missing(cluster, manifest)  # another one's kinds: made where they are missing, never changed
    names = [manifest["metadata"]["name"] for manifest in (*definitions, *foreign)]
    # Before the policies: the API server looks again only every half minute for the kind of a policy's parameters that it has not found.
    wait_until(lambda: _not_established(cluster, names), within=120, clock=clock, what="the CRDs")
    for manifest in [*chosen, *METRICS_READER, *(HOLLOW_ROLES if hollow else ())]:
        apply(cluster, manifest)
    if upgraded:
        _remove_superseded(cluster)
    return len(definitions) + len(chosen)


def install_schemas(
    cluster: BlockingCluster, clock: Clock, definitions: Iterable[Mapping[str, Any]], *, ahead: Iterable[Mapping[str, Any]]
) -> None:  # fmt: skip
    """Applies CRDs, and before them, of the manifests `ahead`, the policies that hold rules which the schemas leave out (`BEFORE_SCHEMAS`).

    Waits in between where one of these is new or changed until API servers enforce it, so that the rules hold at every moment.
    """
    changed = False
    for manifest in ahead:
        if manifest["metadata"]["name"] in BEFORE_SCHEMAS:
            before = _generation(cluster, manifest)
            changed |= apply(cluster, manifest)["metadata"].get("generation", 0) != before
    if changed:
        clock.sleep(ENFORCED_SECONDS)
    for definition in definitions:
        apply(cluster, definition)


def _generation(cluster: BlockingCluster, manifest: Mapping[str, Any]) -> int:
    """Returns the generation of an object as it stands, which each change of its spec raises; -1 where it does not exist."""
    try:
        found: dict[str, Any] = cluster.get(_KINDS[manifest["kind"]], manifest["metadata"]["name"], type=dict[str, Any])
    except errors.NotFound:
        return -1
    return int(found["metadata"].get("generation", 0))


def _remove_superseded(cluster: BlockingCluster) -> None:
    """Deletes the policies of `SUPERSEDED` with their bindings; those that are gone already are no error."""
    for name in SUPERSEDED:
        for resource in (resources.ADMISSION_POLICY_BINDINGS, resources.ADMISSION_POLICIES):
            with suppress(errors.NotFound):
                cluster.delete(resource, name)


def _not_established(cluster: BlockingCluster, names: Sequence[str]) -> str:
    """Returns what one of these CRDs that exist lacks; empty where all are established. One that does not exist is not noticed."""
    for item in cluster.list(resources.CRDS).items:
        conditions = {c["type"]: c for c in item.get("status", {}).get("conditions") or []}
        name = item["metadata"]["name"]
        if name in names and conditions.get("Established", {}).get("status") != "True":
            refused = conditions.get("NamesAccepted", {})
            return f"{name} is not Established {refused.get('message', '')}".strip()
        if name in names and conditions.get("NonStructuralSchema", {}).get("status") == "True":
            return f"{name}: {conditions['NonStructuralSchema'].get('message', '')}"
    return ""


def publish(cluster: BlockingCluster, *, gateway: str, authority: Path, version: str) -> None:
    """Writes ConfigMap lattice-public, in which clients find the gateway's URL, the CA to trust and the version."""
    data = {"gateway": gateway, "ca": authority.read_text(), "version": version}
    metadata = {"name": "lattice-public", "namespace": "lattice-system"}
    apply(cluster, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def create_missing(cluster: BlockingCluster, manifest: Mapping[str, Any]) -> bool:
    """Creates a cluster object, which people own from then on; returns False, and changes nothing, when it exists already."""
    try:
        cluster.create(_KINDS[manifest["kind"]], manifest)
    except errors.AlreadyExists:
        return False
    return True


def calm_config(hollow: int) -> dict[str, Any]:
    """Returns a LatticeConfig for so many hollow nodes: a heartbeat of each every `hollow`/25 s, at least 10 s, timeouts in proportion."""
    seconds = max(10, hollow // 25)
    nodes = {"heartbeatInterval": f"{seconds}s", "heartbeatTimeout": f"{3 * seconds}s", "gracePeriod": f"{6 * seconds}s"}
    nodes["bootTimeout"] = f"{max(600, 3 * seconds)}s"  # never below the time in which a node is Degraded
    return {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeConfig", "metadata": {"name": "lattice"}, "spec": {"nodes": nodes}}


def default_vcluster() -> dict[str, Any]:
    """Returns VCluster hpc-batch of a fresh instance: every node, a walltime of an hour by default, a week at most."""
    spec = {"defaults": {"walltime": "1h"}, "limits": {"maxWalltime": "7d"}, "partitionNames": ["normal"]}
    return {"apiVersion": "lattice.dev/v1alpha1", "kind": "VCluster", "metadata": {"name": "hpc-batch"}, "spec": spec}


def home_vcluster(name: str, groups: Sequence[str]) -> dict[str, Any]:
    """Returns a VCluster of the nodes of these topology groups; a walltime of an hour by default, a week at most."""
    spec = {"nodes": {"selector": {"group": list(groups)}}, "defaults": {"walltime": "1h"}, "limits": {"maxWalltime": "7d"}}
    return {"apiVersion": "lattice.dev/v1alpha1", "kind": "VCluster", "metadata": {"name": name}, "spec": spec}


def place_nodes(cluster: BlockingCluster, nodes: Iterable[InventoryNode]) -> int:
    """Writes group and switch of an inventory into `LatticeNode.spec`; returns how many nodes were elsewhere.

    Nodes that it does not name stay as they are, and those without an object are passed over.
    """
    places = {node.name: {"group": node.group, "switch": node.switch} for node in nodes}
    moved = 0
    for item in cluster.list(resources.NODES).items:
        name, spec = item["metadata"]["name"], item.get("spec") or {}
        wanted = places.get(name)
        if wanted is not None and any(spec.get(key, "") != word for key, word in wanted.items()):
            cluster.patch(resources.NODES, name, {"spec": wanted})
            moved += 1
    return moved


def tenant_manifest(name: str) -> dict[str, Any]:
    """Returns a Tenant without members, whose work goes to hpc-batch by default."""
    spec = {"defaultVCluster": "hpc-batch", "access": {"users": [], "admins": []}}
    return {"apiVersion": "lattice.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": name}, "spec": spec}


def grant(cluster: BlockingCluster, tenant: str, user: str, *, admin: bool) -> bool:
    """Adds a user to a tenant's users, and to its admins with `admin`; creates the tenant where it is missing, and repeats where somebody
    else changes it at the same time.

    Returns False when nothing had to change; nobody is removed from a list.
    """
    create_missing(cluster, tenant_manifest(tenant))
    while True:
        found = cluster.get(resources.TENANTS, tenant)
        access = found["spec"].get("access") or {}
        wanted = {key: sorted({*access.get(key, []), *([user] if key in _lists(admin) else [])}) for key in ("users", "admins")}
        if all(wanted[key] == sorted(access.get(key, [])) for key in wanted):
            return False
        version = found["metadata"]["resourceVersion"]
        try:
            cluster.patch(resources.TENANTS, tenant, {"metadata": {"resourceVersion": version}, "spec": {"access": wanted}})
        except errors.Stale:
            continue  # somebody else changed it: look again
        return True


def _lists(admin: bool) -> tuple[str, ...]:
    """Returns the lists of a tenant's access that a user or an admin stands in."""
    return ("users", "admins") if admin else ("users",)
