"""`lattice why`: explains why an allocation waits, what is before it and when it is expected to start, or how it ended."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from lattice.cli import exits
from lattice.cli.explained import answer_fully, sentences
from lattice.cli.find import Finder
from lattice.cli.render.allocations import MOST_EDGES_SHOWN, edge_lines, label
from lattice.cli.steps import steps_text
from lattice.errors import LatticeError
from lattice.models.conditions import PENDING, STAGING
from lattice.scheduling.queries.status_rows import phase_of
from lattice.units import is_digits
from lattice.views import Allocation
from lattice.workflow.mutexes import MUTEX

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `why`."""
    parser.add_argument("allocation", metavar="ALLOCATION", help="name, number, uid prefix or NAMESPACE/NAME")


def run(console: Console) -> int:
    """Shows why one allocation waits or how it ended, by the scheduler's answer where there is one, else by its object alone, and, of
    work that is placed and has not started, the steps of its nodes; returns DONE.
    """
    finder = Finder(console)
    one = finder.find(console.args.allocation)
    answer = answer_fully(console, one)
    if answer.phase == STAGING and (steps := steps_text(console, one)):
        answer = msgspec.structs.replace(answer, steps=steps.splitlines())
    if console.format in ("json", "yaml"):
        console.document(msgspec.to_builtins(answer))
    elif console.format == "name":
        console.say(answer.reason)
    else:
        console.say(*sentences(label(one), answer, console.outside.now(), console.table_width))
        if one.spec.depends_on and answer.phase == PENDING:
            console.say("Depends on:", *(f"  {line}" for line in edge_lines(one, _states(finder, one))))
    return exits.DONE


def _states(finder: Finder, one: Allocation) -> dict[int, str]:
    """Returns the phases of the work that the first open edges name, by their places; without those that cannot be read, or are gone."""
    answered = {edge.index for edge in one.status.edges if edge.answer}
    answered |= {index for index, edge in enumerate(one.spec.depends_on) if edge.condition == MUTEX}
    states: dict[int, str] = {}
    for index in [index for index in range(len(one.spec.depends_on)) if index not in answered][:MOST_EDGES_SHOWN]:
        ref = one.spec.depends_on[index].ref
        with suppress(LatticeError):
            found = finder.find(ref if "/" in ref or is_digits(ref) else f"{one.metadata.namespace}/{ref}")
            states[index] = f"{label(found)} is {phase_of(found)}"
    return states
