"""`lattice usage`: shows hours used, by day and by whom, and budgets: when they are exhausted, and what happens then."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from lattice.accounting.answers import UsageReport
from lattice.cli import exits
from lattice.cli.gateway import ask_records
from lattice.cli.render.usage import usage_lines

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True
_EXAMPLES = """\
Examples:
  lattice usage                          your own hours of the last 30 days, and the budgets that they count in
  lattice usage --tenant physics         the tenant's; users are named for its admins
  lattice usage --tenant physics --project lhc --days 90
  lattice usage --tenant physics -o json"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `usage`."""
    parser.epilog, parser.formatter_class = _EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--user", metavar="USER", default="", help="only this user's; me: yours (default without --tenant)")
    parser.add_argument("--project", metavar="PROJECT", default="", help="only this project's")
    parser.add_argument("--days", metavar="N", default="", help="of the last N days (default: 30)")
    parser.add_argument("--all", action="store_true", help="of all tenants; for those who may list everybody's work")


def run(console: Console) -> int:
    """Asks the gateway for usage, and shows it; returns DONE."""
    args = console.args
    report = ask_records(console, "/v1/usage", UsageReport, everybody=args.all, days=args.days)
    if console.format in ("json", "yaml"):
        console.document(msgspec.to_builtins(report))
    elif console.format == "name":
        console.say(*(part.name for part in (report.users or report.projects or report.tenants)))
    else:
        console.say(*usage_lines(report, width=console.outside.columns, wide=console.format == "wide", color=console.color))
        if report.incomplete:
            console.warn([report.incomplete])
    return exits.DONE
