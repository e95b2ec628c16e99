"""Certificates of nodes are renewed by the API server's own flow, under work, and through kills: the test brings them near their ends.

What a renewal does with the time that is left is tests/unit/agent/cluster/test_certificates.py's.
"""

from __future__ import annotations

import base64
import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from lattice.daemon.node_certificates import SIGNERS, USAGES, request_name
from lattice.errors import Denied, NotFound
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CERTIFICATE_REQUESTS, NODES
from lattice.lifecycle.conditions import condition
from lattice.views import Node
from lattice_agent.certificate_program import make_request
from lattice_dev.instance import Instance
from lattice_dev.pki import Authority
from lattice_dev.site import wanted_certificates
from lattice_dev.state import Options
from lattice_dev.waiting import HostClock
from tests.e2e.conftest import Room, new_instance, new_room
from tests.e2e.people import Person, person
from tests.e2e.waiting import Seen, until

LIFE, LEFT = 360, 110
"""Seconds of a certificate's life; it is renewed with a third of them left, so at once where these few are, and reported with a fourth."""
USES = {"api": "ca", "peer": "agents-ca"}


@pytest.fixture(scope="module")
def short() -> Iterator[Instance]:
    instance = new_instance("certs", Options(nodes=2, fsync=False, node_certificates=LIFE))
    try:
        instance.up()
        until(lambda: all(left(one) <= LIFE for one in all_of(instance).values()), within=60, every=0.5, what="short certificates")
        yield instance
    finally:
        instance.down()


@pytest.fixture(scope="module")
def boss(short: Instance) -> Iterator[BlockingCluster]:
    with contextlib.closing(short.cluster()) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def place(boss: BlockingCluster) -> Room:
    return new_room(boss)


@pytest.fixture
def alice(short: Instance, place: Room) -> Person:
    return person(short, "alice", place.namespace)


def certificate(instance: Instance, node: str, use: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path_of(instance, node, use).read_bytes())


def path_of(instance: Instance, node: str, use: str) -> Path:
    return instance.site().pair(USES[use], f"agent-{node}").certificate


def all_of(instance: Instance) -> dict[tuple[str, str], x509.Certificate]:
    return {(node, use): certificate(instance, node, use) for node in ("nid001", "nid002") for use in USES}


def left(found: x509.Certificate) -> float:
    return found.not_valid_after_utc.timestamp() - time.time()


def nearly_over(instance: Instance) -> dict[tuple[str, str], x509.Certificate]:
    """Gives every agent certificates of which little life is left."""
    here, now = instance.site(), HostClock().now()
    for authority, file, identity in wanted_certificates(here):
        if file.startswith("agent-"):
            Authority(here.where.pki, authority, now - (LIFE - LEFT)).issue(file, identity, force=True, days=LIFE / 86400)
    return all_of(instance)


def renewed(instance: Instance, before: dict[tuple[str, str], x509.Certificate]) -> None:
    def all_new() -> bool:
        now = all_of(instance)
        return all(now[which].serial_number != before[which].serial_number for which in before)

    until(all_new, within=60, every=0.5, what="new certificates of both nodes for both uses")


def test_work_goes_on_while_every_certificate_is_renewed(short: Instance, alice: Person) -> None:
    alice.apply("long", nodes=2, entrypoint="sleep 3600", tasks={"on": "EveryNode"}, walltime="10m")
    alice.phase("long", "Running")
    pids = {node: short.pid(f"agent-{node}") for node in ("nid001", "nid002")}
    renewed(short, nearly_over(short))
    for (node, use), found in all_of(short).items():
        assert LEFT < left(found) <= LIFE
        found.verify_directly_issued_by(x509.load_pem_x509_certificate(short.site().authority(USES[use]).read_bytes()))
        assert f"CN=lattice:agent:{node}" in found.subject.rfc4514_string()
        assert {path.name for path in path_of(short, node, use).parent.glob(f"agent-{node}*")} == {f"agent-{node}.crt", f"agent-{node}.key"}
    assert alice.get("long")["status"]["phase"] == "Running"
    assert alice.get("long")["status"]["attempt"] == 1
    alice.lattice("cancel", "long")
    assert alice.ended("long")["phase"] == "Cancelled"
    alice.apply("after", nodes=2, entrypoint="true", tasks={"on": "EveryNode"})  # asks the gateway, and speaks to the other node
    assert alice.ended("after")["phase"] == "Completed"
    assert pids == {node: short.pid(f"agent-{node}") for node in pids}


