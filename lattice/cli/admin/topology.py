"""`lattice admin topology apply FILE`: group and switch of each node, into `LatticeNode.spec`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.cli.admin.topology_file import Place, is_slurm, read_slurm_topology, read_topology
from lattice.cli.failures import explain
from lattice.cli.render.text import plural
from lattice.cli.submission import read_file
from lattice.errors import LatticeError, Rejected
from lattice.kube.resources import NODES
from lattice.units import fold_nodes
from lattice.views import Node

if TYPE_CHECKING:
    from lattice.cli.console import Console

_LONGEST = 8 * 1024 * 1024


def arguments(parser: argparse.ArgumentParser) -> None:
    """The action and its flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    apply = actions.add_parser("apply", help="write group and switch of each node of the file")
    apply.add_argument("file", metavar="FILE", help="our own YAML (`groups:`) or Slurm's topology.conf")
    apply.add_argument("--dry-run", action="store_true", help="only say what would change")


def run(console: Console) -> int:
    """Patch the nodes whose place differs; nodes without a LatticeNode, and those the file does not name, are said."""
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
    """Where the node is now."""
    return (node.spec.group, node.spec.switch)


def _short(names: list[str]) -> str:
    text = fold_nodes(sorted(names))
    return text if len(text) <= 200 else text[:197] + "..."


def _read(path: str, data: bytes) -> dict[str, Place]:
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
    try:
        console.cluster.patch(NODES, name, {"spec": {"group": place[0], "switch": place[1]}}, type=dict[str, Any])
    except LatticeError as error:
        console.complain(f"{name}:", *explain(error))
        return exits.of_error(error)
    return exits.DONE
