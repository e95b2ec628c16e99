"""A node that is forgotten: its agent, or whoever has its key, can do nothing until an operator adds the node again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import grpc.aio as aio
import pytest

from lattice.daemon.mtls import Files, client_credentials
from lattice.errors import Denied, NotFound, Retry
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIG_MAPS, LEASES, NODES, PLANS
from lattice.ledger.plans import PlanRow
from lattice.rpc.v1 import agent_pb2 as pb
from lattice.rpc.v1 import agent_pb2_grpc as rpc
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person
from tests.e2e.test_node_credentials import ask, row_of
from tests.e2e.waiting import Seen, until

THIEF = "nid004"
NODE = {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeNode", "metadata": {"name": THIEF}}


@pytest.fixture
def olga(control_plane: Instance) -> Iterator[Person]:
    """An operator; the node is back at the end."""
    control_plane.add_user("olga", "operations", "operator")
    olga = person(control_plane, "olga", "operations")
    yield olga
    olga.lattice("node", "add", THIEF)
    olga.lattice("node", "enable", THIEF)
    ready(olga)


def ready(olga: Person) -> None:
    until(Seen(lambda: olga.lattice("nodes", THIEF, ok=False).stdout, lambda text: "Ready" in text), within=60, every=0.5)


def coordinates(instance: Instance, row: PlanRow, reporter: str) -> str:
    """What the reporter answers to the thief's certificate."""
    site = instance.site()
    pair = site.pair("agents-ca", f"agent-{THIEF}")
    files = Files(pair.certificate, pair.key, site.authority("agents-ca"))
    target = f"{site.address(reporter)}:{site.agent_port(reporter)}"

    async def asked() -> str:
        options = [("grpc.ssl_target_name_override", reporter)]
        async with aio.secure_channel(target, client_credentials(files), options=options) as channel:
            call = rpc.AgentStub(channel).Coordinate(iter([pb.MemberState(uid=row.uid, attempt=row.attempt, node=THIEF)]))
            with contextlib.suppress(aio.AioRpcError):
                async for _ in call:
                    return "an answer"
            return str((await call.code()).name)

    return asyncio.run(asyncio.wait_for(asked(), 60))


def refusals(instance: Instance) -> int:
    """How often the thief's agent was refused its object."""
    return sum(file.read_text().count("RegistrationFailed") for file in instance.log_files(f"agent-{THIEF}"))


def test_the_stolen_key_of_a_forgotten_node_opens_nothing_until_the_node_is_added_again(
    control_plane: Instance, admin: BlockingCluster, tenant: Room, olga: Person
) -> None:
    alice = person(control_plane, "alice", tenant.namespace)
    alice.apply(
        "shared", nodes=2, entrypoint="sleep 3600", resources={"constraints": {"nodeList": f"nid003,{THIEF}"}},
        lifecycle={"requeue": {"policy": "Never"}},
    )  # fmt: skip
    alice.phase("shared", "Running")
    row, group = row_of(admin, "shared"), admin.get(NODES, THIEF)["spec"]["group"]
    assert ask(control_plane, THIEF, row).work.metadata.name == "shared"
    olga.lattice("node", "disable", THIEF, "--reason=its key was stolen", "--yes")
    alice.ended("shared")
    assert f"Forgotten {THIEF}" in olga.lattice("node", "forget", THIEF, "--timeout=600s", "--yes").stdout

    with contextlib.closing(control_plane.cluster(f"agent-{THIEF}")) as thief:
        attempts: tuple[Callable[[], object], ...] = (
            lambda: thief.create(NODES, NODE),
            lambda: thief.patch(NODES, THIEF, {"status": {"health": "Healthy"}}, subresource="status"),
            lambda: thief.create(LEASES, {"metadata": {"name": THIEF}, "spec": {}}, "lattice-node-lease"),
            lambda: thief.get(LEASES, "nid001", "lattice-node-lease"),
            lambda: thief.list(PLANS),
            lambda: thief.patch(CONFIG_MAPS, "lattice-forgotten-nodes", {"data": {THIEF: None}}, "lattice-system"),
        )
        for attempt in attempts:
            with pytest.raises(Denied):
                attempt()
    with pytest.raises((Denied, NotFound, Retry)):
        ask(control_plane, THIEF, row)
    assert coordinates(control_plane, row, "nid003") in ("PERMISSION_DENIED", "FAILED_PRECONDITION")

    refused = refusals(control_plane)  # its agent still runs, and tries again and again
    until(lambda: refusals(control_plane) >= refused + 2, within=20, every=0.3, what="two more tries of its agent")
    assert THIEF not in {item["metadata"]["name"] for item in admin.list(NODES).items}
    assert olga.lattice("node", "add", THIEF, f"--group={group}").stdout == f"Added {THIEF} (1 node)\n"
    ready(olga)
    alice.apply("again", entrypoint="true", resources={"constraints": {"nodeList": THIEF}})
    assert alice.ended("again")["phase"] == "Completed"
    assert not admin.get(CONFIG_MAPS, "lattice-forgotten-nodes", "lattice-system").get("data")
