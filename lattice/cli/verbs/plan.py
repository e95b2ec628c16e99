"""`lattice plan`: shows when and where work would start that is not submitted; takes what `submit` takes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import msgspec

from lattice.cli import exits
from lattice.cli.gateway import ask_plan
from lattice.cli.leadership import with_silence
from lattice.cli.long_scripts import split_script
from lattice.cli.render.answers import (
    blocker_table,
    change_lines,
    expected_sentence,
    placement_sentence,
    position_sentence,
    preemption_lines,
    quota_sentence,
    score_lines,
    score_sentence,
)
from lattice.cli.render.text import fields
from lattice.cli.request import gather_documents, request_arguments, simplify
from lattice.errors import AlreadyExists, Retry
from lattice.kube.resources import ALLOCATIONS
from lattice.scheduling.queries.answers import LATER, NEVER, NOW, Plan, Planned

if TYPE_CHECKING:
    from lattice.cli.console import Console

__all__ = ["INTERMIXED", "TAKES_COMMAND", "arguments", "run", "sentences", "simplify"]

INTERMIXED = True
TAKES_COMMAND = True
MANIFESTS = (".yaml", ".yml", ".json")
"""Suffixes of files that are manifests rather than scripts."""
_CODES = {NOW: exits.DONE, LATER: exits.NOT_YET, NEVER: exits.NOT_FOUND}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `plan`."""
    parser.usage = "lattice plan [flags] SCRIPT | FILE.yaml | -f FILE | -- COMMAND [ARGUMENT …]"
    request_arguments(parser)
    parser.epilog = "Nothing is submitted. Exit codes: 0 it starts now, 3 later, 4 never; 1 refused and 2 bad input as for submit."
    parser.add_argument("--optimal", action="store_true", help="beside it, what an exact solver proves: no plan can be worth more")


def run(console: Console) -> int:
    """Shows what would become of all given allocations, in order, each as if those before it were submitted too; submits nothing.

    Returns the exit code of the worst verdict: DONE (it starts now), NOT_YET (later), NOT_FOUND (never); raises Retry where the scheduler
    does not answer.
    """
    args = console.args
    args.dry_run, args.request_id = "server", ""
    if args.script is not None and args.script.endswith(MANIFESTS) and args.filename is None:
        args.script, args.filename = None, args.script
    documents = [_admit(console, split_script(document)[0]) for document in gather_documents(console)]
    try:
        plan = ask_plan(console, documents, optimal=args.optimal)
    except Retry as error:
        raise with_silence(console, error) from error
    if console.format in ("json", "yaml"):
        console.document(msgspec.to_builtins(plan))
    elif console.format == "name":
        console.say(*(one.verdict for one in plan.allocations))
    else:
        wide = console.format == "wide"
        console.say(*sentences(plan, console.outside.now(), 0 if wide else console.outside.columns, wide=wide))
    return max((_CODES[one.verdict] for one in plan.allocations), default=exits.DONE)


def _admit(console: Console, document: dict[str, Any]) -> dict[str, Any]:
    """Returns the document as the API server would store it, by a dry run that stores nothing; raises its refusal.

    Where an object of its name exists, it is tried under another name.
    """
    metadata = document["metadata"]
    namespace = metadata["namespace"]
    try:
        made = console.cluster.create(ALLOCATIONS, document, namespace, type=dict[str, Any], dry_run=True)
    except AlreadyExists:  # planned once more, beside the one that stands there
        other = {**document, "metadata": {**metadata, "name": f"{metadata['name'][:57]}-{console.outside.random()}"}}
        made = console.cluster.create(ALLOCATIONS, other, namespace, type=dict[str, Any], dry_run=True)
        made["metadata"]["name"] = metadata["name"]
    return made


def sentences(plan: Plan, now: float, width: int = 0, *, wide: bool = False) -> list[str]:
    """Returns the lines of a plan; `wide` adds each score by factor."""
    lines: list[str] = []
    for one in plan.allocations:
        lines += _one(one, now, width, wide)
    if plan.optimal is not None:
        lines += fields([("Optimal", _optimal(plan))])
    return lines


def _one(one: Planned, now: float, width: int, wide: bool) -> list[str]:
    """Returns the lines on one planned allocation: whether, when and where it would start, what is before it, and what would let it start
    now.

    Wide ones show every part of the score.
    """
    name = f"{one.allocation.namespace}/{one.allocation.name}"
    if one.verdict == NOW and one.placement is not None:
        head = f"{name} starts now"
    elif one.verdict == NEVER:
        head = f"{name} can never start: {one.reason}: {one.message}"
    else:
        head = f"{name} would wait: {one.reason}: {one.message}"
    pairs = [
        ("Nodes", placement_sentence(one.placement) if one.placement is not None else ""),
        ("Queue", position_sentence(one.queue)),
        ("Expected start", expected_sentence(one.expected_start, now) if one.verdict == LATER else ""),
        ("Score", "\n".join(score_lines(one.score)) if wide else score_sentence(one.score)),
        ("Would preempt", "\n".join(preemption_lines(one.preemption))),
        ("Quota", quota_sentence(one.quota)),
    ]
    lines = [head, *(f"  {line}" for line in fields(pairs))]
    if one.blockers:
        lines += ["  Before it, in order:", *(f"    {line}" for line in blocker_table(one.blockers, now, max(0, width - 4)))]
    if one.changes:
        lines += ["  It would start now with:", *(f"    {line}" for line in change_lines(one.changes))]
    return lines


def _optimal(plan: Plan) -> str:
    """Returns how the cycle's value compares with what the solver found; empty where none was asked."""
    bound = plan.optimal
    if bound is None:
        return ""
    if bound.bound <= 0:
        return f"nothing that could start has a value ({bound.status})"
    best = f", best found {bound.optimal:.1f}" if bound.optimal is not None else ""
    told = f"this cycle is worth {bound.value:.1f} of at most {bound.bound:.1f} ({bound.value / bound.bound:.1%}){best}; {bound.status}"
    rules = "; ".join(bound.unknown)
    return f"{told}\nthe solver does not know, and the scheduler keeps: {rules}" if rules else told
