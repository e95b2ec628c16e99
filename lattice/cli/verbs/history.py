"""`lattice history`: shows what ran, how long, how it ended and what it was charged, even after the objects are deleted."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from lattice.accounting.answers import HistoryReport
from lattice.cli import exits
from lattice.cli.gateway import ask_records
from lattice.cli.render.usage import history_lines
from lattice.cli.selection import numbers_and_names

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True
_OF_NAMED = "365d"
"""How far back allocations are searched that the person names."""
_EXAMPLES = """\
Examples:
  lattice history                               your work of the last 7 days
  lattice history --since 2026-11-01 --until 2026-12-01T08:00:00Z
  lattice history 12,15-17                      attempts of these, of the last year
  lattice history --since 90d --state Failed,Requeued
  lattice history 12 --steps                    its launches (srun), as sacct lists steps; 12.3: one of them
  lattice history --tenant physics --user alice -o json      for admins of the tenant"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `history`."""
    parser.epilog, parser.formatter_class = _EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "allocations", nargs="*", metavar="ALLOCATION", help="numbers or names; lists 1,2 and ranges 1-3 (of the last year)"
    )
    parser.add_argument("--name", metavar="NAME", default="", help="only those of this name or job name")
    parser.add_argument("--since", metavar="TIME", default="", help="a time, a day (UTC), or how long ago: 30d, 12h (default: 7d)")
    parser.add_argument("--until", metavar="TIME", default="", help="the same (default: now)")
    parser.add_argument("--state", metavar="STATE,…", default="", help="Completed, Failed, Cancelled, Requeued, Running")
    parser.add_argument("--user", metavar="USER", default="", help="only this user's; me: yours (default without --tenant)")
    parser.add_argument("--project", metavar="PROJECT", default="", help="only this project's")
    parser.add_argument("--limit", metavar="N", default="", help="most rows, the newest ones (default: 100)")
    parser.add_argument("--steps", action="store_true", help="the launches (srun) of the named allocations, a row each")
    parser.add_argument("--attempt", metavar="N", default="", help="with --steps: of this attempt (default: the newest)")
    parser.add_argument("--all", action="store_true", help="of all tenants; for those who may list everybody's work")


def run(console: Console) -> int:
    """Asks the gateway for the history, and shows it; returns DONE."""
    args = console.args
    if args.steps:
        from lattice.cli.launches import show_steps

        return show_steps(console, args.allocations, attempt=args.attempt, limit=args.limit)
    numbers, names = numbers_and_names(args.allocations)
    names += [args.name] if args.name else []
    since = args.since or (_OF_NAMED if numbers or names else "")
    report = ask_records(
        console, "/v1/history", HistoryReport, everybody=args.all, since=since, until=args.until, state=args.state, limit=args.limit,
        number=",".join(numbers), name=",".join(names),
    )  # fmt: skip
    if console.format in ("json", "yaml"):
        console.document(msgspec.to_builtins(report))
    elif console.format == "name":
        console.say(*dict.fromkeys(f"{row.namespace}/{row.name}" for row in report.rows))
    else:
        console.say(*history_lines(report, width=console.outside.columns, wide=console.format == "wide", color=console.color))
        if report.incomplete:
            console.warn([report.incomplete])
    return exits.DONE
