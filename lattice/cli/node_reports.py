"""`lattice node status`: what a node is, and what its agent says that it is doing, through the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from lattice.cli import exits
from lattice.cli.gateway import ask_document
from lattice.cli.render.node_reports import node_page
from lattice.cli.selection import named_nodes
from lattice.errors import Denied, LatticeError, NotFound
from lattice.kube.resources import NODES, VCLUSTERS
from lattice.lifecycle.node_report import NodeReport
from lattice.scheduling.queries.node_rows import homes
from lattice.views import Node, VCluster

if TYPE_CHECKING:
    from lattice.cli.console import Console

SCHEMA = "lattice.dev/node-status/v1"
PATIENCE_SECONDS = 5.0
"""How long the gateway's answer may take: it waits three seconds for the agent."""


def show(console: Console) -> int:
    """Shows each named node in full, or, in a format for programs, the object and the report of its agent; returns DONE.

    Raises NotFound at the first name without a node.
    """
    names = named_nodes(console.args.nodes)
    documents = []
    for at, name in enumerate(names):
        raw, report = read_node(console, name), ask_node(console, name)
        if console.is_document:
            documents.append(node_document(raw, report))
            continue
        node = msgspec.convert(raw, Node)
        console.say(*([""] if at else []), *node_page(node, report, read_homes(console), console.outside.now(), console.table_width))
    if console.format == "name":
        console.say(*(f"latticenode.lattice.dev/{name}" for name in names))
    elif console.is_document:
        console.document(documents[0] if len(documents) == 1 else documents)
    return exits.DONE


def read_node(console: Console, name: str) -> dict[str, Any]:
    """Returns a node's object as the API server has it; raises NotFound with a hint where there is none."""
    try:
        return console.cluster.get(NODES, name, type=dict[str, Any])
    except NotFound as error:
        raise NotFound(f'no node "{name}". Hint: `lattice nodes` lists them', reason="NodeNotFound") from error


def ask_node(console: Console, name: str) -> NodeReport:
    """Returns what the node's agent says, by the gateway; where that cannot be asked, a report with nothing but the reason."""
    try:
        return ask_document(console, f"/v1/node/{quote(name, safe='')}", NodeReport, PATIENCE_SECONDS)
    except LatticeError as error:
        return NodeReport(name, message=error.message)


def read_homes(console: Console) -> dict[str, str]:
    """Returns the vclusters at home in each group; empty for a person who may not list them."""
    try:
        return homes(console.cluster.list(VCLUSTERS, type=VCluster).items)
    except (Denied, NotFound):
        return {}


def node_document(raw: dict[str, Any], report: NodeReport) -> dict[str, Any]:
    """Returns the document of one node for programs: its object without managed fields, and the agent's report."""
    metadata = {key: value for key, value in raw.get("metadata", {}).items() if key != "managedFields"}
    return {"schema": SCHEMA, "node": {**raw, "metadata": metadata}, "report": msgspec.to_builtins(report)}
