"""The choice of nodes for requests of one need, topology and conformance, and the demand on hardware that it goes by.

Both are kept from cycle to cycle, as long as the set of nodes and the pending work stay the same; they hold no counts of free nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import fsum
from typing import NamedTuple

from lattice.scheduling.cluster.free_counts import FreeCounts, FreeCountsByNeed
from lattice.scheduling.cluster.node_cache import Bucket
from lattice.scheduling.cluster.placement import Ask, Counts, Found, counts_of, find, inside
from lattice.scheduling.model.hardware import Hardware, Need
from lattice.scheduling.model.work import IGNORED, REQUIRED, SPREAD, TIGHT


class ChoiceKey(NamedTuple):
    """The properties of requests on which the choice among nodes depends; `classes`: the classes of nodes left to it (None: all)."""

    need: Need
    topology: str
    conformance: str
    home: str
    classes: frozenset[Hardware] | None
    known: bool
    """Whether only nodes of known fingerprint may be chosen."""
    fullest: bool
    """Whether, of the groups that suffice, the one filled most is taken."""


class HardwarePressure:
    """The demand of pending work on classes of hardware."""

    def __init__(self, free_counts: FreeCountsByNeed, home: str) -> None:
        self.asked: Mapping[Need, int] = {}
        """How many nodes pending work asks for, by need."""
        self._free_counts, self._home = free_counts, home
        self._values: dict[Hardware, float] | None = None

    def follow(self, asked: Mapping[Need, int]) -> bool:
        """Replaces how many nodes pending work asks for, by need; tells whether that changes the demand."""
        if asked == self.asked:
            return False
        self.asked, self._values = asked, None
        return True

    def value(self, hardware: Hardware) -> float:
        """Returns the demand on a class of hardware, 0 without any: a sum over the vcluster's pending needs that the class satisfies.

        Each adds the nodes asked for ÷ the usable home nodes that satisfy it.
        """
        if self._values is None:
            self._values = self._summed()
        return self._values.get(hardware, 0.0)

    def ascending(self, classes: Collection[Hardware]) -> list[Hardware]:
        """Returns classes of hardware in the order of taking: the least pressure first, then the plainest."""
        return sorted(classes, key=lambda hardware: (self.value(hardware), hardware.worth))

    def _summed(self) -> dict[Hardware, float]:
        """Returns the demand on each class of hardware that a pending need of the queue admits, as `value` defines it."""
        shares: dict[Hardware, list[float]] = {}
        for need, nodes in self.asked.items():
            pool = self._free_counts.pool_for(need, self._home)
            usable = max(1, pool.sizes[1])
            for hardware in pool.kinds:
                shares.setdefault(hardware, []).append(nodes / usable)
        return {hardware: fsum(some) for hardware, some in shares.items()}  # exact: the same in whatever order they came


class NodeChoice:
    """Chooses nodes of a pool for requests of one key; `pool`: the free nodes at home that the key admits."""

    __slots__ = (
        "_free_counts", "_limits", "_names", "_ordinary", "_own_ask", "_plain", "_pressure", "_pressures",
        "conformance", "key", "pool", "tight",
    )  # fmt: skip

    def __init__(self, free_counts: FreeCountsByNeed, key: ChoiceKey, pressure: HardwarePressure) -> None:
        self.key = key
        self.pool = free_counts.pool_for(key.need, key.home, known=key.known, classes=key.classes)
        self.conformance = REQUIRED if key.known else key.conformance
        self.tight = key.topology == TIGHT
        self._free_counts = free_counts
        self._pressure = pressure
        self._limits: dict[int, int] = {}
        """By number of nodes: the fewest groups of the own pool that they would take if all usable nodes were free."""
        self._own_ask = self._ask(self.pool)
        self._ordinary = not (self.tight or key.topology == SPREAD or key.fullest)
        self._pressures: dict[str, float] | None = None
        self._plain: list[FreeCounts] | None = None
        self._names: list[tuple[str, frozenset[str]]] | None = None
        """The known fingerprints of the plainest hardware, the least pressed first; None: to be found."""

    def forget_demand(self) -> None:
        """Drops what was derived from the demand on hardware, which has changed."""
        self._pressures = self._plain = self._names = None

    def fits(self, pool: FreeCounts, nodes: int) -> bool:
        """Tells whether `nodes` nodes of a pool satisfy topology and conformance of these requests together."""
        return find(pool, nodes, self._ask(pool)) is not None

    def limit(self, pool: FreeCounts, nodes: int) -> int:
        """Returns the fewest groups that `nodes` nodes would take if all usable nodes of the pool were free; 0: so many do not exist.

        Where the requests require equal fingerprints, several nodes are counted only within one known fingerprint; a single one needs none.
        """
        if pool.members is not self.pool.members:
            return self._fewest_groups(pool, nodes)
        known = self._limits.get(nodes)
        if known is None:
            known = self._limits[nodes] = self._fewest_groups(pool, nodes)
        return known

    def _fewest_groups(self, pool: FreeCounts, nodes: int) -> int:
        """Computes, without the kept values of `limit`, the fewest groups that `nodes` nodes would take if all usable nodes of the pool
        were free, within one known fingerprint where several must be equal; it returns 0 where so many do not exist.
        """
        empty = pool.capped({bucket: bucket.usable for bucket in pool.buckets})
        parts = [part for name, part in empty.parts.items() if name] if self.conformance == REQUIRED and nodes > 1 else [empty.whole]
        return min((part.fewest(nodes) for part in parts if part.total >= nodes), default=0)

    def choose(self, pool: FreeCounts, least: int, most: int) -> Counts | None:
        """Chooses `least` to `most` nodes of a pool, which has `most`: as many as fit, of the plainest hardware that takes no more
        groups; None: they do not fit.
        """
        size = most
        if size < least:
            return None
        own = pool.members is self.pool.members
        if own and self._ordinary and (pool.caps is None or pool.adjustment is not None) and (counts := self._in_one_group(pool, size)):
            return counts
        ask = self._own_ask if own else self._ask(pool)
        while size >= least:
            found = self._find(pool, size, ask)
            if found is not None:
                return counts_of(*found, size, ask, self._prefer)
            smaller = size - 1
            if self.conformance == REQUIRED:
                smaller = min(smaller, pool.largest_equal())
            if self.tight and (limit := self.limit(pool, size)):
                smaller = min(smaller, pool.whole.largest(limit))
            size = smaller
        return None

    def _in_one_group(self, pool: FreeCounts, nodes: int) -> Counts | None:
        """Chooses nodes in one group, only of the class of hardware under the least pressure and of one known fingerprint (of any, for one
        node or where conformance is ignored); `pool` must have the buckets of the own pool.

        It returns None where no group has enough of these, although other hardware, or several groups, may still do.
        """
        plainest = pool if len(self.pool.kinds) <= 1 else _adjusted_alike(self._plain_pools()[0], pool)
        if nodes == 1 or self.conformance == IGNORED:
            rank = plainest.whole.holding(nodes)
            return None if rank is None else inside(plainest, None, rank, nodes, self._prefer)
        if self._names is None:
            names = sorted(filter(None, plainest.parts), key=lambda name: (self._pressure_on(name), name))
            self._names = [(name, frozenset((name,))) for name in names]
        for name, alone in self._names:
            rank = plainest.parts[name].holding(nodes)
            if rank is not None:
                return inside(plainest, alone, rank, nodes, self._prefer)
        return None

    def _find(self, pool: FreeCounts, nodes: int, ask: Ask) -> tuple[FreeCounts, Found] | None:
        """Finds the part of a pool to take `nodes` nodes from, of the plainest hardware that allows it; None: they do not fit."""
        found = find(pool, nodes, ask, self._pressure_on)
        return None if found is None else self._plainest(pool, nodes, ask, found)

    def _plainest(self, pool: FreeCounts, nodes: int, ask: Ask, found: Found) -> tuple[FreeCounts, Found]:
        """Returns the pool without the scarcest hardware, as far as the rest allows as few groups and fingerprints as `found`, and
        its part.
        """
        if len(pool.kinds) <= 1:
            return pool, found
        for part in self._plainer(pool):
            plain = find(part, nodes, ask, self._pressure_on)
            if plain is not None and plain.kinds == found.kinds and plain.span == found.span:
                return part, plain
        return pool, found

    def _plainer(self, pool: FreeCounts) -> Iterator[FreeCounts]:
        """Yields parts of a pool: the class of hardware under the least pressure alone, then the two under the least, and so on,
        without the whole.
        """
        if pool.members is self.pool.members:
            for plain in self._plain_pools():
                yield _adjusted_alike(plain, pool)
            return
        counts = {bucket: pool.cap(bucket) for bucket in pool.buckets}
        classes = self._pressure.ascending(pool.kinds)
        for last in range(1, len(classes)):
            some = frozenset(classes[:last])
            yield pool.capped({bucket: count if bucket.key.hardware in some else 0 for bucket, count in counts.items()})

    def _plain_pools(self) -> list[FreeCounts]:
        """Returns the parts of the own pool that `_plainer` yields, with all their free nodes."""
        if self._plain is None:
            key = self.key
            classes, free_counts = self._pressure.ascending(self.pool.kinds), self._free_counts
            some_of = [frozenset(classes[:last]) for last in range(1, len(classes))]
            self._plain = [free_counts.pool_for(key.need, key.home, known=key.known, classes=some) for some in some_of]
        return self._plain

    def _ask(self, pool: FreeCounts) -> Ask:
        """Returns the relation that nodes of a pool must have to each other for this class: conformance, most groups, spread."""
        by_group = pool.by_group if self.key.fullest else None
        usable = (lambda rank: max(1, sum(bucket.usable for bucket in by_group[rank]))) if by_group is not None else None
        limit = (lambda nodes: self.limit(pool, nodes)) if self.tight else None
        return Ask(self.conformance, limit, self.key.topology == SPREAD, usable)

    def _pressure_on(self, fingerprint: str) -> float:
        """Returns the mean pressure on the usable home nodes of one fingerprint; 0 where all hardware is the same, and for a fingerprint
        that no home node has.
        """
        if len(self.pool.kinds) <= 1:
            return 0.0
        if self._pressures is None:
            self._pressures = {name: self._mean(alike) for name, alike in self.pool.mixture.items()}
        return self._pressures.get(fingerprint, 0.0)

    def _mean(self, sizes: Mapping[Hardware, int]) -> float:
        """Returns the mean pressure on classes of hardware, weighted by how many nodes each has; 0 without nodes."""
        some = sorted((hardware for hardware, size in sizes.items() if size), key=lambda hardware: hardware.worth)
        pressures = [self._pressure.value(hardware) for hardware in some]
        if len(set(pressures)) <= 1:
            return pressures[0] if pressures else 0.0  # exactly: sums of equal numbers differ in their last digits
        return sum(sizes[hardware] * pressure for hardware, pressure in zip(some, pressures, strict=True)) / sum(sizes.values())

    def _prefer(self, bucket: Bucket) -> tuple[object, ...]:
        """Returns the sort key of a bucket: nodes at home first, then the least pressure on its hardware, then the order of buckets."""
        return (bucket.key.home != self.key.home, self._pressure.value(bucket.key.hardware), bucket.order)


def _adjusted_alike(part: FreeCounts, pool: FreeCounts) -> FreeCounts:
    """Returns a part of all free nodes with as many nodes of each bucket as `pool` has."""
    if pool.caps is None:
        return part
    return part.capped(pool.caps) if pool.adjustment is None else pool.adjustment.pool_of(part)


class NodeChoices:
    """The choices of one vcluster, kept while nodes neither come nor go nor change; a part of its pending queue."""

    def __init__(self) -> None:
        self._by_key: dict[ChoiceKey, NodeChoice] = {}
        self._stamp: tuple[object, ...] = ()
        self._pressure: HardwarePressure | None = None

    def begin_cycle(self, free_counts: FreeCountsByNeed, home: str, asked: Mapping[Need, int]) -> None:
        """Begins a cycle: drops all choices where the set of nodes has changed, and what follows from the demand where `asked` has.

        `home`: the vcluster at whose home its work runs (empty: none). `asked`: how many nodes its pending work asks for, by need.
        """
        stamp = (*free_counts.stamp, home)
        if stamp != self._stamp or self._pressure is None:
            self._stamp, self._pressure = stamp, HardwarePressure(free_counts, home)
            self._by_key.clear()
        if self._pressure.follow(asked):
            for choice in self._by_key.values():
                choice.forget_demand()

    def choice(self, free_counts: FreeCountsByNeed, key: ChoiceKey) -> NodeChoice:
        """Returns the choice for requests of this key; `begin_cycle` must have been called in this cycle."""
        found = self._by_key.get(key)
        if found is None:
            assert self._pressure is not None, "a cycle has begun"  # noqa: S101
            found = self._by_key[key] = NodeChoice(free_counts, key, self._pressure)
        return found
