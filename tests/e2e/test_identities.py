"""Who is who: users of several identity providers, and what they write into fields that others' terminals show."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice.kube import resources
from lattice.kube.blocking import BlockingCluster
from lattice_dev import install, kubeconfigs
from lattice_dev.instance import Instance
from lattice_dev.pki import Authority, Identity
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import until

EVIL = "x\x1b]0;OWNED\x07"


def outsider(instance: Instance, admin: BlockingCluster, name: str, room: Room, directory: Path) -> Person:
    """A user whose name is no login: a certificate of the cluster's authority, membership of the tenant."""
    site = instance.site()
    pair, _ = Authority(site.where.pki, "ca", time.time()).issue(f"user-{name.replace(':', '-')}", Identity(name))
    path = directory / "kubeconfig"
    kubeconfigs.write(path, kubeconfigs.inline(site.server, site.authority("ca"), pair, name, room.namespace))
    install.grant(admin, room.name, name, admin=False)
    made = Person(path, site.programs.path("kubectl"), room.namespace)
    until(
        lambda: made.kubectl("auth", "can-i", "create", "allocations.lattice.dev", "-n", room.namespace, ok=False).stdout == "yes\n",
        within=20,
    )
    return made


@pytest.fixture
def prefixes(admin: BlockingCluster) -> Iterator[None]:
    """The option of the prefixes, absent again afterwards."""
    yield
    admin.patch(resources.CONFIGS, "lattice", {"spec": {"work": {"userPrefixes": None}}})


@pytest.mark.usefixtures("prefixes")
def test_the_alice_of_another_issuer_gets_no_account_of_ours_unless_the_site_says_so(
    tenant: Room, control_plane: Instance, admin: BlockingCluster, tmp_path: Path
) -> None:
    boss = person(control_plane, "admin", tenant.namespace)
    other = outsider(control_plane, admin, "github:alice", tenant, tmp_path)
    other.apply("before", entrypoint="id -un")
    status = other.ended("before")
    said = next(condition["message"] for condition in status["conditions"] if condition["type"] == "Finished")
    assert (status["phase"], reason(status)) == ("Failed", "UserUnknown"), said
    assert "'github:alice'" in said
    assert "work.userPrefixes" in said

    refused = boss.lattice("admin", "config", "set", 'work.userPrefixes=["lattice:"]', ok=False)
    assert "the cluster's own" in refused.stderr
    boss.lattice("admin", "config", "set", 'work.userPrefixes=["oidc:"]')
    other.apply("unlisted", entrypoint="id -un")
    assert reason(other.ended("unlisted")) == "UserUnknown"

    boss.lattice("admin", "config", "set", 'work.userPrefixes=["oidc:","github:"]')
    until(lambda: _ran_as_alice(other), within=60, every=0.5)


def _ran_as_alice(other: Person) -> bool:
    """Whether work ends as alice by now: agents read the option when they see it."""
    name = f"listed-{time.monotonic_ns()}"
    other.apply(name, entrypoint="id -un")
    return other.ended(name)["phase"] == "Completed" and other.lattice("logs", name).stdout == "alice\n"


def test_no_field_that_people_write_takes_control_characters(tenant: Room, control_plane: Instance) -> None:
    me = person(control_plane, "alice", tenant.namespace)
    for spec in (
        {"project": EVIL}, {"tags": {"name": EVIL}}, {"reservation": EVIL}, {"quota": EVIL}, {"environment": {"workdir": EVIL}},
        {"environment": {"output": {"stdout": EVIL}}}, {"resources": {"constraints": {"nodeList": EVIL}}},
    ):  # fmt: skip
        refused = me.apply("evil", entrypoint="true", ok=False, **spec)
        assert refused.returncode != 0, spec
        assert "control character" in refused.stderr or "evil" not in me.kubectl("get", "alloc", "-n", tenant.namespace).stdout, (
            refused.stderr
        )
    assert not me.kubectl("get", "alloc", "-n", tenant.namespace, "-o", "name").stdout


def test_a_node_that_says_it_has_more_than_it_said_first_is_degraded_and_counts_for_no_more(
    tenant: Room, control_plane: Instance, admin: BlockingCluster
) -> None:
    boss, node, other = person(control_plane, "admin", tenant.namespace), person(control_plane, "agent-nid004", ""), "nid004"
    claim = '{"status":{"capabilities":{"gpus":512,"gpuType":"H200"}}}'
    until(lambda: "gpus" in _node(admin, other)["status"].get("accepted", {}), within=20)
    me = person(control_plane, "alice", tenant.namespace)
    me.apply("counts", entrypoint="sleep 3600", resources={"constraints": {"nodeList": other}})
    me.phase("counts", "Running")
    node.kubectl("patch", "latticenode", other, "--subresource=status", "--type=merge", "-p", claim)
    try:
        until(lambda: _ready(admin, other) == ("Degraded", "HardwareDeviates"), within=20)
        assert "gpus 512, 0 reported first" in boss.lattice("nodes", other).stdout
        assert me.get("counts")["status"]["phase"] == "Running"
        assert "gpus" not in me.get("counts")["status"] or not me.get("counts")["status"]["gpus"]
        boss.lattice("node", "accept", other, "--yes")
        until(lambda: _ready(admin, other)[0] == "Ready", within=20)
    finally:
        boss.kubectl("patch", "latticenode", other, "--type=merge", "-p", '{"spec":{"hardware":null}}')
        node.kubectl(
            "patch", "latticenode", other, "--subresource=status", "--type=merge", "-p", claim.replace("512", "0").replace("H200", "")
        )
        until(lambda: _ready(admin, other)[0] == "Ready", within=30)


def test_a_node_names_no_address_but_a_host_and_a_port(control_plane: Instance) -> None:
    node = person(control_plane, "agent-nid004", "")
    for address in ("dns:///169.254.169.254:80", "unix:/run/docker.sock"):
        body = f'{{"status":{{"address":"{address}"}}}}'
        refused = node.kubectl("patch", "latticenode", "nid004", "--subresource=status", "--type=merge", "-p", body, ok=False)
        assert "status.address" in refused.stderr


def _node(admin: BlockingCluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = admin.get(resources.NODES, name)
    return found


def _ready(admin: BlockingCluster, name: str) -> tuple[str, str]:
    """State and reason of a node."""
    status = _node(admin, name)["status"]
    return status["state"], next(condition["reason"] for condition in status["conditions"] if condition["type"] == "Ready")
