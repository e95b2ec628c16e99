"""`lattice logs`: shows the output of an allocation, through the gateway."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from lattice.cli import exits
from lattice.cli.find import Finder
from lattice.cli.follow import until
from lattice.cli.gateway import open_logs
from lattice.cli.render.allocations import label, state_line
from lattice.cli.render.log_lines import End, LineAssembler, Printed, Remark, Shown
from lattice.cli.selection import oldest_end
from lattice.errors import NotFound, Rejected, Retry
from lattice.kube.resources import ALLOCATIONS
from lattice.scheduling.queries.status_rows import is_final
from lattice.units import format_time, is_digits, whole_number
from lattice.views import Allocation
from lattice.views.work import Work

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True
_EXAMPLES = """\
Examples:
  lattice logs -f 12                   until the work ends
  lattice logs 12 --node=nid001 --tail=50
  lattice logs 12 --attempt=1          of an attempt before the last requeue
  lattice logs 12 --stderr --since=10m --timestamps"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `logs`."""
    parser.epilog = _EXAMPLES
    parser.add_argument("allocation", metavar="ALLOCATION", help="name, number, uid prefix or NAMESPACE/NAME")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the work ends; waits for a pending allocation")
    parser.add_argument("--node", metavar="NODE", default="", help="only what this node printed")
    parser.add_argument("--stderr", action="store_true", help="only standard error")
    parser.add_argument("--stdout", action="store_true", help="only standard output")
    parser.add_argument("--attempt", metavar="N", default="", help="of this attempt (default: the newest that has nodes)")
    parser.add_argument("--tail", metavar="N", default="", help="only the last N lines of each node")
    parser.add_argument("--since", metavar="TIME", default="", help="only since: 10m (ago), or 2026-12-01T08:00:00Z")
    parser.add_argument("--timestamps", action="store_true", help="the time in front of each line")


def run(console: Console) -> int:
    """Prints the output until the work ends (`-f`), or what there is so far; `-f` waits for work that has not started; returns the exit
    code, INTERRUPTED after a signal.

    Without `-f` such work is an error: 3 where it may still start, 1 where it has ended, also with `-f`. With `--attempt` neither is looked
    at; raises NotFound for one that has no output.
    """
    args = console.args
    if args.tail and not is_digits(args.tail):
        raise Rejected(f"--tail={args.tail}: not a number of lines", reason="BadInput")
    if args.output in ("yaml", "name"):
        raise Rejected(
            f"-o {args.output} is not for output: lines are printed as they are, or with -o json as one object each", reason="BadInput"
        )
    since = _since(args.since, console.outside.now())
    one = Finder(console).find(args.allocation)
    if args.attempt:
        _check_attempt(one, args.attempt)
    elif not _has_started(one):
        if _earlier(one):
            console.note(f"Note: attempt {one.status.attempt} has not started: {state_line(one)}; earlier output: {_earlier(one)}")
        if not args.follow or is_final(one):
            return _say_not_started(console, one)
        console.note(f"Note: waiting for allocation {label(one)} to start: {state_line(one)}")
        try:
            one = until(console, one, lambda now: _has_started(now) or is_final(now)) or one
        except KeyboardInterrupt:
            return _say_detached(console, one)
    work = console.cluster.get(ALLOCATIONS, one.metadata.name, one.metadata.namespace, type=Work)
    several = one.status.node_count > 1 and not work.spec.on_head_only
    return _stream(console, one, prefix=several and not args.node, since=since)


def _say_not_started(console: Console, one: Allocation) -> int:
    """Says that there is no output, and why: FAILED for work that ended before it started, NOT_YET for work that may still start."""
    if is_final(one):
        said = f"Error: allocation {label(one)} ended before it started: {state_line(one)}"
        console.complain(said, f"  Hint: `lattice why {label(one)}` says why")
        return exits.FAILED
    console.complain(f"Error: allocation {label(one)} has not started: {state_line(one)}", "  Hint: -f waits for it")
    return exits.NOT_YET


