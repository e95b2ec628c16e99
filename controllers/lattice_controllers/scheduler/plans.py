"""The projector of plans: writes the ledger's rows as orders to 64 agents a plan, and repairs plans that somebody else changed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from lattice.daemon import starts
from lattice.daemon.clock import Clock
from lattice.daemon.queue import KeyedQueue
from lattice.errors import AlreadyExists, NotFound, Stale
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change
from lattice.kube.objects import UNMANAGED
from lattice.kube.resources import PLANS
from lattice.ledger.format import UNNAMED, Key, Row
from lattice.ledger.plans import RUN, STOP, PlanRow, format_plan, plan_name
from lattice.views.allocation import Allocation
from lattice.views.ledger import Plan, PlanSpec
from lattice.views.meta import Written
from lattice_controllers.scheduler.allocation_numbers import AllocationNumbers
from lattice_controllers.scheduler.committer import LedgerAccess
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.nodes import Nodes

log = logging.getLogger(__name__)


class PlanObserver(Protocol):
    """Is told of written plans; `Term` is the implementation."""

    def plan_written(self, uids: Collection[str]) -> None:
        """Receives the uids of allocations whose order to run stands in a plan now, so that their nodes can read it."""
        ...


class Plans:
    """The writer of every NodeGroupPlan during one term.

    `plans` holds the objects as last seen or written, by name; `since` is the ledger's seq at which this term took it over.
    """

    def __init__(
        self, cluster: Cluster, clock: Clock, ledger: LedgerAccess, nodes: Nodes, metrics: SchedulerMetrics, *,
        since: int, allocations: Mapping[str, Allocation], numbers: AllocationNumbers,
    ) -> None:  # fmt: skip
        self.plans: dict[str, Plan] = {}
        stored = ledger.stored
        self._epoch, self._term, self._since = stored.head.epoch, stored.head.term, since
        self._called: set[str] = set()
        self.sent: dict[str, int] = {}
        """The highest seq that this term has written, or tried to write, into each plan, by name."""
        self._cluster = cluster
        self._clock = clock
        self._ledger = ledger
        self._stored = stored
        self._nodes = nodes
        self._metrics = metrics
        self._allocations = allocations
        self._numbers = numbers
        self._keys: dict[str, set[Key]] = {}
        self._unwritten: dict[str, set[str]] = {}
        """By plan, the uids of new rows that the plan does not show yet."""
        self.observers: list[PlanObserver] = []
        for row in stored.rows.values():
            self._file(row)
        self.queue = KeyedQueue(self._reconcile, clock, workers=8, name="plans")

    def _file(self, row: Row) -> set[str]:
        """Files a ledger row under each plan that orders its nodes; returns the names of these plans."""
        groups = {plan_name(node) for node in row.nodes}
        for group in groups:
            self._keys.setdefault(group, set()).add(row.key)
        return groups

    def row_changed(self, old: Row | None, new: Row | None) -> None:
        """Enqueues the plans of a ledger row that changed, by its state before and after; None: the row was not there, or is gone."""
        groups: set[str] = set()
        if old is not None:
            for group in {plan_name(node) for node in old.nodes}:
                self._keys.get(group, set()).discard(old.key)
                groups.add(group)
        if new is not None:
            filed = self._file(new)
            groups |= filed
            if old is None:
                for group in filed:
                    self._unwritten.setdefault(group, set()).add(new.uid)
        self.enqueue(groups)

    def groups(self) -> list[str]:
        """Returns the names of all plans whose nodes some row of the ledger holds, or has held in this term."""
        return list(self._keys)

    def enqueue(self, groups: Iterable[str]) -> None:
        """Enqueues these plans, by name; a worker writes each whose stored text differs from the one that the ledger demands."""
        for group in groups:
            self.queue.add(group)

    def call_roll(self, group: str) -> None:
        """Has the nodes of a plan renew their Leases at once, by writing the plan with this term's epoch as its call."""
        self._called.add(group)
        self.queue.add(group)

    def on_plan(self, change: Change[Plan]) -> None:
        """Handles a changed NodeGroupPlan: keeps the newer version and enqueues the plan, whose text is written again where it is wrong.

        A version older than the known one is ignored; a deleted plan is made again where it has rows.
        """
        if change.new is None:
            self.plans.pop(change.key, None)
        else:
            known = self.plans.get(change.key)
            if known is not None and int(known.metadata.resource_version) >= int(change.new.metadata.resource_version):
                return
            self.plans[change.key] = change.new
        self.queue.add(change.key)

    def text(self, group: str) -> str:
        """Returns the text that a plan must have, by its name: a row for each attempt of the ledger on its nodes.

        Orders to stop follow for attempts that nodes of the plan report to run although no row names them.
        """
        rows = [self._row(self._stored.rows[key]) for key in self._keys.get(group, ())]
        named = {row.key for row in rows}
        strays: dict[Key, list[str]] = {}
        for node, key in self._nodes.unnamed(group):
            if key not in named:
                strays.setdefault(key, []).append(node)
        rows += [PlanRow(STOP, UNNAMED, uid, attempt, 0, 0, "", "", "", "", "", tuple(at)) for (uid, attempt), at in strays.items()]
        return format_plan(rows, self._nodes.plan_format(group))

    def _is_unnumbered(self, row: Row) -> bool:
        """Tells whether a row's allocation has no number in its status yet; False where the object is gone."""
        allocation = self._allocations.get(row.uid)
        return allocation is not None and not allocation.status.number

    def _row(self, row: Row) -> PlanRow:
        """Returns the row of a plan that orders an attempt's nodes to run it, or, while it is releasing, to stop it."""
        allocation = self._allocations.get(row.uid)
        names = tuple(self._nodes.names.get(node, f"index-{node}") for node in row.nodes)
        reporter = self._nodes.names.get(row.reporter, "")
        return PlanRow(
            order=RUN if row.held else STOP,
            cause="" if row.held else row.state,
            uid=row.uid,
            attempt=row.attempt,
            generation=row.generation,
            number=self._numbers.number_of(allocation) if allocation is not None else 0,
            reporter=reporter,
            address=self._nodes.address(reporter),
            namespace=allocation.metadata.namespace if allocation else "",
            name=allocation.metadata.name if allocation else "",
            head=names[0],
            nodes=names,
            walltime=row.walltime,
        )

    async def _reconcile(self, group: str) -> float | None:
        """Writes a plan, by name, unless it stands as it must be; returns 0 to look again at once, None: only a change wakes it.

        Does nothing while the ledger is paused; a plan without rows that does not exist is not made, unless for a roll call. New rows need
        reserved numbers first.
        """
        if self._ledger.paused:
            return None
        if any(self._is_unnumbered(self._stored.rows[key]) for key in self._keys.get(group, ())):
            await self._numbers.ensure_reserved()  # agents read these numbers before a status shows them
        fresh, text, standing = set(self._unwritten.get(group, ())), self.text(group), self.plans.get(group)
        if group not in self._called and standing is None and not self._keys.get(group) and "\n" not in text:
            return None
        if standing is not None and standing.spec.text == text and (group not in self._called or standing.spec.call == self._epoch):
            if fresh:  # a write whose answer was lost stands
                self._tell_written(group, fresh)
            return None
        body: dict[str, Any] = {
            "apiVersion": "lattice.dev/v1alpha1",
            "kind": "NodeGroupPlan",
            "metadata": {"name": group, **({**UNMANAGED, "resourceVersion": standing.metadata.resource_version} if standing else {})},
            "spec": {
                "seq": self._stored.head.seq, "text": text, "call": self._epoch,
                "epoch": self._epoch, "term": self._term, "since": self._since,
            },
        }  # fmt: skip
        self.sent[group] = self._stored.head.seq
        try:
            if standing is None:
                plan = await self._cluster.create(PLANS, body, type=Plan)
            else:
                written = await self._cluster.replace(PLANS, group, body, type=Written, metadata_only=True)
                plan = Plan(metadata=written.metadata, spec=msgspec.convert(body["spec"], PlanSpec))
        except (Stale, AlreadyExists):
            await self._reread(group)
            return 0.0
        except NotFound:
            if standing is None:
                raise  # the server serves no plans: this is no plan that somebody deleted
            await self._reread(group)
            return 0.0
        self._metrics.writes.labels("plan").inc()
        self.plans[group] = plan
        self._tell_written(group, fresh)
        return 0.0 if self.text(group) != text else None

    def _tell_written(self, group: str, uids: set[str]) -> None:
        """Tells the observers, after a plan was written, that it shows new rows: those of `uids`, which then count as written.

        The caller passes only uids of rows that no write of this plan is known to have shown; observers are called also where there are
        none.
        """
        self._unwritten.get(group, set()).difference_update(uids)
        for uid in uids:
            starts.reached(self._clock, "plan", uid)
        for observer in self.observers:
            observer.plan_written(uids)

    async def _reread(self, group: str) -> None:
        """Reads a plan again after a write that failed because somebody else had changed it; drops it where it is gone."""
        try:
            self.plans[group] = await self._cluster.get(PLANS, group, type=Plan)
        except NotFound:
            self.plans.pop(group, None)
