"""One instance as it should be: names, addresses, certificates and kubeconfigs, all following from layout, ports and options."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lattice.daemon.mtls import GATEWAY_HOST
from lattice_dev.build import Programs
from lattice_dev.network import Network, NodeLink
from lattice_dev.pki import LEAF_DAYS, NODE_DAYS, Authority, Identity, Pair
from lattice_dev.state import Layout, Options

LOOPBACK = "127.0.0.1"
CLUSTER_HOSTS = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
DAEMONS = ("scheduler", "operator", "webhook", "gateway")
AUTHORITIES = ("ca", "etcd-ca", "agents-ca", "front-proxy-ca", "webhook-clients-ca")
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager")


@dataclass(frozen=True)
class Site:
    """The wanted state of an instance; `network` is None where agents are plain processes."""

    where: Layout
    programs: Programs
    options: Options
    ports: Mapping[str, int]
    network: Network | None
    stub: Path = Path("/usr/libexec/lattice/stub")
    """The stub of containers (`build.build_stub`)."""
    srun: Path = Path("/usr/libexec/lattice/srun")
    """The program `srun` of work (`build.build_srun`)."""
    starter: Path = Path("/usr/libexec/lattice/starter")
    """The program that forks ranks (`build.build_starter`)."""
    pmix_host: Path = Path("/usr/libexec/lattice/pmix-host")
    """The program that serves PMIx (`build.build_pmix_host`)."""

    @functools.cached_property
    def nodes(self) -> tuple[str, ...]:
        """Returns the names of the real nodes, in the order of their numbers."""
        return node_names(self.options.nodes)

    @property
    def server(self) -> str:
        """Returns the API server's URL for programs on this machine."""
        return f"https://{LOOPBACK}:{self.ports['kube-apiserver']}"

    @property
    def node_server(self) -> str:
        """Returns the API server's URL for the nodes: through the relay where they have a network of their own."""
        return f"https://{self.network.gateway}:{self.ports['kube-apiserver']}" if self.network else self.server

    @property
    def gateway(self) -> str:
        """Returns the URL of the gateway's REST API for programs on this machine."""
        return f"https://{LOOPBACK}:{self.ports['gateway']}"

    @property
    def work_gateway(self) -> str:
        """Returns HOST:PORT at which agents ask the gateway for work: on the bridge where the nodes have a network of their own."""
        return f"{self.network.gateway if self.network else LOOPBACK}:{self.ports['gateway-agents']}"

    @property
    def webhook(self) -> str:
        """Returns the URL by which the API server reaches the webhook."""
        return f"https://{LOOPBACK}:{self.ports['webhook']}"

    def link(self, node: str) -> NodeLink:
        """Returns the node's end of the network; the instance must have one."""
        assert self.network is not None, "a plain instance has no links"  # noqa: S101  # the caller asked `network` first
        return self.network.link(node, self.nodes.index(node), self.where.node(node))

    def address(self, node: str) -> str:
        """Returns the address at which the node's programs listen."""
        return self.link(node).address if self.network else LOOPBACK

    def agent_port(self, node: str) -> int:
        """Returns the port of the agent's gRPC service: 50052 where each node has an address of its own, else one of loopback."""
        return 50052 if self.network else self.ports[f"agent-{node}"]

    def agent_metrics_port(self, node: str) -> int:
        """Returns the port of the agent's metrics: 9106 where each node has an address of its own, else one of loopback."""
        return 9106 if self.network else self.ports[f"agent-{node}-metrics"]

    def authority(self, name: str) -> Path:
        """Returns the path of the certificate of an authority, one of `AUTHORITIES`."""
        return self.where.pki / f"{name}.crt"

    def pair(self, authority: str, file: str) -> Pair:
        """Returns the paths of certificate and key named `file` of an authority; whether they exist is not asked."""
        return Pair(self.where.pki / authority / f"{file}.crt", self.where.pki / authority / f"{file}.key")

    @property
    def service_accounts(self) -> Pair:
        """Returns the paths of the key of service account tokens, and of its public half as `certificate`."""
        return Pair(self.where.pki / "service-account.pub", self.where.pki / "service-account.key")

    def runs(self, component: str) -> bool:
        """Tells whether the options let this component run; `agents` in `without` leaves out every agent of a real node.

        The webhook does not run beside an outside cluster.
        """
        without = self.options.without
        if component == "webhook" and self.options.kubeconfig:
            return False  # an outside cluster cannot call this machine's loopback
        return component not in without and not (component.startswith("agent-") and "agents" in without)


