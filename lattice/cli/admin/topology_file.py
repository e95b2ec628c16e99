"""Which group and switch each node is in: Slurm's `topology.conf`, or our own YAML. Pure.

groups:
  g0: nid[001-032]
  g1: {s0: "nid[033-048]", s1: "nid[049-064]"}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lattice.errors import Rejected
from lattice.units import expand_nodes

Place = tuple[str, str]
"""Group and switch; an empty switch is not known."""
_PAIR = re.compile(r"(\w+)=(\S+)")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def is_slurm(text: str) -> bool:
    """Whether the text is Slurm's, by its first line that says anything."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "").lower().startswith("switchname=")


def read_topology(document: Mapping[str, Any]) -> dict[str, Place]:
    """The place of each node of our own form."""
    groups = document.get("groups")
    if set(document) != {"groups"} or not isinstance(groups, Mapping):
        raise Rejected("a topology is a map `groups:` of node sets, or of switches with node sets", reason="BadDocument")
    places: dict[str, Place] = {}
    for group, inner in groups.items():
        switches = inner if isinstance(inner, Mapping) else {"": inner}
        for switch, nodes in switches.items():
            if not isinstance(nodes, str):
                raise Rejected(f"groups.{group}: {nodes!r} is no node set", reason="BadDocument")
            _place(places, nodes, (str(group), str(switch)))
    return places


def read_slurm_topology(text: str) -> dict[str, Place]:
    """The place of each node of a `topology.conf`: its leaf switch, and the switch above that as its group.

    In a tree of two levels the leaf switches are the groups.
    """
    parents: dict[str, str] = {}
    leaves: dict[str, str] = {}
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        fields: dict[str, str] = {str(key).lower(): str(value) for key, value in _PAIR.findall(content)}
        name = fields.get("switchname", "")
        if not name or bool(fields.get("nodes")) == bool(fields.get("switches")):
            raise Rejected(f"line {number}: {content}: write SwitchName=NAME with Nodes=… or Switches=…", reason="BadDocument")
        if "nodes" in fields:
            leaves[name] = fields["nodes"]
        else:
            parents |= dict.fromkeys(expand_nodes(fields["switches"]), name)
    deep = any(parents.get(parent) for parent in parents.values())
    places: dict[str, Place] = {}
    for leaf, nodes in leaves.items():
        _place(places, nodes, (parents.get(leaf, leaf) if deep else leaf, leaf))
    return places


def _place(places: dict[str, Place], nodes: str, place: Place) -> None:
    for word in filter(None, place):
        if not _WORD.fullmatch(word):
            raise Rejected(
                f"{word!r} cannot be the name of a group or switch: letters, digits, '.', '_' and '-', at most 63", reason="BadDocument"
            )
    for name in expand_nodes(nodes):
        if places.setdefault(name, place) != place:
            raise Rejected(f"{name} is in two places: {'/'.join(places[name])} and {'/'.join(place)}", reason="BadDocument")
