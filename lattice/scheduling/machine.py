"""The nodes as the cycle sees them: buckets of interchangeable nodes, kept by events, never rebuilt in a cycle.

A bucket is (group, hardware class, hollow); its free nodes are one integer used as a bit set of node indices.
`Machine` has one owner, the scheduling loop, and is changed by `put`, `drop`, `take`, `give` only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lattice.errors import Corrupt

HOLLOW = "hollow"
UNHEARD = "not seen alive yet"
"""State of a node whose heartbeat this process has not seen since it began to listen."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What placement needs of one node; memories in bytes, `usable`: Ready, seen alive, clean."""

    index: int
    name: str
    group: str
    cpus: int
    memory: int
    """Local memory, without CXL."""
    gpus: int
    features: frozenset[str]
    hollow: bool
    usable: bool
    state: str
    switch: str = ""
    """Below the group; empty: unknown."""
    cxl_memory: int = 0
    gpu_type: str = ""
    gpu_memory: int = 0
    """Of each GPU."""
    unified: bool = False
    """CPU and GPU memory are one domain."""
    fingerprint: str = ""
    """Nodes of equal software and firmware; empty: unknown, unlike every other."""
    watts: int = 0
    """Nominal power at full load; 0: unknown."""
    home: str = ""
    """The vcluster that it is at home in; empty: none."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What nodes of one class have in common."""

    group: str
    cpus: int
    memory: int
    gpus: int
    features: frozenset[str]
    hollow: bool
    cxl_memory: int = 0
    gpu_type: str = ""
    gpu_memory: int = 0
    unified: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """What each node must offer: interned, so that equal needs share one eligibility set."""

    cpus: int = 0
    memory: int = 0
    gpus: int = 0
    features: frozenset[str] = frozenset()
    hollow: bool = False
    groups: frozenset[str] | None = None
    only: int | None = None
    without: int = 0
    gpu_type: str = ""
    """Upper and lower case are equal."""
    gpu_memory: int = 0
    """Of each GPU, bytes."""
    unified: bool = False
    allow_cxl: bool = False
    """A node's CXL memory counts, too."""

    def admits(self, hardware: Hardware) -> bool:
        """Whether nodes of this class fit; node lists are applied apart."""
        return (
            hardware.hollow == self.hollow
            and (self.groups is None or hardware.group in self.groups)
            and hardware.cpus >= self.cpus
            and hardware.memory + (hardware.cxl_memory if self.allow_cxl else 0) >= self.memory
            and hardware.gpus >= self.gpus
            and (not self.gpu_type or hardware.gpu_type.lower() == self.gpu_type.lower())
            and hardware.gpu_memory >= self.gpu_memory
            and (hardware.unified or not self.unified)
            and self.features <= hardware.features
        )


@dataclass(slots=True)
class Bucket:
    """Nodes of one class and group, as bit sets of indices: all, usable, free (usable and not taken)."""

    hardware: Hardware
    members: int = 0
    usable: int = 0
    free: int = 0


@dataclass(frozen=True, slots=True)
class Census:
    """How the nodes that admit a need stand, in numbers."""

    eligible: int
    usable: int
    free: int


@dataclass
class Machine:
    """All nodes; see the module's docstring."""

    nodes: dict[int, NodeFacts] = field(default_factory=dict)
    by_name: dict[str, int] = field(default_factory=dict)
    taken: int = 0
    _buckets: dict[Hardware, Bucket] = field(default_factory=dict)
    _admitted: dict[Need, list[Bucket]] = field(default_factory=dict)

    def put(self, facts: NodeFacts) -> None:
        """Add a node, or change what is known of it."""
        before = self.nodes.get(facts.index)
        if before == facts:
            return
        if before is not None:
            self.drop(facts.index)
        self.nodes[facts.index] = facts
        self.by_name[facts.name] = facts.index
        bucket = self._bucket(facts)
        bit = 1 << facts.index
        bucket.members |= bit
        if facts.usable:
            bucket.usable |= bit
            if not self.taken & bit:
                bucket.free |= bit

    def drop(self, index: int) -> None:
        """Forget a node; whether it is taken stays known."""
        facts = self.nodes.pop(index, None)
        if facts is None:
            return
        self.by_name.pop(facts.name, None)
        bucket = self._bucket(facts)
        for name in ("members", "usable", "free"):
            setattr(bucket, name, getattr(bucket, name) & ~(1 << index))

    def take(self, indices: Iterable[int]) -> None:
        """Mark nodes as held."""
        for index in indices:
            self.taken |= 1 << index
            facts = self.nodes.get(index)
            if facts is not None:
                self._bucket(facts).free &= ~(1 << index)

    def give(self, indices: Iterable[int]) -> None:
        """Mark nodes as no longer held."""
        for index in indices:
            self.taken &= ~(1 << index)
            facts = self.nodes.get(index)
            if facts is not None and facts.usable:
                self._bucket(facts).free |= 1 << index

    def admitted(self, need: Need) -> list[Bucket]:
        """The buckets that admit a need, remembered until a new class of nodes appears."""
        buckets = self._admitted.get(need)
        if buckets is None:
            buckets = [bucket for hardware, bucket in self._buckets.items() if need.admits(hardware)]
            if len(self._admitted) > 10_000:
                self._admitted.clear()
            self._admitted[need] = buckets
        return buckets

    def census(self, need: Need) -> Census:
        """How many nodes would do, how many of them are usable, how many free."""
        eligible = usable = free = 0
        for bucket in self.admitted(need):
            mask = node_mask(need, bucket.members)
            eligible += mask.bit_count()
            usable += (bucket.usable & mask).bit_count()
            free += (bucket.free & mask).bit_count()
        return Census(eligible, usable, free)

    def states(self, need: Need) -> dict[str, int]:
        """How many of the nodes that would do are in each state."""
        counts: dict[str, int] = {}
        for bucket in self.admitted(need):
            for index in indices_of(node_mask(need, bucket.members)):
                state = self.nodes[index].state
                counts[state] = counts.get(state, 0) + 1
        return counts

    def validate(self) -> None:
        """Rebuild the buckets from the nodes and compare; raises Corrupt on a difference."""
        again = Machine(taken=self.taken)
        for facts in self.nodes.values():
            again.put(facts)
        for hardware, bucket in self._buckets.items():
            other = again._buckets.get(hardware, Bucket(hardware))
            if (bucket.members, bucket.usable, bucket.free) != (other.members, other.usable, other.free):
                raise Corrupt(f"bucket {hardware} differs from its nodes", reason="BucketDiffers")

    def _bucket(self, facts: NodeFacts) -> Bucket:
        hardware = Hardware(
            facts.group, facts.cpus, facts.memory, facts.gpus, facts.features, facts.hollow,
            facts.cxl_memory, facts.gpu_type, facts.gpu_memory, facts.unified,
        )  # fmt: skip
        bucket = self._buckets.get(hardware)
        if bucket is None:
            bucket = self._buckets[hardware] = Bucket(hardware)
            self._admitted.clear()
        return bucket


def node_mask(need: Need, mask: int) -> int:
    """The mask less the nodes that node lists rule out."""
    if need.only is not None:
        mask &= need.only
    return mask & ~need.without


def indices_of(mask: int) -> Iterator[int]:
    """The indices in a bit set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def lowest(mask: int, count: int) -> tuple[int, ...]:
    """The `count` lowest indices of a bit set."""
    chosen: list[int] = []
    for index in indices_of(mask):
        if len(chosen) == count:
            break
        chosen.append(index)
    return tuple(chosen)