def _earlier(one: Allocation) -> str:
    """Returns the commands that show the output of earlier attempts; empty: there were none."""
    ran = [entry.attempt for entry in one.status.attempts if entry.start_time]
    return ", ".join(f"`lattice logs {label(one)} --attempt {attempt}`" for attempt in ran)


def _check_attempt(one: Allocation, wanted: str) -> None:
    """Raises Rejected or NotFound, naming those that exist, for an attempt that the allocation did not have."""
    if not whole_number(wanted, 1):
        raise Rejected(f"--attempt={wanted}: not the number of an attempt", reason="BadInput")
    known = [entry.attempt for entry in one.status.attempts if entry.nodes] + ([one.status.attempt] if _has_started(one) else [])
    if int(wanted) not in known:
        shown = ", ".join(map(str, known)) or "none"
        raise NotFound(f"allocation {label(one)} has no output of attempt {wanted}; attempts that ran: {shown}", reason="AttemptUnknown")


def _has_started(one: Allocation) -> bool:
    """Tells whether an allocation has a start time."""
    return bool(one.status.start_time)


def _since(text: str, now: float) -> str:
    """Returns the time, as text, since which output is asked for; empty where none is given. Raises Rejected where it does not parse."""
    return format_time(oldest_end(text, now)) if text else ""


def _stream(console: Console, one: Allocation, *, prefix: bool, since: str) -> int:
    """Prints the output of an allocation as it comes, whole lines at a time (as JSON each record), and returns DONE, or INTERRUPTED.

    Raises Retry where the stream breaks, or, while following, ends before the work does.
    """
    args = console.args
    stream = open_logs(
        console,
        one.metadata.namespace,
        one.metadata.name,
        follow="true" if args.follow else "",
        node=args.node,
        stream="stderr" if args.stderr and not args.stdout else "stdout" if args.stdout and not args.stderr else "",
        tail=args.tail,
        since=since,
        attempt=args.attempt,
    )
    assembler, ended, latest = LineAssembler(prefix, args.timestamps), False, ""
    try:
        for line in stream.lines():
            record = json.loads(line)
            latest = str(record.get("time", latest))
            if console.format == "json":
                console.say(line.decode(errors="replace").rstrip("\n"))
                ended = ended or "end" in record
            else:
                for shown in assembler.feed(record):
                    ended = _show(console, shown) or ended
            console.outside.stdout.flush()
    except KeyboardInterrupt:
        return _say_detached(console, one)
    except ValueError as error:
        raise Retry(f"the gateway sent what is no JSON: {error}", reason="StreamBroken") from error
    except Retry as error:
        raise _broken_stream(one, latest, error.message) from error
    finally:
        stream.close()
    for shown in assembler.flush():
        _show(console, shown)
    if args.follow and not ended:
        raise _broken_stream(one, latest, "the stream ended before the work did")
    return exits.DONE


def _broken_stream(one: Allocation, latest: str, why: str) -> Retry:
    """Returns the error of a stream that ended before the work, with the command that continues it."""
    since = f" --since={_moment(latest)}" if latest else ""
    return Retry(f"{why}. Hint: the work goes on; go on reading with `lattice logs -f {label(one)}{since}`", reason="StreamBroken")


def _moment(time: str) -> str:
    """Returns a record's time in whole seconds: continuing from it may repeat lines of that second, but loses none."""
    try:
        return format_time(int(float(time)))
    except ValueError:
        return time


def _say_detached(console: Console, one: Allocation) -> int:
    """Says that the allocation goes on, and returns INTERRUPTED."""
    verb = "lattice logs -f" if console.args.follow else "lattice logs"
    console.note(f"Detached: allocation {label(one)} goes on. Its output: `{verb} {label(one)}`")
    return exits.INTERRUPTED


def _show(console: Console, shown: Shown) -> bool:
    """Prints one piece of the output; returns whether it is the end."""
    match shown:
        case Printed(text):
            console.raw(text + "\n")  # the work's own bytes, as `cat` of its output would show them
        case Remark(text):
            console.outside.stdout.flush()
            console.complain(f"Note: {text}")
        case End():
            return True
    return False
