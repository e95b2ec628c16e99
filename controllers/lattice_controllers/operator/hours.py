"""Counts the hours of tenants from usage records and objects, mirrors them into their status, and warns admins of exhausted budgets."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from lattice.accounting.budgets import OF_TENANT, Allowance, Budgets, Scope, budgets_of
from lattice.accounting.meter import Meter
from lattice.accounting.notices import Notice, judge, key_of, usage_of
from lattice.accounting.records import Fresh, Records
from lattice.accounting.tally import Recount, Tally
from lattice.daemon.announcements import Announcer
from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import LatticeError, NotFound, Stale
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change
from lattice.kube.resources import TENANTS
from lattice.units import format_time
from lattice.views import Allocation, Tenant
from lattice_controllers.operator import statuses
from lattice_controllers.operator.metrics import OperatorMetrics

log = logging.getLogger(__name__)

MIRROR_SECONDS = 30.0
"""Least time between two writes of a tenant's hours, unless a budget has crossed a mark (book, "Consistency window")."""
TRIM_SECONDS = 300.0
"""Time between two removals of usage from before the present budget periods."""
LOOK_SECONDS = 2.0
"""Time between two checks of all budgets; a mark that was crossed is announced then."""


class Hours:
    """Keeps `Tenant.status.usage` current; `known` are the Tenants as the operator last read them, by name."""

    def __init__(
        self, cluster: Cluster, clock: Clock, records: Records, known: Mapping[str, Tenant], announcer: Announcer,
        measured: OperatorMetrics,
    ) -> None:  # fmt: skip
        self.meter = Meter(every_tenant=True)
        self._tally = Tally(records, lambda charge, sign: self.meter.charge(charge, sign))
        self._cluster = cluster
        self._clock = clock
        self._records = records
        self._restarts = records.restarts
        self._agreed_meanwhile = False
        """True where budgets changed while hours were being counted: they are counted once more."""
        self._known = known
        self._announcer = announcer
        self._measured = measured
        self._started = False
        self._trimmed = clock.monotonic()
        self._written: dict[str, float] = {}

    async def start(self, allocations: Mapping[str, Allocation]) -> None:
        """Counts all usage records and allocations, yielding to the loop between slices; from then on changes are counted as they come."""
        await self._count_again()
        self._started = True
        for allocation in allocations.values():
            self._tally.see(allocation)

    def on_allocation(self, change: Change[Allocation]) -> None:
        """Counts the usage of a changed allocation that no usage record holds yet, in place of what was counted of it before; that of a
        deleted one stays counted, its running attempts ended now.

        Does nothing before `start` has ended.
        """
        if not self._started:
            return
        if change.new is not None:
            self._tally.see(change.new)
        elif change.old is not None:
            self._tally.end_charges(change.old.metadata.uid, self._clock.now())

    def settled(self, fresh: Fresh) -> None:
        """Moves the charges that usage records hold now from unsettled to recorded; nothing before `start` has ended."""
        if self._started:
            self._tally.settle(fresh.rows())

    async def run(self) -> None:
        """Writes hours and announces crossed marks, by `look`, every 2 s until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Writes the hours into the status of each tenant for which that is due, and announces marks that its budgets have crossed.

        First counts all hours again where budgets changed or usage records were lost, and drops usage from before the present periods
        every 5 minutes. Errors of the API server are logged, not raised; a tenant changed meanwhile is left to the next call.
        """
        if self.meter.agree(self._budgets()) or self._agreed_meanwhile or self._restarts != self._records.restarts:
            await self._count_again()
        if self._clock.monotonic() - self._trimmed > TRIM_SECONDS:
            self._trimmed = self._clock.monotonic()
            self.meter.trim(self._clock.now())
        for name, tenant in list(self._known.items()):
            try:
                await self._mirror(name, tenant)
                await self._clock.sleep(0)
            except (Stale, NotFound):
                continue  # changed meanwhile: it is read again, and looked at again
            except LatticeError as error:
                event(log, "UsageNotMirrored", logging.WARNING, tenant=name, reason=error.reason, message=error.message)

    async def _mirror(self, name: str, tenant: Tenant) -> None:
        """Writes one tenant's hours into its status where they differ and 30 s have passed since it did so, or at once where none were
        there, or a budget has crossed a mark, which is announced.

        Sets its metrics either way; a tenant that has used nothing and has no budget gets no usage. Raises Stale or NotFound where the
        tenant has changed or is gone.
        """
        now = self._clock.now()
        before = tenant.status.usage
        states = {state.key: state for state in before.budgets} if before is not None else {}
        entries: list[dict[str, Any]] = []
        notices: list[Notice] = []
        for balance in self.meter.shared(name, now):
            entry, notice = judge(balance, states.get(key_of(balance)), self.meter.period_words(name))
            entries.append(entry)
            notices += [notice] if notice is not None else []
            self._measured.budget_used.labels(name, entry["key"]).set(balance.fraction)
        if tenant.status.use is not None:
            self._measured.used_nodes.labels(name).set(tenant.status.use.used_nodes)
            most = tenant.status.use.max_nodes
            self._measured.max_nodes.labels(name).set(float("inf") if most is None else most)
        used = self.meter.used(Scope(OF_TENANT, name), now)
        self._measured.node_hours.labels(name).set(used.node_hours)
        self._measured.gpu_hours.labels(name).set(used.gpu_hours)
        wanted = usage_of(used, entries)
        if before is None and not entries and used == Allowance():
            return  # nothing to say yet
        if before is not None and msgspec.convert(wanted, type(before)) == before:
            return
        if not notices and before is not None and self._clock.monotonic() - self._written.get(name, float("-inf")) < MIRROR_SECONDS:
            return
        for notice in notices:
            await self._tell(tenant, notice)
        await statuses.write(self._cluster, TENANTS, tenant.metadata, {"usage": wanted, "updated": format_time(now)})
        self._written[name] = self._clock.monotonic()

    async def _tell(self, tenant: Tenant, notice: Notice) -> None:
        """Writes an Event on a crossed mark of a budget into the tenant's first namespace, where its admins see it.

        The Event's name is made from the budget and the crossing, so that each crossing is announced once, across restarts too.
        """
        metadata = tenant.metadata
        digest = hashlib.sha256(f"{metadata.uid}/{notice.key}".encode()).hexdigest()[:10]
        reason = "BudgetExhausted" if notice.mark >= 100 else "BudgetNearlyExhausted"
        namespace = next(iter(tenant.spec.namespaces), metadata.name)
        name = f"{metadata.name}.budget-{digest}-{notice.crossing}"
        await self._announcer.announce(
            TENANTS, metadata, reason, notice.message, action="CountUsage", warning=True, name=name, namespace=namespace
        )
        event(log, "BudgetMarkCrossed", tenant=metadata.name, budget=notice.key, mark=notice.mark)

    def _budgets(self) -> dict[str, Budgets]:
        """Returns the budgets of every known tenant, by name."""
        return {name: budgets_of(tenant) for name, tenant in self._known.items()}

    async def _count_again(self) -> None:
        """Counts hours from the beginning, from all records and objects, with the budgets in force now; anew where rows of the records are
        lost meanwhile.

        It yields to the loop between slices; the hours counted before are shown until it ends.
        """
        while True:
            restarts, meter = self._records.restarts, Meter(every_tenant=True)
            meter.agree(self._budgets())
            recount = Recount(self._records, meter.begin(self._clock.now()), meter.charge)
            while recount.step():
                await self._clock.sleep(0)
            if not recount.stale:
                break
        recount.finish()
        self._agreed_meanwhile = meter.agree(self._budgets())
        self.meter, self._restarts = meter, restarts
        self._tally.tell_open()
