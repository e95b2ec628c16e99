"""A cluster state as a simulation reads it: usable nodes in columns, work that holds them, pending work, caps, windows; counts only.

A column is a set of nodes that the same pending needs admit. With more than `MOST_SETS` distinct needs the rarest are
counted by their vcluster alone: their start is then foreseen too early rather than never.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.forecast.simulator_input import BACKFILL, FIRST_FIT, IN_ORDER
from lattice.scheduling.model.hardware import Need, NodeFacts
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.strategies import lenders_for, strategy_of
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import REQUIRED, Candidate, NodeHolder
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.headroom import Cap, hard_caps, vcluster_caps
from lattice.scheduling.state.uses import Use, Uses
from lattice.views.ledger import TenantAccount

MOST_SETS: Final = 48

Eligibility = tuple[Need, str, frozenset[str], int]
"""The key of the nodes on which a candidate may run: need, vcluster, lenders, and the number of the window it must stay in (−1: none)."""
CapKey = tuple[str, ...]
Kind = tuple[object, ...]


@dataclass
class NodeMasks:
    """All nodes as bit sets of indices by class, by home and by fingerprint; the forecaster keeps it from one forecast to the next."""

    classes: dict[Kind, int] = field(default_factory=dict)
    homes: dict[str, int] = field(default_factory=dict)
    fingerprints: dict[str, int] = field(default_factory=dict)
    """By known fingerprint."""
    usable: int = 0
    _examples: dict[Kind, NodeFacts] = field(default_factory=dict)
    _seen: dict[int, NodeFacts] = field(default_factory=dict)

    def refresh(self, node_cache: NodeCache) -> None:
        """Updates the bit sets to the nodes of a node cache; reads only those that have changed since the last call."""
        nodes = node_cache.nodes
        seen = self._seen
        changed = [facts for index, facts in nodes.items() if seen.get(index) is not facts]
        gone = [index for index in seen if index not in nodes] if len(nodes) < len(seen) + len(changed) else ()
        for index in gone:
            self._drop(seen.pop(index))
        for facts in changed:
            before = seen.get(facts.index)
            if before is not None:
                self._drop(before)
            seen[facts.index] = facts
            bit = 1 << facts.index
            kind = _kind(facts)
            self._examples.setdefault(kind, facts)
            self.classes[kind] = self.classes.get(kind, 0) | bit
            self.homes[facts.home] = self.homes.get(facts.home, 0) | bit
            if facts.fingerprint:
                self.fingerprints[facts.fingerprint] = self.fingerprints.get(facts.fingerprint, 0) | bit
            if facts.usable:
                self.usable |= bit

    def admitted(self, need: Need) -> int:
        """Returns the nodes that satisfy a need as a bit set, in whatever state they are."""
        mask = 0
        for kind, members in self.classes.items():
            example = self._examples[kind]
            if need.admits(example) and (need.groups is None or example.group in need.groups):
                mask |= members
        return (mask if need.only is None else mask & need.only) & ~need.without

    def _drop(self, facts: NodeFacts) -> None:
        """Takes a node, by the facts that it had, out of the bit sets; a fingerprint that no other node has goes with it."""
        left = ~(1 << facts.index)
        self.classes[_kind(facts)] &= left
        self.homes[facts.home] &= left
        self.usable &= left
        if facts.fingerprint:
            self.fingerprints[facts.fingerprint] &= left
            if not self.fingerprints[facts.fingerprint]:
                del self.fingerprints[facts.fingerprint]


def _kind(facts: NodeFacts) -> Kind:
    """Returns the facts by which needs and groups tell nodes apart."""
    return (
        facts.group, facts.cpus, facts.memory, facts.gpus, facts.features, facts.hollow, facts.cxl_memory, facts.gpu_type,
        facts.gpu_memory, facts.unified, facts.scratch, facts.architecture,
    )  # fmt: skip


@dataclass(frozen=True)
class ForecastSnapshot:
    """A copy of what a forecast needs of the cluster state, as of `now`, so that another thread may compute with it."""

    now: float
    queues: Mapping[str, tuple[Candidate, ...]]
    """By vcluster: its pending candidates, in the order in which its cycle evaluates them."""
    holders: tuple[NodeHolder, ...]
    policies: Mapping[str, Policy]
    accounts: Mapping[str, TenantAccount]
    claimed: Mapping[str, tuple[int, int]]
    """By tenant: nodes and allocations that were placed but are not in the ledger's accounts yet."""
    windows: tuple[ReservationWindow, ...]
    overrun_seconds: float
    start_allowance: float
    masks: NodeMasks
    latest: Mapping[str, float]
    """By uid: the latest start that its backfill reservation promises, seconds since the epoch."""
    unforeseen: Mapping[str, str] = field(default_factory=dict)
    """By uid of work whose start nobody can foresee: the reason why the last cycle kept it waiting."""
    tried: Mapping[str, str] = field(default_factory=dict)
    """By uid of work that found no nodes or no power in the last cycle: the reason; it starts only after some work has ended."""

    def policy(self, vcluster: str) -> Policy:
        """Returns the policy of a vcluster, the default one where none is configured."""
        return self.policies.get(vcluster) or Policy(vcluster)


