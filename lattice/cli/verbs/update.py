"""`lattice update`: changes what may be changed of an allocation after its creation."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.cli.find import Finder
from lattice.cli.render.allocations import label
from lattice.cli.values import walltime_of
from lattice.errors import Rejected
from lattice.kube.resources import ALLOCATIONS
from lattice.scheduling.queries.status_rows import is_final, phase_of
from lattice.units import is_digits

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `update`."""
    parser.add_argument("allocation", metavar="ALLOCATION", help="name, number, uid prefix or NAMESPACE/NAME")
    parser.add_argument("--walltime", "--time", metavar="TIME", help="a longer one needs the right")
    parser.add_argument("--preemption-class", metavar="0-10", help="while it is pending")
    parser.add_argument("--name", metavar="NAME", help="the job's name")
    parser.add_argument("--tag", action="append", default=[], metavar="KEY=VALUE", help="set a label; KEY= removes it")


def run(console: Console) -> int:
    """Sends one patch with everything that flags name, and returns DONE.

    Raises Rejected where flags do not parse, or change the lifecycle of work that has ended.
    """
    spec = change_of(console.args)
    one = Finder(console).find(console.args.allocation)
    if is_final(one) and "lifecycle" in spec:
        raise Rejected(f"allocation {label(one)} is {phase_of(one)}: no walltime and no class counts for it any more", reason="Ended")
    made = console.cluster.patch(ALLOCATIONS, one.metadata.name, {"spec": spec}, one.metadata.namespace, type=dict[str, Any])
    if console.is_document:
        console.objects("Allocation", [made], one=True)
    else:
        console.say(f"Updated allocation {label(one)}")
    return exits.DONE


def change_of(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the part of spec that flags change; a tag without a value is removed. Raises Rejected for wrong values or no flag."""
    lifecycle: dict[str, Any] = {}
    tags: dict[str, str | None] = {}
    if args.walltime:
        lifecycle["walltime"] = walltime_of(args.walltime)
    if args.preemption_class is not None:
        text = args.preemption_class
        if not is_digits(text, 9) or int(text) > 10:
            raise Rejected(f"--preemption-class={text}: not a class from 0 to 10", reason="BadInput")
        lifecycle["preemptionClass"] = int(text)
    if args.name:
        tags["name"] = args.name
    for pair in args.tag:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise Rejected(f"--tag={pair}: write KEY=VALUE", reason="BadInput")
        tags[key] = value or None
    spec = {key: value for key, value in (("lifecycle", lifecycle), ("tags", tags)) if value}
    if not spec:
        raise Rejected("nothing to update: give --walltime, --preemption-class, --name or --tag", reason="BadInput")
    return spec
