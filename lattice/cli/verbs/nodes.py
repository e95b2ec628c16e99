"""`lattice nodes`: the machines, their states and the reasons."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.cli.render.nodes import homes, node_details, node_table, state_of
from lattice.errors import Denied, NotFound, Rejected
from lattice.kube.resources import NODES, VCLUSTERS
from lattice.models.conditions import NODE_STATES
from lattice.units import expand_nodes, fold_nodes
from lattice.views import Node, VCluster

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `nodes`."""
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="names or node sets such as nid[001-064]")
    parser.add_argument("--state", metavar="STATE,…", help=f"in {', '.join(NODE_STATES).lower()}")
    parser.add_argument("--group", metavar="GROUP", help="of this group")


def run(console: Console) -> int:
    """Shows all nodes, some, or everything about one."""
    args = console.args
    names = [name for text in args.nodes for name in expand_nodes(text)]
    listed = console.cluster.list(NODES, type=Node).items if len(names) != 1 else [_one(console, names[0])]
    home = _homes(console)
    found = keep(listed, names, parse_node_states(args.state), args.group or "", args.vcluster or "", home)
    missing = [name for name in names if name not in {node.metadata.name for node in listed}]
    if console.is_document:
        raw = [console.cluster.get(NODES, found[0].metadata.name, type=dict[str, Any])] if len(found) == 1 else _raw(console, found)
        console.objects("LatticeNode", raw, one=len(names) == 1)
    elif len(names) == 1 and found and console.format == "table":
        console.say(*node_details(found[0], home, console.outside.now()))
    elif found:
        now, width = console.outside.now(), console.outside.columns
        console.say(*node_table(found, home, now=now, wide=console.format == "wide", width=width, color=console.color))
    else:
        console.note("No nodes")
    if missing:
        raise NotFound(f"no node {fold_nodes(missing)}. Hint: `lattice nodes` lists them", reason="NodeNotFound")
    return exits.DONE


def _one(console: Console, name: str) -> Node:
    try:
        return console.cluster.get(NODES, name, type=Node)
    except NotFound as error:
        raise NotFound(f'no node "{name}". Hint: `lattice nodes` lists them', reason="NodeNotFound") from error


def _raw(console: Console, found: Sequence[Node]) -> list[dict[str, Any]]:
    wanted = {node.metadata.name for node in found}
    return [item for item in console.cluster.list(NODES, type=dict[str, Any]).items if item["metadata"]["name"] in wanted]


def _homes(console: Console) -> dict[str, str]:
    try:
        return homes(console.cluster.list(VCLUSTERS, type=VCluster).items)
    except (Denied, NotFound):
        return {}


def parse_node_states(text: str | None) -> frozenset[str]:
    """Reads states such as `ready,down` in any case; Rejected names those that there are."""
    known = {state.lower(): state for state in NODE_STATES}
    wanted = [word.strip().lower() for word in (text or "").split(",") if word.strip()]
    for word in wanted:
        if word not in known:
            raise Rejected(f"--state={word}: no such state. States: {', '.join(known)}", reason="BadInput")
    return frozenset(known[word] for word in wanted)


def keep(
    nodes: Sequence[Node], names: Sequence[str], states: frozenset[str], group: str, vcluster: str, home: dict[str, str]
) -> list[Node]:
    """Keeps the nodes that are asked for: in the order asked, else by index."""
    order = {name: at for at, name in enumerate(names)}
    kept = [
        node
        for node in nodes
        if (not names or node.metadata.name in order)
        and (not states or state_of(node) in states)
        and (not group or node.spec.group == group)
        and (not vcluster or vcluster in home.get(node.spec.group, "").split(","))
    ]
    last = len(nodes)
    return sorted(
        kept,
        key=lambda node: (
            order.get(node.metadata.name, last),
            node.status.index if node.status.index is not None else 1 << 30,
            node.metadata.name,
        ),
    )
