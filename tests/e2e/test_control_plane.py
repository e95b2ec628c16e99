"""The local control plane itself: real etcd, kube-apiserver and controller manager, without Lattice's daemons."""

import base64
import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lattice import errors
from lattice.kube import resources
from lattice.kube.blocking import BlockingCluster
from lattice_dev import network, processes, state
from lattice_dev.components import Component, components
from lattice_dev.instance import Instance
from lattice_dev.state import Layout, Options
from tests.e2e.conftest import new_instance
from tests.e2e.waiting import Seen, until
from tests.killed_runs import instance_name

BARE = Options(nodes=2, fsync=False, without=("scheduler", "operator", "webhook", "gateway", "agents"))


class Remembered:
    """Keeps what was told, for callers that look at it."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.notes: list[str] = []

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Runs the step and keeps its name."""
        yield
        self.steps.append(text)

    def note(self, text: str) -> None:
        """Keeps the remark."""
        self.notes.append(text)


@pytest.fixture(scope="module")
def bare() -> Iterator[Instance]:
    instance = new_instance("bare", BARE)
    try:
        instance.up()
        yield instance
    finally:
        instance.down()


def versions(instance: Instance) -> dict[str, str]:
    """Every object that `up` writes, with its version."""
    kinds = (
        resources.CRDS, resources.CLUSTER_ROLES, resources.CLUSTER_ROLE_BINDINGS, resources.ADMISSION_POLICIES,
        resources.TENANTS, resources.VCLUSTERS, resources.CONFIG_MAPS, resources.NAMESPACES,
    )  # fmt: skip
    with instance.cluster() as cluster:
        items = [(kind.plural, item["metadata"]) for kind in kinds for item in cluster.list(kind).items]
    return {f"{kind}/{metadata['name']}": metadata["resourceVersion"] for kind, metadata in items}


def refused(cluster: BlockingCluster, kind: resources.Resource, name: str) -> bool:
    with contextlib.suppress(errors.Denied):
        cluster.patch(kind, name, {"metadata": {"annotations": {"x": "y"}}})
        return False
    return True


def leftovers(where: Layout) -> dict[str, list[str]]:
    """Everything that an instance could leave on a machine."""
    devices = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout)
    scope = where.scope_root()
    return {
        "processes": [str(found.argv) for found in processes.marked(where.mark)],
        "mounts": network.mounts_below(where.directory),
        "devices": [device["ifname"] for device in devices if where.tag in device["ifname"]],
        "files": [str(where.directory)] if where.directory.exists() else [],
        "scopes": [str(scope)] if scope and scope.exists() else [],
    }


NOTHING: dict[str, list[str]] = {"processes": [], "mounts": [], "devices": [], "files": [], "scopes": []}


def test_up_twice_starts_nothing_and_writes_nothing(bare: Instance) -> None:
    before, pids = versions(bare), [component.pid for component in bare.status()]
    bare.up()
    assert versions(bare) == before
    assert [component.pid for component in bare.status()] == pids


def test_alice_may_neither_read_nor_write_the_ledger_nor_the_plans(bare: Instance) -> None:
    with bare.cluster("alice") as cluster:
        for kind in (resources.LEDGERS, resources.NODE_INDEXES, resources.PLANS):
            with pytest.raises(errors.Denied):
                cluster.list(kind)
        assert refused(cluster, resources.LEDGERS, "lattice")
        assert refused(cluster, resources.TENANTS, "physics")
        assert cluster.list(resources.VCLUSTERS).items


