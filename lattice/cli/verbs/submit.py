"""`lattice submit`: submits a command, a script or manifests as Allocations."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.cli.creation import create
from lattice.cli.follow import changes, until_final
from lattice.cli.leadership import leadership
from lattice.cli.long_scripts import config_map, split_script
from lattice.cli.render.allocations import end_lines, label
from lattice.cli.request import gather_documents, refuse_unknown, request_arguments, simplify
from lattice.errors import Denied, LatticeError, NotFound, Rejected
from lattice.kube.resources import ALLOCATIONS
from lattice.models.conditions import COMPLETED, PENDING
from lattice.models.reasons import never_starts
from lattice.scheduling.queries.status_rows import blocker, phase_of
from lattice.views import Allocation

if TYPE_CHECKING:
    from lattice.cli.console import Console

__all__ = ["INTERMIXED", "TAKES_COMMAND", "arguments", "await_number", "run", "simplify"]

INTERMIXED = True
TAKES_COMMAND = True
"""True: this verb takes a command after `--`."""
NUMBER_SECONDS = 2.0
"""How long `submit` waits for the scheduler to give the number."""
_PLAN_SECONDS = 5.0
"""How long a dry run waits for the scheduler's answer."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `submit`; options of Slurm's spelling are taken too, and not listed."""
    parser.usage = "lattice submit [flags] SCRIPT | -f FILE | -- COMMAND [ARGUMENT …]"
    request_arguments(parser)
    parser.add_argument("--request-id", default="", metavar="ID", help="makes repeating it safe: the same id never submits twice")
    parser.add_argument("--dry-run", choices=("client", "server"), help="show what would be applied; client needs no cluster")
    parser.add_argument("--wait", action="store_true", help="wait for its end, show each change of state, and exit with its code")
    parser.add_argument("--watch", action="store_true", help="like --wait, also with -q")
    parser.add_argument("--parsable", action="store_true", help="print only the number")


def run(console: Console) -> int:
    """Submits the work, shows a dry run instead, or waits for its end, as flags ask; returns the exit code, with `--wait` the work's.

    Denied and NotFound are raised after a note on the script's line that named the tenant.
    """
    try:
        return _run(console)
    except (Denied, NotFound):
        _say_whose_tenant(console)
        raise


def _say_whose_tenant(console: Console) -> None:
    """Prints the line of a script that named an account which is no tenant here: it was written for another site."""
    place = getattr(console.args, "tenant_from", "")
    if place:
        console.note(f"Note: the tenant comes from {place}; -t TENANT is stronger")


def _run(console: Console) -> int:
    """Submits all documents one after another and returns the exit code of them all; stops at an error, which is raised, and at an
    interruption.

    With --dry-run nothing is submitted. Raises Rejected for --request-id with several.
    """
    documents = gather_documents(console)
    if console.args.dry_run:
        return _dry_run(console, documents)
    if len(documents) > 1 and console.args.request_id:
        raise Rejected("--request-id is for one submission, and the file holds several", reason="BadInput")
    codes: list[int] = []
    for document in documents:
        try:
            codes.append(_submit(console, document))
        except LatticeError:
            if len(documents) > 1:
                console.complain(f'In {console.args.filename}: Allocation "{document["metadata"].get("name", "")}"')
            raise
        if codes[-1] == exits.INTERRUPTED:
            return exits.INTERRUPTED
    return exits.of_several(codes)


# Dry runs


def _dry_run(console: Console, documents: list[dict[str, Any]]) -> int:
    """Prints what would be submitted, as YAML where no format for programs is asked for: as the server would make it, or as the flags say,
    judged without a cluster; returns DONE.

    Raises the refusal of either.
    """
    parts = [split_script(document) for document in documents]
    if console.args.dry_run == "server":
        shown, warned = [], []
        for document, _ in parts:
            before = len(console.server_warnings)
            namespace = document["metadata"]["namespace"]
            made = console.cluster.create(ALLOCATIONS, document, namespace, type=dict[str, Any], dry_run=True)
            made["metadata"].pop("managedFields", None)
            shown.append(made)
            warned.append(console.server_warnings[before:])
        _warn_as_planned(console, shown, warned)
    else:
        shown = []
        for document, script in parts:
            _judge_offline(console, document)
            shown += [config_map(document, script)] if script else []
            shown.append(document)
    if console.format in ("table", "wide"):
        console.args.output = "yaml"
    if len(shown) > 1 and console.format == "yaml":
        from lattice.cli.render.yaml_text import dump

        console.raw(dump(shown))
    else:
        console.objects("Allocation", shown, one=True)
    return exits.DONE


def _warn_as_planned(console: Console, made: list[dict[str, Any]], warned: list[list[str]]) -> None:
    """Warns of work that could never start, as `lattice plan` finds, unless the server's warnings have said so.

    Nothing is said where nobody answers.
    """
    from lattice.cli.gateway import ask_plan
    from lattice.scheduling.queries.answers import NEVER

    try:
        planned = ask_plan(console, made, seconds=_PLAN_SECONDS).allocations
    except LatticeError:
        return  # a dry run needs neither gateway nor scheduler
    for one, sentences in zip(planned, warned, strict=False):
        if one.verdict == NEVER and not _names(sentences, one.reason):
            console.warn([f"{one.allocation.name} can never start as things are: {one.reason}: {one.message}"])


def _judge_offline(console: Console, document: dict[str, Any]) -> None:
    """Runs the webhook's chain of checks with the facts that are known without a cluster; raises its refusal."""
    from lattice.admission import Accepted, Facts, Refused, Request, Requester, admit

    refuse_unknown("the allocation", document)
    user = console.outside.environ.get("USER") or console.outside.environ.get("LOGNAME") or "you"
    match admit(Request.creation(document), Facts(requester=Requester(user), now=console.outside.now())):
        case Refused() as refused:
            raise Rejected(refused.message, reason=refused.reason, fields=(refused.field,) if refused.field else ())
        case Accepted(warnings=warnings):
            console.warn(warnings)