def node_names(count: int) -> tuple[str, ...]:
    """Returns the names of so many real nodes: nid001, nid002, …"""
    return tuple(f"nid{number:03d}" for number in range(1, count + 1))


def port_roles(options: Options, *, plain: bool) -> list[str]:
    """Returns the roles for which the instance needs a port of loopback, each named by its component; `plain`: the agents' too."""
    roles = ["kube-apiserver", "etcd", "etcd-peer", "kube-controller-manager", "gateway", "gateway-agents", "webhook", "scheduler"]
    roles += [f"{daemon}-metrics" for daemon in (*DAEMONS, "hollow")]
    if plain:
        roles += [f"agent-{node}{suffix}" for node in node_names(options.nodes) for suffix in ("", "-metrics")]
    return roles


def wanted_certificates(site: Site) -> list[tuple[str, str, Identity]]:
    """Returns (authority, file, identity) of every certificate of the instance's programs, those of people excepted."""
    bridge = (site.network.gateway,) if site.network else ()
    local = Identity("", addresses=(LOOPBACK, *bridge), hosts=("localhost",), server=True)
    apiserver = Identity("kube-apiserver", addresses=(LOOPBACK, "10.0.0.1", *bridge), hosts=CLUSTER_HOSTS, server=True)
    manager = Identity("system:kube-controller-manager", addresses=local.addresses, hosts=local.hosts, server=True)
    etcd = Identity("etcd", addresses=(LOOPBACK,), hosts=("localhost",), server=True)
    wanted = [
        ("ca", "kube-apiserver", apiserver),
        ("ca", "admin", Identity("lattice-dev-admin", groups=("system:masters",))),
        ("ca", "kube-controller-manager", manager),
        ("ca", "hollow", Identity("lattice:hollow", groups=("lattice:hollow",))),
        ("etcd-ca", "etcd", etcd),
        ("etcd-ca", "kube-apiserver", Identity("kube-apiserver")),
        ("webhook-clients-ca", "kube-apiserver", Identity("kube-apiserver")),
        ("agents-ca", "gateway", Identity("lattice:gateway", hosts=(GATEWAY_HOST,), server=True)),
        ("agents-ca", "scheduler", Identity("lattice:scheduler", hosts=("lattice-scheduler",), server=True)),
        ("agents-ca", "metrics", Identity("lattice:metrics")),
        ("agents-ca", "hollow", Identity("lattice:hollow", addresses=(LOOPBACK,), hosts=("localhost",), server=True)),
    ]
    wanted += [("ca", daemon, Identity(f"lattice:{daemon}")) for daemon in DAEMONS]
    servers = ("webhook", "gateway")
    wanted += [("ca", f"{name}-server", Identity(f"lattice-{name}", (), local.addresses, local.hosts, server=True)) for name in servers]
    for node in site.nodes:
        name, groups = f"lattice:agent:{node}", ("lattice:agents",)
        wanted.append(("ca", f"agent-{node}", Identity(name, groups)))
        wanted.append(("agents-ca", f"agent-{node}", Identity(name, groups, (site.address(node),), (node,), server=True)))
    return wanted


def certify(site: Site, now: float, *, force: bool = False) -> list[str]:
    """Issues the certificates that are missing, worn, of another identity or an earlier authority (all with `force`); returns
    `AUTHORITY/FILE` of those issued.

    Makes authorities that are missing or worn first, which `force` does not renew. `now`: seconds since the epoch.
    """
    authorities = {name: Authority(site.where.pki, name, now) for name in AUTHORITIES}
    issued = []
    for authority, file, identity in wanted_certificates(site):
        days = NODE_DAYS if file.startswith("agent-") else LEAF_DAYS
        _, new = authorities[authority].issue(file, identity, force=force, days=days)
        if new:
            issued.append(f"{authority}/{file}")
    return issued
