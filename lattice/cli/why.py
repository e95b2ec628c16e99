"""`lattice why`: why an allocation waits, or how it ended, and what to do next."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.cli.allocation_rows import blocker, is_final, label, phase_of, since
from lattice.cli.find import Finder
from lattice.cli.render import age
from lattice.cli.scheduler import Leadership, leadership
from lattice.models.conditions import PENDING
from lattice.models.reasons import END_REASONS, PENDING_REASONS
from lattice.views import Allocation

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True
SCHEMA = "lattice.dev/why/v1"
_NEXT = {reason.word: reason.next_step for reason in (*END_REASONS, *PENDING_REASONS)}
_MEANING = {reason.word: reason.meaning for reason in (*END_REASONS, *PENDING_REASONS)}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `why`."""
    parser.add_argument("allocation", metavar="ALLOCATION", help="name, number, uid prefix or NAMESPACE/NAME")


def run(console: Console) -> int:
    """Say it once."""
    one = Finder(console).one(console.args.allocation)
    scheduler = leadership(console) if not is_final(one) else Leadership("", "", "")
    answer = explain_allocation(one, scheduler)
    if console.format in ("json", "yaml"):
        console.document(answer)
    elif console.format == "name":
        console.say(answer["reason"])
    else:
        console.say(*_sentences(one, answer, console.outside.now()))
    return exits.DONE


def explain_allocation(one: Allocation, scheduler: Leadership) -> dict[str, Any]:
    """The answer for programs; its fields are part of the interface."""
    why = blocker(one)
    pending = phase_of(one) == PENDING
    reason = why.reason if why is not None else "NotYetEvaluated" if pending else phase_of(one)
    answer: dict[str, Any] = {
        "schema": SCHEMA,
        "allocation": {
            "namespace": one.metadata.namespace,
            "name": one.metadata.name,
            "number": one.status.number,
            "uid": one.metadata.uid,
        },
        "phase": phase_of(one),
        "reason": reason,
        "message": (why.message if why is not None else "") or _MEANING.get(reason, ""),
        "since": since(one),
        "nextStep": _NEXT.get(reason, ""),
    }
    if scheduler.sentence:
        answer["scheduler"] = {"silentSince": scheduler.silent_since or None, "message": scheduler.sentence}
    return answer


def _sentences(one: Allocation, answer: dict[str, Any], now: float) -> list[str]:
    when = f" since {answer['since']} ({age(answer['since'], now)})" if answer["since"] else ""
    lines = [f"Allocation {label(one)} ({one.metadata.namespace}/{one.metadata.name}) is {answer['phase']}{when}"]
    lines.append(f"  {answer['reason']}: {answer['message']}" if answer["message"] else f"  {answer['reason']}")
    if answer["nextStep"]:
        lines.append(f"  Next: {answer['nextStep']}")
    if "scheduler" in answer:
        lines.append(f"  But {answer['scheduler']['message']}")
    return lines
