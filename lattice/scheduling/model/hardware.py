"""What placement knows of nodes: the facts of one, what nodes of one class have in common, and what work needs of each."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


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
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        parts = (self.cpus, self.memory, self.gpus, self.features, self.hollow, self.cxl_memory, self.gpu_type, self.gpu_memory,
                 self.unified, self.watts)  # fmt: skip
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        return self._hash

    @property
    def worth(self) -> tuple[object, ...]:
        """What is taken first where all else is equal: the plainer hardware, so that the scarce is left for who needs it."""
        return (
            self.gpus, self.gpu_memory, self.unified, self.cxl_memory, self.memory, self.cpus, len(self.features),
            self.watts, self.gpu_type, self.hollow, tuple(sorted(self.features)),
        )  # fmt: skip


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
    lists: frozenset[int] = field(init=False, compare=False, repr=False)
    """Its node lists as bit sets: the machine is split along them."""
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        lists = frozenset(mask for mask in (self.only, self.without) if mask)
        object.__setattr__(self, "lists", lists)
        parts = (self.cpus, self.memory, self.gpus, self.features, self.hollow, self.groups, self.only, self.without,
                 self.gpu_type, self.gpu_memory, self.unified, self.allow_cxl)  # fmt: skip
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        return self._hash

    def admits(self, hardware: Hardware | NodeFacts) -> bool:
        """Whether nodes of this class fit; groups and node lists are applied apart."""
        return (
            hardware.hollow == self.hollow
            and hardware.cpus >= self.cpus
            and hardware.memory + (hardware.cxl_memory if self.allow_cxl else 0) >= self.memory
            and hardware.gpus >= self.gpus
            and (not self.gpu_type or hardware.gpu_type.lower() == self.gpu_type.lower())
            and hardware.gpu_memory >= self.gpu_memory
            and (hardware.unified or not self.unified)
            and self.features <= hardware.features
        )

    def admits_node(self, facts: NodeFacts) -> bool:
        """Whether this node fits, by its hardware, its group and the node lists."""
        return (
            self.admits(facts)
            and (self.groups is None or facts.group in self.groups)
            and (self.only is None or bool(self.only >> facts.index & 1))
            and not self.without >> facts.index & 1
        )


@dataclass(frozen=True, slots=True)
class Key:
    """What the nodes of a bucket have in common; `marks` are the node sets (bit sets) that they lie in."""

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
        """The same without the node sets."""
        return Key(self.hardware, self.group, self.switch, self.fingerprint, self.home) if self.marks else self

    @property
    def order(self) -> tuple[object, ...]:
        """A total order that is the same in every process."""
        places = natural(self.group), self.group, self.fingerprint, natural(self.switch), self.switch
        return (*places, self.hardware.worth, self.home, tuple(sorted(self.marks)))


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """The sort key of a name in which numbers count by their value: g2 before g10."""
    return tuple((text, int(number or -1)) for text, number in re.findall(r"(\D*)(\d*)", name)[:-1])
