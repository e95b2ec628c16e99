"""An inventory: the machines of a site as one YAML text, for hollow nodes, `lattice dev up --inventory` and `lattice replay --nodes`.

classes:
  gh200: {cpus: 288, memory: 480Gi, gpus: 4, gpuType: GH200, gpuMemory: 96Gi, unifiedMemory: true, watts: 2800}
  cpu: {cpus: 256, memory: 512Gi, features: [nvme_scratch]}
nodes:
  - {names: "nid[001-064]", class: gh200, group: g0, switch: s0, vcluster: ml-training}
  - {names: "nid[065-128]", class: cpu, group: g1, fingerprint: b}

Text in, nodes out; what cannot be read is `Rejected` with the line and the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar

import yaml

from lattice.errors import Rejected
from lattice.units import expand_nodes, quantity_bytes, whole_number

MOST_NODES: Final = 100_000
"""Nodes of one inventory; a cluster has room for 16,384, a replay for more."""

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_NODE = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", re.ASCII)
_TOP: Final = ("classes", "nodes", "vclusters")
_CLASS: Final = ("cpus", "memory", "gpus", "gpuType", "gpuMemory", "cxlMemory", "unifiedMemory", "watts", "features")
_ENTRY: Final = ("names", "class", "group", "switch", "fingerprint", "vcluster")
_MOST: Final = {"cpus": 65_536, "gpus": 1024, "watts": 1_000_000}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeClass:
    """The hardware of the nodes of one class; memories in bytes, `gpu_memory` of each GPU, `watts` at full load (0: unknown)."""

    name: str
    cpus: int
    memory: int
    gpus: int = 0
    gpu_type: str = ""
    gpu_memory: int = 0
    cxl_memory: int = 0
    unified: bool = False
    watts: int = 0
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InventoryNode:
    """One node: its class, where it stands, what it runs with (`fingerprint`), and the vcluster that it is at home in."""

    name: str
    node_class: NodeClass
    group: str
    switch: str = ""
    fingerprint: str = ""
    vcluster: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The nodes in the order of the text."""

    nodes: tuple[InventoryNode, ...]

    def homes(self) -> dict[str, tuple[str, ...]]:
        """Returns the groups at home in each vcluster that the inventory names; empty: it names no vcluster."""
        found: dict[str, dict[str, None]] = {}
        for node in self.nodes:
            if node.vcluster:
                found.setdefault(node.vcluster, {})[node.group] = None
        return {vcluster: tuple(groups) for vcluster, groups in found.items()}

    def require_vclusters(self, names: Iterable[str]) -> None:
        """Raises Rejected for a vcluster of `names` without a home node here although others have some; without homes every name passes."""
        homes = self.homes()
        for name in names:
            if homes and name not in homes:
                raise Rejected(
                    f'no node of the inventory is at home in vcluster "{name}"; vclusters with nodes: {", ".join(homes)}',
                    reason="VClusterWithoutNodes",
                    fields=("vcluster",),
                )


