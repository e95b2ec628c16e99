"""The elastic quota tree as cycles use it: the forest, charged with the requests of pending work and the nodes of holders.

Whole nodes are charged. Pending work asks for its smallest eligible class times its least number of nodes, as long as nothing but
nodes and quota keeps it waiting; a holder is charged for its nodes. `QuotaUsage` has one owner, the cluster state, and is changed
by named events; `validate` counts everything again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Final, NamedTuple

from lattice.errors import Corrupt
from lattice.quota.amounts import CPU, GPU, MEMORY, NODES, gpu_of
from lattice.quota.forest import Forest
from lattice.quota.gates import Blocked, Gate
from lattice.quota.groups import Resources
from lattice.scheduling.cluster.eligibility import admitted_nodes
from lattice.scheduling.cluster.node_cache import NEVER, Bucket, NodeCache
from lattice.scheduling.model.hardware import Hardware, Need, NodeFacts
from lattice.scheduling.model.work import Candidate, NodeHolder

NO_LIMIT: Final = 1 << 60
_NOTHING: Final[Resources] = {}


@lru_cache(maxsize=4096)
def node_amounts(cpus: int, memory: int, gpus: int, gpu_type: str) -> Resources:
    """Returns the resources that one whole node counts in a tree: CPU in millicores, local memory in bytes; one object for equal nodes."""
    amounts = {NODES: 1, CPU: cpus * 1000, MEMORY: memory, GPU: gpus}
    if gpu_type:
        amounts[gpu_of(gpu_type)] = gpus
    return {resource: amount for resource, amount in amounts.items() if amount}


def amounts_of(node: NodeFacts | Hardware) -> Resources:
    """Returns the resources that a node, or any node of a class of hardware, counts in a quota tree."""
    return node_amounts(node.cpus, node.memory, node.gpus, node.gpu_type)


def times(amounts: Resources, count: int) -> dict[str, int]:
    """Returns each resource amount times `count`."""
    return {resource: amount * count for resource, amount in amounts.items()}


class Share(NamedTuple):
    """The answer of the quota tree to a candidate that it admits: at most so many nodes, of these classes (None: of every eligible
    class).
    """

    nodes: int = NO_LIMIT
    classes: frozenset[Hardware] | None = None


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


class _Classes(NamedTuple):
    """The classes of hardware that a need admits, the plainest first, and how many nodes they have together."""

    kinds: tuple[Hardware, ...]
    nodes: int


class QuotaUsage:
    """The quota trees charged with pending work and holders; tells cycles how many nodes a tree leaves to a candidate."""

    def __init__(self, forest: Forest, node_cache: NodeCache) -> None:
        self.forest = forest
        self.version = 0
        """Grows with every change of requests, holdings, capacity or groups."""
        self._node_cache = node_cache
        self._asked: dict[str, _Asked] = {}
        self._held: dict[str, _HolderCharge] = {}
        self._declared = 0
        self._ceilings: dict[str, Resources] = {}
        self._alike: dict[tuple[str, Hardware, Hardware], Hardware] = {}
        self._stamp = (-1, -1, -1)
        self._classes: dict[Need, _Classes] = {}
        self._rooms: dict[tuple[str, Hardware, bool, tuple[int, int, bool] | None], int] = {}
        self._verdicts: dict[tuple[str, Hardware, bool, int], Blocked | None] = {}
        self._gates_of: dict[tuple[str, Hardware, bool], Sequence[Gate]] = {}
        self._rooms_version = -1

    # -- events ---------------------------------------------------------------------------------------------------------

    def ask(self, candidates: Iterable[Candidate], now: float) -> None:
        """Charges the requests of these pending candidates as of `now`, seconds since the epoch; others stay charged until `drop`.

        Held or blocked work, and work that could never start, asks for nothing.
        """
        stamp, asked = self._sync(), self._asked
        for candidate in candidates:
            known = asked.get(candidate.uid)
            if known is None or known.candidate is not candidate or known.stamp != stamp or known.until <= now:
                self._ask(candidate, now, stamp)

    def drop(self, uid: str) -> None:
        """Takes back the request of a candidate (uid) that no longer waits; an unknown uid is ignored."""
        known = self._asked.pop(uid, None)
        if known is not None and uid not in self._held:
            self._book(known.candidate.quota, request=_negative(known.amounts))

    def hold(self, holder: NodeHolder) -> None:
        """Charges a holder for its nodes, in place of its request as a pending candidate."""
        self._hold(holder.uid, _HolderCharge(holder.quota, self._sum(holder.nodes), holder.non_preemptible, holder.nodes))

    def release(self, uid: str) -> None:
        """Takes back the charge of a holder (uid); if its allocation still waits, its request is charged again; unknown: ignored."""
        held, asked = self._held.pop(uid, None), self._asked.get(uid)
        if held is None:
            return
        less = _negative(held.amounts)
        self._book(held.leaf, request=less, used=less, fixed=less if held.fixed else _NOTHING)
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
        self._alike.clear()

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
        stamp = self._sync()
        for holder in holders:
            self._held[holder.uid] = _HolderCharge(holder.quota, self._sum(holder.nodes), holder.non_preemptible, holder.nodes)
        for candidate in candidates:
            self._asked[candidate.uid] = _Asked(candidate, *self._counted(candidate, now), stamp)

    # -- questions ------------------------------------------------------------------------------------------------------

    def share(self, candidate: Candidate) -> Share | Blocked:
        """Returns how many nodes of which classes of hardware the quota tree leaves to a candidate, or the first level that blocks it.

        The least that its leaf and the groups above leave counts. Classes of which less than the candidate's minimum is left are not
        among them.
        """
        kinds = self._classes_of(candidate.need).kinds
        if not kinds:
            return _WIDE
        if len(kinds) == 1 and candidate.maximum == candidate.minimum:
            return self._blocked(candidate, kinds[0]) or Share(candidate.minimum)
        least = candidate.minimum
        rooms = [self._room(candidate, self._counts_as(candidate.quota, kind, kinds[0]), kinds[0]) for kind in kinds]
        enough = [room for room in rooms if room >= least]
        if len(enough) == len(rooms):
            return Share(min(rooms))
        if enough:
            return Share(min(enough), frozenset(kind for kind, room in zip(kinds, rooms, strict=True) if room >= least))
        return self._blocked(candidate, kinds[0]) or _WIDE

    def refuses(self, candidate: Candidate, counts: Iterable[tuple[Bucket, int]]) -> Blocked | None:
        """Returns the level that blocks a candidate on just these nodes (so many of each bucket); None: the tree admits them."""
        if candidate.maximum == candidate.minimum and len(self._classes_of(candidate.need).kinds) == 1:
            found = self.share(candidate)
            return found if isinstance(found, Blocked) else None
        amounts: dict[str, int] = {}
        for bucket, count in counts:
            _add(amounts, times(amounts_of(bucket.key.hardware), count))
        return self._admits(candidate, amounts)

    def asked(self, candidate: Candidate) -> Resources:
        """Returns the resources of a candidate's least request: its minimum of nodes of the plainest class that fits; empty: no node fits.

        The answer is the same whether or not the request is charged.
        """
        kinds = self._classes_of(candidate.need).kinds
        return times(amounts_of(kinds[0]), candidate.minimum) if kinds else _NOTHING

    def holding(self, uid: str) -> Resources:
        """Returns the resources for which a holder (uid) is charged; empty where it holds no nodes."""
        held = self._held.get(uid)
        return held.amounts if held is not None else _NOTHING

    def pending(self) -> Iterator[tuple[Candidate, Resources]]:
        """Yields the waiting candidates whose request is charged, with its resources."""
        return ((asked.candidate, asked.amounts) for uid, asked in self._asked.items() if asked.amounts and uid not in self._held)

    @contextmanager
    def without(self, demand: Mapping[str, Resources]) -> Iterator[None]:
        """Takes these amounts (by leaf) out of the pending requests while the block runs; nothing else may change meanwhile."""
        for leaf, amounts in demand.items():
            self.forest.demand(leaf, _negative(amounts))
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
                _add(into, self._sum(held.nodes))
        for uid, asked in self._asked.items():
            if uid not in self._held:
                _add(sums.setdefault(asked.candidate.quota, ({}, {}, {}))[0], asked.amounts)
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

    def _sync(self) -> tuple[int, int, int]:
        """Returns the stamp of node cache and groups; drops the classes of needs that were found under another stamp."""
        stamp = (self._node_cache.shape, self._node_cache.tally, self._declared)
        if stamp != self._stamp:
            self._stamp = stamp
            self._classes.clear()
        return stamp

    def _ask(self, candidate: Candidate, now: float, stamp: tuple[int, int, int]) -> None:
        amounts, until = self._counted(candidate, now)
        known = self._asked.get(candidate.uid)
        self._asked[candidate.uid] = _Asked(candidate, amounts, until, stamp)
        if candidate.uid in self._held:
            return
        if known is not None and (known.candidate.quota, known.amounts) == (candidate.quota, amounts):
            return
        if known is not None:
            self._book(known.candidate.quota, request=_negative(known.amounts))
        self._book(candidate.quota, request=amounts)

    def _counted(self, candidate: Candidate, now: float) -> tuple[Resources, float]:
        """Returns the resources that a pending candidate asks for at `now`, and until when that holds (`NEVER`: until something changes).

        They are empty before its not-before, while it is held or blocked, and where it could never start; work in back-off asks.
        """
        later = max(candidate.not_before, candidate.back_off_until)
        if candidate.held or candidate.blocked is not None or not candidate.vcluster_known or not candidate.vcluster_open:
            return _NOTHING, NEVER
        if candidate.not_before > now:
            return _NOTHING, candidate.not_before
        found = self._classes_of(candidate.need)
        if candidate.minimum > found.nodes:
            return _NOTHING, NEVER  # it can never start: nobody else is to give way to it
        asked = times(amounts_of(found.kinds[0]), candidate.minimum)
        if any(asked.get(resource, 0) > most for resource, most in self._ceiling(candidate.quota).items()):
            return _NOTHING, NEVER  # as above
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

    def _classes_of(self, need: Need) -> _Classes:
        self._sync()
        known = self._classes.get(need)
        if known is None:
            known = self._classes[need] = self._find_classes(need)
        return known

    def _find_classes(self, need: Need) -> _Classes:
        node_cache, sizes = self._node_cache, dict[Hardware, int]()
        if need.lists <= node_cache.masks:
            for bucket in node_cache.table.admitted(need):
                sizes[bucket.key.hardware] = sizes.get(bucket.key.hardware, 0) + len(bucket.members)
        else:
            for index in admitted_nodes(node_cache, need):
                kind = node_cache.table.of_node[index].key.hardware
                sizes[kind] = sizes.get(kind, 0) + 1
        return _Classes(tuple(sorted(sizes, key=lambda kind: kind.worth)), sum(sizes.values()))

    def _blocked(self, candidate: Candidate, plainest: Hardware) -> Blocked | None:
        """Returns the level of the tree that blocks the least request of a candidate; None: no level does.

        The answer is kept for all candidates of the same leaf, class, minimum and preemptibility.
        """
        self._fresh()
        least = candidate.minimum
        if self._booked(candidate) is _NOTHING:
            return self._admits(candidate, times(amounts_of(plainest), least))
        key = (candidate.quota, plainest, candidate.non_preemptible, least)
        if key not in self._verdicts:
            one = next((gate for gate in self._gates(candidate, plainest) if gate.used + gate.asked * least > gate.limit), None)
            self._verdicts[key] = None if one is None else self.forest.blocked(one.times(least))
        return self._verdicts[key]

    def _gates(self, candidate: Candidate, kind: Hardware) -> Sequence[Gate]:
        """Returns the quota checks for one node of this class; n nodes ask for n times as much."""
        key = (candidate.quota, kind, candidate.non_preemptible)
        gates = self._gates_of.get(key)
        if gates is None:
            gates = self._gates_of[key] = self.forest.gates(candidate.quota, amounts_of(kind), non_preemptible=candidate.non_preemptible)
        return gates

    def _fresh(self) -> None:
        """Drops cached answers that are older than the last change."""
        if self._rooms_version != self.version:
            self._rooms.clear()
            self._verdicts.clear()
            self._gates_of.clear()
            self._rooms_version = self.version

    def _counts_as(self, leaf: str, kind: Hardware, plainest: Hardware) -> Hardware:
        """Returns the class by which answers are cached: `plainest` if a node of `kind` counts the same in all groups of a leaf, else
        `kind`.
        """
        key = (leaf, kind, plainest)
        found = self._alike.get(key)
        if found is None:
            managed, one, other = self.forest.managed(leaf), amounts_of(kind), amounts_of(plainest)
            alike = all(one.get(resource) == other.get(resource) for resource in managed)
            found = self._alike[key] = plainest if alike else kind
        return found

    def _room(self, candidate: Candidate, kind: Hardware, plainest: Hardware) -> int:
        """Returns how many nodes of a class the tree leaves to a candidate that asks for its maximum of that class."""
        self._fresh()
        as_booked = kind is plainest and candidate.maximum == candidate.minimum
        sizes = None if as_booked else (candidate.minimum, candidate.maximum, self._booked(candidate) is _NOTHING)
        key = (candidate.quota, kind, candidate.non_preemptible, sizes)
        room = self._rooms.get(key)
        if room is None:
            wish = None if as_booked else times(amounts_of(kind), candidate.maximum)
            with self._wishing(candidate, wish):
                gates = (
                    self._gates(candidate, kind)
                    if as_booked
                    else self.forest.gates(candidate.quota, amounts_of(kind), non_preemptible=candidate.non_preemptible)
                )
                room = self._rooms[key] = min((gate.room // gate.asked for gate in gates), default=NO_LIMIT)
        return room

    def _admits(self, candidate: Candidate, amounts: Resources) -> Blocked | None:
        """Returns the level that blocks a candidate if it asked for just these resources; None: the tree admits them."""
        with self._wishing(candidate, amounts):
            return self.forest.admits(candidate.quota, amounts, non_preemptible=candidate.non_preemptible)

    @contextmanager
    def _wishing(self, candidate: Candidate, wish: Resources | None) -> Iterator[None]:
        """Charges a candidate's leaf with `wish` instead of its request while the block runs; None: no change."""
        booked = self._booked(candidate)
        if wish is None or wish == booked:
            yield
            return
        more = dict(wish)
        _add(more, _negative(booked))
        with self.forest.supposed(candidate.quota, more):
            yield

    def _booked(self, candidate: Candidate) -> Resources:
        """Returns the resources that are charged for a candidate while it waits; empty where none are."""
        asked = self._asked.get(candidate.uid)
        return asked.amounts if asked is not None and candidate.uid not in self._held else _NOTHING

    def _hold(self, uid: str, new: _HolderCharge) -> None:
        before = self._held.get(uid)
        if before == new:
            return
        if before is not None:
            self.release(uid)
        asked = self._asked.get(uid)
        if asked is not None:
            self._book(asked.candidate.quota, request=_negative(asked.amounts))
        self._held[uid] = new
        self._book(new.leaf, request=new.amounts, used=new.amounts, fixed=new.amounts if new.fixed else _NOTHING)

    def _sum(self, nodes: Sequence[int]) -> dict[str, int]:
        """Returns the resources of these nodes (indices); an unknown node counts as one node without CPU, memory and GPUs."""
        known, counts = self._node_cache.nodes, dict[int, tuple[Resources, int]]()
        for node in nodes:
            facts = known.get(node)
            each = _UNKNOWN if facts is None else amounts_of(facts)
            counts[id(each)] = (each, counts.get(id(each), (each, 0))[1] + 1)
        total: dict[str, int] = {}
        for each, count in counts.values():
            _add(total, times(each, count))
        return total

    def _book(self, leaf: str, *, request: Resources = _NOTHING, used: Resources = _NOTHING, fixed: Resources = _NOTHING) -> None:
        if request or used or fixed:
            self.version += 1
            self.forest.demand(leaf, request, used, fixed)


def _negative(amounts: Resources) -> dict[str, int]:
    return {resource: -amount for resource, amount in amounts.items()}


def _add(into: dict[str, int], amounts: Resources) -> None:
    for resource, amount in amounts.items():
        into[resource] = into.get(resource, 0) + amount


_UNKNOWN: Final[Resources] = {NODES: 1}
_WIDE: Final = Share()
