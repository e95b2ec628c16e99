"""A site of hollow nodes on a fake API server: the test plays the scheduler, everything else is what runs."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from lattice.daemon.clock import ManualClock
from lattice.errors import NotFound, Retry
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import ALLOCATIONS, LEASES, NODE_LEASE_NAMESPACE, NODES, PLANS
from lattice.ledger.plans import PlanRow, format_plan
from lattice.ledger.reports import NodeReport, ReportRow, parse_report
from lattice.units import fold_nodes
from lattice.views.allocation import AllocationStatus, Condition
from lattice.views.work import Work as Allocation
from lattice_agent.__main__ import AgentSettings, NodeSetup, ProcessSetup, build
from lattice_agent.cluster.registration import NodeDescription
from lattice_agent.cluster.work_source import FetchedWork, WorkCache
from lattice_agent.host.hollow import HollowHost, HollowTimers
from lattice_agent.host.interface import MachineFacts
from lattice_agent.metrics import AgentMetrics
from lattice_agent.node.agent import Agent, Outside
from lattice_agent.peers.local import LocalPeers
from tests.build import uid
from tests.unit.agent.lifecycle.story import assert_replays

BEAT = 10.0
NEVER_MADE = Path(tempfile.gettempdir()) / "lattice-site-never-made"
"""A state directory in which nothing is written while no agent fails."""
FACTS = MachineFacts(8, 1 << 34, "6.1", "x86_64", "boot-1")


class AilingHost(HollowHost):
    """A hollow node in which the test finds flaws, by its name."""

    flaws: dict[str, str]
    unlimited: dict[str, str]

    async def flaw(self) -> str:
        """What the test says."""
        return self.flaws.get(self._node, "")

    async def unenforced(self) -> str:
        """What the test says of limits."""
        return self.unlimited.get(self._node, "")


class GatewayOf:
    """A gateway that has every right; the test says when it is away."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.away = False
        self.refusal = ""
        self.asked = 0
        self._cluster = cluster

    async def find_work(self, node: str, row: PlanRow, *, stale: str = "", variables: bool = False) -> FetchedWork:
        """The Allocation as the API server has it."""
        self.asked += 1
        if self.away:
            raise Retry("no gateway gives the work", reason="GatewayAway")
        read = await self._cluster.get(ALLOCATIONS, row.name, row.namespace)
        if read["metadata"]["uid"] != row.uid:
            raise NotFound(f"allocation {row.namespace}/{row.name} is another object now")
        return FetchedWork(msgspec.convert(read, Allocation), read.get("status", {}), {} if variables else None, self.refusal)


