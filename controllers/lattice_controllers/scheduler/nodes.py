"""Nodes as the scheduler knows them: their indices, heartbeats and reports, and which of them a cycle may use.

Nothing is claimed on a node before this process has seen the node's Lease change since its own start, or trusts the operator, which has
seen it; nor on a node that still runs work which no plan names. `Nodes` makes the node cache (`NodeCache`), and adds and removes nodes
there; which of them are taken, the cluster state alone says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Protocol

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import Corrupt, NotFound, Retry, Stale
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change
from lattice.kube.resources import CONFIG_MAPS, LEASES, NODE_INDEXES, NODE_LEASE_NAMESPACE, NODES, PLANS
from lattice.ledger import plans
from lattice.ledger.commit import Book
from lattice.ledger.format import Key, Row
from lattice.ledger.plans import NODES_PER_PLAN, plan_name
from lattice.ledger.proposals import Accepted, Pool, Verdict
from lattice.ledger.reports import ANNOTATION, NO_PROCESS_LEFT, PREPARING, READY, UNNAMED, UNSERVED, NodeReport, parse_report
from lattice.ledger.restoration import orders_of, rebuilt_index
from lattice.ledger.starting import AttemptNodeState
from lattice.ledger.steps import DEGRADED, DOWN
from lattice.lifecycle.node import UNKNOWN, Timing
from lattice.scheduling.cluster.node_cache import UNHEARD, NodeCache
from lattice.scheduling.conversion.facts import facts_of, home_groups
from lattice.scheduling.model.hardware import NodeFacts
from lattice.units import format_time
from lattice.views.allocation import SoftwareImage
from lattice.views.cluster import Lease, Node, VCluster
from lattice.views.ledger import NodeIndex, Plan
from lattice_controllers.scheduler.committer import LedgerAccess
from lattice_controllers.scheduler.silence import Silence

log = logging.getLogger(__name__)

FORGET = "lattice.dev/forget"
REALLY_DELETE = "lattice.dev/really-delete"
FORGOTTEN, SYSTEM_NAMESPACE = "lattice-forgotten-nodes", "lattice-system"
"""The ConfigMap, and its namespace, of the names of forgotten nodes, which may not register again by themselves."""
REMEMBERED_SECONDS = 2.0
"""Time until every API server refuses the agent of a name written there; only then is its LatticeNode deleted."""
INDEX_NAME = "lattice"
NOBODY: frozenset[str] = frozenset()
TOLD_AT_ONCE = 32
"""Nodes whose status is given its index at a time."""


class NodeObserver(Protocol):
    """Is told of changes on nodes; `Term` is the implementation."""

    def holders_touched(self, uids: Iterable[str]) -> None:
        """Receives the uids of allocations that hold a node which has changed."""
        ...

    def plans_touched(self, groups: Iterable[str]) -> None:
        """Receives the names of plans whose text may have to change."""
        ...

    def report_heard(self, node: str, report: NodeReport) -> None:
        """Receives a node's newest report, as read from its Lease."""
        ...

    def caches_changed(self) -> None:
        """Is told that the image cache of a node has become full, is full no more, or holds other images."""
        ...


