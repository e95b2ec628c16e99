"""What the cluster must be asked before a script can be translated: partitions, QOS, walltimes, the smallest node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from lattice.errors import Denied, NotFound
from lattice.kube.resources import CONFIGS, NODES, TENANTS, VCLUSTERS
from lattice.scripts.asked import Queue, Site
from lattice.views import Config, Node, Tenant, VCluster

if TYPE_CHECKING:
    from lattice.cli.console import Console


def gather_site(console: Console, wanted: frozenset[str], tenant: str) -> Site:
    """The facts that are wanted, and no others."""
    if not wanted:
        return Site(vclusters={}, qos={})
    qos: Mapping[str, int] = {}
    slurm_env: bool | None = None
    if "config" in wanted:
        try:
            compat = console.cluster.get(CONFIGS, "lattice", type=Config).spec.compat
            qos, slurm_env = compat.qos_mapping, compat.set_slurm_env
        except (NotFound, Denied):
            pass  # a site without options: no class for a QOS, and nothing is said of variables
    if "vclusters" not in wanted:
        return Site(vclusters={}, qos=qos, slurm_env=slurm_env)
    vclusters = console.cluster.list(VCLUSTERS, type=VCluster).items
    nodes = console.cluster.list(NODES, type=Node).items if "nodes" in wanted else []
    queues = {one.metadata.name: queue_of(one, nodes) for one in vclusters}
    return Site(queues, _default_vcluster(console, tenant), qos, slurm_env)


def queue_of(vcluster: VCluster, nodes: Iterable[Node]) -> Queue:
    """What a submission must know of a vcluster; hollow nodes count only where there are no others."""
    selector = vcluster.spec.nodes.selector
    home = [node for node in nodes if selector is None or node.spec.group in selector.group]
    real = [node for node in home if not node.status.hollow] or home
    sizes = [node.status.capabilities.cpus for node in real if node.status.capabilities.cpus]
    return Queue(vcluster.spec.partition_names, vcluster.spec.limits.max_walltime, min(sizes, default=None))


def _default_vcluster(console: Console, tenant: str) -> str:
    try:
        return console.cluster.get(TENANTS, tenant or console.namespace, type=Tenant).spec.default_v_cluster
    except (NotFound, Denied):
        return ""
