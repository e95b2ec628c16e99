"""`lattice dag`: submits graphs of allocations as one, shows them, holds, releases and cancels them, and submits again what did not
complete.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lattice.cli import exits
from lattice.cli.dag_files import read_dag
from lattice.cli.failures import explain
from lattice.cli.render.dags import dag_details, dag_table, dot_lines, graph_lines
from lattice.cli.render.text import plural
from lattice.cli.selection import bare_name
from lattice.errors import AlreadyExists, LatticeError, NotFound, Rejected
from lattice.kube.resources import DAGS
from lattice.models.conditions import CANCELLED, COMPLETED, FAILED, RUNNING
from lattice.views.dag import Dag

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = False
DOT: Final = "dot"
PAUSE_SECONDS: Final = 1.0
_STATES: Final = (RUNNING, COMPLETED, FAILED, CANCELLED)
_RERUN: Final = re.compile(r"(.+)-r([1-9][0-9]{0,3})")
_TRIES: Final = 20
"""So many names a resubmission tries."""
_UID: Final = re.compile(r"[0-9a-f-]{4,36}")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    submit = actions.add_parser("submit", help="submit a DAG", description="Submit a DAG: a manifest, or either form of the book.")
    submit.add_argument("file", nargs="?", metavar="FILE", help="a manifest (YAML or JSON, ours or the book's); - is standard input")
    submit.add_argument("-f", "--filename", metavar="FILE", help="the same")
    submit.add_argument("--name", metavar="NAME", help="the name of the DAG (default: the file's)")
    submit.add_argument("--hold", action="store_true", help="no member starts until `lattice dag release`")
    submit.add_argument("--dry-run", choices=("client", "server"), help="show what would be applied; client needs no cluster")
    listing = actions.add_parser("list", help="list DAGs")
    listing.add_argument("--state", metavar="STATE,…", help=f"in {', '.join(_STATES).lower()}")
    listing.add_argument("--user", metavar="USER", help="of this user")
    status = actions.add_parser("status", help="how a DAG and its members stand")
    status.add_argument("dag", metavar="DAG", help="a name, NAMESPACE/NAME, or the beginning of a uid")
    status.add_argument("--graph", action="store_true", help="its graph as text; -o dot: for Graphviz")
    status.set_defaults(more_formats=(DOT,))
    cancel = actions.add_parser("cancel", help="end all members")
    cancel.add_argument("--reason", default="", metavar="TEXT", help="why, for people")
    hold = actions.add_parser("hold", help="let no member start; those that run go on")
    release = actions.add_parser("release", help="let members of held DAGs start")
    for below in (cancel, hold, release):
        below.add_argument("dags", nargs="+", metavar="DAG", help="names, NAMESPACE/NAME, or the beginning of a uid")
    again = actions.add_parser("resubmit", help="submit what did not complete of a DAG that has ended, as a new one")
    again.add_argument("dag", metavar="DAG", help="a name, NAMESPACE/NAME, or the beginning of a uid")
    again.add_argument("--name", metavar="NAME", help="the name of the new DAG (default: DAG-r1, -r2, …)")
    for waiting in (submit, again):
        waiting.add_argument("--wait", action="store_true", help="wait for its end; exit with 1 unless it completes")
        waiting.add_argument("--parsable", action="store_true", help="print only the name")


def run(console: Console) -> int:
    """Runs the action of the command line."""
    actions: dict[str, Callable[[Console], int]] = {
        "submit": _submit, "list": _list, "status": _status, "cancel": _change, "hold": _change, "release": _change, "resubmit": _resubmit,
    }  # fmt: skip
    return actions[console.args.action](console)


def _submit(console: Console) -> int:
    """Submits the DAG of a file, or shows a dry run of that; returns the exit code, with --wait that of its end."""
    args = console.args
    if (args.file is None) == (args.filename is None):
        raise Rejected("give the file of one DAG: lattice dag submit FILE", reason="BadInput")
    document = read_dag(args.file or args.filename, console.outside.stdin)
    metadata, spec = dict(document.get("metadata") or {}), document.get("spec")
    if args.name:
        metadata["name"] = args.name
    if not metadata.get("name") and not metadata.get("generateName"):
        metadata["name"] = f"dag-{console.outside.random()}"
    document = {**document, "metadata": metadata}
    if args.hold and isinstance(spec, dict):
        document["spec"] = {**spec, "hold": True}
    _refuse_unknown(args.file or args.filename, document)
    if isinstance(spec, dict) and spec.get("tenant") and not args.tenant:
        args.tenant = spec["tenant"]
    if args.dry_run == "client":
        return _shown(console, document)
    metadata.setdefault("namespace", console.namespace)
    made = console.cluster.create(DAGS, document, metadata["namespace"], type=dict[str, Any], dry_run=args.dry_run == "server")
    return _shown(console, made) if args.dry_run else _told(console, made, "Submitted")


def _refuse_unknown(path: str, document: dict[str, Any]) -> None:
    """Raises Rejected for what the strict reading of a DAG finds, and for members that are no graph; `path` names the source."""
    from lattice.admission.dags import read_dag as typed
    from lattice.admission.dags import refused_graph
    from lattice.admission.strict import parse_strict
    from lattice.admission.verdicts import Refused

    problems = parse_strict("DAG", document)
    if problems:
        raise Rejected(f"{path}: " + "; ".join(problems), reason="BadDocument")
    dag = typed(document)
    refused = dag if isinstance(dag, Refused) else refused_graph(dag, len(dag.spec.members) or None)  # the site's limit is the server's
    if refused is not None:
        raise Rejected(f"{path}: {refused.message}", reason=refused.reason, fields=(refused.field,))


def _shown(console: Console, document: dict[str, Any]) -> int:
    """Prints a DAG that is not kept, as YAML where no format for programs is asked for."""
    if console.format in ("table", "wide"):
        console.args.output = "yaml"
    console.objects("DAG", [document], one=True)
    return exits.DONE


def _told(console: Console, made: dict[str, Any], word: str) -> int:
    """Prints that a DAG was made, and returns DONE, or with --wait the exit code of its end."""
    name, members = made["metadata"]["name"], made["spec"]["members"]
    if console.args.parsable:
        console.say(name)
    else:
        console.changed("DAG", made, f"{word} DAG {name} with {plural(len(members), 'allocation')}")
        console.show_changed(one=True)
    return _wait(console, name, made["metadata"]["namespace"]) if console.args.wait else exits.DONE


def _wait(console: Console, name: str, namespace: str) -> int:
    """Waits for the end of a DAG, notes each change of its counts, and returns DONE where it completed, else FAILED."""
    last = ""
    while True:
        status = console.cluster.get(DAGS, name, namespace, type=Dag).status
        counts = status.counts
        line = f"{status.phase or 'New'}: {counts.completed} completed, {counts.running} running, {counts.pending} pending"
        line += f", {counts.failed} failed" if counts.failed else ""
        if line != last:
            console.note(f"DAG {name} {line}")
            last = line
        if status.phase in (COMPLETED, FAILED, CANCELLED):
            return exits.DONE if status.phase == COMPLETED else exits.FAILED
        console.outside.sleep(PAUSE_SECONDS)


def _list(console: Console) -> int:
    """Prints the DAGs of the namespace, in the states and of the user asked for, or a note that there are none."""
    args = console.args
    wanted = [word.strip().capitalize() for word in (args.state or "").split(",") if word.strip()]
    unknown = [word for word in wanted if word not in _STATES]
    if unknown:
        raise Rejected(f"--state={args.state}: {unknown[0].lower()} is none of {', '.join(_STATES).lower()}", reason="BadInput")
    fields = f"spec.user={args.user}" if args.user else ""
    raw = console.cluster.list(DAGS, console.namespace, type=dict[str, Any], fields=fields).items
    raw = [one for one in raw if not wanted or (one.get("status") or {}).get("phase", RUNNING) in wanted]
    if console.is_document:
        console.objects("DAG", raw, one=False)
    elif raw:
        found = [msgspec.convert(one, Dag) for one in raw]
        console.say(*dag_table(found, console.outside.now(), width=console.table_width, color=console.color))
    else:
        console.note(f"No DAGs in namespace {console.namespace}")
    return exits.DONE


def _status(console: Console) -> int:
    """Prints one DAG: how it and its members stand, or its graph."""
    raw = _find(console, console.args.dag)
    dag = msgspec.convert(raw, Dag)
    if console.args.output == DOT:
        console.say(*dot_lines(dag))
    elif console.is_document:
        console.objects("DAG", [raw], one=True)
    elif console.args.graph:
        console.say(*graph_lines(dag))
    else:
        console.say(*dag_details(dag, console.outside.now(), width=console.table_width, color=console.color))
    return exits.DONE


def _find(console: Console, reference: str) -> dict[str, Any]:
    """Returns the DAG that a name, NAMESPACE/NAME or the beginning of a uid names. Raises NotFound, or Rejected where several match."""
    reference = bare_name(reference, "DAG")
    namespace, slash, name = reference.partition("/")
    if not slash:
        namespace, name = console.namespace, reference
    try:
        return console.cluster.get(DAGS, name, namespace, type=dict[str, Any])
    except NotFound:
        pass  # it may be the beginning of a uid
    found = []
    if _UID.fullmatch(name):
        listed = console.cluster.list(DAGS, namespace, type=dict[str, Any]).items
        found = [one for one in listed if one["metadata"]["uid"].startswith(name)]
    if len(found) > 1:
        raise Rejected(
            f"{reference!r} is the beginning of several uids: {', '.join(one['metadata']['name'] for one in found)}", reason="Ambiguous"
        )
    if not found:
        raise NotFound(f'no DAG "{name}" in namespace {namespace}. Hint: `lattice dag list` shows them', reason="DagNotFound")
    return found[0]


def _change(console: Console) -> int:
    """Cancels, holds or releases the DAGs named, prints each, errors too, and returns the exit code of them all."""
    action = console.args.action
    wish: dict[str, Any] = {"hold": True} if action == "hold" else {"hold": None}
    if action == "cancel":
        wish = {"cancel": {"reason": console.args.reason}}
    word = {"cancel": "Cancelling", "hold": "Held", "release": "Released"}[action]
    codes = []
    for reference in console.args.dags:
        try:
            one = _find(console, reference)
            meta = one["metadata"]
            phase = (one.get("status") or {}).get("phase", "")
            if phase in (COMPLETED, FAILED, CANCELLED):
                console.note(f"DAG {meta['name']} has ended already: {phase}")
                codes.append(exits.DONE)
                continue
            made = console.cluster.patch(DAGS, meta["name"], {"spec": wish}, meta["namespace"], type=dict[str, Any])
            console.changed("DAG", made, f"{word} DAG {meta['name']}")
            codes.append(exits.DONE)
        except LatticeError as error:
            console.complain(*explain(error))
            codes.append(exits.of_error(error))
    console.show_changed(one=len(console.args.dags) == 1)
    return exits.of_several(codes)


def _resubmit(console: Console) -> int:
    """Submits a new DAG of the members that did not complete, and prints that; returns the exit code, with --wait that of its end."""
    from lattice.workflow.unfinished import unfinished

    raw = _find(console, console.args.dag)
    dag = msgspec.convert(raw, Dag)
    name = dag.metadata.name
    if dag.status.phase not in (COMPLETED, FAILED, CANCELLED):
        raise Rejected(
            f"DAG {name} is {dag.status.phase or 'New'}: only one that has ended is resubmitted. Hint: cancel it first", reason="DagRunning"
        )
    states = {state.name: state for state in dag.status.members}
    members = unfinished(raw["spec"]["members"], states) if states else raw["spec"]["members"]
    if not members:
        raise Rejected(f"every member of DAG {name} completed, or is not needed: nothing is left to submit", reason="NothingToDo")
    spec = {key: value for key, value in raw["spec"].items() if key not in ("cancel", "hold", "user")} | {"members": members}
    base, number = name, 1
    if (found := _RERUN.fullmatch(name)) is not None:
        base, number = found[1], int(found[2]) + 1
    names = [console.args.name] if console.args.name else [f"{base[:56]}-r{number + step}" for step in range(_TRIES)]
    for candidate in names:
        body = {"metadata": {"name": candidate, "namespace": dag.metadata.namespace}, "spec": spec}
        try:
            made = console.cluster.create(DAGS, body, dag.metadata.namespace, type=dict[str, Any])
        except AlreadyExists:
            continue
        return _told(console, made, "Submitted")
    raise AlreadyExists(f"DAGs of the names {names[0]} … {names[-1]} exist already: give --name", reason="AlreadyExists")
