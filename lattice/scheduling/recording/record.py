"""Takes a snapshot of the input of one vcluster's cycle before it decides, and makes the same decision again from it.

`take_snapshot` copies what changes from cycle to cycle and shares what does not, so that it costs little and stays as it was;
`completed` adds the shares that the cost function has read meanwhile. `reproduce` makes a cluster state of a snapshot and calls
`lattice.scheduling.cycle.cycle.decide`, as the scheduler does. `take_query_snapshot` takes the input of all vclusters, for
questions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lattice.accounting.budgets import Scope
from lattice.quota.forest import Forest
from lattice.scheduling.cluster.backfill_table import BackfillReservation
from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.cycle.ranges import RANGES, extended
from lattice.scheduling.model.hardware import NodeFacts
from lattice.scheduling.model.outcomes import Outcome
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.priority.scoring import NOTHING_READ, Backlog, Scoring
from lattice.scheduling.priority.shares import Shares, Standing
from lattice.scheduling.state.budget_gate import Exhausted
from lattice.scheduling.state.cluster_state import OVERRUN, START_ALLOWANCE, ClusterState, PowerBudget
from lattice.views.ledger import TenantAccount


@dataclass(frozen=True, slots=True)
class Scored:
    """The input of the cost function except the candidates, as recorded: GPU-hours, shares of usage, multipliers; waits in seconds."""

    vclusters: tuple[str, ...] = ()
    """The vclusters with the cost function; all others order by class, then by waiting."""
    reference_wait: float = 3600.0
    energy_price: float | None = None
    running: float = 0.0
    backlog: tuple[Backlog, ...] = ()
    standings: Mapping[str, Standing] = field(default_factory=dict)
    """The usage beside the target, by tenant."""
    shares: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By (tenant, user): his share of all decayed node-hours."""
    with_work: Mapping[str, Collection[str]] = field(default_factory=dict)
    """By tenant: the users who hold nodes, or held some in the last seven days."""
    multipliers: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    """By (tenant, user, project): the budget multiplier, where it differs from the tenant's."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole input of one vcluster's cycle, copied before it decides; the fields have the meanings of those of `ClusterState`.

    `cycle`: its number. `now`: seconds since the epoch.
    """

    cycle: int
    vcluster: str
    now: float
    candidates: tuple[Candidate, ...]
    """In the order in which the cycle was given them."""
    nodes: Mapping[int, NodeFacts]
    taken: Mapping[int, float]
    holders: Mapping[str, NodeHolder]
    claims: frozenset[str]
    accounts: Mapping[str, TenantAccount]
    policies: Mapping[str, Policy]
    windows: tuple[ReservationWindow, ...]
    lists: Mapping[str, frozenset[int]]
    backfill_reservations: Mapping[str, Mapping[str, BackfillReservation]]
    heirs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    waiting: frozenset[str] = frozenset()
    exhausted: Mapping[Scope, Exhausted] = field(default_factory=dict)
    power: int | None = None
    overrun: float = OVERRUN
    allowance: float = START_ALLOWANCE
    scored: Scored = Scored()
    quota: Mapping[str, Any] | None = None
    """The quota trees and all their charges, as `Forest.snapshot` gives them; None without a tree."""


