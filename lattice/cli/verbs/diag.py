"""`lattice diag`: one page about an allocation or a node for a support ticket, by the asker's own rights.

Values of variables, Secrets, arguments of the command and the script are not on it: a ticket is read by many.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from lattice.cli import exits
from lattice.cli.explained import answer_fully, sentences
from lattice.cli.find import Finder
from lattice.cli.gateway import ask_document
from lattice.cli.node_reports import ask_node, node_document, read_homes, read_node
from lattice.cli.render.allocations import label
from lattice.cli.render.diagnosis import allocation_page, event_lines, spec_summary
from lattice.cli.render.node_reports import node_page
from lattice.cli.selection import bare_name
from lattice.errors import Denied, LatticeError, NotFound, Rejected
from lattice.kube.resources import ALLOCATIONS, EVENTS
from lattice.lifecycle.node_report import Diagnosis
from lattice.views import Allocation, Node

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True
SCHEMA = "lattice.dev/diagnosis/v1"
PATIENCE_SECONDS = 6.0
"""How long the gateway's answer may take: all nodes together have three seconds."""
NODE_PREFIX = "latticenode.lattice.dev/"
"""As `-o name` prints a node."""
NODE_EVENTS = "default"
"""The namespace where events about objects without one stand."""
MOST_EVENTS = 40
_EXAMPLES = """\
Examples:
  lattice diag 12              an allocation: request, conditions, steps, limits, mounts, last lines, events, reasons
  lattice diag nid001          a node: state, conditions, cache, hooks, its attempts, events
  lattice diag 12 -o json      the same for programs"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `diag`."""
    parser.epilog, parser.formatter_class = _EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("subject", metavar="ID|NODE", help="an allocation as `lattice status` takes it, or else the name of a node")
    parser.add_argument("--node", action="store_true", help="it is a node, though an allocation has the same name")


def run(console: Console) -> int:
    """Prints the page of the allocation that the argument names, or else (with `--node` at once) of the node, and returns DONE.

    Raises NotFound or Rejected where it names neither, or several allocations and no node.
    """
    subject = console.args.subject
    if not console.args.node and not subject.startswith(NODE_PREFIX):
        try:
            one = Finder(console).find(subject)
        except (NotFound, Rejected) as error:
            if not _is_node(console, subject):
                raise error from None
        else:
            return _show_allocation(console, one)
    return _show_node(console, bare_name(subject, "LatticeNode"))


def _is_node(console: Console, name: str) -> bool:
    """Tells whether a name can be read as a node; False also after an error."""
    try:
        read_node(console, name)
    except LatticeError:
        return False
    return True


def _show_allocation(console: Console, one: Allocation) -> int:
    """Prints the page on an allocation, as a document or a name where that is asked for; returns DONE.

    Raises the error of a request to the API server that fails.
    """
    metadata = one.metadata
    raw = console.cluster.get(ALLOCATIONS, metadata.name, metadata.namespace, type=dict[str, Any])
    found, why = _ask(console, one), answer_fully(console, one, PATIENCE_SECONDS)
    events, unseen = _events(console, metadata.namespace, metadata.name, metadata.uid)
    if console.format == "name":
        console.objects("Allocation", [raw], one=True)
    elif console.is_document:
        about = {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
            "creationTimestamp": metadata.creation_timestamp,
        }
        status = msgspec.to_builtins(one.status)
        console.document(
            {
                "schema": SCHEMA, "allocation": {"metadata": about, "spec": spec_summary(raw), "status": status},
                "why": msgspec.to_builtins(why), "nodes": msgspec.to_builtins(found), "events": events,
            }
        )  # fmt: skip
    else:
        now, width = console.outside.now(), console.table_width
        told = sentences(label(one), why, now, width)
        console.say(*allocation_page(one, spec_summary(raw), found, told, event_lines(events, unseen, now, width), now=now, width=width))
    return exits.DONE


def _show_node(console: Console, name: str) -> int:
    """Prints the page on a node, as a document or a name where that is asked for; returns DONE.

    Raises the error of a request to the API server that fails.
    """
    raw, report = read_node(console, name), ask_node(console, name)
    node = msgspec.convert(raw, Node)
    events, unseen = _events(console, NODE_EVENTS, name, node.metadata.uid)
    if console.format == "name":
        console.say(f"latticenode.lattice.dev/{name}")
    elif console.is_document:
        console.document(node_document(raw, report) | {"schema": SCHEMA, "events": events})
    else:
        now, width = console.outside.now(), console.table_width
        console.say(*node_page(node, report, read_homes(console), now, width), "", *event_lines(events, unseen, now, width))
    return exits.DONE


def _ask(console: Console, one: Allocation) -> Diagnosis:
    """Returns what the nodes say of the newest attempt; where the gateway cannot be asked, nothing but the reason."""
    path = f"/v1/diagnosis/{quote(one.metadata.namespace, safe='')}/{quote(one.metadata.name, safe='')}"
    try:
        return ask_document(console, path, Diagnosis, PATIENCE_SECONDS)
    except LatticeError as error:
        return Diagnosis(one.status.attempt, [], output_message=error.message)


def _events(console: Console, namespace: str, name: str, uid: str) -> tuple[list[dict[str, Any]], str]:
    """Returns the newest 40 events about an object, oldest first, and why the reader sees none (empty: he may).

    Events without a uid count.
    """
    try:
        listed = console.cluster.list(EVENTS, namespace, type=dict[str, Any], fields=f"regarding.name={name}").items
    except Denied:
        return [], "not yours to read"
    about = [one for one in listed if (one.get("regarding") or {}).get("uid", uid) == uid and one["regarding"].get("name") == name]
    about.sort(key=_time)
    return [{key: one.get(key) for key in ("eventTime", "type", "reason", "note")} for one in about[-MOST_EVENTS:]], ""


def _time(one: dict[str, Any]) -> str:
    """Returns the time of an Event, of its creation where it has none of its own; empty where neither is known."""
    return str(one.get("eventTime") or one.get("metadata", {}).get("creationTimestamp") or "")
