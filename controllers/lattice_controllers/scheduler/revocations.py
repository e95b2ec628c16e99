"""Takes back lent quota: finds groups that use more than they may, warns the owners of the work, and stops it after a delay.

A decision to stop is stored in the ledger as the cause of a releasing row, so that a scheduler that dies afterwards loses nothing: the next
one finds the row, has the work ended by TERM and grace, and lets the allocation wait again. After a change of leader the delay goes on from
`status.overSince` as long as it is not over; else it begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from lattice.daemon.announcements import Announcer
from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.kube.resources import ALLOCATIONS
from lattice.ledger.format import RECLAIMED, Row
from lattice.ledger.proposals import Accepted, Stop
from lattice.quota.amounts import quantity
from lattice.quota.forest import Overuse
from lattice.quota.gates import WAITING
from lattice.quota.layout import Layout
from lattice.quota.revocation import Began, Due, Ended, Holding, OveruseClock, Round, choose, make_room
from lattice.quota.settings import OFF, ON, TreeRules
from lattice.scheduling.cycle.quota_held import quota_held_demand
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.quota_usage import QuotaUsage
from lattice.units import format_duration, format_time, parse_time
from lattice.views.allocation import Allocation
from lattice_controllers.scheduler.committer import LedgerAccess
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.pending_work import PendingWork

log = logging.getLogger(__name__)

SAMPLE_SECONDS: Final = 1.0
RESUME_SECONDS: Final = 10.0
"""How long after its start a term still takes a group's overuse for one that began before it."""
PENDING, RECLAIM = "QuotaReclaimPending", "QuotaReclaimed"
"""Reasons of Events to owners: the work will be stopped if nothing changes; the work is stopped."""


class QuotaDeclarations(Protocol):
    """Knows the quota trees that objects declare, and what was published of their groups; `Quotas` is the implementation."""

    @property
    def layout(self) -> Layout:
        """Returns the quota trees as the objects declare them now."""
        ...

    def over_since(self) -> Mapping[str, str]:
        """Returns, by name of each group whose status shows that it uses more than it may, since when it does (RFC 3339)."""
        ...