def test_an_agents_certificate_says_which_node_it_is(bare: Instance) -> None:
    with bare.cluster("agent-nid001") as cluster:
        who = cluster.create(resources.SELF_SUBJECT_REVIEWS, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    assert who["status"]["userInfo"]["username"] == "lattice:agent:nid001"
    assert "lattice:agents" in who["status"]["userInfo"]["groups"]


def test_the_audit_log_names_every_write_with_its_verb_user_and_object(bare: Instance) -> None:
    with bare.cluster() as cluster:
        cluster.create(resources.CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "audited"}}, "default")
        cluster.patch(resources.CONFIG_MAPS, "audited", {"data": {"a": "b"}}, "default")
        cluster.delete(resources.CONFIG_MAPS, "audited", "default")

    def audited() -> list[dict[str, Any]]:
        """What the log says, the last line perhaps half written."""
        lines = bare.where.audit_log.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def of_object(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [event for event in events if event.get("objectRef", {}).get("name") == "audited"]

    deleted = Seen(audited, lambda events: "delete" in {event["verb"] for event in of_object(events)})
    events: list[dict[str, Any]] = until(deleted, within=10, what="the line of the deletion")  # it is written after the answer
    about = of_object(events)
    assert [event["verb"] for event in about if event["verb"] != "create"] == ["patch", "delete"]
    created = [
        e
        for e in events
        if e["verb"] == "create" and e.get("objectRef", {}).get("resource") == "configmaps" and e["objectRef"]["namespace"] == "default"
    ]
    assert {event["user"]["username"] for event in [*created, *about]} == {"lattice-dev-admin"}


def test_a_namespace_that_is_deleted_goes_with_all_that_it_owned(bare: Instance) -> None:
    with bare.cluster() as cluster:
        cluster.create(resources.NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "passing"}})
        cluster.create(resources.CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "inside"}}, "passing")
        cluster.delete(resources.NAMESPACES, "passing")

        def gone() -> bool:
            return all(item["metadata"]["name"] != "passing" for item in cluster.list(resources.NAMESPACES).items)

        until(gone, within=20, what="the end of the namespace")


def test_what_is_owned_goes_with_its_owner(bare: Instance) -> None:
    with bare.cluster() as cluster:
        owner = cluster.create(resources.CONFIG_MAPS, {"metadata": {"name": "owner"}}, "default")
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
        cluster.create(resources.CONFIG_MAPS, {"metadata": {"name": "owned", "ownerReferences": [reference]}}, "default")
        cluster.create(resources.CONFIG_MAPS, {"metadata": {"name": "free"}}, "default")
        cluster.delete(resources.CONFIG_MAPS, "owner", "default")

        def left() -> set[str]:
            return {"owned", "free"} & {item["metadata"]["name"] for item in cluster.list(resources.CONFIG_MAPS, "default").items}

        until(lambda: left() == {"free"}, within=20, what="the end of what is owned")
        cluster.delete(resources.CONFIG_MAPS, "free", "default")


def test_a_service_account_stands_in_each_namespace_and_gets_a_token_for_a_secret_of_its_own(bare: Instance) -> None:
    body = {
        "metadata": {"name": "token", "annotations": {"kubernetes.io/service-account.name": "default"}},
        "type": "kubernetes.io/service-account-token",
    }
    with bare.cluster() as cluster:
        until(lambda: cluster.get(resources.SERVICE_ACCOUNTS, "default", "default"), within=20, what="the service account")
        cluster.create(resources.SECRETS, body, "default")
        data: Any = until(lambda: cluster.get(resources.SECRETS, "token", "default").get("data"), within=20, what="the token")
        assert base64.b64decode(data["ca.crt"]) == bare.site().authority("ca").read_bytes()
        assert set(data) == {"ca.crt", "namespace", "token"}
        cluster.delete(resources.SECRETS, "token", "default")


@pytest.mark.parametrize("component", ["etcd", "kube-apiserver", "kube-controller-manager", "relay"])
def test_after_kill_9_of_a_program_up_repairs_and_only_that_program_is_new(bare: Instance, component: str) -> None:
    before = {shown.name: shown.pid for shown in bare.status()}
    bare.kill(component)
    assert next(shown for shown in bare.status() if shown.name == component).missing
    bare.up()
    after = {shown.name: shown.pid for shown in bare.status()}
    assert {name for name in before if before[name] != after[name]} == {component}
    assert not any(shown.missing for shown in bare.status())


def test_a_program_that_an_interrupted_up_did_not_write_down_is_found_again(bare: Instance) -> None:
    before = {shown.name: shown.pid for shown in bare.status()}
    recorded = state.load(bare.where)
    recorded.processes = {}
    state.save(bare.where, recorded)
    bare.up()
    assert {shown.name: shown.pid for shown in bare.status()} == before


def test_renewed_certificates_are_used_without_a_restart(bare: Instance) -> None:
    before = {shown.name: shown.pid for shown in bare.status()}
    issued = bare.renew_certificates()
    assert {"ca/kube-apiserver", "etcd-ca/etcd", "agents-ca/agent-nid001", "user alice"} <= set(issued)
    until(lambda: all(not shown.missing for shown in bare.status()), within=20, what="every program")
    with bare.cluster("alice") as cluster:
        assert cluster.list(resources.VCLUSTERS).items
    assert {shown.name: shown.pid for shown in bare.status()} == before


