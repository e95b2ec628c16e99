"""`lattice quota explain ALLOCATION`: every gate between an allocation and its nodes, each with its numbers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from lattice.cli import exits
from lattice.cli.find import Finder
from lattice.cli.gateway import ask_scheduler
from lattice.cli.render.allocations import label
from lattice.cli.render.gates import gate_lines
from lattice.errors import NotFound
from lattice.scheduling.queries.quota_answers import QuotaExplanation
from lattice.scheduling.queries.status_rows import is_final, phase_of

if TYPE_CHECKING:
    from lattice.cli.console import Console


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `quota explain`."""
    parser.add_argument("allocation", metavar="ALLOCATION", help="name, number, uid prefix or NAMESPACE/NAME")


def run(console: Console) -> int:
    """Shows every gate between an allocation and its nodes; raises NotFound for one that has ended. Returns the exit code."""
    one = Finder(console).find(console.args.allocation)
    if is_final(one):
        sentence = f"allocation {label(one)} has ended ({phase_of(one)}): no gate stands before it. Hint: lattice why {label(one)}"
        raise NotFound(sentence, reason="NotPending")
    path = f"/v1/quota/explain/{quote(one.metadata.namespace, safe='')}/{quote(one.metadata.name, safe='')}"
    found = ask_scheduler(console, path, QuotaExplanation, "explains no quota")
    if console.format in ("json", "yaml"):
        console.document(msgspec.to_builtins(found))
    elif console.format == "name":
        console.say(next((gate.reason for gate in found.gates if gate.first), "None"))
    else:
        console.say(*gate_lines(found, width=console.outside.columns, color=console.color))
    return exits.DONE