class Site:
    """Nodes, the orders that the test gives, and what came of them."""

    def __init__(self, nodes: Sequence[str], state_dir: Path = NEVER_MADE) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(self.clock)
        self.nodes = list(nodes)
        self.agents: dict[str, Agent] = {}
        self.peers = LocalPeers(self.clock)
        self.gateway = GatewayOf(self.cluster)
        self.works = WorkCache(self.gateway)
        self.flaws: dict[str, str] = {}
        self.unlimited: dict[str, str] = {}
        self.seq = 0
        self.rows: dict[tuple[str, int], PlanRow] = {}
        self.state_dir = state_dir
        self._timers = HollowTimers(self.clock)
        self._process: asyncio.Task[None] | None = None

    # ── the process ─────────────────────────────────────────────────────────────────────────────────────────────

    def place(self, node: str, instance: str) -> NodeSetup:
        host = AilingHost(node, clock=self.clock, timers=self._timers, facts=FACTS, instance=instance)
        host.flaws, host.unlimited = self.flaws, self.unlimited
        me = NodeDescription(node, FACTS, instance, f"{node}:50052", group="g0", hollow=True)
        return NodeSetup(me, Outside(self.cluster, self.clock, host, self.peers, self.works))

    def boot(self, instance: str = "first") -> asyncio.Task[None]:
        """Starts the agents' process."""
        places = tuple(self.place(node, f"{instance}-{node}") for node in self.nodes)
        settings = AgentSettings(
            hollow=len(self.nodes), heartbeat=BEAT, certificate="-", key="-", ca="-", gateway=("gateway:8444",), stimulus_events=200,
            state_dir=self.state_dir,
        )  # fmt: skip

        async def join(agents: dict[str, Agent], _metrics: AgentMetrics) -> None:
            self.agents = agents
            for node, agent in agents.items():
                self.peers.join(node, agent.reporter)
            await self._timers.run()

        self._process = asyncio.ensure_future(build(settings, ProcessSetup(self.cluster, self.clock, places, (join,))))
        return self._process

    async def halt(self) -> None:
        """Ends it, as kill -9 would."""
        if self._process is not None:
            self._process.cancel()
            await asyncio.gather(self._process, return_exceptions=True)
        for node in self.nodes:
            self.peers.leave(node)

    def validate(self) -> None:
        """What must hold of every machine; and what it has gone through, written down, leads another one to the same."""
        for node, agent in self.agents.items():
            agent.machine.validate()
            self.written_stimuli(node)

    def written_stimuli(self, node: str) -> bytes:
        """The text of what the node has gone through, which replays."""
        stimuli = self.agents[node].machine.stimuli
        assert stimuli is not None
        return assert_replays(stimuli)

    # ── the scheduler's part ────────────────────────────────────────────────────────────────────────────────────

    async def index_nodes(self) -> None:
        for index, node in enumerate(self.nodes):
            await self.cluster.patch(NODES, node, {"status": {"index": index}}, subresource="status")

    async def submit(self, number: int = 1, **spec: Any) -> None:
        """Creates an Allocation that nobody has scheduled."""
        body = {
            "apiVersion": ALLOCATIONS.api_version,
            "kind": "Allocation",
            "metadata": {"name": f"job-{number}", "namespace": "physics", "uid": uid(number)},
            "spec": {"tenant": "physics", "user": "alice", "entrypoint": "wait", "lifecycle": {"walltime": "1h", "gracePeriod": "30s"}}
            | spec,
        }
        await self.cluster.create(ALLOCATIONS, body, "physics")

    def held_uid(self, number: int) -> str:
        return str(self.cluster.snapshot(ALLOCATIONS)[f"physics/job-{number}"]["metadata"]["uid"])

    async def place_work(self, number: int, nodes: Sequence[str], *, attempt: int = 1, reporter: str = "") -> None:
        """The plan, and then the status, as the projector writes them."""
        held = self.held_uid(number)
        who = reporter or nodes[0]
        row = PlanRow("run", "", held, attempt, 1, 40 + number, who, f"{who}:50052", "physics", f"job-{number}", nodes[0], tuple(nodes))
        self.rows[(held, attempt)] = row
        await self.publish()
        scheduled = Condition(type="Scheduled", status="True", reason="Placed", last_transition_time="2026-01-01T00:00:00Z")
        status = {
            "attempt": attempt, "reporter": who, "nodes": fold_nodes(nodes), "nodeCount": len(nodes), "head": nodes[0],
            "number": 40 + number, "phase": "Staging", "ledgerSeq": self.seq, "conditions": [msgspec.to_builtins(scheduled)],
        }  # fmt: skip
        await self.cluster.patch(ALLOCATIONS, f"job-{number}", {"status": status}, "physics", subresource="status")

    async def change(self, number: int, *, attempt: int = 1, **fields: Any) -> None:
        """Changes the row of an attempt."""
        key = (self.held_uid(number), attempt)
        self.rows[key] = msgspec.structs.replace(self.rows[key], **fields)
        await self.publish()

    async def withdraw(self, number: int, *, attempt: int = 1) -> None:
        del self.rows[(self.held_uid(number), attempt)]
        await self.publish()

    async def publish(self, *, seq: int | None = None, call: int = 0) -> None:
        self.seq = self.seq + 1 if seq is None else seq
        body = {"apiVersion": PLANS.api_version, "kind": PLANS.kind, "metadata": {"name": "group-0000"}}
        spec = {"seq": self.seq, "text": format_plan(self.rows.values()), "call": call}
        if "group-0000" in self.cluster.snapshot(PLANS):
            await self.cluster.patch(PLANS, "group-0000", {"spec": spec})
        else:
            await self.cluster.create(PLANS, body | {"spec": spec})

    # ── what is seen ────────────────────────────────────────────────────────────────────────────────────────────

    def status(self, number: int = 1) -> AllocationStatus:
        found = self.cluster.snapshot(ALLOCATIONS)[f"physics/job-{number}"].get("status", {})
        return msgspec.convert(found, AllocationStatus)

    def reason(self, number: int = 1) -> str:
        """The reason of Finished; empty: it is not written."""
        return next((entry.reason for entry in self.status(number).conditions if entry.type == "Finished"), "")

    def report(self, node: str) -> NodeReport:
        lease = self.cluster.snapshot(LEASES)[f"{NODE_LEASE_NAMESPACE}/{node}"]
        return parse_report(lease["metadata"]["annotations"]["lattice.dev/report"])

    def reported(self, node: str) -> list[str]:
        return [row.state + row.detail for row in self.report(node).rows]

    def rows_of(self, node: str) -> tuple[ReportRow, ...]:
        return self.report(node).rows

    def status_writes(self, number: int = 1) -> int:
        """What the reporter has written of the Allocation."""
        return len([sent for sent in self.cluster.writes(ALLOCATIONS) if sent.name == f"job-{number}" and sent.verb == "replace"])


@asynccontextmanager
async def running(*nodes: str, state_dir: Path = NEVER_MADE) -> AsyncIterator[Site]:
    """A site whose agents run and report; what must hold of their machines is checked at the end."""
    site = Site(nodes, state_dir)
    process = site.boot()
    try:
        await site.clock.run_for(0.1)
        await site.index_nodes()
        await site.clock.run_for(BEAT)
        yield site
        site.validate()
        if process.done() and not process.cancelled():
            process.result()
    finally:
        await site.halt()
