"""Lists every program of an instance: how it is started, and how its readiness is checked."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from lattice_dev.probes import Answers, Listens, Probe
from lattice_dev.site import LOOPBACK, Site

HERE = Path(__file__).parent
CONTROLLERS = (
    "garbage-collector-controller", "namespace-controller", "serviceaccount-controller", "serviceaccount-token-controller",
    "certificatesigningrequest-signing-controller",
)  # fmt: skip
ETCD_QUOTA = 8 * 1024**3
GROUPS = 2


@dataclass(frozen=True)
class Component:
    """One program of an instance; `stage` orders the start (0 control plane, 1 what needs it, 2 Lattice); `node`: the node whose agent it
    is.
    """

    name: str
    stage: int
    argv: tuple[str, ...]
    probe: Probe
    node: str = ""

    @property
    def program(self) -> tuple[str, ...]:
        """Returns the arguments of the program itself: of an agent, those after the wrapper that enters the node."""
        return self.argv[self.argv.index("--") + 1 :] if self.node and "--" in self.argv else self.argv

    @property
    def digest(self) -> str:
        """Returns 16 hex digits that change with the component's arguments; a running component with another digest is started again."""
        return hashlib.sha256("\0".join(self.argv).encode()).hexdigest()[:16]


def components(site: Site) -> list[Component]:
    """Returns the components that an instance shall have, in the order of their start, without those that its options leave out; for an
    outside cluster the daemons and agents alone.
    """
    if site.options.kubeconfig:
        every = [*_daemons(site), *_agents(site)]
    else:
        every = [_etcd(site), _apiserver(site), _controller_manager(site), *_relay(site), *_daemons(site), *_agents(site)]
    return [component for component in every if site.runs(component.name)]


def _etcd(site: Site) -> Component:
    """Returns the component of etcd."""
    client, peer = (f"https://{LOOPBACK}:{site.ports[role]}" for role in ("etcd", "etcd-peer"))
    pair, authority = site.pair("etcd-ca", "etcd"), site.authority("etcd-ca")
    argv = [
        site.programs.path("etcd"), "--name=lattice", f"--data-dir={site.where.directory / 'etcd'}",
        f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=lattice={peer}",
        "--client-cert-auth", f"--trusted-ca-file={authority}", f"--cert-file={pair.certificate}", f"--key-file={pair.key}",
        "--peer-client-cert-auth", f"--peer-trusted-ca-file={authority}",
        f"--peer-cert-file={pair.certificate}", f"--peer-key-file={pair.key}",
        f"--quota-backend-bytes={ETCD_QUOTA}", "--log-level=warn",
    ]  # fmt: skip
    if site.options.compaction:
        argv += ["--auto-compaction-mode=periodic", "--auto-compaction-retention=1m"]
    if not site.options.fsync:
        argv.append("--unsafe-no-fsync")
    probe = Answers(LOOPBACK, site.ports["etcd"], "/readyz", authority, site.pair("etcd-ca", "kube-apiserver"))
    return Component("etcd", 0, tuple(argv), probe)


def _apiserver(site: Site) -> Component:
    """Returns the component of the API server."""
    serving, etcd = site.pair("ca", "kube-apiserver"), site.pair("etcd-ca", "kube-apiserver")
    argv = [
        site.programs.path("kube-apiserver"), f"--bind-address={LOOPBACK}", f"--secure-port={site.ports['kube-apiserver']}",
        f"--advertise-address={LOOPBACK}", "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24",
        f"--tls-cert-file={serving.certificate}", f"--tls-private-key-file={serving.key}", f"--client-ca-file={site.authority('ca')}",
        f"--etcd-servers=https://{LOOPBACK}:{site.ports['etcd']}", f"--etcd-cafile={site.authority('etcd-ca')}",
        f"--etcd-certfile={etcd.certificate}", f"--etcd-keyfile={etcd.key}",
        f"--requestheader-client-ca-file={site.authority('front-proxy-ca')}", "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--authorization-mode=Node,RBAC", "--anonymous-auth=false", "--profiling=false",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={site.service_accounts.certificate}",
        f"--service-account-signing-key-file={site.service_accounts.key}",
        f"--audit-policy-file={site.where.directory / 'audit-policy.yaml'}", f"--audit-log-path={site.where.audit_log}",
        "--audit-log-maxsize=4096", f"--admission-control-config-file={site.where.directory / 'admission.yaml'}",
    ]  # fmt: skip
    if not site.options.compaction:
        argv.append("--etcd-compaction-interval=0")
    probe = Answers(LOOPBACK, site.ports["kube-apiserver"], "/readyz?verbose", site.authority("ca"), site.pair("ca", "admin"))
    return Component("kube-apiserver", 0, tuple(argv), probe)


