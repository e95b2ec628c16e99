"""`lattice hold` and `lattice release`: keep pending allocations from starting, and release them again."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.cli.failures import explain
from lattice.cli.find import Finder
from lattice.cli.render.allocations import label
from lattice.errors import LatticeError, Rejected
from lattice.kube.resources import ALLOCATIONS
from lattice.models.conditions import PENDING
from lattice.scheduling.queries.status_rows import phase_of
from lattice.views import Allocation

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `hold` and `release`."""
    parser.add_argument(
        "allocations", nargs="+", metavar="ALLOCATION", help="names, numbers, uid prefixes or NAMESPACE/NAME; lists 1,2 and ranges 1-3"
    )


def run(console: Console) -> int:
    """Sets or clears `spec.hold` of each allocation, as the verb says; only a pending one can be held, any can be released; errors are
    printed; returns the exit code of all.
    """
    hold = console.args.verb == "hold"
    found, errors = Finder(console).find_all(console.args.allocations)
    codes = [_set(console, one, hold) for one in found]
    console.show_changed(one=len(console.args.allocations) == 1)
    for error in errors:
        console.complain(*explain(error))
        codes.append(exits.of_error(error))
    return exits.of_several(codes)


def _set(console: Console, one: Allocation, hold: bool) -> int:
    """Holds or releases one allocation, prints that, and returns DONE.

    An error, also of holding one that is not pending, is printed and its exit code returned.
    """
    word = "Held" if hold else "Released"
    try:
        if hold and phase_of(one) != PENDING:
            raise Rejected(f"allocation {label(one)} is {phase_of(one)}: only a pending one can be held", reason="NotPending")
        change = {"spec": {"hold": hold}}
        made = console.cluster.patch(ALLOCATIONS, one.metadata.name, change, one.metadata.namespace, type=dict[str, Any])
    except LatticeError as error:
        console.complain(*explain(error))
        return exits.of_error(error)
    console.changed("Allocation", made, f"{word} allocation {label(one)}")
    return exits.DONE
