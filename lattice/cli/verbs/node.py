"""`lattice node`: shows, drains, disables, adds and forgets nodes, with the reason, by whom and since when."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.cli.failures import explain
from lattice.cli.render.text import plural
from lattice.cli.selection import named_nodes
from lattice.errors import AlreadyExists, LatticeError, NotFound, Rejected
from lattice.kube.resources import NODE_INDEXES, NODES
from lattice.lifecycle.hardware import reported
from lattice.units import fold_nodes, format_time, parse_duration
from lattice.views import Node, NodeIndex
from lattice.views.meta import Metadata

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = False
ASK_ABOVE_SHARE = 0.1
FORGET = "lattice.dev/forget"
INDEX_NAME = "lattice"
_PAUSE = 0.5
_VERBS = {
    "add": "let a node in again that was forgotten, or make known one that is to come",
    "drain": "nothing new is placed there; what runs goes on",
    "undrain": "take a drained node back, or cancel a drain",
    "disable": "take it out at once; what runs there is requeued or fails",
    "enable": "take a disabled node back",
    "accept": "take the hardware that it reports now for what it has",
    "forget": "remove it for good: its index is free, its certificate worth nothing",
}

_STATUS = "show what it is doing: state, conditions, reserves, cache, hooks, and its attempts with steps, limits and mounts"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions of `node` and their flags."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    shown = verbs.add_parser("status", help=_STATUS, description=f"status: {_STATUS}")
    shown.add_argument("nodes", nargs="+", metavar="NODES", help="names or node sets such as nid[001-004]")
    for name, text in _VERBS.items():
        one = verbs.add_parser(name, help=text, description=f"{name}: {text}")
        one.add_argument("nodes", nargs="*", metavar="NODES", help="names or node sets such as nid[001-064]")
        if name == "add":
            one.add_argument("--group", metavar="GROUP", help="the topology group that they stand in")
            continue
        one.add_argument("--group", metavar="GROUP", help="every node of this group")
        one.add_argument("--yes", action="store_true", help="do not ask")
        if name in ("drain", "disable"):
            one.add_argument("--reason", required=True, metavar="TEXT", help="why, for those who read it later")
        if name == "disable":
            one.add_argument("--fenced", action="store_true", help="vouch that nothing runs there any more: its rows are released")
        if name == "forget":
            one.add_argument("--timeout", default="30s", metavar="TIME", help="how long to wait for the scheduler")


def run(console: Console) -> int:
    """Writes what operators want of each named node into its object; asks first where `question_of` says so, and returns FAILED, nothing
    changed, where the person says no.

    `forget` waits until the scheduler has forgotten the nodes. Returns the exit code, of several nodes one for all; errors of single nodes
    are printed.
    """
    action = console.args.action
    if action == "status":
        from lattice.cli.node_reports import show

        return show(console)
    if action == "add":
        return _add(console)
    nodes = console.cluster.list(NODES, type=Node).items
    gone = _find_gone(console, nodes) if action in ("disable", "forget") and console.args.nodes else []
    chosen = choose([*nodes, *gone], console.args.nodes, console.args.group)
    question = question_of(action, chosen, len(nodes), fenced=getattr(console.args, "fenced", False))
    if question and not console.confirm(question):
        console.note("Nothing was changed")
        return exits.FAILED
    idle = [] if console.is_document else _find_unchanged(action, chosen)  # programs read the objects they named
    chosen = [node for node in chosen if node not in idle]
    if idle:
        names, word = fold_nodes([node.metadata.name for node in idle]), {"undrain": "drained", "enable": "disabled"}[action]
        console.note(f"{names} {'is' if len(idle) == 1 else 'are'} not {word}: nothing to {action}")
    wish = _change(console, action)
    codes: list[int] = [exits.DONE] * len(idle)
    done: dict[str, Mapping[str, Any]] = {}
    for node in chosen:
        try:
            change = wish or {"spec": {"hardware": reported(node.status.capabilities)}}
            done[node.metadata.name] = _wish(console, node, change)
            codes.append(exits.DONE)
        except LatticeError as error:
            console.complain(f"{node.metadata.name}:", *explain(error))
            codes.append(exits.of_error(error))
    if action == "forget":
        return _await_forgotten(console, list(done), [code for code in codes if code != exits.DONE])
    if done and console.is_document:
        console.objects("LatticeNode", list(done.values()), one=len(chosen) == 1)
    elif done:
        word = {"drain": "Draining", "undrain": "Undrained", "disable": "Disabled", "enable": "Enabled", "accept": "Accepted"}[action]
        console.say(f"{word} {fold_nodes(list(done))} ({plural(len(done), 'node')})")
    return exits.of_several(codes)


def _add(console: Console) -> int:
    """Creates LatticeNodes by hand, which admits their agents, and returns the exit code of them all; an existing one is left as it is, an
    error of one is printed.

    Raises Rejected where none is named.
    """
    names = named_nodes(console.args.nodes)
    if not names:
        raise Rejected("name the nodes to add, such as nid[001-064]", reason="BadInput")
    spec = {"group": console.args.group} if console.args.group else {}
    made: list[dict[str, Any]] = []
    known: list[str] = []
    codes: list[int] = []
    for name in names:
        body = {"apiVersion": NODES.api_version, "kind": NODES.kind, "metadata": {"name": name}, "spec": spec}
        try:
            made.append(console.cluster.create(NODES, body, type=dict[str, Any]))
            codes.append(exits.DONE)
        except AlreadyExists:
            known.append(name)
            codes.append(exits.DONE)
        except LatticeError as error:
            console.complain(f"{name}:", *explain(error))
            codes.append(exits.of_error(error))
    if known:
        console.note(f"{fold_nodes(known)} {'is' if len(known) == 1 else 'are'} known already")
    if made and console.is_document:
        console.objects("LatticeNode", made, one=len(names) == 1)
    elif made:
        console.say(f"Added {fold_nodes([one['metadata']['name'] for one in made])} ({plural(len(made), 'node')})")
    return exits.of_several(codes)


def _find_gone(console: Console, nodes: Sequence[Node]) -> list[Node]:
    """Returns nodes with an index but without an object: it was deleted, and ledger rows may still hold the node."""
    try:
        index = console.cluster.get(NODE_INDEXES, INDEX_NAME, type=NodeIndex)
    except NotFound:
        return []
    known = {node.metadata.name for node in nodes}
    return [Node(metadata=Metadata(name=name)) for name in index.spec.names.values() if name and name not in known]


def _wish(console: Console, node: Node, change: dict[str, Any]) -> dict[str, Any]:
    """Writes the change into the node's object, which is created again where it is gone."""
    name = node.metadata.name
    if node.metadata.uid:
        return console.cluster.patch(NODES, name, change, type=dict[str, Any])
    body = {"apiVersion": NODES.api_version, "kind": NODES.kind, "spec": {}, **change}
    body["metadata"] = {"name": name, **change.get("metadata", {})}
    return console.cluster.create(NODES, body, type=dict[str, Any])


