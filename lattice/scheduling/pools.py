"""Pools: the free nodes of an eligibility set by fingerprint and group, kept up to date by the machine's log of changes.

Needs that the same buckets admit share one pool, however differently they are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lattice.scheduling.machine import Bucket, Hardware, Machine, Need
from lattice.scheduling.parts import Part

_MOST = 2_000
"""With more pools kept than this, which may be of needs long gone, all are made again when they are asked for."""


class Pool:
    """The nodes that an eligibility set has free, or may have: counts of each fingerprint and group."""

    __slots__ = (
        "_at", "_cells", "_machine", "_shape", "_sizes", "_tally",
        "buckets", "by_group", "caps", "kinds", "members", "mixed", "parts", "whole",
    )  # fmt: skip

    whole: Part
    parts: dict[str, Part]
    """By fingerprint."""
    _cells: dict[Bucket, tuple[int, Part]]
    """Where each bucket is counted, beside the whole: its group and the part of its fingerprint."""
    _at: int
    _shape: int

    def __init__(self, machine: Machine, buckets: Sequence[Bucket]) -> None:
        """Of the free nodes of these buckets."""
        self._machine = machine
        self.buckets = buckets
        self.caps: Mapping[Bucket, int] | None = None
        self.members = {bucket: machine.rank(bucket.key.group) for bucket in buckets}
        self.by_group: dict[int, list[Bucket]] = {}
        for bucket, rank in self.members.items():
            self.by_group.setdefault(rank, []).append(bucket)
        self.kinds = frozenset(bucket.key.hardware for bucket in buckets)
        self.mixed = len({bucket.key.home for bucket in buckets}) > 1
        """Whether nodes of several homes are among them."""
        self._tally, self._sizes = -1, (0, 0)
        self._count()

    def capped(self, caps: Mapping[Bucket, int]) -> Pool:
        """The same buckets with so many nodes of each, whatever the machine does."""
        pool = self._like(caps)
        pool._count()
        return pool

    def reduced(self, caps: Mapping[Bucket, int]) -> Pool:
        """The same with so many nodes of these buckets, and those that are free now of the others; until the machine changes."""
        pool = self._like(caps)
        pool._at, pool._shape = self._at, self._shape
        whole = pool.whole = self.whole.copy()
        pool.parts = {name: whole if part is self.whole else part.copy() for name, part in self.parts.items()}
        for bucket, count in caps.items():
            by, rank, part = count - len(bucket.free), self.members[bucket], pool.parts[bucket.key.fingerprint]
            part.note(rank, by)
            if part is not whole:
                whole.note(rank, by)
        return pool

    def sync(self) -> None:
        """Take in what has changed since."""
        machine = self._machine
        log = machine.log
        at = self._at
        if (at == len(log) and self._shape == machine.shape) or self.caps is not None:
            return
        if self._shape != machine.shape or len(log) - at > 4 * len(self.buckets):
            self._count()
            return
        cells, whole = self._cells, self.whole
        for bucket, by in log[at:]:
            cell = cells.get(bucket)
            if cell is not None:
                rank, part = cell
                part.note(rank, by)
                if part is not whole:
                    whole.note(rank, by)
        self._at = len(log)

    def cap(self, bucket: Bucket) -> int:
        """How many nodes of a bucket it may give."""
        caps = self.caps
        return len(bucket.free) if caps is None or bucket not in caps else caps[bucket]

    def largest_equal(self) -> int:
        """The largest set of nodes of one fingerprint; an unknown one is unlike every other."""
        return max((part.total if name else min(1, part.total) for name, part in self.parts.items()), default=0)

    @property
    def sizes(self) -> tuple[int, int]:
        """How many nodes there are, and how many of them are usable, free or not."""
        tally = self._machine.tally
        if self._tally != tally:
            self._sizes = sum(len(bucket.members) for bucket in self.buckets), sum(bucket.usable for bucket in self.buckets)
            self._tally = tally
        return self._sizes

    def _like(self, caps: Mapping[Bucket, int]) -> Pool:
        pool = Pool.__new__(Pool)
        pool._machine, pool.buckets, pool.members, pool.by_group = self._machine, self.buckets, self.members, self.by_group
        pool.kinds, pool.mixed, pool.caps = self.kinds, self.mixed, caps
        pool._tally, pool._sizes = self._tally, self._sizes
        return pool

    def _count(self) -> None:
        self._at, self._shape = len(self._machine.log), self._machine.shape
        caps = self.caps
        parts: dict[str, dict[int, int]] = {}
        for bucket, rank in self.members.items():
            part = parts.get(bucket.key.fingerprint)
            if part is None:
                part = parts[bucket.key.fingerprint] = {}
            count = len(bucket.free) if caps is None else caps[bucket]
            if count:
                part[rank] = part.get(rank, 0) + count
        if len(parts) <= 1:
            self.whole = Part(next(iter(parts.values()), {}))
            self.parts = dict.fromkeys(parts, self.whole)
            self._cells = {} if caps is not None else {bucket: (rank, self.whole) for bucket, rank in self.members.items()}
            return
        whole: dict[int, int] = {}
        for groups in parts.values():
            for rank, count in groups.items():
                whole[rank] = whole.get(rank, 0) + count
        self.whole = Part(whole)
        self.parts = {name: Part(groups) for name, groups in parts.items()}
        if caps is None:
            self._cells = {bucket: (rank, self.parts[bucket.key.fingerprint]) for bucket, rank in self.members.items()}


class Pools:
    """The pools that cycles asked for, kept from cycle to cycle."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._shape = -1
        self._pools: dict[tuple[object, ...], Pool] = {}
        self._alike: dict[tuple[Bucket, ...], Pool] = {}

    def of(self, need: Need, home: str, *, known: bool = False, classes: frozenset[Hardware] | None = None) -> Pool:
        """The free nodes at home in `home` that admit a need; `known`: of known fingerprint; `classes`: of this hardware only."""
        if self._shape != self._machine.shape or len(self._pools) > _MOST:
            self._pools.clear()
            self._alike.clear()
            self._shape = self._machine.shape
        key = (need, home, known, classes)
        pool = self._pools.get(key)
        if pool is None:
            buckets = tuple([
                bucket
                for bucket in self._machine.admitted(need)
                if bucket.key.home == home and (bucket.key.fingerprint or not known) and (classes is None or bucket.key.hardware in classes)
            ])  # fmt: skip
            pool = self._alike.get(buckets)
            if pool is None:
                pool = self._alike[buckets] = Pool(self._machine, buckets)
            self._pools[key] = pool
        pool.sync()
        return pool