def read_inventory(text: str, name: str = "the inventory") -> Inventory:
    """Returns the inventory of a YAML text; raises Rejected with line and field of the first fault. `name`: of the text, in errors."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise Rejected(f"{name} is no YAML: {' '.join(str(error).split())}", reason="BadInventory") from error
    if not isinstance(root, yaml.MappingNode):
        raise Rejected(f"{name} is no inventory: it is a map of `classes` and `nodes`", reason="BadInventory")
    return _InventoryReader(name).inventory(root)


class _InventoryReader:
    """Reads one text; every refusal knows its line."""

    def __init__(self, name: str) -> None:
        self._name = name

    def inventory(self, root: yaml.MappingNode) -> Inventory:
        """Returns the inventory of the whole document; raises Rejected at its first fault."""
        parts = self._fields(root, "", _TOP)
        for wanted in ("classes", "nodes"):
            if wanted not in parts:
                self._refuse(root, wanted, "it is missing")
        classes = {key: self._class(key, node) for key, node in self._map(parts["classes"], "classes").items()}
        nodes = self._nodes(parts["nodes"], classes)
        self._check_homes(parts["nodes"], nodes)
        if "vclusters" in parts:
            self._check_vclusters(parts["vclusters"], nodes)
        return Inventory(tuple(nodes))

    # -- classes ------------------------------------------------------------------------------------

    def _class(self, name: str, node: yaml.Node) -> NodeClass:
        """Returns a class of nodes. Raises Rejected, with the line, for a field that is missing, unknown or wrong."""
        path = f"classes.{name}"
        fields = self._fields(node, path, _CLASS)
        for wanted in ("cpus", "memory"):
            if wanted not in fields:
                self._refuse(node, f"{path}.{wanted}", "it is missing")
        found = NodeClass(
            name=self._word(node, path, name),
            cpus=self._number(fields["cpus"], f"{path}.cpus", least=1),
            memory=self._bytes(fields["memory"], f"{path}.memory"),
            gpus=self._given(fields, path, "gpus", self._number, 0),
            gpu_type=self._given(fields, path, "gpuType", self._text, ""),
            gpu_memory=self._given(fields, path, "gpuMemory", self._bytes, 0),
            cxl_memory=self._given(fields, path, "cxlMemory", self._bytes, 0),
            unified=self._given(fields, path, "unifiedMemory", self._switch, False),
            watts=self._given(fields, path, "watts", self._number, 0),
            features=self._given(fields, path, "features", self._words, ()),
        )
        for field, value in (("gpuType", found.gpu_type), ("gpuMemory", found.gpu_memory)):
            if value and not found.gpus:
                self._refuse(fields[field], f"{path}.{field}", "the class has no GPUs: set gpus, or take it away")
        return found

    # -- nodes --------------------------------------------------------------------------------------

    def _nodes(self, node: yaml.Node, classes: Mapping[str, NodeClass]) -> list[InventoryNode]:
        """Returns all nodes of the entries. Raises Rejected, with the line, for none, too many, or one named twice."""
        if not isinstance(node, yaml.SequenceNode):
            self._refuse(node, "nodes", "it is a list of entries with names, class and group")
        lines: dict[str, int] = {}
        found: list[InventoryNode] = []
        for number, entry in enumerate(node.value):
            for one in self._entry(entry, f"nodes[{number}]", classes):
                if one.name in lines:
                    self._refuse(entry, f"nodes[{number}].names", f"node {one.name} stands in line {lines[one.name]} already")
                lines[one.name] = entry.start_mark.line + 1
                found.append(one)
            if len(found) > MOST_NODES:
                self._refuse(entry, f"nodes[{number}].names", f"more than {MOST_NODES} nodes")
        if not found:
            self._refuse(node, "nodes", "there is no node")
        return found

    def _entry(self, node: yaml.Node, path: str, classes: Mapping[str, NodeClass]) -> list[InventoryNode]:
        """Returns the nodes of one entry. Raises Rejected, with the line, for a field that is missing, unknown or wrong."""
        fields = self._fields(node, path, _ENTRY)
        for wanted in ("names", "class", "group"):
            if wanted not in fields:
                self._refuse(node, f"{path}.{wanted}", "every node has a topology group: name it" if wanted == "group" else "it is missing")
        wanted_class = self._text(fields["class"], f"{path}.class")
        if wanted_class not in classes:
            known = ", ".join(classes) or "none"
            self._refuse(fields["class"], f"{path}.class", f"{wanted_class!r} is not one of the classes: {known}")
        words = {
            key: self._word(fields[key], f"{path}.{key}", self._text(fields[key], f"{path}.{key}"))
            for key in ("group", "switch", "fingerprint", "vcluster")
            if key in fields
        }
        return [
            InventoryNode(
                name,
                classes[wanted_class],
                words["group"],
                words.get("switch", ""),
                words.get("fingerprint", wanted_class),
                words.get("vcluster", ""),
            )
            for name in self._names(fields["names"], f"{path}.names")
        ]

    def _names(self, node: yaml.Node, path: str) -> list[str]:
        """Returns the node names of a node set. Raises Rejected, with the line, for none or a name that is not allowed."""
        names = self._read(node, path, lambda: expand_nodes(self._text(node, path)))
        for name in names:
            if not _NODE.fullmatch(name):
                self._refuse(node, path, f"{name!r} cannot name a node: lower-case letters, digits, '-' and '.', at most 63")
        if not names:
            self._refuse(node, path, "it names no node: write for example nid[001-064]")
        return names

    def _check_homes(self, node: yaml.Node, nodes: Iterable[InventoryNode]) -> None:
        """Checks that each group is at home in one vcluster, or in none: vclusters have whole groups."""
        homes: dict[str, str] = {}
        for one in nodes:
            before = homes.setdefault(one.group, one.vcluster)
            if before != one.vcluster:
                both = " and ".join(f'"{name}"' if name else "no vcluster" for name in (before, one.vcluster))
                self._refuse(node, "vcluster", f"group {one.group} is at home in {both}: give each group to one vcluster")

    def _check_vclusters(self, node: yaml.Node, nodes: Iterable[InventoryNode]) -> None:
        """Checks the list of vclusters against the nodes' homes. Raises Rejected, with the line, for a name that only one of them has."""
        named = self._words(node, "vclusters")
        homes = {one.vcluster for one in nodes if one.vcluster}
        for name in named:
            if name not in homes:
                self._refuse(node, "vclusters", f'vcluster "{name}" has no nodes: name it at the nodes that are at home there')
        for name in sorted(homes - set(named)):
            self._refuse(node, "vclusters", f'vcluster "{name}" of nodes is not in the list')

    # -- values -------------------------------------------------------------------------------------

    def _refuse(self, node: yaml.Node, path: str, why: str) -> NoReturn:
        """Raises Rejected with file, line, field and reason."""
        raise Rejected(f"{self._name}, line {node.start_mark.line + 1}: {path}: {why}", reason="BadInventory", fields=(path,))

    def _read(self, node: yaml.Node, path: str, read: Callable[[], T]) -> T:
        """Returns what a function reads; its error is raised again with file, line and field."""
        try:
            return read()
        except Rejected as error:
            if error.reason == "BadInventory":
                raise
            self._refuse(node, path, error.message)

    def _map(self, node: yaml.Node, path: str) -> dict[str, yaml.Node]:
        """Returns the fields of a map. Raises Rejected, with the line, for anything else and for a field given twice."""
        if not isinstance(node, yaml.MappingNode):
            self._refuse(node, path or "the document", "it is a map of fields")
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            word = self._text(key, path)
            if word in found:
                self._refuse(key, f"{path}.{word}".lstrip("."), "it is given twice")
            found[word] = value
        return found

    def _fields(self, node: yaml.Node, path: str, known: Collection[str]) -> dict[str, yaml.Node]:
        """Returns the fields of a map. Raises Rejected, with the line, for one that is not known."""
        found = self._map(node, path)
        for key in found:
            if key not in known:
                self._refuse(found[key], f"{path}.{key}".lstrip("."), f"it is not known; known are {', '.join(known)}")
        return found

    def _given(self, fields: Mapping[str, yaml.Node], path: str, key: str, read: Callable[[yaml.Node, str], T], default: T) -> T:
        """Returns what `read` makes of a field; the default where it is absent."""
        return read(fields[key], f"{path}.{key}") if key in fields else default

    def _text(self, node: yaml.Node, path: str) -> str:
        """Returns the text of a word or number. Raises Rejected, with the line, for anything else and for empty text."""
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            self._refuse(node, path, "it is one word or number")
        return str(node.value)

    def _word(self, node: yaml.Node, path: str, text: str) -> str:
        """Returns a name unchanged. Raises Rejected, with the line, where it is none."""
        if not _WORD.fullmatch(text):
            self._refuse(node, path, f"{text[:60]!r} is no name: letters, digits, '.', '_' and '-', at most 63")
        return text

    def _words(self, node: yaml.Node, path: str) -> tuple[str, ...]:
        """Returns the names of a list. Raises Rejected, with the line, for anything else."""
        if not isinstance(node, yaml.SequenceNode):
            self._refuse(node, path, "it is a list of words")
        return tuple(self._word(one, path, self._text(one, path)) for one in node.value)

    def _number(self, node: yaml.Node, path: str, least: int = 0) -> int:
        """Returns a whole number from `least` to the most that its field allows. Raises Rejected, with the line, for anything else."""
        text, most = self._text(node, path), _MOST[path.rpartition(".")[2]]
        number = whole_number(text, least, most)
        if number is None:
            self._refuse(node, path, f"{text[:60]!r} is no whole number from {least} to {most}")
        return number

    def _bytes(self, node: yaml.Node, path: str) -> int:
        """Returns a quantity in bytes. Raises Rejected, with the line, where it does not parse."""
        text = self._text(node, path)
        return self._read(node, path, lambda: quantity_bytes(text))

    def _switch(self, node: yaml.Node, path: str) -> bool:
        """Returns true or false. Raises Rejected, with the line, for anything else."""
        text = self._text(node, path)
        if text not in ("true", "false"):
            self._refuse(node, path, f"{text[:60]!r} is neither true nor false")
        return text == "true"
