"""`lattice status`: lists allocations, one line each, or shows everything about one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lattice.cli.selection import StatusQuery, oldest_end, parse_states
from lattice.errors import Rejected
from lattice.kube.resources import ALLOCATIONS
from lattice.models.conditions import FINAL_PHASES, PHASES

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True
_EXAMPLES = """\
Examples:
  lattice status                       mine: what waits, runs, or ended within the hour
  lattice status 12                    everything about one
  lattice status 12 --steps            its launches (srun), as they are now
  lattice status 12,14-17              several
  lattice status --active              without what has ended
  lattice status --all --state=pending
  lattice status --since=24h -o json"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `status`."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "allocations", nargs="*", metavar="ALLOCATION", help="names, numbers, uid prefixes or NAMESPACE/NAME; lists 1,2 and ranges 1-3"
    )
    parser.add_argument("--all", action="store_true", help="of everybody in the tenant")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="of every tenant (needs the right)")
    parser.add_argument("-u", "--user", metavar="USER", help="of this user")
    parser.add_argument("--state", metavar="STATE,…", help=f"of {', '.join(PHASES).lower()}")
    parser.add_argument("--since", metavar="TIME", help="also those that ended since: 24h (ago), or 2026-12-01T08:00:00Z")
    parser.add_argument("--active", action="store_true", help="only what has not ended, as squeue lists it")
    parser.add_argument("--steps", action="store_true", help="the launches (srun) of the named allocations, a row each")
    parser.add_argument("-w", "--watch", action="store_true", help="again every 5 s")


def run(console: Console) -> int:
    """Shows the allocations once, or every few seconds with `--watch`, and returns the exit code."""
    show = _steps if console.args.steps else _named if console.args.allocations else _listed
    if not console.args.watch:
        return show(console)
    from lattice.cli.watch import clear, repeat

    def again() -> None:
        """Clears the screen and shows the answer once more."""
        clear(console)
        show(console)

    return repeat(console, again)


def _steps(console: Console) -> int:
    """Shows the launches of the allocations named on the command line, and returns the exit code."""
    from lattice.cli.launches import show_steps

    return show_steps(console, console.args.allocations)


def _named(console: Console) -> int:
    """Shows the allocations named on the command line, and returns the exit code."""
    from lattice.cli.verbs.status_objects import show_named

    return show_named(console)


def _listed(console: Console) -> int:
    """Shows the list of allocations that the flags ask for: from the gateway if it answers and no document is wanted, else from the API
    server. Without flags it is of the person's own, those that ended more than an hour ago left out.

    Raises Rejected where flags exclude each other.
    """
    args = console.args
    states = parse_states(args.state)
    if args.active:
        if args.since:
            raise Rejected("--active and --since exclude each other: what has not ended has no end", reason="BadInput")
        states = (states or frozenset(PHASES)) - FINAL_PHASES
    after = None if states and not args.since else oldest_end(args.since, console.outside.now())
    mine = not (args.user or args.all or args.all_namespaces)
    namespace = "" if args.all_namespaces else console.namespace
    wanted = StatusQuery(namespace, args.user or "", mine, states, args.vcluster or "", after)
    answer = None if console.is_document else _ask_gateway(console, wanted)
    if answer is None:
        user = console.user if mine else wanted.user
        wanted = StatusQuery(namespace, user, mine, states, wanted.vcluster, after)
        console.cluster.ask_list(ALLOCATIONS, namespace, fields=wanted.fields)
    from lattice.cli.verbs.status_view import show_list  # loaded while the server works on the answer

    return show_list(console, wanted, answer)


def _ask_gateway(console: Console, wanted: StatusQuery) -> bytes | None:
    """Returns the answer with rows from the scheduler's cache; None where the gateway does not give it."""
    from lattice.cli.from_memory import ask_memory

    query = {
        "namespace": wanted.namespace, "user": wanted.user, "mine": "true" if wanted.mine else "", "vcluster": wanted.vcluster,
        "states": ",".join(sorted(wanted.states)), "after": "" if wanted.after is None else repr(wanted.after),
        "wide": "true" if console.format == "wide" else "",
    }  # fmt: skip
    return ask_memory(console, "/v1/status", {"version": ALLOCATIONS.plural}, query)
