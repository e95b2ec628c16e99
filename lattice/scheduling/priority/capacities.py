"""The capacity of the machine for each need, by group and by fingerprint, from which the terms f4 and f9 are computed.

`Capacities` follows the node cache: it compares the counts of the buckets with those of its last call, and changes only the needs
that the differing buckets serve. `validate` counts everything again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from lattice.errors import Corrupt
from lattice.scheduling.cluster.eligibility import admitted_nodes
from lattice.scheduling.cluster.node_cache import Bucket, NodeCache
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.priority import cost

Homes = frozenset[str]
"""The vclusters at whose homes work may run; the empty name stands for nodes at home nowhere."""


MOST_NEEDS: Final = 4096
"""With more needs than this all are dropped and counted again when asked for, since many may belong to work that is gone."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The nodes that serve one need: how many the 1, 2, 3 … largest groups hold together, and the largest set of one fingerprint.

    `free`, `free_alike`: of free nodes; `usable`, `usable_alike`: of free and held ones.
    """

    free: list[int]
    usable: list[int]
    free_alike: int
    usable_alike: int

    def terms(self, need: Need, nodes: int) -> tuple[float, float]:
        """Returns f4 and f9 for the order of the queue, both in [0, 1]; both 1 for a single node, and where too few nodes are free, so that
        wide work is not ranked behind for being wide (decision "f4").

        Each is the value on the free nodes divided by the best value that all usable nodes could give.
        """
        if nodes == 1 or not self.free or self.free[-1] < nodes:
            return 1.0, 1.0
        intra = cost.intra_node(need.gpus, unified=need.unified)
        found, best = self._topology(self.free, intra, nodes), self._topology(self.usable, intra, nodes)
        alike = cost.relative(cost.conformance(self.free_alike, nodes), cost.conformance(self.usable_alike, nodes))
        return cost.relative(found, best), alike

    def _topology(self, reached: list[int], intra: float, nodes: int) -> float:
        """Returns f4 of `nodes` nodes in the fewest groups; `reached`: how many nodes the 1, 2, 3 … largest groups have, `intra`: the part
        of f4 within a node.

        Between nodes it counts 0 where too few exist.
        """
        wanted = cost.groups_needed(reached, nodes)
        return cost.topology(cost.inter_node(wanted, len(self.usable)) if wanted is not None else 0.0, intra, nodes)


@dataclass(slots=True)
class NodeCounts:
    """The counts by group and by fingerprint of the free, or of the usable, nodes that serve one need.

    Nodes of unknown fingerprint ("") equal no other.
    """

    groups: dict[str, int] = field(default_factory=dict)
    alike: dict[str, int] = field(default_factory=dict)

    def add(self, group: str, fingerprint: str, count: int) -> None:
        """Adds `count` nodes of this group and fingerprint; a negative count removes them."""
        self.groups[group] = self.groups.get(group, 0) + count
        self.alike[fingerprint] = self.alike.get(fingerprint, 0) + count

    def reach(self) -> list[int]:
        """Returns a list of how many nodes the largest 1, 2, 3 … groups have together."""
        return cost.reach(filter(None, self.groups.values()))

    def largest(self) -> int:
        """Returns the size of the largest set of nodes of one fingerprint; nodes of unknown fingerprint count as a set of 1."""
        unknown = min(1, self.alike.get("", 0))
        return max((count for fingerprint, count in self.alike.items() if fingerprint), default=0) or unknown


@dataclass(slots=True)
class _NeedCounts:
    """The counts of free and of usable nodes that serve one need."""

    free: NodeCounts = field(default_factory=NodeCounts)
    usable: NodeCounts = field(default_factory=NodeCounts)
    capacity: Capacity | None = None
    """The capacity computed last; None: counts have changed since."""

    def add_bucket(self, bucket: Bucket, free: int, usable: int) -> None:
        """Adds so many free and usable nodes of a bucket to the counts; negative numbers remove them."""
        if free:
            self.free.add(bucket.group, bucket.fingerprint, free)
        if usable:
            self.usable.add(bucket.group, bucket.fingerprint, usable)
        self.capacity = None

    def make(self) -> Capacity:
        """Returns the capacity, computed again where counts have changed since the last call."""
        if self.capacity is None:
            self.capacity = Capacity(self.free.reach(), self.usable.reach(), self.free.largest(), self.usable.largest())
        return self.capacity


@dataclass
class Capacities:
    """The capacity for each (need, homes) that was asked for since buckets last appeared or went; a cost function owns one."""

    _node_cache: NodeCache | None = None
    _shape: int = -1
    _buckets: list[Bucket] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    _usable: list[int] = field(default_factory=list)
    _by_need: dict[tuple[Need, Homes], _NeedCounts] = field(default_factory=dict)
    _of: list[list[_NeedCounts]] = field(default_factory=list)

    def follow(self, node_cache: NodeCache) -> None:
        """Updates the counts of free and usable nodes to the present node cache; must be called before `capacity`.

        Drops all needs where buckets have appeared or gone, or more than 4,096 needs are kept.
        """
        if node_cache is not self._node_cache or node_cache.shape != self._shape or len(self._by_need) > MOST_NEEDS:
            self._begin(node_cache)
            return
        free, usable = [len(bucket.free) for bucket in self._buckets], [bucket.usable for bucket in self._buckets]
        if free != self._free or usable != self._usable:
            before = zip(self._free, self._usable, strict=True)
            for place, ((was_free, was_usable), is_free, is_usable) in enumerate(zip(before, free, usable, strict=True)):
                if was_free != is_free or was_usable != is_usable:
                    for counts in self._of[place]:
                        counts.add_bucket(self._buckets[place], is_free - was_free, is_usable - was_usable)
            self._free, self._usable = free, usable

    def capacity(self, node_cache: NodeCache, need: Need, homes: Homes) -> Capacity:
        """Returns the capacity for a need on the nodes at home in these vclusters ("": at home nowhere); `follow` must have been called.

        It is kept, except for a need whose node lists are not among the node cache's `masks`.
        """
        if not need.lists <= node_cache.masks:
            return _count(_nodes(node_cache, need, homes))
        counts = self._by_need.get((need, homes))
        if counts is None:
            counts = self._by_need[need, homes] = _NeedCounts()
            for place, bucket in enumerate(self._buckets):
                if bucket.key.home in homes and bucket.admitted_by(need):
                    self._of[place].append(counts)
                    counts.add_bucket(bucket, self._free[place], self._usable[place])
        return counts.make()

    def validate(self, node_cache: NodeCache) -> None:
        """Follows the node cache, then counts every need again, node by node; raises Corrupt on a difference."""
        self.follow(node_cache)
        for (need, homes), counts in self._by_need.items():
            if counts.make() != _count(_nodes(node_cache, need, homes)):
                raise Corrupt(f"the capacity for {need} differs from the nodes", reason="CapacityDiffers")

    def _begin(self, node_cache: NodeCache) -> None:
        """Drops every need, and reads the counts of all buckets of a node cache anew."""
        self._node_cache, self._shape = node_cache, node_cache.shape
        self._buckets = list(node_cache.buckets.values())
        self._free, self._usable = [len(bucket.free) for bucket in self._buckets], [bucket.usable for bucket in self._buckets]
        self._by_need = {}
        self._of = [[] for _ in self._buckets]


def _nodes(node_cache: NodeCache, need: Need, homes: Homes) -> Iterator[tuple[str, str, bool]]:
    """Yields (group, fingerprint, free) of every usable node at one of these homes that satisfies a need."""
    for index in admitted_nodes(node_cache, need):
        facts = node_cache.nodes[index]
        if facts.usable and facts.home in homes:
            yield facts.group, facts.fingerprint, index not in node_cache.taken


def _count(nodes: Iterator[tuple[str, str, bool]]) -> Capacity:
    """Counts nodes, each (group, fingerprint, free), and returns their capacity."""
    free, usable = NodeCounts(), NodeCounts()
    for group, fingerprint, is_free in nodes:
        usable.add(group, fingerprint, 1)
        if is_free:
            free.add(group, fingerprint, 1)
    return Capacity(free.reach(), usable.reach(), free.largest(), usable.largest())
