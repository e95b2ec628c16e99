"""`lattice nodes`: lists nodes with their states and reasons."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from lattice.cli import exits
from lattice.cli.from_memory import ask_memory
from lattice.cli.render.nodes import node_details, node_table
from lattice.cli.selection import named_nodes
from lattice.errors import Denied, NotFound, Rejected
from lattice.kube.resources import NODES, VCLUSTERS
from lattice.models.conditions import NODE_STATES
from lattice.scheduling.queries.node_rows import NODES_SCHEMA, NodeRow, NodeRows, homes, node_row
from lattice.units import fold_nodes
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
    """Shows all nodes, some of them, or everything about one, and returns DONE; states, group and vcluster filter in each case. Several
    come from the gateway's cache where it answers, documents and single nodes from the API server.

    Raises NotFound where a named one does not exist, after the others were shown.
    """
    args = console.args
    names = named_nodes(args.nodes)
    states = parse_node_states(args.state)
    if len(names) == 1 and console.format == "table":
        return _show_one(console, names[0], states)
    whole = console.is_document or len(names) == 1
    rows, home = (None if whole else _from_gateway(console)) or _from_server(console, names)
    found = keep(rows, names, states, args.group or "", args.vcluster or "", home)
    missing = [name for name in names if name not in {row.name for row in rows}]
    if console.is_document:
        console.objects("LatticeNode", _raw(console, found), one=len(names) == 1)
    elif found:
        now, width = console.outside.now(), console.outside.columns
        console.say(*node_table(found, home, now=now, wide=console.format == "wide", width=width, color=console.color))
    else:
        console.note("No nodes")
    if missing:
        raise NotFound(f"no node {fold_nodes(missing)}. Hint: `lattice nodes` lists them", reason="NodeNotFound")
    return exits.DONE


def _show_one(console: Console, name: str, states: frozenset[str]) -> int:
    """Shows everything about one node, unless the filters exclude it; returns DONE."""
    args, node, home = console.args, _one(console, name), _homes(console)
    if keep([node_row(node)], [name], states, args.group or "", args.vcluster or "", home):
        console.say(*node_details(node, home, console.outside.now()))
    else:
        console.note("No nodes")
    return exits.DONE


def _from_gateway(console: Console) -> tuple[Sequence[NodeRow], Mapping[str, str]] | None:
    """Returns rows, and home vclusters by group, from the gateway's cache, not older than the person's own writes; None where it does not
    give them.
    """
    body = ask_memory(console, "/v1/nodes", {"version": NODES.plural, "vclusters": VCLUSTERS.plural}, {})
    if body is None:
        return None
    try:
        answer = msgspec.json.decode(body, type=NodeRows)
    except msgspec.DecodeError:
        return None  # of another version than this program
    return (answer.rows, answer.homes) if answer.schema == NODES_SCHEMA else None


def _from_server(console: Console, names: Sequence[str]) -> tuple[Sequence[NodeRow], Mapping[str, str]]:
    """Returns rows, and home vclusters by group, from the API server; for a single name, of that node alone."""
    listed = console.cluster.list(NODES, type=Node).items if len(names) != 1 else [_one(console, names[0])]
    return [node_row(node) for node in listed], _homes(console)


def _one(console: Console, name: str) -> Node:
    """Returns a node. Raises NotFound with a hint where there is none."""
    try:
        return console.cluster.get(NODES, name, type=Node)
    except NotFound as error:
        raise NotFound(f'no node "{name}". Hint: `lattice nodes` lists them', reason="NodeNotFound") from error


def _raw(console: Console, found: Sequence[NodeRow]) -> list[dict[str, Any]]:
    """Returns the objects of these nodes: one by a request of its own, several out of the whole list."""
    if len(found) == 1:
        return [console.cluster.get(NODES, found[0].name, type=dict[str, Any])]
    wanted = {row.name for row in found}
    return [item for item in console.cluster.list(NODES, type=dict[str, Any]).items if item["metadata"]["name"] in wanted]


def _homes(console: Console) -> dict[str, str]:
    """Returns the vcluster of each group of nodes; empty where vclusters may not be read."""
    try:
        return homes(console.cluster.list(VCLUSTERS, type=VCluster).items)
    except (Denied, NotFound):
        return {}


def parse_node_states(text: str | None) -> frozenset[str]:
    """Returns the states in a text such as `ready,down`, in any case; empty: all. Raises Rejected for an unknown one."""
    known = {state.lower(): state for state in NODE_STATES}
    wanted = [word.strip().lower() for word in (text or "").split(",") if word.strip()]
    for word in wanted:
        if word not in known:
            raise Rejected(f"--state={word}: no such state. States: {', '.join(known)}", reason="BadInput")
    return frozenset(known[word] for word in wanted)


def keep(
    rows: Sequence[NodeRow], names: Sequence[str], states: frozenset[str], group: str, vcluster: str, home: Mapping[str, str]
) -> list[NodeRow]:
    """Returns the rows that pass all filters that are given (empty: no filter): in the order of the names given, else by index.

    `home`: the vclusters at home in each group, separated by commas.
    """
    order = {name: at for at, name in enumerate(names)}
    kept = [
        row
        for row in rows
        if (not names or row.name in order)
        and (not states or row.state in states)
        and (not group or row.group == group)
        and (not vcluster or vcluster in home.get(row.group, "").split(","))
    ]
    last = len(rows)
    return sorted(kept, key=lambda row: (order.get(row.name, last), row.index if row.index is not None else 1 << 30, row.name))
