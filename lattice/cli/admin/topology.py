"""`lattice admin topology apply FILE`: group and switch of each node, into `LatticeNode.spec`.

The file is Slurm's `topology.conf`, or our own YAML:

groups:
  g0: nid[001-032]
  g1: {s0: "nid[033-048]", s1: "nid[049-064]"}
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.cli.failures import explain
from lattice.cli.files import read_file
from lattice.cli.render.text import plural
from lattice.errors import LatticeError, Rejected
from lattice.kube.resources import NODES
from lattice.units import expand_nodes, fold_nodes
from lattice.views import Node

if TYPE_CHECKING:
    from lattice.cli.console import Console

Place = tuple[str, str]
"""Group and switch of a node; an empty switch: unknown."""
_PAIR = re.compile(r"(\w+)=(\S+)")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LONGEST = 8 * 1024 * 1024


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the action and its flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    apply = actions.add_parser("apply", help="write group and switch of each node of the file")
    apply.add_argument("file", metavar="FILE", help="our own YAML (`groups:`) or Slurm's topology.conf")
    apply.add_argument("--dry-run", action="store_true", help="only say what would change")


def run(console: Console) -> int:
    """Patches the nodes whose place differs (with `--dry-run` none), and names those without a LatticeNode and those that the file does not
    name; returns the exit code of all patches.
    """
    args = console.args
    places = _read(args.file, read_file(args.file, _LONGEST))
    nodes = {node.metadata.name: node for node in console.cluster.list(NODES, type=Node).items}
    missing = [name for name in places if name not in nodes]
    unnamed = [name for name in nodes if name not in places]
    different = [name for name, place in places.items() if name in nodes and place_of(nodes[name]) != place]
    codes = [] if args.dry_run else [_write(console, name, places[name]) for name in different]
    done = len(different) if args.dry_run else codes.count(exits.DONE)
    console.say(
        f"{'Would place' if args.dry_run else 'Placed'} {plural(done, 'node')}; {len(places) - len(missing) - len(different)} unchanged"
    )
    if missing:
        console.warn(
            [f"{plural(len(missing), 'node')} of the file have no agent yet and were left out: {_short(missing)}; apply it again then"]
        )
    if unnamed:
        console.warn([f"{plural(len(unnamed), 'node')} are not in the file and keep their place: {_short(unnamed)}"])
    return exits.of_several(codes)


def place_of(node: Node) -> Place:
    """Returns the group and switch that a node's object has now."""
    return (node.spec.group, node.spec.switch)


def _short(names: list[str]) -> str:
    """Returns node names in node set notation, cut to 200 characters with ... at the end."""
    text = fold_nodes(sorted(names))
    return text if len(text) <= 200 else text[:197] + "..."


def _read(path: str, data: bytes) -> dict[str, Place]:
    """Returns the place of each node in a file, Slurm's topology.conf or YAML.

    Raises Rejected where it is neither, or not UTF-8, or contradicts itself.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Rejected(f"{path} is not UTF-8", reason="BadDocument") from error
    if is_slurm(text):
        return read_slurm_topology(text)
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Rejected(f"{path} is neither topology.conf nor YAML: {' '.join(str(error).split())}", reason="BadDocument") from error
    return read_topology(document if isinstance(document, dict) else {})


def _write(console: Console, name: str, place: Place) -> int:
    """Writes a node's place and returns DONE; an error is printed, and its exit code returned."""
    try:
        console.cluster.patch(NODES, name, {"spec": {"group": place[0], "switch": place[1]}}, type=dict[str, Any])
    except LatticeError as error:
        console.complain(f"{name}:", *explain(error))
        return exits.of_error(error)
    return exits.DONE


def is_slurm(text: str) -> bool:
    """Tells whether a text is Slurm's `topology.conf`, by its first line with content."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "").lower().startswith("switchname=")


def read_topology(document: Mapping[str, Any]) -> dict[str, Place]:
    """Returns group and switch of each node in a document of our own form (`groups:`).

    Raises Rejected for another form, an impossible name, and a node in two places.
    """
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
    """Returns group and switch of each node in a `topology.conf`: its leaf switch, and as its group the switch above that.

    In a tree of two levels the leaf switches are the groups. Raises Rejected for a line that does not read, and a node in two places.
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
    """Puts all nodes of a node set at a place, into `places`.

    Raises Rejected for a name that is not allowed, or a node that has another place already.
    """
    for word in filter(None, place):
        if not _WORD.fullmatch(word):
            raise Rejected(
                f"{word!r} cannot be the name of a group or switch: letters, digits, '.', '_' and '-', at most 63", reason="BadDocument"
            )
    for name in expand_nodes(nodes):
        if places.setdefault(name, place) != place:
            raise Rejected(f"{name} is in two places: {'/'.join(places[name])} and {'/'.join(place)}", reason="BadDocument")