def test_a_node_that_cannot_renew_says_so_and_one_whose_agent_is_killed_before_the_answer_renews_all_the_same(
    short: Instance, boss: BlockingCluster, alice: Person
) -> None:
    waiting = {request_name("nid001", use) for use in USES}
    for name in requests(boss):  # those that were answered
        with contextlib.suppress(NotFound):
            boss.delete(CERTIFICATE_REQUESTS, name)
    short.kill("operator", signal.SIGSTOP)
    try:
        before = {which: found for which, found in nearly_over(short).items() if which[0] == "nid001"}
        until(lambda: waiting <= open_requests(boss), within=60, every=0.2, what="requests that nobody answers")
        asked = requests(boss)
        short.kill("agent-nid001")
        until(lambda: expiring(boss, "nid002", "True"), within=60, every=0.3, what="the condition CertificateExpiring")
    finally:
        short.kill("operator", signal.SIGCONT)
    short.start("agent-nid001", wait=False)
    renewed(short, before)
    assert {name: uid for name, uid in requests(boss).items() if name in waiting}.items() <= asked.items()  # those of before the kill
    until(lambda: expiring(boss, "nid002", "False"), within=30, every=0.3, what="its end")
    alice.apply("killed", entrypoint="true", resources={"constraints": {"nodeList": "nid001"}})
    assert alice.ended("killed")["phase"] == "Completed"


def expiring(boss: BlockingCluster, node: str, status: str) -> bool:
    """Whether the node's condition has this status, and says why."""
    shown = condition(boss.get(NODES, node, type=Node).status.conditions, "CertificateExpiring")
    return shown is not None and shown.status == status and (status == "False" or "is not answered yet" in shown.message)


def requests(boss: BlockingCluster) -> dict[str, str]:
    """Every request by name, with its uid."""
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in boss.list(CERTIFICATE_REQUESTS).items}


def open_requests(boss: BlockingCluster) -> set[str]:
    items = boss.list(CERTIFICATE_REQUESTS).items
    return {item["metadata"]["name"] for item in items if not (item.get("status") or {}).get("conditions")}


@pytest.mark.parametrize(
    ("use", "made_for", "hosts", "words"),
    [
        ("api", "nid002", (), "CN=lattice:agent:nid001"),
        ("peer", "nid001", ("lattice-gateway",), "lattice-gateway"),
        ("api", "nid001", ("nid001",), "no host name or address"),
    ],
)
def test_what_is_not_the_nodes_own_is_denied(
    short: Instance, boss: BlockingCluster, use: str, made_for: str, hosts: tuple[str, ...], words: str
) -> None:
    name = request_name("nid001", use)

    def asked() -> bool:
        with contextlib.closing(short.cluster("agent-nid001")) as node, contextlib.suppress(Exception):
            node.create(CERTIFICATE_REQUESTS, body(name, use, make_request(made_for, hosts)))
            return True
        boss.delete(CERTIFICATE_REQUESTS, name)  # the agent's own stands there
        return False

    until(asked, within=30, what="a place for the forged request")

    def verdict() -> str:
        conditions = (boss.get(CERTIFICATE_REQUESTS, name).get("status") or {}).get("conditions") or [{}]
        return str(conditions[0].get("type", "")) + ": " + str(conditions[0].get("message", ""))

    said = until(Seen(verdict, lambda text: len(text) > 2), within=20)
    assert said.startswith("Denied: ")
    assert words in said
    boss.delete(CERTIFICATE_REQUESTS, name)


def test_the_api_server_takes_no_request_in_another_name(short: Instance) -> None:
    with contextlib.closing(short.cluster("agent-nid001")) as node:
        for name, use in ((request_name("nid002", "api"), "api"), ("mine", "peer"), (request_name("nid001", "peer"), "api")):
            with pytest.raises(Denied, match="an agent asks"):
                node.create(CERTIFICATE_REQUESTS, body(name, use, make_request("nid001", ())))
        with pytest.raises(Denied):
            node.list(CERTIFICATE_REQUESTS)
    with contextlib.closing(short.cluster("operator")) as operator, pytest.raises(Denied):
        operator.create(CERTIFICATE_REQUESTS, body(request_name("nid001", "peer"), "peer", make_request("nid001", ())))


def body(name: str, use: str, made: bytes) -> dict[str, Any]:
    request = b"".join(made.partition(b"-----BEGIN CERTIFICATE REQUEST-----")[1:])
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "request": base64.b64encode(request).decode(), "signerName": SIGNERS[use], "usages": list(USAGES[use]),
            "expirationSeconds": 600,
        },
    }  # fmt: skip
