"""Nodes and a gateway over real gRPC with real certificates on loopback."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from lattice.daemon.clock import SystemClock
from lattice.daemon.mtls import Files
from lattice.errors import Denied, Retry
from lattice.ledger.plans import PlanRow
from lattice.views import Node
from lattice_agent.cluster.work_source import GatewayWorkSource
from lattice_dev import ports
from lattice_dev.pki import Authority, Identity
from lattice_gateway import nodes
from lattice_gateway.metrics import Metrics
from lattice_gateway.nodes import WorkService
from lattice_gateway.scripts import Scripts
from lattice_gateway.variables import Secrets
from tests.unit.gateway.test_works import Site, row


def node(name: str, *, hollow: bool) -> Node:
    return msgspec.convert({"metadata": {"name": name}, "status": {"hollow": hollow}}, Node)


class Net:
    """Certificates of one site, and gateways that serve it."""

    def __init__(self, path: Path) -> None:
        self.site = Site()
        self.authority = Authority(path, "agents-ca", time.time())
        self.stranger = Authority(path, "other-ca", time.time())
        self.nodes = {"n1": node("n1", hollow=False), "n2": node("n2", hollow=True)}
        self.metrics = Metrics()

    def files(self, name: str, host: str = "", *, authority: Authority | None = None) -> Files:
        by = authority or self.authority
        identity = Identity(name, hosts=(host,) if host else (), server=bool(host))
        pair, _ = by.issue(f"{name}-{host}".replace(":", "-"), identity)
        return Files(pair.certificate, pair.key, self.authority.pair.certificate)

    @asynccontextmanager
    async def gateway(self, address: str, *, name: str = "lattice:gateway", host: str = "lattice-gateway") -> AsyncIterator[None]:
        secrets, scripts = Secrets(self.site.cluster, self.site.clock), Scripts(self.site.cluster, self.site.clock)
        service = WorkService(self.site.works, secrets, scripts, self.nodes, SystemClock(), self.metrics)
        task = asyncio.ensure_future(nodes.serve(address, self.files(name, host), service))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @asynccontextmanager
    async def asking(self, name: str, *addresses: str, authority: Authority | None = None) -> AsyncIterator[GatewayWorkSource]:
        works = GatewayWorkSource(addresses, self.files(name, authority=authority))
        try:
            yield works
        finally:
            await works.close()

    async def work(self) -> PlanRow:
        """Work of n1 and n2."""
        placed = row(await self.site.submit("job", attempt=1), "n1", "n2")
        await self.site.plan(placed)
        return placed


@pytest.fixture
def address() -> Iterator[str]:
    """Where nobody else listens or connects from."""
    with ports.claimed(1) as (port,):
        yield f"127.0.0.1:{port}"


@pytest.fixture
def nobodys() -> Iterator[str]:
    """Where nobody listens."""
    with ports.claimed(1) as (port,):
        yield f"127.0.0.1:{port}"


async def listening(address: str) -> None:
    """Until a gateway listens there."""
    host, _, port = address.partition(":")
    async with asyncio.timeout(60):
        while True:
            with socket.socket() as probe:
                if probe.connect_ex((host, int(port))) == 0:
                    return
            await asyncio.sleep(0.01)


async def answered(works: GatewayWorkSource, node_name: str, placed: PlanRow) -> str:
    """The script, once the gateway listens."""
    async with asyncio.timeout(60):
        while True:
            with suppress(Retry):
                return str((await works.find_work(node_name, placed)).work.spec.script)


async def test_a_node_is_answered_for_itself_alone(tmp_path: Path, address: str) -> None:
    net = Net(tmp_path)
    placed = await net.work()
    async with net.gateway(address), net.asking("lattice:agent:n1", address) as works:
        assert "# job" in await answered(works, "n1", placed)
        with pytest.raises(Denied) as caught:
            await works.find_work("n2", placed)
        assert caught.value.reason == "NotYourNode"
    # The gateway counts after it has answered: once it has ended, it has counted.
    assert net.metrics.requests.labels("GetWork", "PERMISSION_DENIED")._value.get() == 1


async def test_a_process_of_hollow_nodes_speaks_for_hollow_nodes_only(tmp_path: Path, address: str) -> None:
    net = Net(tmp_path)
    placed = await net.work()
    async with net.gateway(address), net.asking("lattice:hollow", address) as works:
        assert "# job" in await answered(works, "n2", placed)
        with pytest.raises(Denied):
            await works.find_work("n1", placed)


@pytest.mark.parametrize("name", ["lattice:gateway", "lattice:scheduler", "alice", "lattice:agent:n3"])
async def test_nobody_else_is_answered(tmp_path: Path, address: str, name: str) -> None:
    net = Net(tmp_path)
    placed = await net.work()
    async with net.gateway(address), net.asking("lattice:agent:n1", address) as works, net.asking(name, address) as other:
        await answered(works, "n1", placed)
        with pytest.raises(Denied):
            await other.find_work("n1", placed)


async def test_a_node_that_is_not_registered_any_more_gets_nothing(tmp_path: Path, address: str) -> None:
    net = Net(tmp_path)
    placed = await net.work()
    async with net.gateway(address), net.asking("lattice:agent:n1", address) as works:
        await answered(works, "n1", placed)
        net.nodes.pop("n1")
        with pytest.raises(Retry, match="NodeUnknown: node n1 is not registered, or was forgotten"):
            await works.find_work("n1", placed)


async def test_a_certificate_of_another_authority_is_not_heard(tmp_path: Path, address: str) -> None:
    net = Net(tmp_path)
    placed = await net.work()
    async with (
        net.gateway(address), net.asking("lattice:agent:n1", address) as works,
        net.asking("lattice:agent:n2", address, authority=net.stranger) as forged,
    ):  # fmt: skip
        await answered(works, "n1", placed)
        with pytest.raises(Retry):
            await forged.find_work("n2", placed)


async def test_another_server_is_not_taken_for_a_gateway(tmp_path: Path, address: str) -> None:
    net = Net(tmp_path)
    placed = await net.work()
    async with net.gateway(address, name="lattice:agent:n9", host="n9"), net.asking("lattice:agent:n1", address) as works:
        await listening(address)
        with pytest.raises(Retry) as caught:
            await works.find_work("n1", placed)
        assert caught.value.reason == "GatewayAway"


async def test_another_gateway_answers_when_one_is_away(tmp_path: Path, address: str, nobodys: str) -> None:
    net, there, away = Net(tmp_path), address, nobodys
    placed = await net.work()
    async with net.asking("lattice:agent:n1", away, there) as works:
        with pytest.raises(Retry) as caught:
            await works.find_work("n1", placed)
        assert away in caught.value.message
        assert there in caught.value.message
        async with net.gateway(there):
            assert "# job" in await answered(works, "n1", placed)
