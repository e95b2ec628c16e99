"""`lattice replay`: a workload log on a machine of N nodes under a policy, and what users would have seen."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from lattice.cli import exits
from lattice.cli.progress import Progress
from lattice.cli.render import fields, span
from lattice.cli.trace_file import trace_lines
from lattice.errors import Rejected
from lattice.replay.engine import Estimates, Policy, simulate
from lattice.replay.report import Report, report
from lattice.replay.swf import Trace, parse
from lattice.replay.workload import Left, Machine, Workload, select

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True
MOST_NODES: Final = 10**9


def arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `replay`."""
    parser.add_argument("trace", metavar="TRACE", help="a log in the Standard Workload Format, plain or gzip; - for standard input")
    parser.add_argument("--nodes", required=True, type=_count, metavar="N", help="nodes of the machine")
    parser.add_argument(
        "--procs-per-node", type=_count, default=1, metavar="K", help="processors of a node, default 1; jobs hold whole nodes"
    )
    parser.add_argument(
        "--policy", choices=[policy.value for policy in Policy], default=Policy.EASY.value, help="how waiting jobs start, default easy"
    )
    parser.add_argument(
        "--estimates",
        choices=[each.value for each in Estimates],
        default=Estimates.USER.value,
        help="run times the scheduler plans with, default user",
    )
    parser.add_argument("--schedule", metavar="OUT.csv", help="write each job's start there: job,submit,start,end,procs")


def run(console: Console) -> int:
    """Read, replay, write the schedule, say the numbers; nothing is said before all of it is done."""
    args = console.args
    if console.format == "name":
        raise Rejected("a replay has no names to print: use -o table, json or yaml", reason="BadInput")
    machine = Machine(args.nodes, args.procs_per_node)
    policy, estimates = Policy(args.policy), Estimates(args.estimates)
    schedule = Path(args.schedule) if args.schedule else None
    if schedule is not None and schedule.resolve() == Path(args.trace).resolve():
        raise Rejected(f"--schedule={args.schedule} would overwrite the trace: name another file", reason="BadInput")
    progress = Progress(console.outside.stderr, console.outside.now, quiet=args.quiet)
    try:
        trace = parse(trace_lines(args.trace, console.outside.stdin, progress))
        workload, left = select(trace, machine)
        start = simulate(workload, machine.nodes, policy, estimates, lambda done: progress.show("replaying", done / len(workload)))
        found = report(workload, start, machine.nodes)
    finally:
        progress.close()
    if schedule is not None:
        write_schedule(schedule, workload, start)
    _say_what_was_left_out(console, trace, machine, left)
    if console.is_document:
        console.document(found.document())
    else:
        console.say(*_lines(found, machine, policy, estimates))
    return exits.DONE


def write_schedule(path: Path, workload: Workload, start: Sequence[int]) -> None:
    """One line a job in order of submission; a file appears whole or not at all, a device or pipe is written to."""
    path = path.resolve()
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("w", encoding="ascii", newline="") as stream:
                stream.writelines(_rows(workload, start))
            return
        with _unfinished(path) as file:
            file.writelines(_rows(workload, start))
    except OSError as error:
        raise Rejected(f"--schedule: {path} cannot be written: {error.strerror}", reason="BadInput") from error


def _rows(workload: Workload, start: Sequence[int]) -> Iterator[str]:
    yield "job,submit,start,end,procs\n"
    for job, submit, began, ran, procs in zip(workload.job, workload.submit, start, workload.run, workload.procs, strict=True):
        yield f"{job},{submit},{began},{began + ran},{procs}\n"


@contextmanager
def _unfinished(path: Path) -> Iterator[TextIO]:
    """A file beside `path` that takes its place when everything is written, and vanishes otherwise."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("x", encoding="ascii", newline="") as file:
            yield file
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:12]) <= MOST_NODES or len(text) > 12:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {MOST_NODES}")
    return int(text)


def _say_what_was_left_out(console: Console, trace: Trace, machine: Machine, left: Left) -> None:
    """The counts of the filter, and a header that speaks of another machine."""
    if left.out:
        console.warn([f"{left.out} of {len(trace.job)} jobs left out: {', '.join(left.why(machine))}"])
    if left.changes():
        console.note(f"Note: {'; '.join(left.changes())}")
    named = trace.header.get("maxprocs", 0)
    if named and named != machine.procs:
        console.note(f"Note: the log is of a machine with {named} processors, this replay is on {machine.procs}")


def _lines(found: Report, machine: Machine, policy: Policy, estimates: Estimates) -> list[str]:
    """The report for people."""
    nodes = f"{machine.nodes} nodes" + (f" of {machine.procs_per_node} processors" if machine.procs_per_node > 1 else "")
    planned = "" if policy is Policy.FCFS else f", {estimates} estimates"
    waits = (found.wait_p50, found.wait_p95, found.wait_p99)
    slow = (found.avg_bounded_slowdown, found.max_bounded_slowdown, found.rms_bounded_slowdown)
    return fields(
        [
            ("Replay", f"{found.jobs} jobs on {nodes}, {policy}{planned}"),
            ("Wait", f"average {found.avg_wait:.2f} s ({span(found.avg_wait)})"),
            ("Wait p50/p95/p99", f"{' / '.join(str(wait) for wait in waits)} s ({' / '.join(span(wait) for wait in waits)})"),
            ("Flow time", f"average {found.avg_flow:.3f} s ({span(found.avg_flow)})"),
            ("Bounded slowdown", f"average {slow[0]:.4f}, maximum {slow[1]:.1f}, RMS {slow[2]:.3f}"),
            ("Utilisation", f"{found.utilisation:.4f}"),
            ("Makespan", f"{found.makespan} s ({span(found.makespan)})"),
        ]
    )