def forecast_snapshot(
    state: ClusterState, queues: Mapping[str, Sequence[Candidate]], masks: NodeMasks, now: float, latest: Mapping[str, float],
    unforeseen: Mapping[str, str] | None = None, tried: Mapping[str, str] | None = None,
) -> ForecastSnapshot:  # fmt: skip
    """Copies from the cluster state what a forecast needs; `masks` are the caller's and are refreshed.

    `latest`, `unforeseen`, `tried`: by uid, see `ForecastSnapshot`.
    """
    masks.refresh(state.node_cache)
    return ForecastSnapshot(
        now=now,
        queues={vcluster: tuple(queue) for vcluster, queue in queues.items()},
        holders=tuple(state.holders.values()),
        policies=dict(state.policies),
        accounts=dict(state.accounts),
        claimed={tenant: (use.nodes, use.running) for tenant, use in state.uses.claimed.items()},
        windows=state.windows,
        overrun_seconds=state.overrun_seconds,
        start_allowance=state.start_allowance,
        masks=masks,
        latest=latest,
        unforeseen=unforeseen or {},
        tried=tried or {},
    )


class Columns:
    """The usable nodes divided into columns so that each set of eligible nodes is a union of columns; input of the simulator."""

    def __init__(self, snapshot: ForecastSnapshot) -> None:
        masks = self._masks = snapshot.masks
        self._snapshot = snapshot
        self._lenders: dict[tuple[str, float | None], frozenset[str]] = {}
        self._eligibilities: dict[str, Eligibility] = {}
        """The key of each candidate by uid."""
        self._number_of: dict[str, int] = {}
        """The number of each candidate's set of eligible nodes, by uid."""
        asked = Counter(self.eligibility(candidate) for queue in snapshot.queues.values() for candidate in queue)
        self._own = {eligibility for eligibility, _count in asked.most_common(MOST_SETS)}
        self._numbers: dict[Eligibility, int] = {}
        fitting = self._fitting = [self._mask(eligibility) for eligibility in self._distinct(asked)]
        wanted = [mask & masks.usable for mask in fitting]
        self.exist = self._within_loans(fitting)
        """By set: how many nodes of the set, usable or not, one candidate may have at a time."""
        self.usable = self._within_loans(wanted)
        """By set: how many usable nodes one candidate may have at a time."""
        windows = [window.nodes & masks.usable for window in snapshot.windows]
        parts = _divided(masks.usable, [*wanted, *windows])
        self.sizes = [part.bit_count() for part in parts]
        self.of_node: dict[int, int] = {index: column for column, part in enumerate(parts) for index in _indices(part)}
        homes = [masks.homes.get(eligibility[1], 0) for eligibility in self._numbers]
        shared = [sum(1 for mask in wanted if mask & part) for part in parts]
        ranked = [
            sorted((not part & home, shared[at], at) for at, part in enumerate(parts) if part & mask)
            for mask, home in zip(wanted, homes, strict=True)
        ]
        self.sets = tuple(tuple(at for _away, _shared, at in columns) for columns in ranked)
        """By set: its columns in the order of use, those at home first, then those that the fewest other sets contain."""
        self.windows = [frozenset(column for column, part in enumerate(parts) if part & mask) for mask in windows]

    def _within_loans(self, masks: Sequence[int]) -> list[int]:
        """Returns for each set how many nodes of its bit set one candidate may have, given how many its vcluster may borrow."""
        counts: list[int] = []
        for (_, vcluster, _, _), mask in zip(self._numbers, masks, strict=True):
            policy = self._snapshot.policy(vcluster)
            own = (mask & self._masks.homes.get(vcluster if policy.home else "", 0)).bit_count()
            lent, most = mask.bit_count() - own, policy.borrowing.max_borrowed
            counts.append(own + (lent if most is None else min(lent, most)))
        return counts

    def number(self, candidate: Candidate) -> int:
        """Returns the number of the set of nodes on which a candidate of the snapshot may run: its place in `sets`, `exist`, `usable`."""
        number = self._number_of.get(candidate.uid)
        if number is None:
            number = self._number_of[candidate.uid] = self._numbers[self._kept(self.eligibility(candidate))]
        return number

    def lacks_equal(self, candidate: Candidate) -> bool:
        """Tells whether a candidate requires nodes of one known fingerprint, and no fingerprint has enough usable ones that fit; False for
        work of one node.
        """
        required = candidate.conformance == REQUIRED or strategy_of(self._snapshot.policy(candidate.vcluster)).conformant
        if not required or candidate.minimum == 1:
            return False
        mask = self._fitting[self.number(candidate)] & self._masks.usable
        return all((mask & alike).bit_count() < candidate.minimum for alike in self._masks.fingerprints.values())

    def eligibility(self, candidate: Candidate) -> Eligibility:
        """Returns the key of the nodes on which a candidate may run."""
        found = self._eligibilities.get(candidate.uid)
        if found is None:
            found = candidate.need, candidate.vcluster, self._lenders_of(candidate), self.window_of(candidate)
            self._eligibilities[candidate.uid] = found
        return found

    def _lenders_of(self, candidate: Candidate) -> frozenset[str]:
        """Returns the vclusters whose idle nodes a candidate may borrow for its walltime; empty for non-preemptible work."""
        if candidate.non_preemptible:
            return frozenset()
        key = (candidate.vcluster, candidate.walltime)
        if key not in self._lenders:
            self._lenders[key] = frozenset(lenders_for(self._snapshot.policies, *key))
        return self._lenders[key]

    def window_of(self, candidate: Candidate) -> int:
        """Returns the number of the first window of a candidate's Reservation that is long enough for it, else of the first; −1
        without any.
        """
        if not candidate.reservation:
            return -1
        now, longest = self._snapshot.now, (candidate.walltime or 0.0) + candidate.grace + self._snapshot.start_allowance
        mine = [number for number, window in enumerate(self._snapshot.windows) if window.name == candidate.reservation]
        wide = (number for number in mine if max(now, self._snapshot.windows[number].start) + longest <= self._snapshot.windows[number].end)
        return next(wide, mine[0] if mine else -1)

    def held(self, nodes: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Returns (column, count) pairs that count how many of these nodes (indices) each column has; unusable nodes lie in no column."""
        of_node = self.of_node
        return tuple(sorted(Counter(of_node[node] for node in nodes if node in of_node).items()))

    def _distinct(self, asked: Iterable[Eligibility]) -> Iterator[Eligibility]:
        """Yields each set of eligible nodes under which some pending work is counted, once, and numbers it by its place."""
        for eligibility in asked:
            kept = self._kept(eligibility)
            if kept not in self._numbers:
                self._numbers[kept] = len(self._numbers)
                yield kept

    def _kept(self, eligibility: Eligibility) -> Eligibility:
        """Returns the key under which an eligibility is counted: itself, or for a rare one that of its vcluster, lenders and window with no
        other need.
        """
        need, vcluster, lenders, window = eligibility
        return eligibility if eligibility in self._own else (Need(hollow=need.hollow), vcluster, lenders, window)

    def _mask(self, eligibility: Eligibility) -> int:
        """Returns the nodes of an eligibility as a bit set, usable or not: they satisfy the need, are at home in the vcluster or its
        lenders, and lie in the window if there is one.
        """
        need, vcluster, lenders, window = eligibility
        home = self._masks.homes.get(vcluster if self._snapshot.policy(vcluster).home else "", 0)
        for lender in lenders:
            home |= self._masks.homes.get(lender, 0)
        admitted = self._masks.admitted(need) & home
        return admitted if window < 0 else admitted & self._snapshot.windows[window].nodes


class Caps:
    """The limits that are set, numbered, with their headroom: hard limits of tenants and users, and limits of vclusters."""

    def __init__(self, snapshot: ForecastSnapshot) -> None:
        self._snapshot = snapshot
        self._uses = Uses(claimed={tenant: Use(nodes, running) for tenant, (nodes, running) in snapshot.claimed.items()})
        for holder in snapshot.holders:
            self._uses.count(holder, 1, claimed=False)
        self._numbers: dict[CapKey, int] = {}
        self._known: dict[tuple[str, str, str, int], tuple[tuple[int, int], ...]] = {}
        self.room: list[int] = []
        """By number of the cap: how much more may be used; negative where the limit was lowered below what is in use."""

    def amounts_of(self, work: Candidate | NodeHolder, nodes: int) -> tuple[tuple[int, int], ...]:
        """Returns (cap number, amount) of each cap that this work counts against when it holds `nodes` nodes; numbers caps met first."""
        key = (work.vcluster, work.tenant, work.user, nodes)
        if key not in self._known:
            self._known[key] = self._amounts_of(work, nodes)
        return self._known[key]

    def _amounts_of(self, work: Candidate | NodeHolder, nodes: int) -> tuple[tuple[int, int], ...]:
        """Computes the answer of `amounts_of`: the hard limits of tenant and user, then the vcluster's on all work, on the user, on the
        tenant.
        """
        vcluster, tenant, user, uses = work.vcluster, work.tenant, work.user, self._uses
        account = self._snapshot.accounts.get(tenant)
        found: list[tuple[int, int]] = []
        if account is not None:
            of_tenant, of_person = hard_caps(account, uses, tenant, user)
            self._add(found, ("ledger", tenant), of_tenant, nodes)
            self._add(found, ("ledger", tenant, user), of_person, nodes)
        of_user, of_its_tenant, of_all = vcluster_caps(self._snapshot.policy(vcluster).limits, uses, vcluster, tenant, user)
        self._add(found, ("vcluster", vcluster), of_all, nodes)
        self._add(found, ("user", vcluster, user), of_user, nodes)
        self._add(found, ("tenant", vcluster, tenant), of_its_tenant, nodes)
        return tuple(found)

    def _add(self, found: list[tuple[int, int]], key: CapKey, cap: Cap, nodes: int) -> None:
        """Adds the numbers of the limits of a cap with what the work uses of them, and numbers a limit that is met first."""
        most_nodes, most_running, held, running = cap
        for what, limit, taken, amount in (("nodes", most_nodes, held, nodes), ("running", most_running, running, 1)):
            if limit is None:
                continue
            number = self._numbers.setdefault((what, *key), len(self.room))
            if number == len(self.room):
                self.room.append(limit - taken)
            found.append((number, amount))


def _divided(whole: int, masks: Iterable[int]) -> list[int]:
    """Splits the bit set `whole` into the fewest parts such that each of the masks, within it, is a union of parts."""
    parts = [whole] if whole else []
    for mask in dict.fromkeys(masks):
        parts = [piece for part in parts for piece in (part & mask, part & ~mask) if piece]
    return parts


def _indices(mask: int) -> Iterator[int]:
    """Yields the indices in a bit set, ascending; faster than `indices_of` where many are set."""
    return (index for index, bit in enumerate(reversed(f"{mask:b}")) if bit == "1")


def mode_of(policy: Policy) -> str:
    """Returns how a simulation plays the queue of a vcluster.

    BACKFILL: the first that does not fit holds a reservation. FIRST_FIT: nobody does. IN_ORDER: nobody passes an earlier one that asks
    for the same nodes.
    """
    strategy = strategy_of(policy)
    if strategy.strict:
        return IN_ORDER
    return BACKFILL if strategy.depth(policy) > 0 else FIRST_FIT
