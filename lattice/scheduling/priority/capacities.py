"""What the machine holds for a need, by group and by fingerprint: the ground on which f4 and f9 are judged.

`Capacities` follows the machine: it compares the counts of the buckets with those it saw last, and changes only what the
buckets that differ belong to. `validate` counts everything again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from lattice.errors import Corrupt
from lattice.scheduling.cluster.node_cache import Bucket, NodeCache
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.priority import cost

Homes = frozenset[str]
"""Where work may run: nodes at home in these vclusters; the empty name: at home nowhere."""


MOST_NEEDS: Final = 4096
"""With more of them, which may be of work long gone, counting begins anew."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Nodes that the 1, 2, 3 … largest groups hold together, and the largest set of equal fingerprint; free, and usable."""

    free: list[int]
    usable: list[int]
    free_alike: int
    usable_alike: int

    def terms(self, need: Need, nodes: int) -> tuple[float, float]:
        """f4 and f9 in the order of the queue: of the free nodes, as parts of what the nodes there are could ever give; 1 where free
        nodes do not suffice, for work is not behind for being wide (decision "f4")."""
        if nodes == 1 or not self.free or self.free[-1] < nodes:
            return 1.0, 1.0
        intra = cost.intra_node(need.gpus, unified=need.unified)
        found, best = self._topology(self.free, intra, nodes), self._topology(self.usable, intra, nodes)
        alike = cost.relative(cost.conformance(self.free_alike, nodes), cost.conformance(self.usable_alike, nodes))
        return cost.relative(found, best), alike

    def _topology(self, reached: list[int], intra: float, nodes: int) -> float:
        wanted = cost.groups_needed(reached, nodes)
        return cost.topology(cost.inter_node(wanted, len(self.usable)) if wanted is not None else 0.0, intra, nodes)


@dataclass(slots=True)
class Stand:
    """Nodes of one state: by group, and by fingerprint, of which an unknown one is unlike every other."""

    groups: dict[str, int] = field(default_factory=dict)
    alike: dict[str, int] = field(default_factory=dict)

    def add(self, group: str, fingerprint: str, count: int) -> None:
        """Count more nodes, or fewer."""
        self.groups[group] = self.groups.get(group, 0) + count
        self.alike[fingerprint] = self.alike.get(fingerprint, 0) + count

    def reach(self) -> list[int]:
        """The running sum of the groups' nodes, the largest first."""
        return cost.reach(filter(None, self.groups.values()))

    def largest(self) -> int:
        """The largest set of equal nodes."""
        unknown = min(1, self.alike.get("", 0))
        return max((count for fingerprint, count in self.alike.items() if fingerprint), default=0) or unknown


@dataclass(slots=True)
class _Ground:
    """The nodes of one need."""

    free: Stand = field(default_factory=Stand)
    usable: Stand = field(default_factory=Stand)
    capacity: Capacity | None = None
    """None: to be made again."""

    def add(self, bucket: Bucket, free: int, usable: int) -> None:
        """So many nodes more, or fewer, of a bucket."""
        if free:
            self.free.add(bucket.group, bucket.fingerprint, free)
        if usable:
            self.usable.add(bucket.group, bucket.fingerprint, usable)
        self.capacity = None

    def make(self) -> Capacity:
        """The capacity, made where something has changed."""
        if self.capacity is None:
            self.capacity = Capacity(self.free.reach(), self.usable.reach(), self.free.largest(), self.usable.largest())
        return self.capacity


@dataclass
class Capacities:
    """The capacity of each (need, homes) that was asked for since the buckets were last made anew."""

    _node_cache: NodeCache | None = None
    _shape: int = -1
    _buckets: list[Bucket] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    _usable: list[int] = field(default_factory=list)
    _grounds: dict[tuple[Need, Homes], _Ground] = field(default_factory=dict)
    _of: list[list[_Ground]] = field(default_factory=list)

    def follow(self, node_cache: NodeCache) -> None:
        """Take over what has changed in the machine since the last time."""
        if node_cache is not self._node_cache or node_cache.shape != self._shape or len(self._grounds) > MOST_NEEDS:
            self._begin(node_cache)
            return
        free, usable = [len(bucket.free) for bucket in self._buckets], [bucket.usable for bucket in self._buckets]
        if free != self._free or usable != self._usable:
            before = zip(self._free, self._usable, strict=True)
            for place, ((was_free, was_usable), is_free, is_usable) in enumerate(zip(before, free, usable, strict=True)):
                if was_free != is_free or was_usable != is_usable:
                    for ground in self._of[place]:
                        ground.add(self._buckets[place], is_free - was_free, is_usable - was_usable)
            self._free, self._usable = free, usable

    def capacity(self, node_cache: NodeCache, need: Need, homes: Homes) -> Capacity:
        """What there is for a need on nodes of these homes; `follow` first."""
        if not need.lists <= node_cache.masks:
            return _count(_nodes(node_cache, need, homes))
        ground = self._grounds.get((need, homes))
        if ground is None:
            ground = self._grounds[need, homes] = _Ground()
            for place, bucket in enumerate(self._buckets):
                if bucket.key.home in homes and bucket.admitted_by(need):
                    self._of[place].append(ground)
                    ground.add(bucket, self._free[place], self._usable[place])
        return ground.make()

    def validate(self, node_cache: NodeCache) -> None:
        """Count every need again, node by node; raises Corrupt on a difference."""
        self.follow(node_cache)
        for (need, homes), ground in self._grounds.items():
            if ground.make() != _count(_nodes(node_cache, need, homes)):
                raise Corrupt(f"the capacity for {need} differs from the nodes", reason="CapacityDiffers")

    def _begin(self, node_cache: NodeCache) -> None:
        self._node_cache, self._shape = node_cache, node_cache.shape
        self._buckets = list(node_cache.buckets.values())
        self._free, self._usable = [len(bucket.free) for bucket in self._buckets], [bucket.usable for bucket in self._buckets]
        self._grounds = {}
        self._of = [[] for _ in self._buckets]


def _nodes(node_cache: NodeCache, need: Need, homes: Homes) -> Iterator[tuple[str, str, bool]]:
    """Group and fingerprint of every usable node that a need admits, and whether it is free."""
    for index in node_cache.eligible(need):
        facts = node_cache.nodes[index]
        if facts.usable and facts.home in homes:
            yield facts.group, facts.fingerprint, index not in node_cache.taken


def _count(nodes: Iterator[tuple[str, str, bool]]) -> Capacity:
    free, usable = Stand(), Stand()
    for group, fingerprint, is_free in nodes:
        usable.add(group, fingerprint, 1)
        if is_free:
            free.add(group, fingerprint, 1)
    return Capacity(free.reach(), usable.reach(), free.largest(), usable.largest())
