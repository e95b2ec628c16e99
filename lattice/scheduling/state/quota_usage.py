"""The elastic quota tree as cycles use it: the forest, charged with the requests of pending work and the nodes of holders.

Whole nodes are charged. Pending work asks for its smallest eligible class times its least number of nodes, as long as nothing but
nodes and quota keeps it waiting; a holder is charged for its nodes. `QuotaUsage` has one owner, the cluster state, and is changed
by named events; `validate` counts everything again. The share that the charges leave to a candidate is in `quota_shares`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from lattice.errors import Corrupt
from lattice.quota.amounts import NODES
from lattice.quota.forest import Forest
from lattice.quota.groups import Resources
from lattice.scheduling.cluster.node_cache import NEVER, NodeCache
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.state.node_amounts import NO_AMOUNTS, add_amounts, amounts_of, negated, times
from lattice.scheduling.state.quota_shares import HardwareByNeed, QuotaShares


class _Asked(NamedTuple):
    """The charged request of one pending candidate: the resources that it asks for."""

    candidate: Candidate
    amounts: Resources
    until: float
    """When the request changes by time alone (a back-off or not-before ends), seconds since the epoch; `NEVER`: it does not."""
    stamp: tuple[int, int, int]
    """The state of the node cache and of the groups for which the request was computed."""


class _HolderCharge(NamedTuple):
    """The charge of one holder: its leaf and the resources of its nodes."""

    leaf: str
    amounts: Resources
    fixed: bool
    """Whether the work is non-preemptible, so that it also counts as non-preemptible use."""
    nodes: tuple[int, ...]


class QuotaUsage:
    """The quota trees charged with pending work and holders; `shares` tells cycles how many nodes they leave to a candidate."""

    def __init__(self, forest: Forest, node_cache: NodeCache) -> None:
        self.forest = forest
        self.version = 0
        """Grows with every change of requests, holdings, capacity or groups."""
        self._node_cache = node_cache
        self._hardware = HardwareByNeed(node_cache)
        self.shares = QuotaShares(forest, self._hardware, self)
        self._asked: dict[str, _Asked] = {}
        self._held: dict[str, _HolderCharge] = {}
        self._declared = 0
        """Grows when groups of a tree change."""
        self._ceilings: dict[str, Resources] = {}

    # -- events ---------------------------------------------------------------------------------------------------------

    def ask(self, candidates: Iterable[Candidate], now: float) -> None:
        """Charges the requests of these pending candidates as of `now`, seconds since the epoch; others stay charged until `drop`.

        Work that is held, blocked, before its not-before, of a closed or unknown vcluster, or that could never start asks for nothing; work
        that holds nodes is charged for these instead.
        """
        stamp, asked = self._stamp(), self._asked
        for candidate in candidates:
            known = asked.get(candidate.uid)
            if known is None or known.candidate is not candidate or known.stamp != stamp or known.until <= now:
                self._ask(candidate, now, stamp)

    def drop(self, uid: str) -> None:
        """Takes back the request of a candidate (uid) that no longer waits; an unknown uid is ignored."""
        known = self._asked.pop(uid, None)
        if known is not None and uid not in self._held:
            self._book(known.candidate.quota, request=negated(known.amounts))

    def hold(self, holder: NodeHolder) -> None:
        """Charges a holder for its nodes, in place of its request as a pending candidate."""
        self._hold(holder.uid, _HolderCharge(holder.quota, self._sum(holder.nodes), holder.non_preemptible, holder.nodes))

    def release(self, uid: str) -> None:
        """Takes back the charge of a holder (uid); if its allocation still waits, its request is charged again; unknown: ignored."""
        held, asked = self._held.pop(uid, None), self._asked.get(uid)
        if held is None:
            return
        less = negated(held.amounts)
        self._book(held.leaf, request=less, used=less, fixed=less if held.fixed else NO_AMOUNTS)
        if asked is not None:
            self._book(asked.candidate.quota, request=asked.amounts)

    def nodes_changed(self, indices: Iterable[int]) -> None:
        """Charges the holders of these nodes (indices) again, since the nodes came, went or have other hardware."""
        changed = frozenset(indices)
        for uid, held in list(self._held.items()):
            if not changed.isdisjoint(held.nodes):
                amounts = self._sum(held.nodes)
                if amounts != held.amounts:
                    self._hold(uid, held._replace(amounts=amounts))

    def capacity_changed(self) -> None:
        """Drops cached answers; the caller calls it when the capacity of a tree has changed."""
        self.version += 1

    def changed(self) -> None:
        """Drops cached answers and what was derived from groups; the caller calls it when groups of a tree have changed."""
        self.version += 1
        self._declared += 1
        self._ceilings.clear()
        self.shares.groups_changed()

    def asking(self) -> Mapping[str, object]:
        """Returns a copy of the charged requests by uid, to be given to `restore` after a what-if."""
        return dict(self._asked)

    def restore(self, asking: Mapping[str, object]) -> None:
        """Makes the charged requests again those that `asking` has returned, so that what a what-if has charged is undone."""
        for uid in [uid for uid, asked in self._asked.items() if asking.get(uid) is not asked]:
            self.drop(uid)
        for uid, asked in asking.items():
            if uid not in self._asked and isinstance(asked, _Asked):
                self._asked[uid] = asked
                if uid not in self._held:
                    self._book(asked.candidate.quota, request=asked.amounts)

    def adopt(self, candidates: Iterable[Candidate], holders: Iterable[NodeHolder], now: float) -> None:
        """Records candidates and holders whose charges the forest, restored from a snapshot, contains already."""
        stamp = self._stamp()
        for holder in holders:
            self._held[holder.uid] = _HolderCharge(holder.quota, self._sum(holder.nodes), holder.non_preemptible, holder.nodes)
        for candidate in candidates:
            self._asked[candidate.uid] = _Asked(candidate, *self._counted(candidate, now), stamp)

    # -- questions ------------------------------------------------------------------------------------------------------

    def asked(self, candidate: Candidate) -> Resources:
        """Returns the resources of a candidate's least request: its minimum of nodes of the plainest class that fits; empty: no node fits.

        The answer is the same whether or not the request is charged.
        """
        kinds = self._hardware.admitted_classes(candidate.need).kinds
        return times(amounts_of(kinds[0]), candidate.minimum) if kinds else NO_AMOUNTS

    def holding(self, uid: str) -> Resources:
        """Returns the resources for which a holder (uid) is charged; empty where it holds no nodes."""
        held = self._held.get(uid)
        return held.amounts if held is not None else NO_AMOUNTS

    def pending(self) -> Iterator[tuple[Candidate, Resources]]:
        """Yields the waiting candidates whose request is charged, with its resources; those that ask for nothing, or hold nodes, are left
        out.
        """
        return ((asked.candidate, asked.amounts) for uid, asked in self._asked.items() if asked.amounts and uid not in self._held)

    @contextmanager
    def without(self, demand: Mapping[str, Resources]) -> Iterator[None]:
        """Takes these amounts (by leaf) out of the pending requests in the forest while the block runs; nothing else may change meanwhile,
        and answers that `shares` keeps do not show it.
        """
        for leaf, amounts in demand.items():
            self.forest.demand(leaf, negated(amounts))
        try:
            yield
        finally:
            for leaf, amounts in demand.items():
                self.forest.demand(leaf, amounts)

    def demands(self) -> dict[str, tuple[dict[str, int], dict[str, int], dict[str, int]]]:
        """Returns by leaf (request, used, used by non-preemptible work), summed again from candidates and holders."""
        sums: dict[str, tuple[dict[str, int], dict[str, int], dict[str, int]]] = {}
        for held in self._held.values():
            request, used, fixed = sums.setdefault(held.leaf, ({}, {}, {}))
            for into in (request, used, fixed) if held.fixed else (request, used):
                add_amounts(into, self._sum(held.nodes))
        for uid, asked in self._asked.items():
            if uid not in self._held:
                add_amounts(sums.setdefault(asked.candidate.quota, ({}, {}, {}))[0], asked.amounts)
        return {leaf: each for leaf, each in sums.items() if any(each)}

    def validate(self) -> None:
        """Sums all requests and holdings again; raises Corrupt where they differ from those in the forest."""
        counted: dict[str, tuple[object, ...]] = {leaf: tuple(each) for leaf, each in self.demands().items()}
        for leaf in {*counted, *self.forest.snapshot()["demand"]}:
            booked = self.forest.booked(leaf)
            found = (dict(booked.request), dict(booked.used), dict(booked.non_preemptible_used))
            if found != counted.get(leaf, ({}, {}, {})):
                raise Corrupt(f'quota "{leaf}": its demand differs from what its work makes', reason="QuotaDemandDiffers")
        self.forest.validate()

    # -- the rest -------------------------------------------------------------------------------------------------------

    def _stamp(self) -> tuple[int, int, int]:
        """Returns the state of node cache and groups; requests that were computed under another one are computed again."""
        return (self._node_cache.shape, self._node_cache.tally, self._declared)

    def _ask(self, candidate: Candidate, now: float, stamp: tuple[int, int, int]) -> None:
        """Charges the request of a candidate as of `now` in place of its former one, and keeps it under this stamp.

        While the candidate holds nodes, the request is only kept, not charged.
        """
        amounts, until = self._counted(candidate, now)
        known = self._asked.get(candidate.uid)
        self._asked[candidate.uid] = _Asked(candidate, amounts, until, stamp)
        if candidate.uid in self._held:
            return
        if known is not None and (known.candidate.quota, known.amounts) == (candidate.quota, amounts):
            return
        if known is not None:
            self._book(known.candidate.quota, request=negated(known.amounts))
        self._book(candidate.quota, request=amounts)

    def _counted(self, candidate: Candidate, now: float) -> tuple[Resources, float]:
        """Returns the resources that a pending candidate asks for at `now`, and until when that holds (`NEVER`: until something changes).

        They are empty before its not-before, while it is held or blocked, in a closed or unknown vcluster, and where it could never start;
        work in back-off asks.
        """
        later = max(candidate.not_before, candidate.back_off_until)
        if candidate.held or candidate.blocked is not None or not candidate.vcluster_known or not candidate.vcluster_open:
            return NO_AMOUNTS, NEVER
        if candidate.not_before > now:
            return NO_AMOUNTS, candidate.not_before
        found = self._hardware.admitted_classes(candidate.need)
        if candidate.minimum > found.nodes:
            return NO_AMOUNTS, NEVER  # it can never start: nobody else is to give way to it
        asked = times(amounts_of(found.kinds[0]), candidate.minimum)
        if any(asked.get(resource, 0) > most for resource, most in self._ceiling(candidate.quota).items()):
            return NO_AMOUNTS, NEVER  # as above
        return asked, later if later > now else NEVER

    def _ceiling(self, leaf: str) -> Resources:
        """Returns by resource the least max of a leaf and the groups above it."""
        found = self._ceilings.get(leaf)
        if found is None:
            found = dict[str, int]()
            for name in self.forest.path(leaf):
                for resource, most in self.forest.standing(name).max.items():
                    found[resource] = min(most, found.get(resource, most))
            self._ceilings[leaf] = found
        return found

    def charged_request(self, candidate: Candidate) -> Resources:
        """Returns the resources that are charged for a candidate while it waits; `NO_AMOUNTS` where none are."""
        asked = self._asked.get(candidate.uid)
        return asked.amounts if asked is not None and candidate.uid not in self._held else NO_AMOUNTS

    def _hold(self, uid: str, new: _HolderCharge) -> None:
        """Charges a holder (uid), in place of its former charge and of its request as a pending candidate; an equal charge changes
        nothing.
        """
        before = self._held.get(uid)
        if before == new:
            return
        if before is not None:
            self.release(uid)
        asked = self._asked.get(uid)
        if asked is not None:
            self._book(asked.candidate.quota, request=negated(asked.amounts))
        self._held[uid] = new
        self._book(new.leaf, request=new.amounts, used=new.amounts, fixed=new.amounts if new.fixed else NO_AMOUNTS)

    def _sum(self, nodes: Sequence[int]) -> dict[str, int]:
        """Returns the resources of these nodes (indices); an unknown node counts as one node without CPU, memory and GPUs."""
        known, counts = self._node_cache.nodes, dict[int, tuple[Resources, int]]()
        for node in nodes:
            facts = known.get(node)
            each = _UNKNOWN if facts is None else amounts_of(facts)
            counts[id(each)] = (each, counts.get(id(each), (each, 0))[1] + 1)
        total: dict[str, int] = {}
        for each, count in counts.values():
            add_amounts(total, times(each, count))
        return total

    def _book(self, leaf: str, *, request: Resources = NO_AMOUNTS, used: Resources = NO_AMOUNTS, fixed: Resources = NO_AMOUNTS) -> None:
        """Adds amounts (negative: subtracts) to the request, the use and the non-preemptible use of a leaf in the forest; answers cached
        before are void then.

        Amounts that are empty in all three change nothing.
        """
        if request or used or fixed:
            self.version += 1
            self.forest.demand(leaf, request, used, fixed)


_UNKNOWN: Final[Resources] = {NODES: 1}