def choose(nodes: Sequence[Node], texts: Sequence[str], group: str | None) -> list[Node]:
    """Returns the nodes that names, node sets or a group select, each once, in the order of the names.

    Raises NotFound, naming all, where some do not exist, and Rejected unless names or a group are given, one of the two.
    """
    if bool(texts) == bool(group):
        raise Rejected("name nodes, or a group with --group: one of the two", reason="BadInput")
    if group:
        found = [node for node in nodes if node.spec.group == group]
        if not found:
            known = ", ".join(sorted({node.spec.group for node in nodes if node.spec.group})) or "none"
            raise NotFound(f'no node is in group "{group}". Groups: {known}', reason="GroupNotFound")
        return found
    by_name = {node.metadata.name: node for node in nodes}
    names = named_nodes(texts)
    missing = [name for name in names if name not in by_name]
    if missing:
        raise NotFound(f"no node {fold_nodes(missing)}. Hint: `lattice nodes` lists them", reason="NodeNotFound")
    return [by_name[name] for name in names]


def question_of(action: str, chosen: Sequence[Node], total: int, *, fenced: bool) -> str:
    """Returns the question to ask before an action on nodes; empty: none is needed.

    `disable`, `accept`, `forget` and `fenced` (people vouch that nothing runs there) always ask; `drain` asks for several nodes that
    are more than a tenth of `total`; other actions never.
    """
    shown = fold_nodes([node.metadata.name for node in chosen])
    shown = shown if len(shown) <= 120 else f"{shown[:117]}..."
    if fenced:
        return f"Vouch that nothing runs on {shown} any more? Work that still runs there would run twice."
    if action == "disable":
        return f"Disable {shown}? What runs there is requeued or fails."
    if action == "accept":
        return f"Take what {shown} {'reports' if len(chosen) == 1 else 'report'} now for what is there?"
    if action == "forget":
        return f"Forget {shown} for good?"
    if action == "drain" and len(chosen) > ASK_ABOVE_SHARE * total and len(chosen) > 1:
        return f"{action.capitalize()} {len(chosen)} of {plural(total, 'node')} ({shown})?"
    return ""


