"""The facts of one node, the hardware that nodes of one class share, and the need that work has of each of its nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts of one node that placement reads, made from its LatticeNode and its heartbeat; memories in bytes.

    `usable`: work may start on the node: it is Ready, seen alive and clean. `state`: the word shown for the node's condition.
    """

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
    """The switch below the group; empty: unknown."""
    cxl_memory: int = 0
    gpu_type: str = ""
    gpu_memory: int = 0
    """Of each GPU, bytes."""
    unified: bool = False
    """CPU and GPU memory are one domain."""
    fingerprint: str = ""
    """Equal on nodes of equal software and firmware; empty: unknown, equal to no other node's."""
    watts: int = 0
    """Nominal power at full load; 0: unknown."""
    home: str = ""
    """The vcluster at whose home the node stands; empty: none."""
    scratch: int = 0
    """Scratch space, bytes."""
    architecture: str = ""
    """As the kernel calls it (`x86_64`); empty: unknown."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The hardware that all nodes of one class share, a part of the key of their buckets; memories in bytes."""

    cpus: int
    memory: int
    gpus: int
    features: frozenset[str]
    hollow: bool
    cxl_memory: int = 0
    gpu_type: str = ""
    gpu_memory: int = 0
    unified: bool = False
    watts: int = 0
    scratch: int = 0
    architecture: str = ""
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        parts = (self.cpus, self.memory, self.gpus, self.features, self.hollow, self.cxl_memory, self.gpu_type, self.gpu_memory,
                 self.unified, self.watts, self.scratch, self.architecture)  # fmt: skip
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        return self._hash

    @property
    def worth(self) -> tuple[object, ...]:
        """Returns a sort key, compared by GPUs first, then GPU memory: plainer hardware comes first, so that placement leaves scarce
        hardware to work that needs it.
        """
        return (
            self.gpus, self.gpu_memory, self.unified, self.cxl_memory, self.memory, self.cpus, len(self.features),
            self.watts, self.gpu_type, self.hollow, tuple(sorted(self.features)), self.scratch, self.architecture,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Need:
    """The requirements of an allocation for each of its nodes; memories in bytes. A value that is left out requires nothing.

    `groups`: the groups whose nodes are eligible; None: all. `only`, `without`: bit sets of node indices that are alone eligible
    (None: all), and that are excluded. Equal needs are interned and share one set of eligible nodes.
    """

    cpus: int = 0
    memory: int = 0
    gpus: int = 0
    features: frozenset[str] = frozenset()
    hollow: bool = False
    groups: frozenset[str] | None = None
    only: int | None = None
    without: int = 0
    gpu_type: str = ""
    """The model of GPU, compared without regard to case."""
    gpu_memory: int = 0
    """Of each GPU, bytes."""
    unified: bool = False
    allow_cxl: bool = False
    """Whether a node's CXL memory counts towards `memory`."""
    scratch: int = 0
    """Bytes of scratch space."""
    architectures: frozenset[str] = frozenset()
    """Those for which its image is made, as the kernel calls them; empty: any. A node of an unknown one passes."""
    lists: frozenset[int] = field(init=False, compare=False, repr=False)
    """The node lists `only` and `without` that are not empty; the node cache splits its buckets along them."""
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        lists = frozenset(mask for mask in (self.only, self.without) if mask)
        object.__setattr__(self, "lists", lists)
        parts = (self.cpus, self.memory, self.gpus, self.features, self.hollow, self.groups, self.only, self.without,
                 self.gpu_type, self.gpu_memory, self.unified, self.allow_cxl, self.scratch, self.architectures)  # fmt: skip
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        return self._hash

    def admits(self, hardware: Hardware | NodeFacts) -> bool:
        """Tells whether hardware satisfies the need: a hollow need only hollow nodes, any other none of them; CXL memory counts only with
        `allow_cxl`.

        Groups, node lists and state are not checked here.
        """
        return (
            hardware.hollow == self.hollow
            and hardware.cpus >= self.cpus
            and hardware.memory + (hardware.cxl_memory if self.allow_cxl else 0) >= self.memory
            and hardware.gpus >= self.gpus
            and (not self.gpu_type or hardware.gpu_type.lower() == self.gpu_type.lower())
            and hardware.gpu_memory >= self.gpu_memory
            and hardware.scratch >= self.scratch
            and (hardware.unified or not self.unified)
            and self.features <= hardware.features
            and (not self.architectures or not hardware.architecture or hardware.architecture in self.architectures)
        )

    def admits_node(self, facts: NodeFacts) -> bool:
        """Tells whether one node satisfies the need by its hardware, its group and the node lists; its state is not checked."""
        return (
            self.admits(facts)
            and (self.groups is None or facts.group in self.groups)
            and (self.only is None or bool(self.only >> facts.index & 1))
            and not self.without >> facts.index & 1
        )


@dataclass(frozen=True, slots=True)
class Key:
    """The properties that all nodes of a bucket share; the node cache finds a bucket by its key.

    `marks`: the node sets (bit sets of node indices: reservations, node lists of needs) that all nodes of the bucket lie in.
    """

    hardware: Hardware
    group: str
    switch: str
    fingerprint: str
    home: str
    marks: frozenset[int] = frozenset()
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.hardware, self.group, self.switch, self.fingerprint, self.home, self.marks)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def plain(self) -> Key:
        """Returns the key without `marks`: buckets that node sets have split have equal plain keys."""
        return Key(self.hardware, self.group, self.switch, self.fingerprint, self.home) if self.marks else self

    @property
    def order(self) -> tuple[object, ...]:
        """Returns a sort key of buckets that is the same in every process: group, fingerprint, switch, hardware, home, node sets."""
        places = natural(self.group), self.group, self.fingerprint, natural(self.switch), self.switch
        return (*places, self.hardware.worth, self.home, tuple(sorted(self.marks)))


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """Returns a sort key in which numbers within a name compare by value: g2 before g10; g2 and g02 have equal keys."""
    return tuple((text, int(number or -1)) for text, number in re.findall(r"(\D*)(\d*)", name)[:-1])