class Revocations:
    """Stops work of groups that use more than they may, once a second; `over` holds these groups, by name, as of the last sample."""

    def __init__(
        self, clock: Clock, state: ClusterState, pending: PendingWork, quotas: QuotaDeclarations, ledger: LedgerAccess,
        metrics: SchedulerMetrics, *, allocations: Mapping[str, Allocation], announcer: Announcer,
    ) -> None:  # fmt: skip
        self.over: dict[str, Overuse] = {}
        self._clock = clock
        self._state = state
        self._pending = pending
        self._quotas = quotas
        self._ledger = ledger
        self._metrics = metrics
        self._allocations = allocations
        self._announcer = announcer
        self._earlier: dict[str, str] = {}
        """Since when groups were over for the scheduler before this one: RFC 3339 by name."""
        self._overuse = OveruseClock()
        self._withheld = False
        """True where more groups might be over if no hard quota or budget kept work waiting; then each sample judges anew."""
        self._seen: tuple[QuotaUsage | None, int] = (None, -1)
        """The trees, and their version, at the last sample."""
        self._since: dict[str, str] = {}
        self._due: dict[str, float] = {}
        """When work of a group is stopped, should the group stay over; monotonic, by its name."""
        self._told: dict[str, tuple[set[str], str]] = {}
        """By group: the uids of allocations whose owners were warned, and the wording of the overuse that they were told."""
        self._blocked: dict[str, float] = {}
        """Since when each pending allocation, by uid, waits for its group's share; monotonic."""
        self._resume_until = 0.0

    def over_since(self) -> dict[str, str]:
        """Returns, by name of each group that uses more than it may, since when it does (RFC 3339).

        For the first 10 s of a term it names, too, groups that the scheduler before had shown and this one has not judged yet.
        """
        return {**self._earlier, **self._since}

    def resume(self) -> None:
        """Reads since when groups used more than they may for the scheduler before: their delays go on, for the first 10 s of the term."""
        self._earlier, self._resume_until = dict(self._quotas.over_since()), self._clock.monotonic() + RESUME_SECONDS

    async def run(self) -> None:
        """Samples the quota trees (`sample`) each second, until cancelled; not while the ledger is paused. Without trees it forgets all."""
        self.resume()
        while True:
            await self._clock.sleep(SAMPLE_SECONDS)
            quota_usage = self._state.quota_usage
            if quota_usage is None:
                self.over, self._overuse = {}, OveruseClock()
                for kept in (self._since, self._due, self._told, self._blocked):
                    kept.clear()
            elif not self._ledger.paused:
                await self.sample(quota_usage)

    async def sample(self, quota_usage: QuotaUsage) -> None:
        """Finds groups that use more than they may, warns the owners of their work, and stops the work whose delay is over, where the
        tree's revocation is On (Notify: it warns only, Off: neither).

        Stops, where it is On, also work of a lower class for work of a higher one of the same group that has waited for the delay.
        """
        now, seen = self._clock.monotonic(), (quota_usage, quota_usage.version)
        if self._earlier and now > self._resume_until:
            self._earlier = {}
        if self.over or self._withheld or self._seen != seen:
            self._seen = seen
            await self._judge(quota_usage, now)
        await self._make_room(quota_usage, now)

    async def _judge(self, quota_usage: QuotaUsage, now: float) -> None:
        """Advances the delay of each group that is over; warns owners in groups whose delay runs, unless revocation is Off, and stops work
        past it where revocation is On.
        """
        forest, rules = quota_usage.forest, self._quotas.layout.rules
        forest.settled()
        found = self._found(quota_usage, rules)
        self.over = {over.name: over for over in found}
        delays = {tree: each.delay_seconds for tree, each in rules.items()}
        due: list[Overuse] = []
        at_once = self._clock.now()
        earlier = {name: at_once - parse_time(since) for name, since in self._earlier.items()}
        for outcome in self._overuse.sample(found, now, delays, earlier=earlier):
            match outcome:
                case Began(over, at, resumed):
                    self._due[over.name] = at
                    self._since[over.name] = self._earlier[over.name] if resumed else format_time(at_once)
                    self._earlier.pop(over.name, None)
                case Ended(name):
                    del self._since[name], self._due[name]
                    self._told.pop(name, None)
                case Due(over, since):
                    self._due[over.name] = since + delays[over.tree]
                    due.append(over)
        for over in found:
            if over not in due:
                await self._announce(quota_usage, over, rules[over.tree])
        for tree in {over.tree for over in due}:
            if rules[tree].revocation == ON:
                await self._take_back(quota_usage, [over for over in due if over.tree == tree], rules[tree].max_per_round)

    def _found(self, quota_usage: QuotaUsage, rules: Mapping[str, TreeRules]) -> list[Overuse]:
        """Returns the groups that use more than they may because pending work that no other quota or budget keeps waiting wants it back,
        or, where their tree says so, because it shrank.

        Notes whether such a quota or budget withholds any, so that the next sample judges anew.
        """
        state = self._state
        leaving = [(holder.quota, quota_usage.holding(uid)) for uid, holder in state.holders.items() if holder.releasing]

        def look() -> list[Overuse]:
            """Returns the groups that the forest holds to be over now: by demand, or, where their tree says so, after it shrank."""
            over = quota_usage.forest.overused(on_shrink=True, leaving=leaving)
            return [each for each in over if each.by_demand or rules[each.tree].on_shrink]

        found = look()
        kept_waiting = quota_held_demand(state) if found else {}
        self._withheld = bool(kept_waiting)
        if not kept_waiting:
            return found
        with quota_usage.without(kept_waiting):
            return look()

    def _choice(self, quota_usage: QuotaUsage, over: Sequence[Overuse], most: int) -> Round:
        """Returns the work that would be stopped for these groups now, at most `most` allocations; stops nothing."""
        with quota_usage.without(quota_held_demand(self._state)):
            return choose(quota_usage.forest, over, self._holdings(quota_usage), most)

    # -- what is lent ---------------------------------------------------------------------------------------------------

    async def _announce(self, quota_usage: QuotaUsage, over: Overuse, rules: TreeRules) -> None:
        """Warns the owners of the work that would be stopped first, each once; again for more work when the wording of the overuse changes.

        Says nothing where revocation is Off; with another than On, the Event says that nothing is stopped.
        """
        text = _used(over)
        known = self._told.setdefault(over.name, (set(), ""))
        if rules.revocation == OFF or known[1] == text:
            return
        event(log, "A group uses more than it may", quota=over.name, tree=over.tree, message=text, revocation=rules.revocation)
        self._told[over.name] = (known[0], text)
        left = max(0.0, self._due[over.name] - self._clock.monotonic())
        when = f"in {format_duration(round(left))}, at {format_time(self._clock.now() + left)}"
        then = f"if it stays so, this allocation is stopped {when}, and waits again" if rules.revocation == ON else "nothing is stopped"
        told = {uid for uids, _ in self._told.values() for uid in uids}
        for revoked in self._choice(quota_usage, [over], rules.max_per_round).revoked:
            if revoked.holding.key not in told:
                known[0].add(revoked.holding.key)
                await self._tell(revoked.holding.key, PENDING, f'quota "{over.name}": {text}; {then}', "Notify")

    async def _take_back(self, quota_usage: QuotaUsage, due: Sequence[Overuse], most: int) -> None:
        """Stops work of groups whose delay is over, at most `most` allocations; the caller has seen that revocation is On."""
        chosen = self._choice(quota_usage, due, most)
        await self._stop(
            "revoked", [(each.holding, each.over.tree, f'quota "{each.over.name}": {_used(each.over)}') for each in chosen.revoked]
        )

    # -- in a group -----------------------------------------------------------------------------------------------------

    async def _make_room(self, quota_usage: QuotaUsage, now: float) -> None:
        """Stops work of lower classes of a leaf for pending work of a higher class of it that has waited for the leaf's share for longer
        than the delay, one a leaf at each call.

        Stops nothing in a tree whose revocation is not On, nor where room would take more than `max_per_round` stops.
        """
        rules, forest = self._quotas.layout.rules, quota_usage.forest
        waiting = [one.candidate for one in self._pending.reasons.values() if one.reason == WAITING]
        self._blocked = {one.uid: self._blocked.get(one.uid, now) for one in waiting}
        served: set[str] = set()
        for candidate in sorted(waiting, key=lambda one: (-one.preemption_class, one.submitted, one.key)):
            rule = rules[forest.tree_of(candidate.quota)]
            if rule.revocation != ON or candidate.quota in served or now - self._blocked[candidate.uid] <= rule.delay_seconds:
                continue
            served.add(candidate.quota)
            able = [one for one in self._holdings(quota_usage) if one.leaf == candidate.quota and self._serves(one, candidate)]
            amounts, fixed = quota_usage.asked(candidate), candidate.non_preemptible
            victims = make_room(forest, candidate.quota, amounts, candidate.preemption_class, able, non_preemptible=fixed)
            if victims and len(victims) <= rule.max_per_round:
                self._blocked[candidate.uid] = now
                tree, why = forest.tree_of(candidate.quota), f'quota "{candidate.quota}": its share goes to work of a higher class'
                await self._stop("preempted", [(holding, tree, why) for holding in victims])

    def _serves(self, holding: Holding, candidate: Candidate) -> bool:
        """Tells whether a candidate could use the nodes of a holding: work of the same vcluster, all of whose known nodes satisfy the need;
        True also where the holding is ending anyway.
        """
        if holding.leaving:
            return True
        holder, known = self._state.holders[holding.key], self._state.node_cache.nodes
        facts = [known[node] for node in holder.nodes if node in known]
        return holder.vcluster == candidate.vcluster and all(candidate.need.admits_node(each) for each in facts)

    # -- both -----------------------------------------------------------------------------------------------------------

    def _holdings(self, quota_usage: QuotaUsage) -> Iterator[Holding]:
        """Yields all work on nodes, with what it charges to its leaf and the node-hours that stopping it would lose."""
        state, now = self._state, self._clock.now()
        claims = state.claims()
        for uid, holder in state.holders.items():
            yield Holding(
                key=uid,
                leaf=holder.quota,
                amounts=quota_usage.holding(uid),
                preemption_class=holder.preemption_class,
                started=holder.started if holder.started is not None else holder.since,
                lost_node_hours=len(holder.nodes) * _unsaved(holder, now) / 3600,
                preemptible=not holder.non_preemptible and uid not in claims,
                leaving=holder.releasing,
            )

    async def _stop(self, what: str, chosen: Iterable[tuple[Holding, str, str]]) -> None:
        """Releases the held rows of this work, all in one commit, so that nodes end it by TERM and grace; then counts, logs, and tells the
        owners of, those that the ledger released.

        `what` is the label of the metric: revoked or preempted.
        """
        asked = [
            (row, tree, why, self._ledger.propose(Stop(row.key, RECLAIMED)))
            for holding, tree, why in chosen
            if (row := self._row(holding.key)) is not None  # else it ended meanwhile
        ]
        for row, tree, why, answer in asked:
            verdict = await answer
            if isinstance(verdict, Accepted) and verdict.changed:
                self._metrics.quota_revocations.labels(tree or "default", what).inc()
                event(log, "Quota was taken back", allocation=row.uid, attempt=row.attempt, tree=tree, message=why)
                await self._tell(row.uid, RECLAIM, f"{why}: it is stopped, and waits again with its submission time", "Stop")

    def _row(self, uid: str) -> Row | None:
        """Returns the row of an allocation, by uid, that holds nodes; None where it holds none, or is releasing them."""
        rows: Iterable[Row] = self._ledger.stored.rows_of(uid)
        return next((row for row in rows if row.held), None)

    async def _tell(self, uid: str, reason: str, note: str, action: str) -> None:
        """Writes a warning Event to the owner of an allocation, by uid; nothing where the object is gone."""
        allocation = self._allocations.get(uid)
        if allocation is not None:
            await self._announcer.announce(ALLOCATIONS, allocation.metadata, reason, note, action=action, warning=True)


def _unsaved(holder: NodeHolder, now: float) -> float:
    """Returns the seconds of work since the last checkpoint, or since the start, that ending it now would lose; 0 before the start."""
    if holder.started is None:
        return 0.0
    saved = holder.checkpointed if holder.checkpointed is not None else holder.started
    return max(0.0, now - max(saved, holder.started))


def _used(over: Overuse) -> str:
    """Returns a clause with used and allowed amounts of each resource of which the group uses too much."""
    parts = (
        f"{resource}: {quantity(resource, over.used.get(resource, 0))} used, {quantity(resource, allowed)} allowed now"
        for resource, allowed in sorted(over.allowed.items())
    )
    return "; ".join(parts)
