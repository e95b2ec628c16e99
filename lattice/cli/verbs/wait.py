"""`lattice wait`: waits until allocations have ended, or have started."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.cli.find import Finder
from lattice.cli.follow import until
from lattice.cli.render.allocations import end_lines, label, state_line
from lattice.errors import Rejected
from lattice.kube.resources import ALLOCATIONS
from lattice.scheduling.queries.status_rows import is_final
from lattice.units import parse_duration
from lattice.views import Allocation

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wait`."""
    parser.add_argument("allocations", nargs="+", metavar="ALLOCATION", help="names, numbers, uid prefixes or NAMESPACE/NAME")
    parser.add_argument("--timeout", metavar="TIME", help="give up after this time, with exit code 3")
    parser.add_argument("--for", dest="goal", choices=("finished", "started"), default="finished", help="what to wait for")


def run(console: Console) -> int:
    """Waits until all named allocations have ended or started; returns the work's own code, of several their common code, else 7.

    Returns 3 for one that has not within `--timeout`.
    """
    args = console.args
    deadline = console.outside.now() + _seconds(args.timeout) if args.timeout else None
    finder = Finder(console)
    waited = [finder.find(reference) for reference in args.allocations]
    codes: list[int] = []
    for at, one in enumerate(waited):
        try:
            codes.append(_wait_for(console, one, deadline))
        except KeyboardInterrupt:
            left = " ".join(label(other) for other in waited[at:])
            console.note(f"No longer waiting; nothing else has changed. Go on with `lattice wait {left}`")
            return exits.INTERRUPTED
    if console.is_document:
        found = [console.cluster.get(ALLOCATIONS, one.metadata.name, one.metadata.namespace, type=dict[str, Any]) for one in waited]
        console.objects("Allocation", found, one=len(args.allocations) == 1)
    return exits.of_several(codes)


def _seconds(timeout: str) -> float:
    """Returns a time limit in seconds. Raises Rejected where it does not parse."""
    try:
        return parse_duration(timeout)
    except Rejected as error:
        raise Rejected(f"--timeout={timeout}: {error.message}", reason="BadInput") from error


def _wait_for(console: Console, one: Allocation, deadline: float | None) -> int:
    """Waits until an allocation has ended, or started if that is asked for, and returns the exit code: of its work, DONE for a start,
    NOT_YET at the deadline (None: no deadline).
    """
    wants_start = console.args.goal == "started"
    reached = until(console, one, lambda now: is_final(now) or (wants_start and bool(now.status.start_time)), deadline=deadline)
    if reached is None:
        console.complain(f"Error: allocation {label(one)} has not {console.args.goal} within {console.args.timeout}")
        return exits.NOT_YET
    if wants_start and reached.status.start_time:
        console.note(f"{label(reached)} {state_line(reached)}")
        return exits.DONE
    console.note(*end_lines(reached))
    return exits.of_work(reached)
