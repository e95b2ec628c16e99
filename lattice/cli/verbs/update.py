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
from lattice.scripts.asked import Given, Submitter
from lattice.scripts.begin import read_begin
from lattice.units import is_digits

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True
FLAGS = (
    "--walltime", "--preemption-class", "--not-before", "--deadline", "--requeue", "--max-requeue", "--name", "--tag", "--no-dependencies",
)  # fmt: skip
REQUEUE_POLICIES = {"never": "Never", "on-node-failure": "OnNodeFailure", "always": "Always"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `update`."""
    parser.add_argument("allocation", metavar="ALLOCATION", help="name, number, uid prefix or NAMESPACE/NAME")
    parser.add_argument("--walltime", "--time", metavar="TIME", help="a longer one needs the right")
    parser.add_argument("--preemption-class", metavar="0-10", help="while it is pending")
    parser.add_argument("--not-before", "--begin", metavar="TIME", help="not started before, while it is pending; also Slurm's forms; none")
    parser.add_argument("--deadline", metavar="TIME", help="cancelled when not started by then, while it is pending; none")
    parser.add_argument("--requeue", metavar="WHEN", help="never, on-node-failure or always, while it is pending")
    parser.add_argument("--max-requeue", metavar="N", help="attempts after the first, while it is pending")
    parser.add_argument("--name", metavar="NAME", help="the job's name")
    parser.add_argument("--tag", action="append", default=[], metavar="KEY=VALUE", help="set a label; KEY= removes it")
    parser.add_argument("--no-dependencies", action="store_true", help="wait for no other work any more")


def run(console: Console) -> int:
    """Sends one patch with everything that flags name, and returns DONE.

    Raises Rejected where flags do not parse, or change the lifecycle of work that has ended.
    """
    spec = change_of(console.args, Submitter(console.outside.directory, console.outside.environ, console.outside.now()))
    one = Finder(console).find(console.args.allocation)
    if is_final(one) and "lifecycle" in spec:
        raise Rejected(f"allocation {label(one)} is {phase_of(one)}: nothing of its lifecycle counts any more", reason="Ended")
    made = console.cluster.patch(ALLOCATIONS, one.metadata.name, {"spec": spec}, one.metadata.namespace, type=dict[str, Any])
    if console.is_document:
        console.objects("Allocation", [made], one=True)
    else:
        console.say(f"Updated allocation {label(one)}")
    return exits.DONE


def change_of(args: argparse.Namespace, submitter: Submitter) -> dict[str, Any]:
    """Returns the part of spec that flags change; a tag without a value is removed. Raises Rejected for wrong values or no flag.

    `submitter`: whose clock and zone the times are in.
    """
    lifecycle: dict[str, Any] = {}
    tags: dict[str, str | None] = {}
    if args.walltime:
        lifecycle["walltime"] = walltime_of(args.walltime)
    if args.preemption_class is not None:
        text = args.preemption_class
        if not is_digits(text, 9) or int(text) > 10:
            raise Rejected(f"--preemption-class={text}: not a class from 0 to 10", reason="BadInput")
        lifecycle["preemptionClass"] = int(text)
    lifecycle |= _of_pending(args, submitter)
    if args.name:
        tags["name"] = args.name
    for pair in args.tag:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise Rejected(f"--tag={pair}: write KEY=VALUE", reason="BadInput")
        tags[key] = value or None
    spec: dict[str, Any] = {key: value for key, value in (("lifecycle", lifecycle), ("tags", tags)) if value}
    if args.no_dependencies:
        spec["dependsOn"] = None
    if not spec:
        raise Rejected(f"nothing to update: give one of {', '.join(FLAGS)}", reason="BadInput")
    return spec


def _of_pending(args: argparse.Namespace, submitter: Submitter) -> dict[str, Any]:
    """Returns the part of spec.lifecycle that flags change which only pending work takes; `none` takes a time away."""
    lifecycle: dict[str, Any] = {}
    for field, flag, text in (("notBefore", "not-before", args.not_before), ("deadline", "deadline", args.deadline)):
        if text:
            given = Given(flag, text, "command line", f"--{flag}={text}")
            lifecycle[field] = None if text == "none" else read_begin(given, submitter)
    requeue: dict[str, Any] = {}
    if args.requeue:
        if args.requeue not in REQUEUE_POLICIES:
            raise Rejected(f"--requeue={args.requeue}: not one of {', '.join(REQUEUE_POLICIES)}", reason="BadInput")
        requeue["policy"] = REQUEUE_POLICIES[args.requeue]
    if args.max_requeue:
        if not is_digits(args.max_requeue, 3) or int(args.max_requeue) > 100:
            raise Rejected(f"--max-requeue={args.max_requeue}: not a number from 0 to 100", reason="BadInput")
        requeue["max"] = int(args.max_requeue)
    return lifecycle | ({"requeue": requeue} if requeue else {})
