"""Decides which nodes each quota tree divides, by the traits of a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lattice.lifecycle.hardware import counted
from lattice.views import Node

GROUP_LABEL: Final = "lattice.dev/group"
GPU_TYPE_LABEL: Final = "lattice.dev/gpu-type"
HOSTNAME_LABEL: Final = "kubernetes.io/hostname"


class Traits(NamedTuple):
    """The traits of a node that a selection compares; `gpu_type` in upper case."""

    name: str
    group: str = ""
    gpu_type: str = ""
    features: frozenset[str] = frozenset()
    labels: Mapping[str, str] = {}


def traits_of(node: Node) -> Traits:
    """Returns the traits of a LatticeNode: its group, GPU type, features, and labels, including those derived from group, GPUs and name."""
    capabilities = counted(node)
    derived = {HOSTNAME_LABEL: node.metadata.name, GROUP_LABEL: node.spec.group, GPU_TYPE_LABEL: capabilities.gpu_type}
    labels = {key: value for key, value in derived.items() if value} | node.metadata.labels
    features = frozenset((*node.spec.features, *capabilities.features))
    return Traits(node.metadata.name, node.spec.group, capabilities.gpu_type.upper(), features, labels)


class LabelTest(NamedTuple):
    """One requirement on a label, as a Kubernetes selector has it: In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Tells whether labels satisfy the requirement; an unknown operator is never satisfied."""
        present, value = self.key in labels, labels.get(self.key)
        match self.operator:
            case "In":
                return present and value in self.values
            case "NotIn":
                return not present or value not in self.values
            case "Exists":
                return present
            case "DoesNotExist":
                return not present
            case _:
                return False


@dataclass(frozen=True, slots=True)
class Selection:
    """The nodes of one tree: those for which all given fields hold. Nothing given selects no node, unless `everything`."""

    groups: frozenset[str] = frozenset()
    gpu_types: frozenset[str] = frozenset()
    """In upper case."""
    features: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    tests: tuple[LabelTest, ...] = ()
    everything: bool = False
    """Kubernetes' empty label selector: every node."""

    def __bool__(self) -> bool:
        return bool(self.groups or self.gpu_types or self.features or self.labels or self.tests or self.everything)

    def selects(self, node: Traits) -> bool:
        """Tells whether a node with these traits is selected."""
        return (
            bool(self)
            and (not self.groups or node.group in self.groups)
            and (not self.gpu_types or node.gpu_type in self.gpu_types)
            and self.features <= node.features
            and all(node.labels.get(key) == value for key, value in self.labels.items())
            and all(test.holds(node.labels) for test in self.tests)
        )


@dataclass(frozen=True, slots=True)
class Shares:
    """The result of assigning nodes to trees: the tree of each node by name ("": the default tree), and the trees that lost nodes."""

    tree_of: Mapping[str, str]
    contested: Mapping[str, Mapping[str, int]]
    """By tree that selects nodes of earlier trees: how many nodes each of these has."""
    empty: tuple[str, ...]
    """Trees that select no node."""


def share_out(trees: Iterable[tuple[str, Selection]], nodes: Iterable[Traits]) -> Shares:
    """Assigns each node to the first tree, in the order given, that selects it, else to the default tree."""
    order = list(trees)
    tree_of: dict[str, str] = {}
    contested: dict[str, dict[str, int]] = {}
    hit: set[str] = set()
    for node in nodes:
        owner = ""
        for name, selection in order:
            if not selection.selects(node):
                continue
            hit.add(name)
            if not owner:
                owner = name
            else:
                lost = contested.setdefault(name, {})
                lost[owner] = lost.get(owner, 0) + 1
        tree_of[node.name] = owner
    return Shares(tree_of, contested, tuple(name for name, _ in order if name not in hit))
