"""Follows the cluster for the nodes of a process: their own objects, their plans, the LatticeConfig.

A real node watches three objects by name, which is the cheap kind of watch. A process of hollow nodes watches the kinds once, and passes on
what concerns each of its nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from lattice.daemon.logs import event
from lattice.errors import Corrupt
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change, Informer
from lattice.kube.lasting import LastKnown
from lattice.kube.resources import CONFIGS, NODES, PLANS
from lattice.ledger.plans import PlanRow, parse_plan, plan_name
from lattice.units import parse_duration
from lattice.views.cluster import Config, ConfigSpec, Node
from lattice.views.ledger import Plan
from lattice_agent.lifecycle.events import PlanRead
from lattice_agent.node.agent import Agent
from lattice_agent.node.queues import WorkQueues

log = logging.getLogger(__name__)

CONFIG_NAME = "lattice"


class Configuration:
    """Follows the LatticeConfig: its last options, the defaults until it was read."""

    def __init__(
        self, cluster: Cluster, clock: Clock, *, heartbeat_seconds: float = 0.0, retimed: Callable[[], None] = lambda: None
    ) -> None:
        """Calls `retimed` when the heartbeat interval has changed: the one under way may be longer than the new timeout."""
        self._heartbeat_seconds = heartbeat_seconds
        self._retimed = retimed
        self._known = LastKnown[Config](CONFIG_NAME)
        self._informer: Informer[Config] = Informer(
            cluster, CONFIGS, type=Config, clock=clock, fields=f"metadata.name={CONFIG_NAME}", on_change=self._changed
        )

    def _changed(self, change: Change[Config]) -> None:
        """Keeps a changed LatticeConfig, and calls `retimed` where its heartbeat interval is another."""
        before = self.spec()
        self._known.heard(change)
        after = self.spec()
        if before.nodes.heartbeat_interval != after.nodes.heartbeat_interval:
            self._retimed()

    async def run(self) -> None:
        """Follows the LatticeConfig until cancelled."""
        await self._informer.run()

    def spec(self) -> ConfigSpec:
        """Returns the LatticeConfig's options as they were last read, also after its deletion; the defaults before."""
        return self._known.object.spec if self._known.object is not None else ConfigSpec()

    def heartbeat(self) -> float:
        """Returns the seconds between two heartbeats: those of this process's settings, else (0) those of the LatticeConfig."""
        return self._heartbeat_seconds or parse_duration(self.spec().nodes.heartbeat_interval)


class Feed:
    """Passes each node of the process its plan, once the scheduler has given the node an index."""

    def __init__(self, cluster: Cluster, clock: Clock, queues: WorkQueues, agents: dict[str, Agent], *, only: str = "") -> None:
        self._cluster = cluster
        self._clock = clock
        self._queues = queues
        self._agents = agents
        self._only = only
        fields = f"metadata.name={only}" if only else ""
        self._nodes: Informer[Node] = Informer(cluster, NODES, type=Node, clock=clock, fields=fields, on_change=self._node_changed)
        self._plans: Informer[Plan] | None = None
        self._indexed = asyncio.Event()
        self._groups: dict[str, list[Agent]] = {}
        self._unread: set[str] = set()

    async def run(self) -> None:
        """Follows nodes and, once one of them has an index, plans, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            await self._indexed.wait()
            name = next(iter(self._groups))
            fields = f"metadata.name={name}" if self._only else ""
            self._plans = Informer(self._cluster, PLANS, type=Plan, clock=self._clock, fields=fields, on_change=self._plan_changed)
            group.create_task(self._plans.run())
            await self._plans.synced.wait()
            for agents in list(self._groups.values()):
                for agent in agents:
                    self._hand(agent)

    # ── the nodes' own objects ──────────────────────────────────────────────────────────────────────────────────

    def _node_changed(self, change: Change[Node]) -> None:
        """Follows the LatticeNode of one of the process's nodes: notes a recovery's question, queues a registration where it is due, and
        joins the plan of a new index.
        """
        agent = self._agents.get(change.key)
        if agent is None:
            return
        agent.history.wanted = change.new.status.recovery if change.new is not None else None
        if change.new is None or change.new.status.instance == "" or agent.history.owed:
            self._queues.queue_registration(agent.node)
        index = change.new.status.index if change.new is not None else None
        if index is None or agent.index == index:
            return
        if agent.index is not None:
            event(log, "IndexChanged", logging.WARNING, node=agent.node, before=agent.index, after=index)
            self._groups[plan_name(agent.index)].remove(agent)
        agent.index = index
        self._groups.setdefault(plan_name(index), []).append(agent)
        self._indexed.set()
        self._hand(agent)

    # ── the plans ───────────────────────────────────────────────────────────────────────────────────────────────

    def _hand(self, agent: Agent) -> None:
        """Passes a node its first plan once all plans are listed, or tells it that there is none; does nothing for a node that knows."""
        if agent.planned or agent.index is None or self._plans is None or not self._plans.synced.is_set():
            return
        plan = self._plans.objects.get(plan_name(agent.index))
        if plan is None:
            agent.no_plan()
        else:
            self._read(plan, [agent])

    def _plan_changed(self, change: Change[Plan]) -> None:
        """Passes a changed plan to its nodes; a deleted one is only logged."""
        if change.new is None:
            event(log, "PlanGone", logging.WARNING, plan=change.key, message="what runs goes on; the scheduler writes the plan again")
            return
        self._read(change.new, self._groups.get(change.key, []))

    def _read(self, plan: Plan, agents: list[Agent]) -> None:
        """Passes each agent its rows of a plan; a plan that does not parse is reported to them, and followed by none."""
        try:
            rows = rows_by_node(plan)
        except Corrupt as error:
            event(log, "PlanUnreadable", logging.ERROR, plan=plan.metadata.name, reason=error.reason, message=error.message)
            for agent in agents:
                agent.unreadable_plan()
            return
        for agent in agents:
            agent.plan(read_as(plan, rows.get(agent.node, ())), call=plan.spec.call)


def read_as(plan: Plan, rows: Iterable[PlanRow]) -> PlanRead:
    """Returns the event that tells a node's state machine of a plan, with the given ones of its rows."""
    spec = plan.spec
    return PlanRead(spec.seq, tuple(rows), spec.epoch, spec.term, spec.since)


def rows_by_node(plan: Plan) -> dict[str, list[PlanRow]]:
    """Returns a plan's rows by the name of every node that they name; raises Corrupt where the plan does not parse."""
    found: dict[str, list[PlanRow]] = {}
    if plan.spec.text:
        for row in parse_plan(plan.spec.text):
            for node in row.nodes:
                found.setdefault(node, []).append(row)
    return found