def test_a_new_user_has_a_kubeconfig_a_home_and_a_login_on_the_nodes(bare: Instance) -> None:
    path = bare.add_user("carol", "chemistry", "admin")
    user = bare.user("carol")
    assert path.stat().st_mode & 0o777 == 0o600
    assert bare.where.user_home("carol").stat().st_uid in (user.uid, os.getuid())
    assert f"carol:x:{user.uid}:" in (bare.where.etc / "passwd").read_text()
    with bare.cluster() as cluster:
        assert cluster.get(resources.TENANTS, "chemistry")["spec"]["access"] == {"users": ["carol"], "admins": ["carol"]}
    assert bare.add_user("carol", "chemistry", "admin") == path
    assert bare.user("carol") == user


@pytest.mark.root
def test_a_node_has_its_own_network_host_name_boot_id_and_logins(bare: Instance) -> None:
    look = "hostname; cat /proc/sys/kernel/random/boot_id; ls /sys/class/net >/dev/null; getent passwd alice | cut -d: -f3; getent hosts nid001"
    agent = next(c for c in _with_agents(bare) if c.name == "agent-nid002")
    entering = agent.argv[: agent.argv.index("--") + 1]
    seen = subprocess.run([*entering, "sh", "-c", look], capture_output=True, text=True, check=True).stdout.split()
    assert seen[0] == "nid002"
    assert seen[1] == (bare.where.node("nid002") / "boot_id").read_text().strip()
    assert seen[1] != Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert int(seen[2]) == bare.user("alice").uid
    assert seen[4] == "nid001"
    assert socket.gethostname() != "nid002"


@pytest.mark.root
def test_a_node_reaches_the_apiserver_through_the_bridge_until_its_cable_is_taken(bare: Instance) -> None:
    agent = next(c for c in _with_agents(bare) if c.name == "agent-nid001")
    server = bare.cluster("agent-nid001").config.server.removeprefix("https://")
    host, _, port = server.rpartition(":")
    entering = [*agent.argv[: agent.argv.index("--") + 1], sys.executable, "-I", "-S", "-c"]

    def reached(seconds: int = 60) -> bool:
        reach = f"import socket; socket.create_connection(({host!r}, {port}), {seconds}).close()"
        return subprocess.run([*entering, reach], capture_output=True, check=False).returncode == 0

    assert reached()
    bare.cut("nid001")
    assert not reached(1)
    bare.mend("nid001")
    until(reached, within=10, what="the apiserver from nid001")


def test_ports_of_a_neighbour_are_another_ones_and_those_that_a_stranger_took_are_left_to_it_and_said(bare: Instance) -> None:
    told = Remembered()
    instance = Instance(instance_name("ports"), BARE, progress=told)
    try:
        instance.up()
        mine, theirs = state.load(bare.where), state.load(instance.where)
        assert not set(mine.ports.values()) & set(theirs.ports.values())
        assert not mine.subnet or mine.subnet != theirs.subnet
        with instance.cluster() as cluster:
            kept = cluster.get(resources.TENANTS, "physics")["metadata"]["uid"]
        instance.down(keep=True)
        assert processes.marked(instance.where.mark) == []
        old = state.load(instance.where).ports["kube-apiserver"]
        with socket.create_server(("127.0.0.1", old)):
            instance.up()
            new = state.load(instance.where).ports["kube-apiserver"]
        assert any(f"port {old} of kube-apiserver is taken by another program; it is now {new}" in note for note in told.notes)
        with instance.cluster("alice") as cluster:
            assert cluster.config.server.endswith(f":{new}")
            assert cluster.list(resources.VCLUSTERS).items
        with instance.cluster() as cluster:
            assert cluster.get(resources.TENANTS, "physics")["metadata"]["uid"] == kept
    finally:
        instance.down()
    assert leftovers(instance.where) == NOTHING
    assert not any(shown.missing for shown in bare.status())


