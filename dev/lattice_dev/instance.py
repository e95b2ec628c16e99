"""One instance of the local control plane: creates, repairs, disturbs on purpose and removes it; commands and tests use the same class."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import signal as signals
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lattice import errors
from lattice.inventory import Inventory, read_inventory
from lattice.kube import kubeconfig as kubeconfig_file
from lattice.kube.blocking import BlockingCluster
from lattice_agent.standalone import private_tmp
from lattice_dev import audit, build, install, kubeconfigs, network, people, pki, ports, processes, readiness, site, state
from lattice_dev.build import Programs
from lattice_dev.components import Component, components
from lattice_dev.network import Network
from lattice_dev.processes import kill_scope
from lattice_dev.progress import Progress, Quiet
from lattice_dev.site import DAEMONS, LOOPBACK, Site
from lattice_dev.state import Layout, Options, State, User
from lattice_dev.supervisor import Supervisor
from lattice_dev.version import version
from lattice_dev.waiting import Clock, HostClock, wait_until

READY_SECONDS = 180.0
"""How long a program may take to become ready on a busy machine; one that ends meanwhile is reported at once."""
CALM_NODES = 250
"""Number of hollow nodes beyond which heartbeats come less often than every 10 s."""
HOLLOW_READY_SECONDS = 0.1
"""Added to that time for each hollow node, which needs about ten writes before it is Ready."""
EXAMPLE_TENANT = "physics"
EXAMPLE_USERS = ("alice", "bob")


@dataclass(frozen=True)
class ComponentStatus:
    """The status of one component; `missing` empty: it is ready."""

    name: str
    pid: int
    missing: str


class Instance:
    """An instance by name; `options` None keeps those of an earlier `up`. Every method may be repeated."""

    def __init__(
        self,
        name: str = "default",
        options: Options | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._environ = dict(os.environ if environ is None else environ)
        self._options = options
        self._clock = clock or HostClock()
        self._progress = progress or Quiet()
        self.where: Layout = state.layout(self._environ, name)
        self._supervisor = Supervisor(self.where, self._clock)

    # -- the whole ------------------------------------------------------------------------------------------------

    def up(self, choose: Callable[[Options], Options] | None = None) -> None:
        """Creates the instance, or repairs what is missing of it, and waits until it is ready; a second call changes nothing.

        `choose` makes the options from the kept ones; without it they are those given to the class, else the kept ones. Raises
        Rejected for options that cannot be, Retry where a program ends or is not ready in time.
        """
        with state.locked(self.where.directory), contextlib.closing(ports.Claims()) as claims:
            recorded = state.load(self.where)
            self._find_again(recorded)
            kept = self._options or recorded.options
            recorded.options = _keep_inventory(self.where, _check(choose(kept) if choose else kept))
            here = self._plan(recorded, claims)
            with self._progress.step("certificates and kubeconfigs"):
                self._write_files(here, recorded)
            self._remove_surplus(here, recorded)
            if here.network:
                with self._progress.step(f"network {here.network.subnet} with {len(here.nodes)} nodes"):
                    network.ensure(here.network, [here.link(node) for node in here.nodes])
            every = components(here)
            if not recorded.options.kubeconfig:
                self._start(recorded, "etcd, kube-apiserver", [c for c in every if c.stage == 0])
            self._start(recorded, "kube-controller-manager", [c for c in every if c.stage == 1])
            self._install(here)
            self._start(recorded, "Lattice's programs", [c for c in every if c.stage == 2])
            self._settle(here, recorded)

    def down(self, *, keep: bool = False) -> None:
        """Ends every process of the instance and removes every trace; with `keep` its files stay for `up`, and the control plane is stopped
        last.

        No instance is no error.
        """
        if keep:
            self._stop_keeping()
            return
        if not self.where.directory.exists():
            self._sweep()
            return
        with state.locked(self.where.directory):
            self._sweep()
            shutil.rmtree(self.where.directory)
        with contextlib.suppress(OSError):
            self.where.home.rmdir()  # only when no other instance is left

    def build(self) -> Path:
        """Builds the control plane's programs where they are not cached; returns their folder.

        With options that name an outside cluster nothing is built, and the folder means nothing.
        """
        build.build_stub(self._progress, self._environ)
        build.build_srun(self._progress, self._environ)
        build.build_starter(self._progress, self._environ)
        build.build_pmix_host(self._progress, self._environ)
        return self._programs(self._options or Options()).directory

    def status(self) -> list[ComponentStatus]:
        """Returns every component that the instance shall have, with its pid (0: none is recorded) and what is missing of it.

        Raises NotFound when there is no instance.
        """
        here, recorded = self._existing()
        shown = []
        for component in components(here):
            process = recorded.processes.get(component.name)
            shown.append(ComponentStatus(component.name, process.pid if process else 0, self._supervisor.missing(recorded, component)))
        return shown

    def wait_ready(self, within: float = READY_SECONDS) -> None:
        """Waits until every component is ready, and every agent's node as well where scheduler and operator run.

        `within`: seconds for each component, and again for the nodes; raises Retry after them, or when a component ends.
        """
        here, recorded = self._existing()
        self._supervisor.wait(recorded, components(here), within)
        self._wait_objects(here, within)

    # -- one component ------------------------------------------------------------------------------------------------

    def start(self, component: str, *, wait: bool = True) -> None:
        """Starts a component, given by its name or its node's, unless it runs; waits until it is ready unless `wait` is False.

        One with other arguments than now is stopped first. Raises NotFound for an unknown name, Retry where it ends or is not ready
        in time.
        """
        with state.locked(self.where.directory):
            here, recorded = self._existing()
            wanted = _named(components(here), component)
            self._supervisor.ensure(recorded, wanted)
            if wait:
                self._supervisor.wait(recorded, [wanted], READY_SECONDS)

    def stop(self, component: str) -> None:
        """Ends a component by TERM, and by KILL after 3 s; does nothing where it does not run. Raises NotFound for an unknown name."""
        with state.locked(self.where.directory):
            here, recorded = self._existing()
            self._supervisor.stop(recorded, _named(components(here), component).name)

    def restart(self, component: str) -> None:
        """Stops a component, starts it and waits until it is ready; raises as `stop` and `start` do."""
        self.stop(component)
        self.start(component)

    def kill(self, component: str, signal: int = signals.SIGKILL) -> None:
        """Sends a signal to a component, SIGKILL by default, after which (and no other) it waits until the process is gone.

        Nothing starts the component again before `start` or `up`. Raises NotFound where it does not run, or its name is unknown.
        """
        here, recorded = self._existing()
        self._supervisor.send(recorded, _named(components(here), component).name, signal)

    def pid(self, component: str) -> int:
        """Returns the pid of a running component, by its full name; raises NotFound where it does not run."""
        process = state.load(self.where).processes.get(component)
        if process is None or not processes.alive(process.id):
            raise errors.NotFound(f"{component} does not run", reason="NotRunning")
        return process.pid

    def site(self) -> Site:
        """Returns what the instance is made of: addresses, certificates, options; raises NotFound when there is none."""
        return self._existing()[0]

    def components(self) -> list[Component]:
        """Returns every component that the instance shall have, running or not; raises NotFound when there is no instance."""
        return components(self._existing()[0])

    def log_files(self, component: str | None = None) -> list[Path]:
        """Returns the log files of one component, by its name or its node's, or of all (None); raises NotFound where there is none."""
        files = sorted(self.where.logs.glob("*.log"))
        chosen = [file for file in files if component in (None, file.stem, file.stem.removeprefix("agent-"))]
        if not chosen:
            raise errors.NotFound(f"no log of {component!r}; there are: {', '.join(file.stem for file in files)}", reason="NoComponent")
        return chosen

    # -- nodes ------------------------------------------------------------------------------------------------

    def cut(self, node: str) -> None:
        """Disconnects a node's network; its processes go on. Raises Rejected where the agents are plain processes."""
        network.cut(self._networked().link(node))

    def mend(self, node: str) -> None:
        """Connects a node's network again after `cut`. Raises Rejected where the agents are plain processes."""
        network.mend(self._networked().link(node))

    def cut_between(self, one: str, other: str) -> None:
        """Drops all packets between two nodes; both still reach the API server. Raises Rejected where the agents are plain processes."""
        network.cut_between(self._networked().link(one), self._networked().link(other))

    def mend_between(self, one: str, other: str) -> None:
        """Lets two nodes reach each other again after `cut_between`. Raises Rejected where the agents are plain processes."""
        network.mend_between(self._networked().link(one), self._networked().link(other))

    def power_off(self, node: str) -> None:
        """Kills the agent and everything else on the node at once, as a power cut does; the disk stays, and one that is off already is no
        error.

        `power_on` starts it again.
        """
        here, recorded = self._existing()
        agent = f"agent-{node}"
        if agent in self._supervisor.running(recorded):
            self._supervisor.send(recorded, agent, signals.SIGKILL)
        for root in self.where.scope_roots():
            kill_scope(root / node, self._clock)
        if here.network and (number := network.inode(here.link(node).namespace)):
            for process in processes.in_network_namespace(number):
                processes.send(process, signals.SIGKILL)

    def power_on(self, node: str, *, wipe: bool = False, wait: bool = True) -> None:
        """Starts the agent of a node that was powered off, with a new boot id; with `wipe` its state is gone, as after a new disk.

        Waits until the agent is ready unless `wait` is False.
        """
        for part in ("run", "state") if wipe else ("run",):
            shutil.rmtree(self.where.node(node) / part, ignore_errors=True)
        _write_boot_id(self.where, node)
        self.start(f"agent-{node}", wait=wait)

    # -- people and access ------------------------------------------------------------------------------------------------

    def add_user(self, name: str, tenant: str, role: str = "user") -> Path:
        """Gives a user a uid, home, login on the nodes, kubeconfig, and membership of a tenant, made if missing, by an `admin` role with
        its admin's rights.

        Returns the path of the kubeconfig. A known user keeps the uid and gets the new tenant and role. Raises Rejected for a name or a
        role that cannot be.
        """
        with state.locked(self.where.directory):
            here, recorded = self._existing()
            return self._add_user(here, recorded, name, tenant, role)

    def kubeconfig(self, user: str = "admin") -> Path:
        """Returns the path of the kubeconfig of a person or component; raises NotFound with the names there are."""
        path = self.where.kubeconfig(user)
        if not path.exists():
            self._recorded()
            known = sorted(p.name.removesuffix(".kubeconfig") for p in path.parent.glob("*.kubeconfig"))
            raise errors.NotFound(
                f"no kubeconfig for {user!r} in instance {self.where.name}; there are: {', '.join(known)}", reason="NoUser"
            )
        return path

    def metrics(self, program: str) -> str:
        """Returns the Prometheus text that a daemon exports now, read with a scraper's token; raises Denied where the daemon refuses."""
        port, kubectl = self.site().ports[f"{program}-metrics"], self.site().programs.path("kubectl")
        words = [kubectl, "--kubeconfig", str(self.kubeconfig()), "create", "token", "lattice-metrics", "--namespace=lattice-system"]
        token = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120).stdout.strip()
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
        try:
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            text: str = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise errors.Denied(f"{program} answers {answer.status}: {text.strip()}", reason="MetricsRefused")
        return text

    def cluster(self, user: str = "admin") -> BlockingCluster:
        """Returns a new connection to the API server as this user, which the caller closes; raises NotFound for an unknown user."""
        return BlockingCluster(kubeconfig_file.load(str(self.kubeconfig(user)), None))

    def user(self, name: str) -> User:
        """Returns a person's uid, tenant and role; raises NotFound with the names there are."""
        users = state.load(self.where).users
        if name not in users:
            raise errors.NotFound(f"no user {name!r} in instance {self.where.name}; there are: {', '.join(users)}", reason="NoUser")
        return users[name]

    def renew_certificates(self) -> list[str]:
        """Issues every certificate of programs and people again, and returns their names; the programs reload them by themselves.

        Authorities are renewed only where they are worn.
        """
        with state.locked(self.where.directory):
            here, recorded = self._existing()
            issued = site.certify(here, self._clock.now(), force=True)
            for name, user in recorded.users.items():
                people.write_kubeconfig(here, name, user, self._clock.now(), force=True)
            return [*issued, *(f"user {name}" for name in recorded.users)]

    # -- steps of up ------------------------------------------------------------------------------------------------

    def _find_again(self, recorded: State) -> None:
        """Finds the processes of a recorded instance again; nothing where it was never planned."""
        if recorded.ports:
            here = self._site(recorded, self._programs(recorded.options))
            self._supervisor.adopt(recorded, components(here))

    def _programs(self, options: Options) -> Programs:
        """Returns the programs of the control plane, built if need be; none for an outside cluster."""
        return Programs(Path()) if options.kubeconfig else build.find_or_build(self._progress, self._clock, self._environ)

    def _plan(self, recorded: State, claims: ports.Claims) -> Site:
        """Chooses ports and network that are free, keeps those of running components, records them, and returns the instance's plan; notes
        which port has changed.

        Programs that are missing are built.
        """
        options = recorded.options
        programs = self._programs(options)
        build.build_stub(self._progress, self._environ)
        build.build_srun(self._progress, self._environ)
        build.build_starter(self._progress, self._environ)
        build.build_pmix_host(self._progress, self._environ)
        plain = self._is_plain(options)
        with state.locked(self.where.home):
            others = state.others(self.where)
            roles = site.port_roles(options, plain=plain)
            ours = {role for name in self._supervisor.running(recorded) for role in roles if role == name or role.startswith(f"{name}-")}
            avoid = {port for other in others for port in other.ports.values()}
            recorded.ports, moved = ports.assign(roles, recorded.ports, ours=ours, avoid=avoid, free=claims.claim_port)
            if not plain and not recorded.subnet:
                recorded.subnet = network.free_subnet((other.subnet for other in others if other.subnet), claims.claim)
            state.save(self.where, recorded)
        for move in moved:
            self._progress.note(f"port {move.old} of {move.role} is taken by another program; it is now {move.new}")
        return self._site(recorded, programs)

    def _is_plain(self, options: Options) -> bool:
        """Tells whether agents run without a network of their own, and says why where that was not asked for."""
        if options.kubeconfig:
            self._progress.note(
                "an outside cluster: agents are plain processes of this machine, the webhook is not registered "
                "(the cluster cannot call this machine's loopback), and what is installed there stays there at `down`"
            )
        if options.plain or options.kubeconfig:
            return True
        if why := network.can_make():
            self._progress.note(why)
            return True
        return False

    def _site(self, recorded: State, programs: Programs) -> Site:
        """Returns the plan of a recorded instance."""
        plain = recorded.options.plain or bool(recorded.options.kubeconfig) or bool(network.can_make())
        own = None if plain else Network(self.where.tag, recorded.subnet)
        compiled = (made(self._environ) for made in (build.stub_path, build.srun_path, build.starter_path, build.pmix_host_path))
        return Site(self.where, programs, recorded.options, recorded.ports, own, *compiled)

    def _existing(self) -> tuple[Site, State]:
        """Returns plan and record of the instance. Raises NotFound where there is none."""
        recorded = self._recorded()
        return self._site(recorded, self._programs(recorded.options)), recorded

    def _recorded(self) -> State:
        """Returns the state that `up` has written; raises NotFound, naming the way to an instance."""
        recorded = state.load(self.where)
        if recorded.ports:
            return recorded
        there = state.instances(self.where.home)
        known = f"; there {'is' if len(there) == 1 else 'are'}: {', '.join(there)} (--name)" if there else ""
        raise errors.NotFound(
            f"there is no instance {self.where.name}; `lattice dev up --name {self.where.name}` makes it{known}", reason="NoInstance"
        )

    def _write_files(self, here: Site, recorded: State) -> None:
        """Writes all files that components read: certificates, kubeconfigs, folders, logins."""
        for directory in (self.where.logs, self.where.directory / "agents", self.where.directory / "home"):
            directory.mkdir(mode=0o755, exist_ok=True)
        etcd = self.where.directory / "etcd"
        etcd.mkdir(mode=0o700, exist_ok=True)
        site.certify(here, self._clock.now())
        pki.service_account_key(self.where.pki)
        audit.write_policy(self.where.directory / "audit-policy.yaml", reads=here.options.audit_reads)
        self._write_kubeconfigs(here)
        for node in here.nodes:
            for part in ("state", "scratch", "prologue.d", "epilogue.d"):
                (self.where.node(node) / part).mkdir(mode=0o755, parents=True, exist_ok=True)
            if not (self.where.node(node) / "boot_id").exists():
                _write_boot_id(self.where, node)
        if here.options.waiting_nodes:
            (self.where.node("hollow") / "state").mkdir(mode=0o755, parents=True, exist_ok=True)
        people.write_logins(self.where, recorded.users, people.host_table(here))

    def _write_kubeconfigs(self, here: Site) -> None:
        """Writes the kubeconfigs of all components."""
        if here.options.kubeconfig:
            self._write_outside_kubeconfigs(here)
            return
        calls = self.where.kubeconfig("webhook-calls")
        kubeconfigs.write(
            calls, kubeconfigs.of_webhook(here.webhook.removeprefix("https://"), here.pair("webhook-clients-ca", "kube-apiserver"))
        )
        kubeconfigs.write(self.where.directory / "admission.yaml", kubeconfigs.admission(calls))
        users = {name: (here.server, name) for name in ("admin", "kube-controller-manager", "hollow", *DAEMONS)}
        users |= {f"agent-{node}": (here.node_server, f"agent-{node}") for node in here.nodes}
        for name, (server, file) in users.items():
            config = kubeconfigs.by_files(server, here.authority("ca"), here.pair("ca", file), name)
            kubeconfigs.write(self.where.kubeconfig(name), config)

    def _write_outside_kubeconfigs(self, here: Site) -> None:
        """Writes the kubeconfigs of all components for an outside cluster, at which they impersonate themselves."""
        outside = kubeconfigs.read_outside(Path(here.options.kubeconfig))
        for name in ("admin", "hollow"):  # the hollow process impersonates its nodes itself
            kubeconfigs.write(self.where.kubeconfig(name), outside)
        for daemon in DAEMONS:
            kubeconfigs.write(self.where.kubeconfig(daemon), kubeconfigs.impersonating(outside, f"lattice:{daemon}", ()))
        for node in here.nodes:
            agent = kubeconfigs.impersonating(outside, f"lattice:agent:{node}", ("lattice:agents",))
            kubeconfigs.write(self.where.kubeconfig(f"agent-{node}"), agent)

    def _remove_surplus(self, here: Site, recorded: State) -> None:
        """Stops the recorded components that are not wanted any more; nothing where there are none."""
        wanted = {component.name for component in components(here)}
        surplus = [name for name in recorded.processes if name not in wanted]
        if not surplus:
            return
        with self._progress.step(f"stopping {', '.join(surplus)}: not wanted any more"):
            self._supervisor.stop_all(recorded, surplus)

    def _start(self, recorded: State, what: str, wanted: Sequence[Component]) -> None:
        """Starts these components and waits until they are ready; nothing for none. Raises Retry where one ends or takes too long."""
        if not wanted:
            return
        with self._progress.step(what):
            for component in wanted:
                self._supervisor.ensure(recorded, component)
            self._supervisor.wait(recorded, wanted, _patience(recorded.options))

    def _install(self, here: Site) -> None:
        """Installs CRDs, roles, policies and webhooks, and publishes the gateway."""
        with self._progress.step("CRDs, roles, policies, webhooks"), self.cluster() as cluster:
            webhook = here.webhook if here.runs("webhook") and not here.options.kubeconfig else ""
            hollow = here.options.waiting_nodes
            install.install_all(cluster, self._clock, webhook=webhook, authority=here.authority("ca"), hollow=hollow > 0)
            if hollow > CALM_NODES and install.create_missing(cluster, install.calm_config(hollow)):
                self._progress.note(f"{hollow} hollow nodes: each reports every {hollow // 25} s, not every 10 s")
            install.publish(cluster, gateway=here.gateway, authority=here.authority("ca"), version=version())

    def _settle(self, here: Site, recorded: State) -> None:
        """Makes the default vcluster, tenant and people, and waits until the cluster is ready."""
        with self._progress.step("tenant, people, nodes"):
            with self.cluster() as cluster:
                self._place_listed(cluster, here.options)
                install.create_missing(cluster, install.default_vcluster())
            own = (people.own_name(),) if here.network is None else ()
            for name in (*EXAMPLE_USERS, *own):
                if name not in recorded.users and people.NAME.fullmatch(name):
                    self._add_user(here, recorded, name, EXAMPLE_TENANT, "user")
            for name, user in recorded.users.items():
                people.write_kubeconfig(here, name, user, self._clock.now())
            self._wait_objects(here, _patience(recorded.options))

    def _place_listed(self, cluster: BlockingCluster, options: Options) -> None:
        """Creates the vclusters that an inventory names, and writes its groups into its nodes' objects; without one nothing changes."""
        if not options.inventory:
            return
        listed = _read_inventory(Path(options.inventory))
        for name, groups in listed.homes().items():
            install.create_missing(cluster, install.home_vcluster(name, groups))
        if moved := install.place_nodes(cluster, listed.nodes):
            self._progress.note(f"{moved} nodes of the inventory were moved to its groups")

    def _add_user(self, here: Site, recorded: State, name: str, tenant: str, role: str) -> Path:
        """Makes a user with a home folder and rights, records that, and returns the path of the kubeconfig."""
        with contextlib.closing(ports.Claims()) as claims:
            user = people.new_user(
                name, tenant, role, recorded.users, plain=here.network is None,
                free=lambda uid: claims.claim(f"uid/{uid}") and uid not in self._uids_elsewhere(),
            )  # fmt: skip
            people.make_home(self.where, name, user)
            with self.cluster() as cluster:
                install.grant(cluster, tenant, name, admin=role == "admin")
            recorded.users = {**recorded.users, name: user}  # last: what is recorded is complete, and `up` leaves it alone
            people.write_logins(self.where, recorded.users, people.host_table(here))
            state.save(self.where, recorded)
        return people.write_kubeconfig(here, name, user, self._clock.now())

    def _uids_elsewhere(self) -> set[int]:
        """Returns the uids of the users of other instances."""
        return {user.uid for other in state.others(self.where) for user in other.users.values()}

    def _wait_objects(self, here: Site, within: float) -> None:
        """Waits until tenant and nodes are ready, `within` seconds at most; returns at once where operator or scheduler shall not run.

        Raises Retry after that time.
        """
        if not all(here.runs(name) for name in ("operator", "scheduler")):
            return
        nodes = [node for node in here.nodes if here.runs(f"agent-{node}")]
        with self.cluster() as cluster:
            missing = readiness.Objects(cluster, tenants=[EXAMPLE_TENANT], nodes=nodes, hollow=here.options.waiting_nodes).missing
            every = 0.1 + here.options.waiting_nodes / 2000  # each look lists every node
            wait_until(missing, within=within, clock=self._clock, what="the cluster", every=every)

    def _networked(self) -> Site:
        """Returns the instance's plan. Raises Rejected where its agents have no network of their own."""
        here, _ = self._existing()
        if here.network is None:
            raise errors.Rejected("this instance's agents are plain processes: there is no cable to take", reason="NoNetwork")
        return here

    # -- the end ------------------------------------------------------------------------------------------------

    def _stop_keeping(self) -> None:
        """Stops all components, the control plane last, and keeps the files."""
        with state.locked(self.where.directory):
            recorded = state.load(self.where)
            first = [name for name in recorded.processes if name not in site.CONTROL_PLANE]
            self._supervisor.stop_all(recorded, first)
            for name in reversed(site.CONTROL_PLANE):
                self._supervisor.stop(recorded, name)
            self._sweep()

    def _sweep(self) -> None:
        """Ends every process and removes namespaces, scopes and devices, but no files; finds all by marks and names, never by records."""
        namespaces = list(self._namespaces())
        self._supervisor.kill_everything(namespaces)
        for root in self.where.scope_roots():
            kill_scope(root, self._clock)
            with contextlib.suppress(OSError):
                root.parent.rmdir()  # only when nobody else has work below it
        self._supervisor.kill_everything(namespaces)
        for attempts in self.where.directory.glob("agents/*/state/attempts"):
            private_tmp.remove_older(str(attempts.resolve()), "")
        if not network.can_make():
            network.remove_all(self.where.tag, self.where.directory)

    def _namespaces(self) -> Iterator[int]:
        """Yields the inode of each node's network namespace."""
        for file in self.where.directory.glob("agents/*/network"):
            if number := network.inode(file):
                yield number


