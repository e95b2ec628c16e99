"""The share that the quota tree leaves to a candidate: so many nodes, of these classes of hardware, or the level that blocks it.

Answers are kept for all candidates that ask alike, until a charge, a capacity or a group changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from lattice.quota.forest import Forest
from lattice.quota.gates import Blocked, Gate
from lattice.quota.groups import Resources
from lattice.scheduling.cluster.eligibility import admitted_nodes
from lattice.scheduling.cluster.node_cache import Bucket, NodeCache
from lattice.scheduling.model.hardware import Hardware, Need
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.headroom import NO_LIMIT
from lattice.scheduling.state.node_amounts import NO_AMOUNTS, add_amounts, amounts_of, negated, times


class Share(NamedTuple):
    """The answer of the quota tree to a candidate that it admits: at most so many nodes, of these classes (None: of every eligible
    class).
    """

    nodes: int = NO_LIMIT
    classes: frozenset[Hardware] | None = None


class EligibleHardware(NamedTuple):
    """The classes of hardware that a need admits, the plainest first, and how many nodes they have together."""

    kinds: tuple[Hardware, ...]
    nodes: int


class HardwareByNeed:
    """The classes of hardware that each need admits, found once until nodes come, go or become usable or not."""

    def __init__(self, node_cache: NodeCache) -> None:
        self._node_cache = node_cache
        self._stamp = (-1, -1)
        self._known: dict[Need, EligibleHardware] = {}

    def admitted_classes(self, need: Need) -> EligibleHardware:
        """Returns the classes of hardware that a need admits, the plainest first, whatever the state and home of their nodes, and how many
        nodes these are.
        """
        stamp = (self._node_cache.shape, self._node_cache.tally)
        if stamp != self._stamp:
            self._stamp = stamp
            self._known.clear()
        known = self._known.get(need)
        if known is None:
            known = self._known[need] = self._find(need)
        return known

    def _find(self, need: Need) -> EligibleHardware:
        """Counts the nodes that a need admits by their class of hardware."""
        node_cache, sizes = self._node_cache, dict[Hardware, int]()
        if need.lists <= node_cache.masks:
            for bucket in node_cache.table.admitted(need):
                sizes[bucket.key.hardware] = sizes.get(bucket.key.hardware, 0) + len(bucket.members)
        else:
            for index in admitted_nodes(node_cache, need):
                kind = node_cache.table.of_node[index].key.hardware
                sizes[kind] = sizes.get(kind, 0) + 1
        return EligibleHardware(tuple(sorted(sizes, key=lambda kind: kind.worth)), sum(sizes.values()))


class ChargedRequests(Protocol):
    """The charges of a quota tree, as the shares that follow from them are asked for; `QuotaUsage` is the implementation."""

    version: int
    """Grows with every change of requests, holdings, capacity or groups."""

    def charged_request(self, candidate: Candidate) -> Resources:
        """Returns the resources that are charged for a candidate while it waits; `NO_AMOUNTS` where none are."""
        ...


class QuotaShares:
    """Tells how many nodes, of which classes of hardware, the quota trees leave to a candidate; changes no charge."""

    def __init__(self, forest: Forest, hardware: HardwareByNeed, charges: ChargedRequests) -> None:
        self._forest = forest
        self._hardware = hardware
        self._charges = charges
        self._alike: dict[tuple[str, Hardware, Hardware], Hardware] = {}
        self._rooms: dict[tuple[str, Hardware, bool, tuple[int, int, bool] | None], int] = {}
        self._verdicts: dict[tuple[str, Hardware, bool, int], Blocked | None] = {}
        self._gates_of: dict[tuple[str, Hardware, bool], Sequence[Gate]] = {}
        self._version = -1
        """The version of the charges for which the kept answers are true."""

    def share(self, candidate: Candidate) -> Share | Blocked:
        """Returns how many nodes of which classes of hardware the quota tree leaves to a candidate, or the first level that blocks its
        minimum; no limit where no node fits it.

        The least that its leaf and the groups above leave counts. Classes of which less than the candidate's minimum is left are not among
        them. Work of one class and one size gets its minimum, even if more is left.
        """
        kinds = self._hardware.admitted_classes(candidate.need).kinds
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
        if candidate.maximum == candidate.minimum and len(self._hardware.admitted_classes(candidate.need).kinds) == 1:
            found = self.share(candidate)
            return found if isinstance(found, Blocked) else None
        amounts: dict[str, int] = {}
        for bucket, count in counts:
            add_amounts(amounts, times(amounts_of(bucket.key.hardware), count))
        return self._admits(candidate, amounts)

    def groups_changed(self) -> None:
        """Drops what was derived from the groups of the trees; the caller calls it when these have changed."""
        self._alike.clear()

    def _blocked(self, candidate: Candidate, plainest: Hardware) -> Blocked | None:
        """Returns the level of the tree that blocks the least request of a candidate; None: no level does.

        The answer is kept for all candidates of the same leaf, class, minimum and preemptibility.
        """
        self._drop_outdated()
        least = candidate.minimum
        if self._charges.charged_request(candidate) is NO_AMOUNTS:
            return self._admits(candidate, times(amounts_of(plainest), least))
        key = (candidate.quota, plainest, candidate.non_preemptible, least)
        if key not in self._verdicts:
            one = next((gate for gate in self._gates(candidate, plainest) if gate.used + gate.asked * least > gate.limit), None)
            self._verdicts[key] = None if one is None else self._forest.blocked(one.times(least))
        return self._verdicts[key]

    def _gates(self, candidate: Candidate, kind: Hardware) -> Sequence[Gate]:
        """Returns the quota checks for one node of this class; n nodes ask for n times as much."""
        key = (candidate.quota, kind, candidate.non_preemptible)
        gates = self._gates_of.get(key)
        if gates is None:
            gates = self._gates_of[key] = self._forest.gates(candidate.quota, amounts_of(kind), non_preemptible=candidate.non_preemptible)
        return gates

    def _drop_outdated(self) -> None:
        """Drops the kept answers if a charge, a capacity or a group has changed since they were found."""
        if self._version != self._charges.version:
            self._rooms.clear()
            self._verdicts.clear()
            self._gates_of.clear()
            self._version = self._charges.version

    def _counts_as(self, leaf: str, kind: Hardware, plainest: Hardware) -> Hardware:
        """Returns the class by which answers are kept: `plainest` if a node of `kind` counts the same in all groups of a leaf, else
        `kind`.
        """
        key = (leaf, kind, plainest)
        found = self._alike.get(key)
        if found is None:
            managed, one, other = self._forest.managed(leaf), amounts_of(kind), amounts_of(plainest)
            alike = all(one.get(resource) == other.get(resource) for resource in managed)
            found = self._alike[key] = plainest if alike else kind
        return found

    def _room(self, candidate: Candidate, kind: Hardware, plainest: Hardware) -> int:
        """Returns how many nodes of a class the tree leaves to a candidate that asks for its maximum of that class; `NO_LIMIT` where no
        level bounds it.
        """
        self._drop_outdated()
        as_booked = kind is plainest and candidate.maximum == candidate.minimum
        sizes = None
        if not as_booked:
            sizes = (candidate.minimum, candidate.maximum, self._charges.charged_request(candidate) is NO_AMOUNTS)
        key = (candidate.quota, kind, candidate.non_preemptible, sizes)
        room = self._rooms.get(key)
        if room is None:
            wish = None if as_booked else times(amounts_of(kind), candidate.maximum)
            with self._wishing(candidate, wish):
                gates = (
                    self._gates(candidate, kind)
                    if as_booked
                    else self._forest.gates(candidate.quota, amounts_of(kind), non_preemptible=candidate.non_preemptible)
                )
                room = self._rooms[key] = min((gate.room // gate.asked for gate in gates), default=NO_LIMIT)
        return room

    def _admits(self, candidate: Candidate, amounts: Resources) -> Blocked | None:
        """Returns the level that blocks a candidate if it asked for just these resources; None: the tree admits them."""
        with self._wishing(candidate, amounts):
            return self._forest.admits(candidate.quota, amounts, non_preemptible=candidate.non_preemptible)

    @contextmanager
    def _wishing(self, candidate: Candidate, wish: Resources | None) -> Iterator[None]:
        """Charges a candidate's leaf with `wish` instead of its request while the block runs; None: no change."""
        booked = self._charges.charged_request(candidate)
        if wish is None or wish == booked:
            yield
            return
        more = dict(wish)
        add_amounts(more, negated(booked))
        with self._forest.supposed(candidate.quota, more):
            yield


_WIDE: Final = Share()