def _controller_manager(site: Site) -> Component:
    """Returns the component of Kubernetes' controllers."""
    kubeconfig, pair = site.where.kubeconfig("kube-controller-manager"), site.pair("ca", "kube-controller-manager")
    argv = [
        site.programs.path("kube-controller-manager"), f"--controllers={','.join(CONTROLLERS)}",
        f"--kubeconfig={kubeconfig}", "--use-service-account-credentials",
        f"--service-account-private-key-file={site.service_accounts.key}",
        f"--cluster-signing-kube-apiserver-client-cert-file={site.authority('ca')}",
        f"--cluster-signing-kube-apiserver-client-key-file={site.where.pki / 'ca.key'}",
        f"--cluster-signing-duration={site.options.node_certificates}s",
        f"--root-ca-file={site.authority('ca')}", "--leader-elect=false", "--kube-api-qps=200", "--kube-api-burst=400",
        f"--bind-address={LOOPBACK}", f"--secure-port={site.ports['kube-controller-manager']}",
        f"--tls-cert-file={pair.certificate}", f"--tls-private-key-file={pair.key}", "--profiling=false",
    ]  # fmt: skip
    probe = Answers(LOOPBACK, site.ports["kube-controller-manager"], "/healthz", site.authority("ca"), site.pair("ca", "admin"))
    return Component("kube-controller-manager", 1, tuple(argv), probe)


def _relay(site: Site) -> list[Component]:
    """Returns the component that relays nodes to the API server; none without a network of their own."""
    if site.network is None:
        return []
    port = site.ports["kube-apiserver"]
    argv = (sys.executable, "-I", "-S", str(HERE / "relay.py"), "--listen", f"{site.network.gateway}:{port}", "--to", f"{LOOPBACK}:{port}")
    return [Component("relay", 1, argv, Listens(site.network.gateway, port))]


def _daemons(site: Site) -> list[Component]:
    """Returns the components of Lattice's daemons."""
    webhook, gateway, peer = site.pair("ca", "webhook-server"), site.pair("ca", "gateway-server"), site.pair("agents-ca", "gateway")
    answers = site.pair("agents-ca", "scheduler")
    own = {
        "scheduler": (
            "lattice_controllers.scheduler",
            [
                "--answers-listen", f"{LOOPBACK}:{site.ports['scheduler']}", "--answers-certificate", str(answers.certificate),
                "--answers-key", str(answers.key), "--answers-ca", str(site.authority("agents-ca")),
                "--record-dir", str(site.where.directory / "cycles"),
            ],
        ),
        "operator": (
            "lattice_controllers.operator",
            [
                "--agents-ca-certificate", str(site.authority("agents-ca")), "--agents-ca-key", str(site.where.pki / "agents-ca.key"),
                "--node-certificate-lifetime", f"{site.options.node_certificates}s",
            ],
        ),
        "webhook": (
            "lattice_webhooks",
            [
                "--listen", f"{LOOPBACK}:{site.ports['webhook']}", "--certificate", str(webhook.certificate), "--key", str(webhook.key),
                "--client-ca", str(site.authority("webhook-clients-ca")),
            ],
        ),
        "gateway": (
            "lattice_gateway",
            [
                "--listen", f"{LOOPBACK}:{site.ports['gateway']}", "--certificate", str(gateway.certificate), "--key", str(gateway.key),
                "--agent-listen", site.work_gateway,
                "--agent-certificate", str(peer.certificate), "--agent-key", str(peer.key), "--agent-ca", str(site.authority("agents-ca")),
            ],
        ),
    }  # fmt: skip
    traced = {name for name in own if name != "operator"}  # which has no part in a start
    return [_daemon(site, name, module, [*flags, *(_tracing(site) if name in traced else ())]) for name, (module, flags) in own.items()]


def _tracing(site: Site) -> tuple[str, ...]:
    """Returns the flag of traced starts if these are asked for."""
    return ("--trace-starts",) if site.options.trace_starts else ()


