"""`lattice why`: explains why an allocation waits, what is before it and when it is expected to start, or how it ended."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from lattice.cli import exits
from lattice.cli.explained import answer_fully, sentences
from lattice.cli.find import Finder
from lattice.cli.render.allocations import label
from lattice.cli.steps import steps_text
from lattice.models.conditions import STAGING

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
    one = Finder(console).find(console.args.allocation)
    answer = answer_fully(console, one)
    if answer.phase == STAGING and (steps := steps_text(console, one)):
        answer = msgspec.structs.replace(answer, steps=steps.splitlines())
    if console.format in ("json", "yaml"):
        console.document(msgspec.to_builtins(answer))
    elif console.format == "name":
        console.say(answer.reason)
    else:
        console.say(*sentences(label(one), answer, console.outside.now(), console.table_width))
    return exits.DONE
