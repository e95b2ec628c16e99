"""Reads from the cluster what the translation of a script needs: partitions, QOS, walltimes, the smallest node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from lattice.cli.readable import list_readable
from lattice.errors import Denied, NotFound
from lattice.kube.resources import CONFIGS, NODES, TENANTS, VCLUSTERS
from lattice.scheduling.conversion.facts import home_groups
from lattice.scripts.asked import SiteFacts, VClusterFacts
from lattice.views import Config, Node, Tenant, VCluster

if TYPE_CHECKING:
    from lattice.cli.console import Console


def gather_site(console: Console, wanted: frozenset[str], tenant: str) -> SiteFacts:
    """Returns the facts of the cluster that are wanted (of `needs`), reading no others; `tenant`: whose default vcluster counts, a Slurm
    account where these are wanted, empty: the namespace's.

    Options and accounts that the person may not read are left out; vclusters that are not wanted are known as empty.
    """
    if not wanted:
        return SiteFacts(vclusters={}, qos={})
    qos: Mapping[str, int] = {}
    slurm_env: bool | None = None
    of_scripts = False
    if "config" in wanted:
        try:
            compat = console.cluster.get(CONFIGS, "lattice", type=Config).spec.compat
            qos, slurm_env, of_scripts = compat.qos_mapping, compat.set_slurm_env, compat.set_slurm_env is None
        except NotFound:
            of_scripts = True  # a site without options: no class for a QOS
        except Denied:
            pass  # nothing is said of variables
    accounts = _accounts(console) if "tenants" in wanted else None
    if "vclusters" not in wanted:
        return SiteFacts(vclusters={}, qos=qos, accounts=accounts, slurm_env=slurm_env, slurm_env_of_scripts=of_scripts)
    vclusters = console.cluster.list(VCLUSTERS, type=VCluster).items
    nodes = console.cluster.list(NODES, type=Node).items if "nodes" in wanted else []
    homes = home_groups(vclusters)
    queues = {one.metadata.name: queue_of(one, nodes, homes) for one in vclusters}
    return SiteFacts(queues, _default_vcluster(console, (accounts or {}).get(tenant, tenant)), qos, accounts, slurm_env, of_scripts)


def queue_of(vcluster: VCluster, nodes: Iterable[Node], homes: Mapping[str, str]) -> VClusterFacts:
    """Returns the facts of a vcluster that a submission needs; `homes` maps groups to vclusters. One without home groups has the nodes that
    are at home nowhere.

    Hollow nodes count only where it has no others; without nodes of known CPUs `smallest_cpus` is None.
    """
    selector = vcluster.spec.nodes.selector
    mine = vcluster.metadata.name if selector is not None and selector.group else ""
    home = [node for node in nodes if homes.get(node.spec.group or node.metadata.name, "") == mine]
    real = [node for node in home if not node.status.hollow] or home
    sizes = [node.status.capabilities.cpus for node in real if node.status.capabilities.cpus]
    return VClusterFacts(vcluster.spec.partition_names, vcluster.spec.limits.max_walltime, min(sizes, default=None))


def _accounts(console: Console) -> Mapping[str, str] | None:
    """Returns tenants by account name, of tenants that the person may read; None: he may read none. A tenant's own name wins over an
    account.
    """
    tenants = list_readable(console, TENANTS, type=Tenant)
    if not tenants:
        return None
    named = {account: one.metadata.name for one in tenants for account in one.spec.account_names}
    return named | {one.metadata.name: one.metadata.name for one in tenants}


def _default_vcluster(console: Console, tenant: str) -> str:
    """Returns the default vcluster of a tenant, or of the tenant that has the namespace's name; empty where it has none, does not exist, or
    may not be read.
    """
    try:
        return console.cluster.get(TENANTS, tenant or console.namespace, type=Tenant).spec.default_v_cluster
    except (NotFound, Denied):
        return ""