class SnapshotTaker:
    """Takes snapshots of one cluster state, and copies its nodes again only after they have changed."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._nodes: dict[int, NodeFacts] = {}
        self._news = -1

    def take_snapshot(self, vcluster: str, candidates: Sequence[Candidate], now: float, cycle: int) -> Snapshot:
        """Returns the input of the cycle number `cycle` of a vcluster that begins at `now`, as the function `take_snapshot` does."""
        node_cache = self._state.node_cache
        if node_cache.news != self._news:
            self._nodes, self._news = dict(node_cache.nodes), node_cache.news
        return take_snapshot(self._state, vcluster, candidates, now, cycle, self._nodes)


def take_snapshot(
    state: ClusterState,
    vcluster: str,
    candidates: Sequence[Candidate],
    now: float,
    cycle: int,
    nodes: Mapping[int, NodeFacts] | None = None,
) -> Snapshot:
    """Returns the input of a cycle that begins at `now`, without the shares that it will read (`completed` adds them).

    `nodes`: a copy of the node cache's nodes; None: one is made. Puts the state's backfill reservations on the buckets as they are now.
    """
    state.profile(now)  # reservations are of buckets as they are now
    return Snapshot(
        cycle=cycle,
        vcluster=vcluster,
        now=now,
        candidates=tuple(candidates),
        nodes=dict(state.node_cache.nodes) if nodes is None else nodes,
        taken=dict(state.node_cache.taken),
        holders=dict(state.holders),
        claims=state.claims(),
        accounts=dict(state.accounts),
        policies=dict(state.policies),
        windows=state.windows,
        lists=dict(state.lists),
        backfill_reservations={name: dict(reservations) for name, reservations in state.backfill_reservations.items()},
        heirs={name: dict(heirs) for name, heirs in state.heirs.items() if heirs},
        waiting=state.waiting if vcluster == RANGES else frozenset(),
        exhausted=dict(state.exhausted),
        power=state.power.limit,
        overrun=state.overrun_seconds,
        allowance=state.start_allowance,
        scored=_scored(state),
        quota=state.quota_usage.forest.snapshot() if state.quota_usage is not None else None,
    )


def take_query_snapshot(state: ClusterState, pending: Sequence[Candidate], now: float, more: Sequence[Candidate] = ()) -> Snapshot:
    """Returns the input of cycles of all vclusters at `now`, from which `rebuild` makes a cluster state for answers and what-ifs; without
    shares where no cost function is configured.

    `pending` is all waiting work, `more` further work that may be asked about, for its shares. Charges the quota tree with the waiting
    work, as the beginning of a cycle does.
    """
    if state.quota_usage is not None:
        state.quota_usage.ask(pending, now)
    moment = take_snapshot(state, "", pending, now, 0)
    scoring = state.scorings.get(next(iter(moment.scored.vclusters), ""))
    if not isinstance(scoring, Scoring):
        return moment
    people = {(one.tenant, one.user, one.project) for one in (*pending, *more)}
    shares, tenants = scoring.shares, {tenant for tenant, _, _ in people}
    scored = replace(
        moment.scored,
        standings={tenant: shares.standing(tenant, now) for tenant in tenants},
        shares={(tenant, user): shares.usage_of_user(tenant, user, now) for tenant, user, _ in people},
        with_work={tenant: frozenset(shares.with_work(tenant, now)) for tenant in tenants},
        multipliers={person: shares.multiplier_of(*person, now) for person in people},
    )
    return replace(moment, scored=scored)


def completed(moment: Snapshot, state: ClusterState) -> Snapshot:
    """Returns the snapshot of a cycle that has just ended, with the shares that its cost function read, so to be called before another
    vcluster is scored; unchanged where it had none, or read none.
    """
    scoring = state.scorings.get(moment.vcluster)
    if not isinstance(scoring, Scoring) or scoring.shares_read is NOTHING_READ:
        return moment
    standings, people, usages, with_work, multipliers = scoring.shares_read
    of_users = {(tenant, user): usage for (tenant, user, _), usage in zip(people, usages, strict=True)}
    scored = replace(moment.scored, standings=dict(standings), shares=of_users, with_work=dict(with_work), multipliers=dict(multipliers))
    return replace(moment, scored=scored)


def reproduce(moment: Snapshot) -> list[Outcome]:
    """Returns the outcomes that this program decides for a snapshot: of the cycle of a vcluster, or of `extended` for the name `RANGES`.

    For `RANGES` these are the candidates that get more nodes.
    """
    if moment.vcluster == RANGES:
        return list(extended(rebuild(moment), moment.candidates, moment.now))
    return list(decide(rebuild(moment), moment.vcluster, moment.candidates, moment.now))


def rebuild(moment: Snapshot) -> ClusterState:
    """Returns a new cluster state with the content of a snapshot; its cost function gives the recorded shares at any time."""
    scored = moment.scored
    node_cache = NodeCache()
    for facts in moment.nodes.values():
        node_cache.put(facts)
    policies = dict(moment.policies)
    state = ClusterState(
        node_cache,
        moment.accounts,
        policies,
        power=PowerBudget(moment.power),
        overrun_seconds=moment.overrun,
        start_allowance=moment.allowance,
    )
    for holder in moment.holders.values():
        state.put_holder(holder, claimed=holder.uid in moment.claims)
    node_cache.give([index for index in node_cache.taken if index not in moment.taken])
    for index, end in moment.taken.items():
        if node_cache.taken.get(index) != end:
            node_cache.take((index,), end)
    shares = RememberedShares(scored.standings, scored.shares, scored.with_work, scored.multipliers)
    scoring = Scoring(shares, policies, scored.reference_wait, scored.energy_price, scored.running)
    scoring.resume(scored.backlog)
    state.configure(state.policies, dict.fromkeys(scored.vclusters, scoring))
    for name, lists in moment.lists.items():
        state.set_lists(name, lists)
    state.set_windows(moment.windows)
    state.resume(moment.backfill_reservations, moment.heirs)
    state.set_waiting(moment.waiting)
    state.set_exhausted(moment.exhausted)
    if moment.quota is not None:
        state.restore_quota(Forest.restored(moment.quota), () if moment.vcluster == RANGES else moment.candidates, moment.now)
    return state


class RememberedShares(Shares):
    """The shares of a snapshot: gives the recorded answers whatever time is asked about, so that a replay scores as the recorded
    cycle did.
    """

    def __init__(
        self, standings: Mapping[str, Standing], shares: Mapping[tuple[str, str], float],
        with_work: Mapping[str, Collection[str]], multipliers: Mapping[tuple[str, str, str], float],
    ) -> None:  # fmt: skip
        super().__init__()
        self._standings = standings
        self._of_users = shares
        self._remembered = with_work
        self._multipliers = multipliers

    def standing(self, tenant: str, now: float) -> Standing:
        """Returns the recorded usage and target of a tenant, whatever `now` is; KeyError: the tenant was not recorded."""
        return self._standings[tenant]

    def usage_of_user(self, tenant: str, user: str, now: float) -> float:
        """Returns the recorded share of a user in all decayed node-hours, whatever `now` is; KeyError: the user was not recorded."""
        return self._of_users[tenant, user]

    def with_work(self, tenant: str, now: float) -> Collection[str]:
        """Returns the recorded users of a tenant with work; empty for a tenant that was not recorded."""
        return self._remembered.get(tenant, ())

    def multiplier_of(self, tenant: str, user: str, project: str, now: float) -> float:
        """Returns the recorded budget multiplier for work of this user and project; the tenant's where none of its own was recorded.

        KeyError: the tenant was not recorded.
        """
        return self._multipliers.get((tenant, user, project), self._standings[tenant].multiplier)


def _scored(state: ClusterState) -> Scored:
    """Returns the settings and the backlog of the cost function that vclusters share, the defaults without one; shares are added later by
    `completed`.
    """
    scoring = next(iter(state.scorings.values()), None)
    if not isinstance(scoring, Scoring):
        return Scored()
    return Scored(
        vclusters=tuple(name for name, one in state.scorings.items() if one is scoring),
        reference_wait=scoring.reference_wait,
        energy_price=scoring.energy_price,
        running=scoring.running_gpu_hours,
        backlog=scoring.backlog(),
    )