def _find_unchanged(action: str, chosen: Sequence[Node]) -> list[Node]:
    """Returns the nodes on which `undrain` or `enable` has nothing to undo; none for every other action."""
    if action == "undrain":
        return [node for node in chosen if node.spec.drain is None]
    return [node for node in chosen if node.spec.disable is None] if action == "enable" else []


def _change(console: Console, action: str) -> dict[str, Any]:
    """Returns the patch that is the same for every node; empty for `accept`, which differs by node."""
    if action == "accept":
        return {}
    if action == "undrain":
        return {"spec": {"drain": None}}
    if action == "enable":
        return {"spec": {"disable": None}}
    if action == "forget":
        return {"metadata": {"annotations": {FORGET: "true"}}}
    wish: dict[str, Any] = {"reason": console.args.reason, "by": console.user, "since": format_time(console.outside.now())}
    if action == "disable":
        wish["fenced"] = console.args.fenced
    return {"spec": {action: wish}}


def _await_forgotten(console: Console, names: list[str], failed: list[int]) -> int:
    """Waits until the scheduler has freed the nodes' indices and deleted their objects, which it does once no row holds them, reports, and
    returns the exit code.
    """
    deadline = console.outside.now() + parse_duration(console.args.timeout)
    left = wait_until_gone(names, lambda name: _exists(console, name), console.outside.now, console.outside.sleep, deadline)
    gone = [name for name in names if name not in left]
    if gone:
        console.say(f"Forgotten {fold_nodes(gone)} ({plural(len(gone), 'node')})")
    if left:
        console.complain(
            f"Error: {fold_nodes(left)} still there after {console.args.timeout}: the scheduler forgets a node when no allocation holds it",
            "  Hint: `lattice nodes` shows its state; the wish stands, and is carried out later",
        )
    return exits.of_several(failed + [exits.DONE] * len(gone) + [exits.NOT_YET] * len(left))


def wait_until_gone(
    names: Sequence[str], exists: Callable[[str], bool], now: Callable[[], float], sleep: Callable[[float], None], deadline: float
) -> list[str]:
    """Waits until none of the names exists, or until `deadline` by `now`, asking each half second; returns those that still exist then.

    It asks once even after the deadline.
    """
    left = [name for name in names if exists(name)]
    while left and now() < deadline:
        sleep(_PAUSE)
        left = [name for name in left if exists(name)]
    return left


def _exists(console: Console, name: str) -> bool:
    """Tells whether there is a node of this name."""
    try:
        console.cluster.get(NODES, name, type=Node)
    except NotFound:
        return False
    return True
