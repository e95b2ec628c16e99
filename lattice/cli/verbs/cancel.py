"""`lattice cancel`: sets `spec.cancel`; the object and its history stay."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.cli.failures import explain
from lattice.cli.find import Finder
from lattice.cli.render.allocations import label
from lattice.cli.render.text import plural
from lattice.cli.selection import parse_states, split_references
from lattice.errors import LatticeError, Rejected
from lattice.kube.resources import ALLOCATIONS
from lattice.scheduling.queries.status_rows import is_final, phase_of
from lattice.views import Allocation

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True
_EXAMPLES = """\
Examples:
  lattice cancel 12 13 --reason='wrong input'
  lattice cancel 12.3                  one launch (srun) of 12, which goes on
  lattice cancel --all-mine --state=pending
  lattice cancel --name=train"""
ASK_ABOVE = 10


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `cancel`."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "allocations", nargs="*", metavar="ALLOCATION", help="names, numbers, uid prefixes or NAMESPACE/NAME; lists 1,2 and ranges 1-3"
    )
    parser.add_argument("--all-mine", action="store_true", help="all that are mine and have not ended")
    parser.add_argument("--state", metavar="STATE,…", help="of these, only those in this state")
    parser.add_argument("--name", metavar="NAME", help="of mine, those with this job name")
    parser.add_argument("--reason", default="", metavar="TEXT", help="why; shown in the allocation")
    parser.add_argument("--yes", action="store_true", help=f"do not ask above {ASK_ABOVE}")


def run(console: Console) -> int:
    """Cancels the named, or the person's own selected, allocations, asks first above 10, and returns the exit code, FAILED where the person
    says no; only tells of those that have ended already. Errors of single ones are printed.

    Raises Rejected where none is named or selected.
    """
    args = console.args
    if not args.allocations and not (args.all_mine or args.name or args.state):
        raise Rejected("nothing to cancel: name allocations, or give --all-mine, --state or --name", reason="BadInput")
    named = split_references(args.allocations)
    if steps := _steps(args, named):
        return _cancel_steps(console, steps)
    states = parse_states(args.state)
    found, errors = Finder(console).find_all(named) if args.allocations else (_mine(console), [])
    if states:
        found = [one for one in found if phase_of(one) in states]
    for error in errors:
        console.complain(*explain(error))
    codes = [exits.of_error(error) for error in errors]
    if not found:
        console.note("Nothing to cancel")
        return exits.of_several(codes)
    if len(found) > ASK_ABOVE and not console.confirm(f"Cancel {plural(len(found), 'allocation')}?"):
        console.note("Nothing was cancelled")
        return exits.FAILED
    codes += [_cancel(console, one) for one in found]
    console.show_changed(one=len(args.allocations) == 1)
    return exits.of_several(codes)


def _steps(args: argparse.Namespace, named: Sequence[str]) -> list[tuple[str, int]]:
    """Returns the launches that references such as `12.3` name, each as its allocation and number; empty: whole allocations are named.

    Raises Rejected where a command names both, or selects allocations beside launches.
    """
    from lattice.cli.launches import split_step

    found = [(reference, split_step(reference)) for reference in named]
    steps = [step for _, step in found if step is not None]
    whole = [reference for reference, step in found if step is None]
    chosen = [flag for flag, given in (("--all-mine", args.all_mine), ("--state", args.state), ("--name", args.name)) if given]
    if steps and (beside := [*whole, *chosen]):
        first = next(reference for reference, step in found if step is not None)
        raise Rejected(
            f"{first} is one launch, and {beside[0]} means whole allocations: one command cancels launches or allocations, not both; "
            "give two commands",
            reason="BadInput",
        )
    return steps


def _cancel_steps(console: Console, steps: Sequence[tuple[str, int]]) -> int:
    """Cancels launches, asks first above 10, and returns the exit code of all, FAILED where the person says no."""
    from lattice.cli.launches import cancel_step

    if len(steps) > ASK_ABOVE and not console.confirm(f"Cancel {len(steps)} launches?"):
        console.note("Nothing was cancelled")
        return exits.FAILED
    return exits.of_several([cancel_step(console, reference, number) for reference, number in steps])


def _mine(console: Console) -> list[Allocation]:
    """Returns the person's own allocations in the namespace that have not ended, with `--name` those of this job name, sorted by namespace
    and name.
    """
    listed = console.cluster.list(ALLOCATIONS, console.namespace, type=Allocation, fields=f"spec.user={console.user}").items
    name = console.args.name
    found = [one for one in listed if not is_final(one) and (not name or one.spec.tags.get("name") == name)]
    return sorted(found, key=lambda one: (one.metadata.namespace, one.metadata.name))


def _cancel(console: Console, one: Allocation) -> int:
    """Asks for one allocation's end, prints that, and returns DONE; one that has ended stays as it is.

    An error is printed and its exit code returned.
    """
    if is_final(one):
        console.note(f"Allocation {label(one)} has ended already: {phase_of(one)}")
        return exits.DONE
    try:
        wish = {"spec": {"cancel": {"reason": console.args.reason}}}
        made = console.cluster.patch(ALLOCATIONS, one.metadata.name, wish, one.metadata.namespace, type=dict[str, Any])
    except LatticeError as error:
        console.complain(*explain(error))
        return exits.of_error(error)
    console.changed("Allocation", made, _describe_cancel(one))
    return exits.DONE


def _describe_cancel(one: Allocation) -> str:
    """Returns the sentence on what a cancel does: work on nodes gets TERM first, and time to end."""
    name, grace = label(one), one.spec.lifecycle.grace_period
    if not one.status.nodes:
        return f"Cancelled allocation {name}"
    return f"Cancelling allocation {name}: TERM now, KILL after {grace} if it is still there; `lattice wait {name}` waits for its end"