class Nodes:
    """All nodes of the cluster: their objects, indices and reports, and the node cache made from them.

    Its `observers` are told of changes; `cycle_due` is set when nodes may have become free. `book` says which allocation holds a node.
    `seen` names the nodes whose Lease has changed under this process.
    """

    def __init__(self, cluster: Cluster, clock: Clock, book: Book, cycle_due: asyncio.Event) -> None:
        self.observers: list[NodeObserver] = []
        self.node_cache = NodeCache()
        self.names: dict[int, str] = {}
        self.indices: dict[str, int] = {}
        self.nodes: dict[str, Node] = {}
        self.reports: dict[str, NodeReport] = {}
        self.seen: set[str] = set()
        self.trusted = False
        """True once the operator is known to live and to have heard every node that it calls Ready: Ready then means alive (`trust`)."""
        self.unanswered: frozenset[str] = frozenset()
        """Nodes that were away in a recovery and still owe their journal: nothing is placed or ended there."""
        self.silence = Silence()
        """Which nodes are silent among those that the operator does not judge."""
        self._cluster = cluster
        self._clock = clock
        self._book = book
        self._cycle_due = cycle_due
        self._vouched: dict[str, dict[Key, float]] = {}
        self._prepared: dict[str, dict[Key, float]] = {}
        self._unserved: dict[str, dict[Key, float]] = {}
        self._heard_at: dict[str, float] = {}
        self._index_version = ""
        self._leases_synced = False
        self._homes: dict[str, str] = {}
        self._full: dict[str, frozenset[str]] = {}
        """The images, by digest, of each node whose image cache is full."""

    # -- what informers tell ------------------------------------------------------------------------

    def leases_synced(self) -> None:
        """Notes that the first list of Leases has been read: a Lease that appears from now on is a sign of life."""
        self._leases_synced = True

    def on_node(self, change: Change[Node]) -> None:
        """Handles a changed LatticeNode: updates the node cache, and tells observers of a changed image cache, of a plan whose format or
        address changed, and of who holds a node whose state, spec or address changed.
        """
        if change.new is None:
            self.nodes.pop(change.key, None)
        else:
            self.nodes[change.key] = change.new
        self._refresh(change.key)
        before, after = change.old, change.new
        self._note_cache(change.key, before, after)
        if _plan_format(before) != _plan_format(after) and change.key in self.indices:
            self._replan([plan_name(self.indices[change.key])])
        if before is None or after is None or before.status.state != after.status.state or before.spec != after.spec:
            self._touch(change.key)
        if before is not None and after is not None and before.status.address != after.status.address and change.key in self.indices:
            self._replan([plan_name(self.indices[change.key])])
            self._touch(change.key)

    def _note_cache(self, name: str, before: Node | None, after: Node | None) -> None:
        """Keeps the images of a node whose cache is full, and tells observers of a change."""
        held = after.status.cached_images if after is not None else None
        if held is None:
            self._full.pop(name, None)
        else:
            self._full[name] = frozenset(held)
        if held != (before.status.cached_images if before is not None else None):
            for observer in self.observers:
                observer.caches_changed()

    def without_room_for(self, images: Sequence[SoftwareImage]) -> int:
        """Returns the nodes, as a bit set, whose image cache is full and lacks one of these images."""
        if not images or not self._full:
            return 0
        wanted = {image.digest for image in images}
        full = (self.indices[name] for name, held in self._full.items() if name in self.indices and not wanted <= held)
        return reduce(or_, (1 << index for index in full), 0)

    def on_lease(self, change: Change[Lease]) -> None:
        """Handles a changed Lease of a node: notes the heartbeat, and reads the node's report from the annotation, if any; a deleted Lease
        is ignored.

        Updates the node cache, and tells observers of the report and of what it changes. A report that does not read is logged, not
        raised.
        """
        name = change.key.partition("/")[2]
        if change.new is None:
            return
        if change.old is not None or self._leases_synced:
            self.seen.add(name)
        if self.silence.note_heartbeat(name, change.new.metadata.resource_version, self._clock.monotonic()):
            self._touch(name)
        text = change.new.metadata.annotations.get(ANNOTATION)
        if not text:
            return
        try:
            report = parse_report(text)
        except Corrupt as error:
            event(log, "A node's report cannot be read", node=name, reason=error.reason, message=error.message)
            return
        before = self.reports.get(name)
        self.reports[name] = report
        self._heard_at[name] = self._clock.monotonic()
        for observer in self.observers:
            observer.report_heard(name, report)
        self._note_since(name, self._vouched, {(row.uid, row.attempt) for row in report.rows if row.state in NO_PROCESS_LEFT})
        ready = {(row.uid, row.attempt) for row in report.rows if (row.state, row.detail) == (PREPARING, READY)}
        self._note_since(name, self._prepared, ready)
        unserved = {(row.uid, row.attempt) for row in report.rows if (row.state, row.detail) == (PREPARING, UNSERVED)}
        self._note_since(name, self._unserved, unserved, self._clock.now())
        self._refresh(name)
        if before is None or (before.rows, before.away, before.boot) != (report.rows, report.away, report.boot):
            self._holders_touched([row.uid for row in report.rows])
            self._touch(name)
            if name in self.indices and _unnamed(before) != _unnamed(report):
                self._replan([plan_name(self.indices[name])])

    def sweep(self, since: float, timing: Timing) -> None:
        """Finds the silent nodes among those that hold work and that the operator does not judge; tells observers where that changed.

        Silence is counted from `since` (monotonic) at the earliest: before, the watch of Leases was not continuous.
        """
        known = [name for index, name in self.names.items() if self._unjudged(name) and index in self._book.holders]
        for name in self.silence.sweep(known, self._clock.monotonic(), since, timing, len(self.indices)):
            event(log, "A node without an object is silent", node=name, down=name in self.silence.lost)
            self._touch(name)

    def _unjudged(self, name: str) -> bool:
        """Tells whether the operator does not judge a node: it has no LatticeNode, or a new one whose agent has not been heard yet."""
        node = self.nodes.get(name)
        return node is None or node.status.state in ("", UNKNOWN)

    def _note_since(self, name: str, since: dict[str, dict[Key, float]], keys: set[Key], now: float | None = None) -> None:
        """Keeps in `since` when the node first said something of each of these attempts, and drops all other attempts.

        Times are monotonic unless `now` is given.
        """
        now, before = self._clock.monotonic() if now is None else now, since.pop(name, {})
        if keys:
            since[name] = {key: before.get(key, now) for key in keys}

    def _touch(self, name: str) -> None:
        """Tells observers which allocation holds a node, by its name, that has changed; nobody is told where none holds it, or it has no
        index.
        """
        index = self.indices.get(name)
        if index is not None and index in self._book.holders:
            uid, _ = self._book.holders[index]
            self._holders_touched([uid])

    def _holders_touched(self, uids: Sequence[str]) -> None:
        """Tells every observer which allocations, by uid, hold a node that has changed."""
        for observer in self.observers:
            observer.holders_touched(uids)

    def _replan(self, groups: Collection[str]) -> None:
        """Tells every observer which plans, by name, may need another text."""
        for observer in self.observers:
            observer.plans_touched(groups)

    def on_vclusters(self, vclusters: Iterable[VCluster]) -> None:
        """Sets the home vcluster of every node anew, by the groups of nodes that these VClusters declare."""
        homes = home_groups(vclusters)
        if homes == self._homes:
            return
        self._homes = homes
        for name in list(self.nodes):
            self._refresh(name)

    # -- what others ask ----------------------------------------------------------------------------

    def standing(self, row: Row, index: int) -> AttemptNodeState:
        """Returns the state of one node of a row, from its object, heartbeat and report, for the decision of `lattice.ledger.steps`; an
        unknown node has an empty one.

        It is down while operators disable it; else where the operator says so of the last heartbeat, or, of a node that he does not
        judge, after long silence, but never while it owes its journal to a recovery.
        """
        name = self.names.get(index, f"index-{index}")
        node, report = self.nodes.get(name), self.reports.get(name)
        entry = next((entry for entry in report.rows if (entry.uid, entry.attempt) == row.key), None) if report else None
        disable = node.spec.disable if node else None
        state = node.status.state if node else ""
        judged = node is not None and (report is None or node.status.heartbeat == report.hb)
        unjudged = self._unjudged(name)
        now = self._clock.monotonic()
        return AttemptNodeState(
            name=name,
            down=disable is not None
            or (name not in self.unanswered and (name in self.silence.lost if unjudged else state == DOWN and judged)),
            disabled=disable is not None,
            fenced=disable is not None and disable.fenced,
            silent=name in self.silence.silent if unjudged else state in (DOWN, DEGRADED),
            state=entry.state if entry else "",
            detail=entry.detail if entry else "",
            at_walltime=entry.at_walltime if entry else False,
            vouched_seconds=now - self._vouched.get(name, {}).get(row.key, now),
            prepared_seconds=now - self._prepared.get(name, {}).get(row.key, now),
            unserved_since=self._unserved.get(name, {}).get(row.key),
            age=now - self._heard_at.get(name, float("-inf")),
            away=frozenset(report.away) if report and report.away else NOBODY,
        )

    def address(self, name: str) -> str:
        """Returns HOST:PORT of a node's agent, by the node's name; empty: unknown."""
        node = self.nodes.get(name)
        return node.status.address if node else ""

    def hollow(self, indices: Iterable[int]) -> bool:
        """Tells whether any of these nodes, by index, is a hollow node; unknown ones are not."""
        return any(facts.hollow for index in indices if (facts := self.node_cache.nodes.get(index)) is not None)

    def gpus(self, indices: Iterable[int]) -> int:
        """Returns the sum of the GPUs of these nodes, by index; unknown ones count 0."""
        return sum(facts.gpus for index in indices if (facts := self.node_cache.nodes.get(index)) is not None)

    def plan_format(self, group: str) -> int:
        """Returns the newest format of plans that all nodes of a plan (`group`, its name) read; a node that names none reads the first."""
        first = int(group.rpartition("-")[2]) * NODES_PER_PLAN
        members = [self.names[index] for index in range(first, first + NODES_PER_PLAN) if index in self.names]
        return self._format_of(members)

    def lowest_format(self) -> int:
        """Returns the newest format that every node with an index reads; the first where there are no nodes."""
        return self._format_of(self.indices)

    def _format_of(self, names: Iterable[str]) -> int:
        """Returns the newest plan format that all these nodes read; the first format where there are none."""
        return min((_plan_format(self.nodes.get(name)) for name in names), default=plans.FIRST_FORMAT)

    def unnamed(self, group: str) -> list[tuple[str, Key]]:
        """Returns (node, attempt) for everything that nodes of a plan's group report to run although no plan names it.

        Nodes that still owe their journal to a recovery are left out.
        """
        return [
            (name, (row.uid, row.attempt))
            for name, report in self.reports.items()
            if name in self.indices and plan_name(self.indices[name]) == group and name not in self.unanswered
            for row in report.rows
            if row.state == UNNAMED
        ]

    def unheard(self) -> dict[str, int]:
        """Returns, by name of a plan, how many of its Ready nodes this process has not seen alive; empty once the operator is trusted."""
        groups: dict[str, int] = {}
        for name, node in self.nodes.items():
            if not self.trusted and name in self.indices and name not in self.seen and node.status.state == "Ready":
                group = plan_name(self.indices[name])
                groups[group] = groups.get(group, 0) + 1
        return groups

    def trust(self) -> None:
        """Takes the operator's judgement from now on: every node whose LatticeNode is Ready counts as alive."""
        self.trusted = True
        for name in self.nodes:
            self._refresh(name)

    # -- indices ------------------------------------------------------------------------------------

    async def load(self, rows: Iterable[Row] = ()) -> None:
        """Reads the NodeIndex; where it is gone, makes it again from the nodes' statuses and the plans of these ledger rows."""
        try:
            found = await self._cluster.get(NODE_INDEXES, INDEX_NAME, type=NodeIndex)
        except NotFound:
            nodes = (await self._cluster.list(NODES, type=Node)).items
            orders = orders_of((await self._cluster.list(PLANS, type=Plan)).items)
            names = rebuilt_index({node.metadata.name: node.status.index for node in nodes}, rows, orders)
            if names:
                event(log, "The NodeIndex is gone: it is made from what nodes and plans say", logging.WARNING, nodes=len(names))
            spec = {"names": {str(index): name for index, name in names.items()}}
            body = {"apiVersion": "lattice.dev/v1alpha1", "kind": "NodeIndex", "metadata": {"name": INDEX_NAME}, "spec": spec}
            found = await self._cluster.create(NODE_INDEXES, body, type=NodeIndex)
        self._adopt_index(found)

    def _adopt_index(self, found: NodeIndex) -> None:
        """Replaces names and indices by those of a NodeIndex just read or written; indices of forgotten nodes stay known, without a
        name.
        """
        self._index_version = found.metadata.resource_version
        self.names = {int(index): name for index, name in found.spec.names.items() if name}
        self.indices = {name: index for index, name in self.names.items()}
        self._known = {int(index) for index in found.spec.names}

    async def settle_indices(self, ledger: LedgerAccess) -> None:
        """Forgets nodes that operators want forgotten, gives an index to every other node without one, tells the ledger and the nodes, and
        sets `cycle_due`.

        A node that a row holds is not forgotten yet. Raises Stale where somebody else has written the NodeIndex: call it again; Retry
        where the ConfigMap of forgotten nodes is gone.
        """
        await self._forget_leaving(ledger)
        await self.give_indices()
        verdict: Verdict = await ledger.propose(Pool(len(self.names)))
        if not isinstance(verdict, Accepted):
            event(log, "The ledger does not take the number of nodes", verdict=repr(verdict))
        untold = [name for name, node in self.nodes.items() if name in self.indices and node.status.index != self.indices[name]]
        for begin in range(0, len(untold), TOLD_AT_ONCE):
            await asyncio.gather(*(self._tell_index(name) for name in untold[begin : begin + TOLD_AT_ONCE]))
        for name in list(self.nodes):
            self._refresh(name)
        self._cycle_due.set()

    def leave_alone(self, names: frozenset[str]) -> None:
        """Sets the nodes, by name, that still owe an answer to a recovery: nothing is placed there, and no unnamed work stopped there."""
        changed, self.unanswered = self.unanswered ^ names, names
        for name in changed:
            self._refresh(name)
        self._replan({plan_name(self.indices[name]) for name in changed if name in self.indices})

    async def give_indices(self) -> None:
        """Gives an index that no node and no row has to every node without one, except those to be forgotten, all in one write of the
        NodeIndex; 16,384 nodes at most.

        Raises Stale where somebody else has written it.
        """
        missing = sorted(name for name in self.nodes if name not in self.indices and FORGET not in self.nodes[name].metadata.annotations)
        if missing:
            free = (index for index in range(16384) if index not in self.names and index not in self._book.holders)
            given = {str(index): name for index, name in zip(free, missing, strict=False)}
            await self._write_index(given)

    async def _tell_index(self, name: str) -> None:
        """Writes a node's index into the status of its LatticeNode; a node that is gone is passed over."""
        with contextlib.suppress(NotFound):  # it has gone meanwhile
            await self._cluster.patch(NODES, name, {"status": {"index": self.indices[name]}}, subresource="status")

    async def _write_index(self, names: dict[str, str]) -> None:
        """Changes these entries of the NodeIndex, index to name (empty: forgotten), and adopts the answer.

        Raises Stale, after it has read the present one, where somebody else wrote it.
        """
        patch = {"metadata": {"resourceVersion": self._index_version}, "spec": {"names": names}}
        try:
            self._adopt_index(await self._cluster.patch(NODE_INDEXES, INDEX_NAME, patch, type=NodeIndex))
        except Stale:
            self._adopt_index(await self._cluster.get(NODE_INDEXES, INDEX_NAME, type=NodeIndex))
            raise

    async def _forget_leaving(self, ledger: LedgerAccess) -> None:
        """Forgets the nodes that operators want forgotten and that no row holds: index, name for agents, Lease and LatticeNode; takes 2 s
        where there are any.

        Raises Retry where the ConfigMap of forgotten nodes is gone.
        """
        asked = [name for name, node in self.nodes.items() if FORGET in node.metadata.annotations]
        leaving = [name for name in asked if await self._released(name, ledger)]
        if not leaving:
            return
        await self._remember(leaving)
        for name in leaving:
            with contextlib.suppress(NotFound):
                await self._cluster.patch(NODES, name, {"metadata": {"annotations": {REALLY_DELETE: "forgotten"}}})
            for resource, namespace in ((LEASES, NODE_LEASE_NAMESPACE), (NODES, "")):
                with contextlib.suppress(NotFound):
                    await self._cluster.delete(resource, name, namespace)
            self.nodes.pop(name, None)
            self.silence.unfollow(name)
            event(log, "Forgot a node", node=name)

    async def _released(self, name: str, ledger: LedgerAccess) -> bool:
        """Takes a node that is to be forgotten out of node cache, ledger and NodeIndex; True also where it has no index.

        False, which is logged, while a row of the ledger holds the node: only the node cache has lost it then, until the next refresh.
        """
        index = self.indices.get(name)
        if index is None:
            return True
        self.node_cache.drop(index)
        verdict = await ledger.propose(Pool(len(self.names) - 1, (index,)))
        if not isinstance(verdict, Accepted):
            event(log, "A node cannot be forgotten yet", node=name, verdict=repr(verdict))
            return False
        await self._write_index({str(index): ""})
        return True

    async def _remember(self, names: Sequence[str]) -> None:
        """Writes the names of forgotten nodes into a ConfigMap, then waits 2 s, until every API server refuses their agents.

        Raises Retry where the ConfigMap is gone.
        """
        at = format_time(self._clock.now())
        try:
            await self._cluster.patch(CONFIG_MAPS, FORGOTTEN, {"data": dict.fromkeys(names, at)}, SYSTEM_NAMESPACE)
        except NotFound as error:
            message = f"ConfigMap {SYSTEM_NAMESPACE}/{FORGOTTEN} is gone, so that forgotten nodes would come back: apply the chart's files"
            raise Retry(message, reason="ForgottenNodesGone") from error
        await self._clock.sleep(REMEMBERED_SECONDS)

    # -- the machine --------------------------------------------------------------------------------

    def _refresh(self, name: str) -> None:
        """Makes the facts of a node, by name, in the node cache anew, and sets `cycle_due` where they changed; drops it, without that,
        where its object is gone.

        Nodes without an index are passed over.
        """
        index, node = self.indices.get(name), self.nodes.get(name)
        if index is None:
            return
        if node is None:
            self.node_cache.drop(index)
            return
        facts = self._facts(name, index, node)
        if self.node_cache.nodes.get(index) != facts:
            self.node_cache.put(facts)
            self._cycle_due.set()

    def _facts(self, name: str, index: int, node: Node) -> NodeFacts:
        """Returns the facts of a node for cycles: usable if it is Ready, neither disabled nor drained nor to be forgotten, seen alive,
        clean, reachable, and owes no answer to a recovery.

        The state shown says what is wrong, except where it is to be forgotten or has no address.
        """
        spec, status = node.spec, node.status
        state = "Disabled" if spec.disable else "Draining" if spec.drain and status.state == "Ready" else status.state
        clean = not _unnamed(self.reports.get(name))
        heard = (self.trusted or name in self.seen) and clean
        reachable = status.hollow or bool(status.address)  # hollow nodes speak to each other inside their process
        heard = heard and name not in self.unanswered
        usable = state == "Ready" and heard and FORGET not in node.metadata.annotations and reachable
        shown = state if state != "Ready" or heard else (UNHEARD if clean else "Unclean")
        return facts_of(node, index, usable=usable, state=shown, homes=self._homes)


def _plan_format(node: Node | None) -> int:
    """Returns the format in which plans for this node are written: the newest that both sides know, the first where it names none."""
    said = node.status.formats.get("plan", plans.FIRST_FORMAT) if node is not None else plans.FIRST_FORMAT
    return max(plans.FIRST_FORMAT, min(plans.FORMAT, said))


def _unnamed(report: NodeReport | None) -> frozenset[Key]:
    """Returns the attempts that a report names although no plan does; empty without a report."""
    return frozenset((row.uid, row.attempt) for row in report.rows if row.state == UNNAMED) if report else frozenset()