def _patience(options: Options) -> float:
    """Returns for how many seconds components may take to be ready."""
    return READY_SECONDS + options.waiting_nodes * HOLLOW_READY_SECONDS


def _check(options: Options) -> Options:
    """Returns the options unchanged. Raises Rejected for too many or a negative number of nodes."""
    most = network.MOST_NODES
    if not 0 <= options.nodes <= most:
        raise errors.Rejected(
            f"--nodes {options.nodes}: 0 to {most} nodes fit on one machine's bridge; use --hollow for more", reason="BadOptions"
        )
    if not 0 <= options.hollow <= 16384:
        raise errors.Rejected(f"--hollow {options.hollow}: 0 to 16384", reason="BadOptions")
    return options


def _keep_inventory(where: Layout, options: Options) -> Options:
    """Copies the inventory into the instance, under a name of its content; returns the options with the copy's path and its nodes' number,
    0 without an inventory.

    Raises Rejected where it cannot be read, a node of it is a real one of the instance, or the waiting nodes are too many.
    """
    if not options.inventory:
        return msgspec.structs.replace(options, listed=0)
    nodes = _read_inventory(Path(options.inventory)).nodes
    listed = len(nodes)
    if both := {node.name for node in nodes} & set(site.node_names(options.nodes)):
        raise errors.Rejected(
            f"{options.inventory}: {min(both)} is a real node of this instance already ({options.nodes} of them: --nodes); rename it",
            reason="BadOptions",
        )
    if options.hollow + listed > 16384:
        raise errors.Rejected(f"--hollow {options.hollow} and {listed} nodes of the inventory: 16384 fit together", reason="BadOptions")
    data = Path(options.inventory).read_bytes()
    kept = where.directory / f"inventory-{hashlib.sha256(data).hexdigest()[:12]}.yaml"
    if not kept.exists():
        kept.write_bytes(data)
    return msgspec.structs.replace(options, inventory=str(kept), listed=listed)


def _read_inventory(path: Path) -> Inventory:
    """Returns the inventory of a file. Raises Rejected where it cannot be read or does not parse."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise errors.Rejected(f"--inventory {path} cannot be read: {error}", reason="BadOptions") from error
    return read_inventory(text, str(path))


def _named(every: Sequence[Component], name: str) -> Component:
    """Returns the component of a name, which may be a node's. Raises NotFound where there is none."""
    for component in every:
        if component.name in (name, f"agent-{name}"):
            return component
    raise errors.NotFound(f"no component {name!r}; there are: {', '.join(c.name for c in every)}", reason="NoComponent")


def _write_boot_id(where: Layout, node: str) -> None:
    """Writes a new boot id for a node."""
    (where.node(node)).mkdir(mode=0o755, parents=True, exist_ok=True)
    (where.node(node) / "boot_id").write_text(f"{uuid.uuid4()}\n")
