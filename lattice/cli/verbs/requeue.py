"""`lattice requeue`: ends the present attempt of allocations, of which another one waits then; submits ended ones again."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.cli.creation import create
from lattice.cli.failures import explain
from lattice.cli.find import Finder
from lattice.cli.long_scripts import with_script
from lattice.cli.render.allocations import label
from lattice.cli.submission import finish
from lattice.errors import LatticeError, Rejected
from lattice.kube.resources import ALLOCATIONS
from lattice.scheduling.queries.status_rows import is_final, phase_of
from lattice.views import Allocation
from lattice.workflow.rerun import rerun

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True
_EXAMPLES = """\
Examples:
  lattice requeue 12                   TERM now, then it waits again as attempt 2
  lattice requeue 12 13 --hold         and waits until `lattice release`
  lattice requeue ENDED                submits it again, as an allocation of its own"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `requeue`."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "allocations", nargs="+", metavar="ALLOCATION", help="names, numbers, uid prefixes or NAMESPACE/NAME; lists 1,2 and ranges 1-3"
    )
    parser.add_argument("--hold", action="store_true", help="what follows waits until `lattice release`")
    parser.set_defaults(request_id="")


def run(console: Console) -> int:
    """Requeues each allocation, or submits it again where it has ended; errors are printed; returns the exit code of all."""
    found, errors = Finder(console).find_all(console.args.allocations)
    codes = [_requeue(console, one) for one in found]
    console.show_changed(one=len(console.args.allocations) == 1)
    for error in errors:
        console.complain(*explain(error))
        codes.append(exits.of_error(error))
    return exits.of_several(codes)


def _requeue(console: Console, one: Allocation) -> int:
    """Requeues one allocation or submits it again, prints that, and returns DONE; an error is printed and its exit code returned."""
    try:
        if is_final(one):
            _again(console, one)
        else:
            made = console.cluster.patch(
                ALLOCATIONS, one.metadata.name, requeued(one, hold=console.args.hold), one.metadata.namespace, type=dict[str, Any]
            )
            console.changed("Allocation", made, f"Requeued allocation {label(one)}: attempt {one.status.attempt} ends, another one follows")
    except LatticeError as error:
        console.complain(*explain(error))
        return exits.of_error(error)
    return exits.DONE


def requeued(one: Allocation, *, hold: bool = False) -> dict[str, Any]:
    """Returns the patch that ends the present attempt of an allocation, so that another one follows; with `hold` it waits to be released.

    Raises Rejected for one that has no nodes, since nothing of it could end.
    """
    if not one.status.nodes:
        hint = "`lattice hold` keeps it from starting"
        raise Rejected(f"allocation {label(one)} is {phase_of(one)}: it waits already. Hint: {hint}", reason="NotPlaced")
    return {"spec": {"requeueAttempt": one.status.attempt} | ({"hold": True} if hold else {})}


def _again(console: Console, one: Allocation) -> None:
    """Submits ended work as a new allocation, and prints its name, or its number where that is known."""
    raw = console.cluster.get(ALLOCATIONS, one.metadata.name, one.metadata.namespace, type=dict[str, Any])
    document = finish(with_script(console, rerun(raw, hold=console.args.hold)), one.metadata.namespace, "", console.outside.random())
    made = create(console, document)
    shown = console.cluster.get(ALLOCATIONS, made.metadata.name, made.metadata.namespace, type=dict[str, Any])
    sentence = f"Allocation {label(one)} has ended ({phase_of(one)}) and stays as it is: submitted again as {label(made)}"
    console.changed("Allocation", shown, sentence)