# Submitting


def _submit(console: Console, document: dict[str, Any]) -> int:
    """Submits one document, waits up to 2 s for its number, prints it, and returns the exit code, of the work where its end was waited for,
    INTERRUPTED after a signal.

    Where a signal or an error comes after it was submitted, a note says so; the error is raised.
    """
    name = str(document["metadata"].get("name", ""))
    console.server_warnings.clear()
    try:
        made = create(console, document)
    except KeyboardInterrupt:
        console.complain("Interrupted before the answer came: it may or may not have been submitted", f"  Hint: `lattice status {name}`")
        return exits.INTERRUPTED
    try:
        made = await_number(console, made)
        return _report(console, made)
    except KeyboardInterrupt:
        console.note(_describe_detachment(made))
        return exits.INTERRUPTED
    except LatticeError:
        console.note(_describe_detachment(made))
        raise


def _describe_detachment(made: Allocation) -> str:
    """Returns the sentence that an allocation is submitted and goes on, and how to follow it."""
    return f"Detached: allocation {label(made)} is submitted and goes on. Follow it with `lattice wait {label(made)}`"


def _report(console: Console, made: Allocation) -> int:
    """Prints the allocation's number, and waits where flags ask for that; returns the exit code."""
    if console.is_document:
        raw = console.cluster.get(ALLOCATIONS, made.metadata.name, made.metadata.namespace, type=dict[str, Any])
        console.objects("Allocation", [raw], one=True)
    elif made.status.number is None:
        _say_without_number(console, made)
    else:
        console.say(str(made.status.number) if console.args.parsable else f"Submitted allocation {made.status.number}")
    console.outside.stdout.flush()
    _warn_of_never(console, made)
    return _wait(console, made) if console.args.wait or console.args.watch else exits.DONE


def _warn_of_never(console: Console, made: Allocation) -> None:
    """Warns of a reason that no waiting cures, which came with the number, unless the server has warned of it."""
    why = blocker(made)
    if phase_of(made) != PENDING or why is None or not never_starts(why.reason, why.message):
        return
    if not _names(console.server_warnings, why.reason):
        console.warn([f"it can never start as things are: {why.reason}: {why.message}"])


def _names(sentences: Iterable[str], reason: str) -> bool:
    """Tells whether one of the sentences names the reason."""
    return any(reason in sentence for sentence in sentences)


def await_number(console: Console, made: Allocation, seconds: float = NUMBER_SECONDS) -> Allocation:
    """Returns an allocation with its number, or without one where none came within `seconds`."""
    if made.status.number is not None:
        return made
    for now in changes(console, made, deadline=console.outside.now() + seconds):
        made = now
        if made.status.number is not None:
            break
    return made


def _say_without_number(console: Console, made: Allocation) -> None:
    """Prints the name of an allocation that has no number yet, and why it may have none."""
    console.say(made.metadata.name if console.args.parsable else f"Submitted allocation {made.metadata.name}")
    why = leadership(console).sentence or "the scheduler has not answered yet"
    console.note(f"Note: it has no number after {NUMBER_SECONDS:.0f} s: {why}")


def _wait(console: Console, made: Allocation) -> int:
    """Waits for the end and returns the work's exit code, NOT_YET where the wait ends before it.

    Prints each change of state (not with `-q`, unless `--watch`), and why it ended unless it completed.
    """
    tells = console.args.watch or not console.args.quiet
    ended = until_final(console, made, notes_changes=tells)
    if ended is None:
        return exits.NOT_YET
    lines = end_lines(ended)
    console.complain(*(lines[1:] if tells else lines if ended.status.phase != COMPLETED else ()))
    return exits.of_work(ended)
