"""Writes ended attempts into UsageRecords, in batches, before their allocations may be deleted.

Each round writes at most one record a tenant at a time: what has waited long enough, or at once what belongs to an allocation being
deleted. Nothing else is remembered between rounds, so that after a kill at any point the next leader goes on from the records.

The records in memory run ahead of what the informer shows, by this process's own writes. So an older version in an event is ignored; one in
a complete list is read again, and then counts: etcd was restored, and the rows that it lost are written again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Protocol

from lattice.accounting.charges import Charge, bounded, charges_of, removed
from lattice.accounting.records import Fresh, Page, Records, page_of
from lattice.accounting.settlement import Append, Open, is_settled, next_write, unsettled
from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import AlreadyExists, Corrupt, LatticeError, NotFound, Stale, UnknownOutcome
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change, Informer
from lattice.kube.resources import USAGE_RECORDS
from lattice.views import Allocation
from lattice.views.usage import UsageRecord
from lattice_controllers.operator.metrics import OperatorMetrics
from lattice_controllers.operator.running import Running

log = logging.getLogger(__name__)

ROUND_SECONDS = 1.0
PATIENCE_SECONDS = 5.0
"""How long an ended attempt waits so that others share its write; not at all where its allocation is being deleted."""
KEYS_AT_ONCE = 1000
"""Allocations that are examined before the loop runs other tasks."""


class RecordObserver(Protocol):
    """Is told which attempts usage records have come to hold; `Hours` is the implementation."""

    def settled(self, fresh: Fresh) -> None:
        """Handles usage records that have grown: `fresh` holds their new rows."""
        ...


class Settlement:
    """The writer of UsageRecords: settles ended attempts; `records` holds the records as read or written, `observers` hear of new rows.

    `running` says when a node last reported an attempt as running: an end written as earlier is moved there.
    """

    def __init__(
        self, cluster: Cluster, clock: Clock, allocations: Mapping[str, Allocation], measured: OperatorMetrics,
        running: Running,
    ) -> None:  # fmt: skip
        self.records = Records()
        self.informer: Informer[UsageRecord] = Informer(
            cluster, USAGE_RECORDS, type=UsageRecord, clock=clock, on_change=self._on_record, freeze=True
        )
        self._cluster = cluster
        self._clock = clock
        self._allocations = allocations
        self._measured = measured
        self.observers: list[RecordObserver] = []
        self._running = running
        self._waiting: dict[str, dict[str, float]] = {}
        """By tenant: keys of allocations with something to settle, and when (monotonic) that is due at the latest."""
        self._removed: dict[str, Allocation] = {}
        """The last version of objects that were deleted before they were settled, by "namespace/name uid"."""
        self._compared = 0
        """The number of the last complete list of records that was compared with `records`."""
        self._restarts = 0
        """The count of restarts of `records` (rows were lost) when all allocations were last examined."""

    def on_allocation(self, change: Change[Allocation]) -> None:
        """Notes a changed allocation for settlement where it has ended attempts that no record holds, or the records have not been read
        yet.

        An object that is gone or was made anew is kept for it as it was.
        """
        allocation = change.new
        if change.old is not None and (allocation is None or allocation.metadata.uid != change.old.metadata.uid):
            self._keep(change.old)
        if allocation is None or not (allocation.status.attempts or allocation.status.end_time):
            return
        if not self.informer.synced.is_set() or unsettled(allocation, self.records):
            self._want(change.key, allocation)

    def _keep(self, allocation: Allocation) -> None:
        """Keeps the last version of a deleted allocation with unsettled attempts, due at once, and logs that: only this process still knows
        them.

        Does nothing for one that has no charges, or whose charges all are in records.
        """
        gone = removed(allocation, self._clock.now())
        if not charges_of(allocation) or (self.informer.synced.is_set() and not unsettled(gone, self.records)):
            return
        key = f"{allocation.metadata.key} {allocation.metadata.uid}"
        event(log, "AllocationRemoved", logging.WARNING, allocation=allocation.metadata.key, uid=allocation.metadata.uid)
        self._removed[key] = gone
        self._waiting.setdefault(gone.spec.tenant, {})[key] = self._clock.monotonic()

    def _known(self, key: str) -> Allocation | None:
        """Returns an allocation by the key under which it is noted: the present one, or the last version of a deleted one; None:
        neither.
        """
        return self._allocations.get(key) or self._removed.get(key)

    def is_settled(self, allocation: Allocation) -> bool:
        """Tells whether records hold every attempt of a final allocation; False while the watch of records is lost."""
        return self.informer.synced.is_set() and not self.informer.lost and is_settled(allocation, self.records)

    @property
    def backlog(self) -> int:
        """Returns how many allocations, deleted ones included, are noted as having charges that no record holds."""
        return sum(map(len, self._waiting.values()))

    async def run(self) -> None:
        """Runs a round of settlement each second, once the records are listed, until cancelled; raises Corrupt."""
        await self.informer.synced.wait()
        while True:
            await self.round()
            await self._clock.sleep(ROUND_SECONDS)

    async def round(self, *, all_of_it: bool = False) -> None:
        """Writes usage records of all tenants of which something is due; with `all_of_it` also what still waits to share a write.

        Errors of the API server are logged, and the next round tries again; Corrupt is raised.
        """
        await self._compare()
        self._look_again()
        now = self._clock.monotonic()
        for tenant, keys in list(self._waiting.items()):
            if all_of_it or min(keys.values(), default=float("inf")) <= now:
                await self._tried(tenant, self._settle)
        self._measured.unsettled.set(self.backlog)

    async def _compare(self) -> None:
        """Reads from the server the records that the newest complete list lacks, or has in an older version than this process knows; once a
        list.

        Where a read fails, which is logged, the next round compares again.
        """
        lists = self.informer.lists
        if self._compared == lists:
            return
        tenants = {page.tenant for page in self.records.pages.values() if self._is_behind(page)}
        for tenant in tenants:
            if not await self._tried(tenant, self._read_again):
                return  # with the next round
        self._compared = lists

    def _is_behind(self, page: Page) -> bool:
        """Tells whether the informer's list lacks a known record, or has an older version of it."""
        shown = self.informer.objects.get(page.name)
        return shown is None or page_of(shown).is_older(page)

    def _look_again(self) -> None:
        """Notes all allocations whose attempts are unsettled once rows of the records were lost."""
        if self._restarts == self.records.restarts:
            return
        self._restarts = self.records.restarts
        event(log, "UsageRowsGone", logging.WARNING, message="etcd was restored, or a record deleted: what is missing is written again")
        for key, allocation in self._allocations.items():
            if unsettled(allocation, self.records):
                self._want(key, allocation)

    async def _tried(self, tenant: str, work: Callable[[str], Awaitable[None]]) -> bool:
        """Runs `work` for one tenant; returns False, and logs the error, where it failed, so that the next round repeats it; raises
        Corrupt.
        """
        try:
            await work(tenant)
        except Corrupt:
            raise
        except LatticeError as error:
            event(log, "SettlementFailed", logging.WARNING, tenant=tenant, reason=error.reason, message=error.message)
            return False
        return True

    async def _settle(self, tenant: str) -> None:
        """Writes records of a tenant until none of its noted allocations is unsettled, and drops them from the notes.

        After a conflict, or a write of unknown outcome, it reads the records again and leaves the rest to the next round. Raises other
        errors.
        """
        waiting = self._waiting[tenant]
        while keys := list(islice(waiting, KEYS_AT_ONCE)):
            charges = self._charges(tenant, keys)
            while (write := next_write(self.records, tenant, charges)) is not None:
                try:
                    self._take(await self._write(write))
                except (Stale, NotFound, AlreadyExists, UnknownOutcome) as error:
                    event(log, "RecordsReadAgain", tenant=tenant, reason=error.reason)
                    await self._read_again(tenant)
                    return
                charges = [charge for charge in charges if not self.records.holds(charge.uid, charge.attempt)]
            for key in keys:
                allocation = self._known(key)
                if allocation is None or allocation.spec.tenant != tenant or not unsettled(allocation, self.records):
                    waiting.pop(key, None)
                    self._removed.pop(key, None)
        if not waiting:
            self._waiting.pop(tenant, None)

    async def _write(self, write: Append | Open) -> UsageRecord:
        """Appends rows to a usage record, at the version that is known, or creates a new one; returns it as written.

        Raises the errors of the API server.
        """
        self._measured.settlements.inc()
        match write:
            case Append(page, text, sealed):
                patch = {"metadata": {"resourceVersion": page.version}, "spec": {"rows": text, "sealed": sealed}}
                return await self._cluster.patch(USAGE_RECORDS, page.name, patch, type=UsageRecord)
            case Open(name, tenant, month, part, text):
                body: dict[str, Any] = {
                    "apiVersion": USAGE_RECORDS.api_version,
                    "kind": USAGE_RECORDS.kind,
                    "metadata": {"name": name, "labels": {"lattice.dev/tenant": tenant}},
                    "spec": {"tenant": tenant, "month": month, "part": part, "sealed": False, "rows": text},
                }
                return await self._cluster.create(USAGE_RECORDS, body, type=UsageRecord)

    def _charges(self, tenant: str, keys: Iterable[str]) -> list[Charge]:
        """Returns the charges of ended attempts that no record holds, of the tenant's among these allocations (by key, deleted ones too).

        An end is moved later where a node still reported the attempt as running after it, and is `now` at the latest. Attempts that run,
        unknown keys and other tenants' allocations give none.
        """
        found: list[Charge] = []
        for key in keys:
            allocation = self._known(key)
            if allocation is not None and allocation.spec.tenant == tenant:
                found += unsettled(allocation, self.records)
        now = self._clock.now()
        return [bounded(charge, heard=self._running.last(charge.uid, charge.attempt), now=now) for charge in found]

    async def _read_again(self, tenant: str) -> None:
        """Replaces the known records of a tenant by those that the server holds, even by older ones, except what was written meanwhile."""
        asked = {page.name: page for page in self.records.pages.values() if page.tenant == tenant}
        listing = await self._cluster.list(USAGE_RECORDS, type=UsageRecord, labels=f"lattice.dev/tenant={tenant}")
        held = {record.metadata.name: record for record in listing.items}
        for name, record in held.items():
            known = self.records.pages.get(name)
            if known is None or known is asked.get(name) or not page_of(record).is_older(known):
                self._take(record)
        for name, page in asked.items():
            if name not in held and self.records.pages.get(name) is page:
                self._drop(name)

    def _take(self, record: UsageRecord) -> None:
        """Keeps a usage record, and tells the observers which new rows it holds."""
        fresh = self.records.put(record)
        if fresh.count:
            self._measured.settled.inc(fresh.count)
            for observer in self.observers:
                observer.settled(fresh)

    def _on_record(self, change: Change[UsageRecord]) -> None:
        """Handles a changed UsageRecord: keeps it unless it is older than the known one, or drops one that is gone."""
        known = self.records.pages.get(change.key)
        if change.new is None:
            self._drop(change.key)
        elif known is None or not page_of(change.new).is_older(known):
            self._take(change.new)

    def _drop(self, name: str) -> None:
        """Drops the rows of a usage record, by name, that is gone, so that they are written again; logs that."""
        event(log, "UsageRecordGone", logging.WARNING, record=name)
        self.records.drop(name)

    def _want(self, key: str, allocation: Allocation) -> None:
        """Notes an allocation for settlement: due at once where it is being deleted, else in 5 s, or earlier if it was noted so."""
        due = self._clock.monotonic() + (0.0 if allocation.metadata.deletion_timestamp else PATIENCE_SECONDS)
        waiting = self._waiting.setdefault(allocation.spec.tenant, {})
        waiting[key] = min(due, waiting.get(key, due))
