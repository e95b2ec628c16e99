"""`lattice queue`: shows pending work in order, reservations, and the planned use of nodes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import msgspec

from lattice.cli import exits
from lattice.cli.gateway import ask_scheduler
from lattice.cli.render.queues import queue_lines
from lattice.cli.watch import WATCH_SECONDS, again_and_again
from lattice.errors import Rejected, Retry
from lattice.kube.resources import ALLOCATIONS
from lattice.scheduling.queries.answers import Queues
from lattice.units import whole_number

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True
_NOT_REACHED = frozenset({"CacheBehind", "WatchLost", "ParameterInvalid"})
"""Reasons for which the queue is asked for as it is known: a scheduler that is behind, and a gateway that knows no versions."""
_WIDTH = 100
"""Width of the plot where standard output is no terminal."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `queue`."""
    parser.add_argument("queue", nargs="?", metavar="VCLUSTER", default="", help="only this one; default: all, or --vcluster")
    parser.add_argument("--limit", metavar="N", default="", help="most entries of each vcluster (default: 200)")
    parser.add_argument("--no-timeline", action="store_true", help="no plot of the use of nodes to come")
    parser.add_argument("-w", "--watch", action="store_true", help=f"again every {WATCH_SECONDS:.0f} s")


def run(console: Console) -> int:
    """Shows the queues once, or every few seconds with `--watch`, and returns DONE. Raises Rejected for a limit outside 1 to 10000."""
    limit = console.args.limit
    if limit and whole_number(limit, 1, 10_000) is None:
        raise Rejected(f"--limit={limit}: 1 to 10000", reason="BadInput")
    if console.args.watch:
        return again_and_again(console, lambda: _lines(console))
    if console.format in ("json", "yaml"):
        console.document(msgspec.to_builtins(_ask_queues(console)))
    else:
        console.say(*_lines(console))
    return exits.DONE


def _lines(console: Console) -> list[str]:
    """Returns the queues as lines; as names only if that format is asked for."""
    found = _ask_queues(console)
    if console.format == "name":
        return [one.vcluster for one in found.vclusters]
    width = console.outside.columns
    return queue_lines(
        found,
        now=console.outside.now(),
        width=width,
        plot_width=0 if console.args.no_timeline else width or _WIDTH,
        wide=console.format == "wide",
        color=console.color,
    )


def _ask_queues(console: Console) -> Queues:
    """Returns the scheduler's answer on its queues, of one vcluster if it is named, no older than this person's last write where the
    scheduler can be reached in time.

    Where it cannot, an older answer is shown with a note; where the version of that write is unknown, without one.
    """
    args = console.args
    which = args.queue or args.vcluster or ""
    path = "/v1/queue" + (f"/{quote(which, safe='')}" if which else "")
    asked = {"namespaces": console.namespace, **({"limit": args.limit} if args.limit else {})}
    newest = console.own_writes.newest(ALLOCATIONS.plural) if console.own_writes is not None else ""
    if newest:
        try:
            return ask_scheduler(console, f"{path}?{urlencode({**asked, 'version': newest})}", Queues, "is no queue")
        except (Retry, Rejected) as error:
            if error.reason not in _NOT_REACHED:
                raise
            console.note(f"this may not show what you have just written: {error.message}")
    return ask_scheduler(console, f"{path}?{urlencode(asked)}", Queues, "is no queue")