def test_an_outside_cluster_is_used_as_it_is_with_every_identity_acting_through_the_given_one(bare: Instance) -> None:
    told = Remembered()
    options = Options(nodes=1, kubeconfig=str(bare.kubeconfig()), without=("scheduler", "operator", "agents"))
    outside = Instance(instance_name("outside"), options, progress=told)
    try:
        outside.up()
        assert {shown.name: shown.missing for shown in outside.status()} == {"gateway": ""}
        with outside.cluster("alice") as cluster, pytest.raises(errors.Denied, match='User "alice"'):
            cluster.list(resources.LEDGERS)
        with outside.cluster("agent-nid001") as cluster, pytest.raises(errors.Denied, match='User "lattice:agent:nid001"'):
            cluster.list(resources.PLANS)  # no operator has bound it
        assert any("outside cluster" in note for note in told.notes)
    finally:
        outside.down()
    assert leftovers(outside.where) == NOTHING
    assert not any(shown.missing for shown in bare.status())


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Instance, Instance]]:
    """Two instances of one name, each in a home of its own; a test brings up what it needs of them."""

    name = instance_name("home")

    def made(home: str) -> Instance:
        return Instance(name, BARE, environ={**os.environ, "LATTICE_DEV_HOME": str(tmp_path_factory.mktemp(home))})

    one, other = made("one"), made("other")
    try:
        yield one, other
    finally:
        one.down()
        other.down()


def test_instances_that_start_at_the_same_moment_stand_side_by_side_and_down_of_one_leaves_the_other(
    homes: tuple[Instance, Instance],
) -> None:
    one, other = homes
    with ThreadPoolExecutor() as starting:
        list(starting.map(Instance.up, homes))
    mine, theirs = (state.load(instance.where) for instance in homes)
    assert not set(mine.ports.values()) & set(theirs.ports.values())
    assert not mine.subnet or mine.subnet != theirs.subnet
    assert not any(shown.missing for instance in homes for shown in instance.status())
    one.down()
    assert leftovers(one.where) == NOTHING
    assert not any(shown.missing for shown in other.status())


def test_down_leaves_nothing_even_after_the_record_is_lost_and_work_still_runs(homes: tuple[Instance, Instance]) -> None:
    _, instance = homes
    instance.up()  # where it is up already nothing is started
    scope = instance.where.scope_root()
    if scope:
        (scope / "nid001" / "alloc-x.scope").mkdir(parents=True)
        subprocess.Popen(
            ["sh", "-c", f"echo 0 > {scope}/nid001/alloc-x.scope/cgroup.procs; exec sleep 300"], start_new_session=True
        ).returncode = 0
        until(lambda: "populated 1" in (scope / "cgroup.events").read_text(), within=20, what="the work")
    instance.kill("etcd", signal.SIGSTOP)
    (instance.where.directory / "instance.json").write_text("{")
    instance.down()
    assert leftovers(instance.where) == NOTHING
    instance.down()


def test_down_leaves_nothing_after_up_itself_was_killed() -> None:
    name = instance_name("killed")
    where = state.layout(os.environ, name)
    command = [sys.executable, "-m", "lattice_dev", "up", "--name", name, "--nodes", "2", "--without", ",".join(BARE.without)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
        until(lambda: processes.marked(where.mark), within=20, what="the first program")
        up.kill()
    Instance(name).down()
    assert leftovers(where) == NOTHING


def test_what_is_not_there_is_named() -> None:
    instance = new_instance("never", BARE)
    with pytest.raises(errors.NotFound, match="lattice dev up"):
        instance.status()
    with pytest.raises(errors.NotFound, match="lattice dev up"):
        instance.kubeconfig("alice")
    instance.down()


def test_a_kubeconfig_that_nobody_has_is_told_with_those_there_are(bare: Instance) -> None:
    with pytest.raises(errors.NotFound, match=r"no kubeconfig for 'nobody' in instance .*there are: admin, .*alice, bob"):
        bare.kubeconfig("nobody")


def test_a_tenant_that_a_new_user_brings_is_said_once(bare: Instance) -> None:
    words = [sys.executable, "-m", "lattice_dev", "user", "dora", "--tenant", "geology", "--name", bare.where.name]
    first = subprocess.run(words, capture_output=True, text=True, check=True)
    assert first.stderr == "Note: tenant geology did not exist: it is made, with its namespace\n"
    assert first.stdout.strip() == str(bare.kubeconfig("dora"))
    assert subprocess.run(words, capture_output=True, text=True, check=True).stderr == ""


def test_where_kubeconfig_names_an_instance_no_flag_is_needed(bare: Instance) -> None:
    environ = {**os.environ, "KUBECONFIG": str(bare.kubeconfig("alice"))}
    said = subprocess.run(
        [sys.executable, "-m", "lattice_dev", "kubeconfig", "bob"], env=environ, capture_output=True, text=True, check=False
    )
    assert (said.stdout.strip(), said.returncode) == (str(bare.kubeconfig("bob")), 0), said.stderr


def _with_agents(instance: Instance) -> list[Component]:
    return components(dataclasses.replace(instance.site(), options=Options(nodes=2)))