def _daemon(site: Site, name: str, module: str, flags: list[str]) -> Component:
    """Returns the component of one daemon with these flags and those that all have."""
    port = site.ports[f"{name}-metrics"]
    common = ["--kubeconfig", str(site.where.kubeconfig(name)), "--metrics-address", f"{LOOPBACK}:{port}"]
    return Component(name, 2, (sys.executable, "-m", module, *common, *flags), Answers(LOOPBACK, port, "/readyz"))


def _agents(site: Site) -> list[Component]:
    """Returns the components of all agents, and of the hollow nodes where there are any."""
    agents = [_agent(site, node) for node in site.nodes]
    return [*agents, _hollow(site)] if site.options.waiting_nodes else agents


def _agent(site: Site, node: str) -> Component:
    """Returns the component of one node's agent."""
    pair, address = site.pair("agents-ca", f"agent-{node}"), site.address(node)
    listen = f"{address}:{site.agent_port(node)}"
    argv = [
        sys.executable, "-m", "lattice_agent", "--node", node, "--kubeconfig", str(site.where.kubeconfig(f"agent-{node}")),
        "--metrics-address", f"{address}:{site.agent_metrics_port(node)}", "--listen", listen, "--advertise", listen,
        "--state-dir", str(site.where.node(node) / "state"), "--run-dir", str(site.where.node(node) / "run"),
        "--cache-dir", str(site.where.node(node) / "cache"), "--cache-free", "0",
        "--oci-stub", str(site.stub), "--srun", str(site.srun), "--rank-starter", str(site.starter), "--pmix-host", str(site.pmix_host),
        "--group", group_of(site.nodes.index(node), len(site.nodes)),
        "--certificate", str(pair.certificate), "--key", str(pair.key), "--ca", str(site.authority("agents-ca")),
        "--gateway", site.work_gateway, "--certificate-lifetime", f"{site.options.node_certificates}s",
        *_tracing(site),
    ]  # fmt: skip
    if memory := site.options.node_memory:
        argv += ["--reserved-memory", str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") - memory)]
    if site.options.node_reserved_cpus:
        argv += ["--reserved-cpus", site.options.node_reserved_cpus]
    if (scratch := site.where.node(node) / "scratch").is_dir():
        argv += ["--scratch-dir", str(scratch)]
    if root := site.where.scope_root():
        hooks = site.where.node(node)
        argv += ["--scope-root", str(root / node), "--prologue-dir", str(hooks / "prologue.d"), "--epilogue-dir", str(hooks / "epilogue.d")]
    probe = Answers(address, site.agent_metrics_port(node), "/readyz", site.authority("agents-ca"))
    return Component(f"agent-{node}", 2, (*_inside(site, node), *argv), probe, node)


def _inside(site: Site, node: str) -> tuple[str, ...]:
    """Returns the command before an agent's own that enters its node; empty without a network of its own."""
    if site.network is None:
        return ()
    binds = [part for name in ("passwd", "group", "hosts") for part in ("--bind", str(site.where.etc / name), f"/etc/{name}")]
    binds += ["--bind", str(site.where.node(node) / "boot_id"), "/proc/sys/kernel/random/boot_id"]
    enter = [sys.executable, "-I", "-S", str(HERE / "node.py"), "--network", str(site.link(node).namespace), "--hostname", node]
    return (*enter, *binds, "--")


def group_of(index: int, count: int) -> str:
    """Returns the topology group of the node with this index, from 0, of `count`: `g0` or `g1`, by halves; `g0` below four nodes."""
    return f"g{index * GROUPS // count}" if count >= 4 else "g0"


def _hollow(site: Site) -> Component:
    """Returns the component of all hollow nodes."""
    port, options, pair = site.ports["hollow-metrics"], site.options, site.pair("agents-ca", "hollow")
    argv = [
        sys.executable, "-m", "lattice_agent", "--hollow", str(options.hollow), "--node-prefix", "hollow",
        "--kubeconfig", str(site.where.kubeconfig("hollow")), "--metrics-address", f"{LOOPBACK}:{port}",
        "--state-dir", str(site.where.node("hollow") / "state"), "--gateway", site.work_gateway,
        "--certificate", str(pair.certificate), "--key", str(pair.key), "--ca", str(site.authority("agents-ca")),
        *_tracing(site),
    ]  # fmt: skip
    if options.inventory:
        argv += ["--hollow-inventory", options.inventory]
    return Component("hollow", 2, tuple(argv), Answers(LOOPBACK, port, "/readyz", site.authority("agents-ca")))
