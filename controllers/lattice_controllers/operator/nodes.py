"""Judges the state of each LatticeNode from its Lease, its health, and operators' drain and disable; writes each change once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from lattice.daemon.announcements import Announcer
from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.daemon.queue import KeyedQueue
from lattice.errors import Corrupt
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change, Informer
from lattice.kube.resources import LEASES, NODE_LEASE_NAMESPACE, NODES
from lattice.ledger.reports import ANNOTATION, NodeReport, parse_report
from lattice.lifecycle import node as machine
from lattice.lifecycle.conditions import FALSE, TRUE, condition, encode, with_condition
from lattice.lifecycle.hardware import deviation, reported
from lattice.lifecycle.heartbeats import Heartbeats
from lattice.lifecycle.node import Facts, Timing, Verdict, judge
from lattice.models.conditions import HEALTHY, READY
from lattice.units import format_time
from lattice.views import Lease, Node
from lattice.views.cluster import Disable, NodeStatus, Wish
from lattice.views.sharing import SharedParts
from lattice_controllers.operator.ledger import LedgerMirror
from lattice_controllers.operator.metrics import OperatorMetrics
from lattice_controllers.operator.running import Running

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
STALL_SECONDS = 5.0
"""A sweep that comes later than this after the last one means that this process stood still: silence then counts from zero."""
DRAIN_SETTLE_SECONDS = 1.0
"""Time after Draining was seen written until no scheduler places there any more from an older cache."""
DRAINED_CHECK_SECONDS = 60.0
_QUIET = frozenset({machine.READY, machine.DRAINING})
"""States in which a heartbeat need not be judged."""
_WARNINGS = frozenset({machine.DEGRADED, machine.DOWN, machine.FAILED})


class NodeObserver(Protocol):
    """Is told that nodes changed; `VClusters` is the implementation."""

    def nodes_changed(self) -> None:
        """Is called when nodes have appeared, vanished, or changed group or state."""


class NameObserver(Protocol):
    """Is told which LatticeNodes appear and vanish; `Agents` is the implementation."""

    def came_or_went(self, node: str) -> None:
        """Receives the name of a LatticeNode that was made or deleted."""


class NodeStates:
    """Reconciles the state of LatticeNodes: follows them and their Leases, keeps the time of each heartbeat, and judges nodes one by one.

    `unheard` is called each second with the number of nodes expected to report that this process has not heard yet.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        ledger: LedgerMirror,
        announcer: Announcer,
        measured: OperatorMetrics,
        unheard: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self.timing = Timing()
        self.beats = Heartbeats()
        self.running = Running(clock)
        self.informer: Informer[Node] = Informer(cluster, NODES, type=Node, clock=clock, on_change=self._on_node, share=SharedParts().node)
        self.leases: Informer[Lease] = Informer(
            cluster, LEASES, type=Lease, clock=clock, namespace=NODE_LEASE_NAMESPACE, on_change=self._on_lease
        )
        self.queue = KeyedQueue(self.reconcile, clock, workers=16, name="nodes")
        self._cluster = cluster
        self._clock = clock
        self._ledger = ledger
        self._announcer = announcer
        self._measured = measured
        self.observers: list[NodeObserver] = []
        self.name_observers: list[NameObserver] = []
        self._unheard = unheard
        self._states: Counter[str] = Counter()
        self._begun: dict[str, tuple[str, float]] = {}
        self._swept = clock.monotonic()
        self._resumed = float("-inf")

    def _tell_observers(self) -> None:
        """Tells every observer that nodes appeared, vanished, or changed group or state."""
        for observer in self.observers:
            observer.nodes_changed()

    def retime(self, timing: Timing) -> None:
        """Sets the timeouts by which nodes are judged; where they changed, enqueues every node to be judged anew."""
        if timing != self.timing:
            self.timing = timing
            for name in self.informer.objects:
                self.queue.add(name)

    async def run(self) -> None:
        """Follows LatticeNodes and their Leases, and judges nodes as they change or fall silent (`sweep`, each second), until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.informer.run())
            group.create_task(self.leases.run())
            await asyncio.gather(self.informer.synced.wait(), self.leases.synced.wait())
            self._swept = self._clock.monotonic()
            group.create_task(self.queue.run())
            while True:
                await self.sweep()
                await self._clock.sleep(SWEEP_SECONDS)

    def since(self, now: float) -> float:
        """Returns the time from which silence counts (monotonic): after the last gap in the watch of Leases or standstill of this process.

        Equal to `now` while the watch is lost: nobody counts as silent.
        """
        if self.leases.lost or now - self._swept > STALL_SECONDS:
            return now
        return max(self.leases.continuous_since, self._resumed)

    async def sweep(self) -> None:
        """Enqueues nodes whose state may change with time alone (silence, boot timeouts, drains, for which it reads the ledger); updates
        the count of silent nodes.

        Calls `unheard` with the number of nodes that are expected to report and that this process has not heard.
        """
        now = self._clock.monotonic()
        if now - self._swept > STALL_SECONDS:
            self._resumed = now
        self._swept = now
        expected = sum(self._states[state] for state in machine.EXPECTED)
        silent = self.beats.sweep(now, self.since(now), self.timing, expected, self._is_expected)
        self._unheard(self.beats.unheard(self.since(now), self._is_expected))
        self._measured.silent.set(len(silent))
        for name in silent:
            node = self.informer.objects[name]
            facts = self._facts(node, now)
            if self._is_news(node, facts, judge(facts, self.timing)):
                self.queue.add(name)
        draining = [name for name, (state, _) in self._begun.items() if state in (machine.DRAINING, machine.DRAINED, machine.BOOTING)]
        await self._look_at(draining, now)

    async def _look_at(self, names: list[str], now: float) -> None:
        """Enqueues, of the named draining, drained and booting nodes, those whose boot has timed out, and all draining and drained ones
        while any drains, or was drained within the last minute.

        Reads the ledger once before the latter; an error of the API server in that is logged.
        """
        asking = False
        for name in names:
            state, begun = self._begun[name]
            if state == machine.BOOTING:
                if now - begun >= self.timing.boot_timeout:
                    self.queue.add(name)
            elif state == machine.DRAINING or now - begun < DRAINED_CHECK_SECONDS:
                asking = True
        if not asking:
            return
        await self._ledger.refresh()
        for name in names:
            if self._begun.get(name, ("", 0.0))[0] != machine.BOOTING:
                self.queue.add(name)

    async def reconcile(self, name: str) -> float | None:
        """Judges the state of one node and writes the verdict where its state, reason or generation is new; an unknown node is ignored.

        Always returns None: events and `sweep` enqueue the node again.
        """
        node = self.informer.objects.get(name)
        if node is None:
            return None
        now = self._clock.monotonic()
        facts = replace(self._facts(node, now), holders=await self._holders(node))
        verdict = judge(facts, self.timing)
        if not self._is_news(node, facts, verdict):
            return None
        await self._publish(node, facts, verdict)
        return None

    async def _holders(self, node: Node) -> int | None:
        """Returns how many ledger rows hold a draining or drained node, 0 where it has no index.

        None: its state is another one, the Ledger is lost, or its last reading began less than 1 s after this process saw that state.
        """
        state, begun = self._begun.get(node.metadata.name, ("", 0.0))
        if state not in (machine.DRAINING, machine.DRAINED) or state != node.status.state:
            return None
        if self._ledger.begun < begun + DRAIN_SETTLE_SECONDS:
            return None
        return 0 if node.status.index is None else await self._ledger.holders_of_node(node.status.index)

    def _facts(self, node: Node, now: float) -> Facts:
        """Gathers what a node is judged by, except how many rows hold it: state, wishes of operators, health, heartbeat, time in
        the state.
        """
        name, spec, status = node.metadata.name, node.spec, node.status
        state, begun = self._begun.get(name, (status.state, now))
        return Facts(
            state=status.state,
            drain=_wish(spec.drain),
            disable=_wish(spec.disable),
            has_index=status.index is not None,
            has_fingerprint=bool(status.fingerprint),
            healthy=status.health == "Healthy",
            flaw=_flaw(status),
            deviation=deviation(node),
            pulse=self.beats.pulse(name, now, self.since(now)),
            in_state=now - begun if state == status.state else 0.0,
        )

    def _is_news(self, node: Node, facts: Facts, verdict: Verdict) -> bool:
        """Tells whether the verdict is to be written: its state, reason or generation differs from the written one, or hardware is to be
        accepted.

        A process that has just started and not heard the node yet does not overwrite a reason.
        """
        written = condition(node.status.conditions, READY)
        if verdict.path or written is None or _is_new(node) or node.status.observed_generation != node.metadata.generation:
            return True
        unheard = not facts.pulse.heard and facts.pulse.silence < self.timing.timeout
        return written.reason != verdict.reason and not unheard  # a fresh start knows less than what stands written

    async def _publish(self, node: Node, facts: Facts, verdict: Verdict) -> None:
        """Writes the verdict: one status patch, which accepts hardware that is reported for the first time, one log line, and an Event
        where the state changed.

        Raises Stale where the node has changed since it was judged.
        """
        metadata, now = node.metadata, format_time(self._clock.now())
        status = TRUE if verdict.ready else FALSE
        conditions = with_condition(
            node.status.conditions, READY, status, verdict.reason, verdict.message, generation=metadata.generation, now=now
        )
        written: dict[str, Any] = {
            "state": verdict.state,
            "heartbeat": facts.pulse.number,
            "observedGeneration": metadata.generation,
            "conditions": encode(conditions),
        }
        if verdict.path or not node.status.since:
            written["since"] = now
        if _is_new(node):
            written["accepted"] = reported(node.status.capabilities)
        patch = {"metadata": {"resourceVersion": metadata.resource_version}, "status": written}
        await self._cluster.patch(NODES, metadata.name, patch, subresource="status")
        event(
            log,
            "NodeState",
            node=metadata.name,
            state=verdict.state,
            path=">".join(verdict.path),
            reason=verdict.reason,
            message=verdict.message,
        )
        if verdict.path:
            self._measured.transitions.labels(verdict.state).inc()
            warning = verdict.state in _WARNINGS
            await self._announcer.announce(
                NODES, metadata, verdict.reason, f"{verdict.state}: {verdict.message}", action="Judge", warning=warning
            )

    def _is_expected(self, name: str) -> bool:
        """Tells whether a node, by name, is in a state in which it must report; False for an unknown node."""
        return self._state_of(name) in machine.EXPECTED

    def _state_of(self, name: str) -> str:
        """Returns the state in a node's status, by name; empty for an unknown node."""
        node = self.informer.objects.get(name)
        return node.status.state if node is not None else ""

    def _on_node(self, change: Change[Node]) -> None:
        """Handles a changed LatticeNode: counts its state, notes since when it is in it, tells observers, and enqueues it to be judged."""
        now, old, new = self._clock.monotonic(), change.old, change.new
        if old is None or new is None:
            for observer in self.name_observers:
                observer.came_or_went(change.key)
        if old is not None:
            self._count(old.status.state, -1)
        if new is None:
            self.beats.remove_node(change.key)
            self._begun.pop(change.key, None)
            self._tell_observers()
            return
        if new.status.index is not None:
            self._ledger.expect()
        self._count(new.status.state, 1)
        self.beats.expect(change.key, now)
        if self._begun.get(change.key, ("", 0.0))[0] != new.status.state:
            self._begun[change.key] = (new.status.state, now)
        if old is None or (old.status.state, old.spec.group) != (new.status.state, new.spec.group):
            self._tell_observers()
        self.queue.add(change.key)

    def _count(self, state: str, step: int) -> None:
        """Adds a step (1 or −1) to the number of nodes in a state, also in the metric."""
        self._states[state] += step
        self._measured.nodes.labels(state).set(self._states[state])

    def _on_lease(self, change: Change[Lease]) -> None:
        """Notes a heartbeat and, except at the first sight of a Lease, the attempts that its report names as running or ending; a deleted
        Lease is ignored.

        Enqueues a known node that is neither Ready nor Draining, since a heartbeat may change its state.
        """
        lease = change.new
        if lease is None:
            return
        report, name = _report(lease), lease.metadata.name
        if report is not None and change.old is not None:  # what stood there before this process looked may be old
            self.running.hear(report, lease.spec.renew_time)
        number = report.hb if report is not None else 0
        heard = self.beats.hear(name, lease.metadata.resource_version, number, self._clock.monotonic())
        if heard and name in self.informer.objects and self._state_of(name) not in _QUIET:
            self.queue.add(name)


def _is_new(node: Node) -> bool:
    """Tells whether a node has reported its hardware for the first time: nothing is accepted in its status yet."""
    return node.status.accepted is None and bool(node.status.fingerprint)


def _report(lease: Lease) -> NodeReport | None:
    """Returns the report in a Lease; None where there is none, or where it does not read, which is logged."""
    text = lease.metadata.annotations.get(ANNOTATION)
    if not text:
        return None
    try:
        return parse_report(text)
    except Corrupt as error:
        event(log, "ReportUnreadable", logging.WARNING, node=lease.metadata.name, message=error.message)
        return None


def _flaw(status: NodeStatus) -> str:
    """Returns the agent's sentence on what is wrong with an unhealthy node; empty where it is healthy, or the agent gives none."""
    said = condition(status.conditions, HEALTHY)
    return said.message if status.health == "Unhealthy" and said is not None and said.status == FALSE else ""


def _wish(wish: Wish | Disable | None) -> str | None:
    """Returns an operator's drain or disable as a clause (reason and name); None where there is none."""
    if wish is None:
        return None
    return wish.reason + (f" (by {wish.by})" if wish.by else "")
