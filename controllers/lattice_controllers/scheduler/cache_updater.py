"""The cache updater: changes the cluster state as ledger rows, allocations, vclusters, tenants, windows, budgets and options change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial

from msgspec.structs import replace

from lattice.accounting.answers import Unsettled
from lattice.accounting.charges import Charge
from lattice.accounting.records import Records
from lattice.accounting.tally import Recount, Tally
from lattice.daemon.clock import Clock
from lattice.kube.informer import Change
from lattice.kube.lasting import LastKnown
from lattice.ledger.format import Key, Row
from lattice.scheduling.conversion.candidates import holder_of
from lattice.scheduling.conversion.policies import energy_price, policy_of, seconds, terms_of
from lattice.scheduling.priority.scoring import Scoring
from lattice.scheduling.priority.shares import HALF_LIFE, Shares, Terms
from lattice.scheduling.state.budget_gate import exhausted
from lattice.scheduling.state.cluster_state import ClusterState, PowerBudget
from lattice.views.allocation import Allocation
from lattice.views.cluster import Config, SchedulingOptions, Tenant, VCluster
from lattice_controllers.scheduler.allocations import Allocations
from lattice_controllers.scheduler.committer import LedgerAccess
from lattice_controllers.scheduler.nodes import Nodes
from lattice_controllers.scheduler.quotas import Quotas
from lattice_controllers.scheduler.reservations import Reservations

BUDGET_SECONDS = 1.0
"""How often budgets are checked for having been used up."""


class CacheUpdater:
    """Keeps the cluster state in step with ledger and objects; nobody else changes it, except for what a cycle claims in it.

    Sets `cycle_due` when a cycle may place more than the last one did.
    """

    def __init__(
        self, state: ClusterState, clock: Clock, cycle_due: asyncio.Event, *, ledger: LedgerAccess, nodes: Nodes,
        reservations: Reservations,
        quotas: Quotas, allocations: Allocations, vclusters: Mapping[str, VCluster], tenants: Mapping[str, Tenant],
        config: LastKnown[Config], records: Records, scoring: Scoring,
    ) -> None:  # fmt: skip
        self.state = state
        self.scoring = scoring
        self._clock = clock
        self._stored = ledger.stored
        self._nodes = nodes
        self._reservations = reservations
        self._quotas = quotas
        self._reconciler = allocations
        self._allocations = allocations.objects
        self._vclusters = vclusters
        self._tenants = tenants
        self._config = config
        self._cycle_due = cycle_due
        self._half_life = HALF_LIFE
        self._since: dict[Key, float] = {}
        self._releasing: dict[Key, float] = {}
        self.tally = Tally(records, lambda charge, sign: self.scoring.shares.charge(charge, sign))
        """What tenants have used: charges that usage records hold, and charges that no record holds yet."""
        self._records = records
        self._restarts = records.restarts
        self._recount = asyncio.Event()
        """Set when usage must be counted from the beginning: records were lost, or another half-life or other contracts apply."""
        self._budgets_at = self._budgets_until = float("-inf")
        self._holders_changed = True

    # -- what others tell ---------------------------------------------------------------------------

    def load(self) -> None:
        """Fills the cluster state and counts all allocations, once the informers have listed everything and `recount` has ended."""
        self.contracts_changed()
        self.policies_changed()
        for row in self._stored.rows.values():
            self._put(row)
        for allocation in self._allocations.values():
            self.tally.see(allocation)

    def rows_changed(self, changes: Iterable[tuple[Row | None, Row | None]]) -> None:
        """Updates the node holders by the rows, before and after, that a stored commit changed; None: no row before, or none after."""
        for old, new in changes:
            if new is not None:
                self._put(new)  # first, so that its nodes never look free in between
            if old is not None and (new is None or holder_key(new) != holder_key(old)):
                self._drop(old, ended=new is None)

    def refresh_holders(self, uid: str) -> None:
        """Rebuilds the node holders of an allocation, by uid, after its object or one of its nodes has changed."""
        for row in list(self._stored.rows_of(uid)):
            self._put(row)

    def claim_confirmed(self, uid: str) -> None:
        """Rebuilds the node holders of an allocation after the ledger has accepted its claim."""
        self.refresh_holders(uid)

    def on_allocation(self, change: Change[Allocation]) -> None:
        """Handles a changed Allocation: counts its usage (where it is gone, ends its charges now), and rebuilds its node holders."""
        one = change.new or change.old
        if one is None:
            return
        if change.new is not None:
            self.tally.see(change.new)
        else:
            self.tally.end_charges(one.metadata.uid, self._clock.now())
        self.refresh_holders(one.metadata.uid)

    def contracts_changed(self) -> None:
        """Puts the contracts (shares, budgets) of changed tenants in force from the next cycle on, and makes one due; asks `run` for a
        recount if need be.
        """
        if self.scoring.shares.agree(self._terms()):
            self._recount.set()
        self._budgets_until = float("-inf")
        self._cycle_due.set()

    def usage_recorded(self, rows: Iterable[Charge]) -> None:
        """Moves these charges from unsettled to recorded; asks `run` for a recount where usage records have lost some."""
        if self._restarts != self._records.restarts:
            self._recount.set()
        self.tally.settle(rows)

    def policies_changed(self) -> None:
        """Puts the policies of changed vclusters and changed scheduling options in force from the next cycle on, and makes one due.

        Asks `run` for a recount of usage where the half-life of shares has changed.
        """
        config = self._config.object
        options = config.spec.scheduling if config is not None else SchedulingOptions()
        policies = {name: policy_of(vcluster, options) for name, vcluster in self._vclusters.items()}
        power = PowerBudget(options.power_budget_kilowatts * 1000 or None)
        self.state.configure(policies, dict.fromkeys(policies, self.scoring), power)
        self.scoring.policies = policies
        self.scoring.reference_wait = seconds(options.reference_wait, 3600.0)
        if self._half_life_now() != self._half_life:
            self._recount.set()
        self._cycle_due.set()

    # -- before a cycle -----------------------------------------------------------------------------

    def refresh_for_cycle(self, now: float) -> float | None:
        """Updates everything that changes with time alone (reservation windows, budgets once a second, energy price), running holders'
        scores, and the quota trees.

        Where the trees give work another leaf, holders and candidates are moved. Returns when time changes windows or trees next,
        seconds since the epoch; None: never, as things stand.
        """
        windows = self._reservations.windows(now)
        if windows != self.state.windows:
            self.state.set_windows(windows)
        if not self._budgets_at <= now < self._budgets_until:
            spent = exhausted(self.scoring.shares.meter, now)
            self.state.set_exhausted(spent)
            ends = (one.until for one in spent.values() if one.until is not None)
            self._budgets_at, self._budgets_until = now, min((now + BUDGET_SECONDS, *ends))
        self.scoring.energy_price = energy_price(self._config.object, now)
        if self._holders_changed:
            self._holders_changed = False
            self.scoring.running(list(self.state.holders.values()), self.state.node_cache)
        trees = self._quotas.refresh_for_cycle(now)
        if trees.rebound:
            self._leaves_changed()
        return min((wake for wake in (self._reservations.wake(now), trees.due) if wake is not None), default=None)

    # -- questions ----------------------------------------------------------------------------------

    def burst_of(self, tenant: str) -> int:
        """Returns how far a tenant exceeds its target share now: 0 not at all, 1 within its burst allowance, 2 beyond it."""
        return self.scoring.shares.burst(tenant, self._clock.now())

    def unsettled(self) -> Unsettled:
        """Returns the charges that no usage record holds yet, with the version of the records that this is true for."""
        return Unsettled(self._records.version, list(self.tally.unsettled()))

    # -- holders ------------------------------------------------------------------------------------

    def _put(self, row: Row) -> None:
        """Records the holder of a ledger row in the cluster state, from row, object, vcluster and node reports.

        Keeps since when this process has known the row, and since when it is releasing.
        """
        now = self._clock.now()
        since = self._since.setdefault(row.key, now)
        releasing = None if row.held else self._releasing.setdefault(row.key, now)
        holder = holder_of(
            row, self._allocations.get(row.uid), self._vclusters.get(row.vcluster), since=since, releasing_since=releasing,
            quota=self._quota(row),
            silent=not row.held and any(self._nodes.standing(row, node).silent for node in row.nodes), borrowed=self._borrowed(row),
        )  # fmt: skip
        key = holder_key(row)
        self.state.put_holder(holder if key == holder.uid else replace(holder, uid=key))
        self._holders_changed = True

    def _leaves_changed(self) -> None:
        """Moves holders and candidates to the leaf, and the nodes, that the quota trees give them since they changed."""
        for row in self._stored.rows.values():
            holder = self.state.holders.get(holder_key(row))
            if holder is not None and holder.quota != self._quota(row):
                self._put(row)
        self._reconciler.renew_candidates()

    def _quota(self, row: Row) -> str:
        """Returns the leaf of the quota tree that a row belongs to; a row whose object is gone keeps its holder's leaf.

        Empty: none is known, or no group is declared.
        """
        allocation, known = self._allocations.get(row.uid), self.state.holders.get(holder_key(row))
        return self._quotas.leaf(allocation) if allocation is not None else known.quota if known is not None else ""

    def _drop(self, row: Row, *, ended: bool) -> None:
        """Removes the holder of a ledger row from the cluster state; `ended`: the row is gone, so its times are dropped too."""
        self.state.drop_holder(holder_key(row))
        self._holders_changed = True
        if ended:
            self._since.pop(row.key, None)
            self._releasing.pop(row.key, None)

    def _borrowed(self, row: Row) -> tuple[int, ...]:
        """Returns those nodes (indices) of a row that are at home in another vcluster; unknown nodes are left out."""
        known = self.state.node_cache.nodes
        return tuple(node for node in row.nodes if node in known and known[node].home not in ("", row.vcluster))

    # -- shares -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Counts usage from the beginning (`recount`) each time that a change has made that necessary, until cancelled."""
        while True:
            await self._recount.wait()
            await self.recount()
            self._budgets_until = float("-inf")
            self._cycle_due.set()

    async def recount(self) -> None:
        """Counts usage from the beginning, from all records and objects, with the half-life and contracts in force now.

        It yields to the loop between slices; cycles meanwhile go by the shares counted before, which it replaces at the end.
        """
        while True:
            self._recount.clear()
            restarts, half_life = self._records.restarts, self._half_life_now()
            shares = Shares(half_life)
            shares.agree(self._terms())
            recount = Recount(self._records, shares.begin(self._clock.now()), partial(shares.charge, sign=1))
            while recount.step():
                await self._clock.sleep(0)
            if not recount.stale:
                break
        recount.finish()
        if shares.agree(self._terms()):
            self._recount.set()  # once more, by what was agreed meanwhile
        self.scoring.shares, self._half_life, self._restarts = shares, half_life, restarts
        self.tally.tell_open()

    def _half_life_now(self) -> float:
        """Returns the half-life of usage, in seconds, by the LatticeConfig; the default where it has none, or one that does not parse."""
        config = self._config.object
        options = config.spec.scheduling if config is not None else SchedulingOptions()
        return seconds(options.fair_share_half_life, HALF_LIFE)

    def _terms(self) -> dict[str, Terms]:
        """Returns the share and the budgets of every tenant, by name."""
        return {name: terms_of(tenant) for name, tenant in self._tenants.items()}


def holder_key(row: Row) -> str:
    """Returns the key of a row's holder: the uid while the row is held, `uid/attempt` while it is releasing.

    A releasing attempt can so stand beside the next attempt of the same allocation.
    """
    return row.uid if row.held else f"{row.uid}/{row.attempt}"
