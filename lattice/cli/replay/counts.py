"""Replays a trace with the counts-only engine, and reports waits and slowdowns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lattice.cli import exits
from lattice.cli.files import write_whole
from lattice.cli.render.text import fields, span
from lattice.cli.replay.flags import RUN_TIME
from lattice.errors import Rejected
from lattice.replay.engine import Estimates, Policy, simulate
from lattice.replay.report import Report, report
from lattice.replay.swf import Trace, parse
from lattice.replay.workload import Left, Machine, Workload, select

if TYPE_CHECKING:
    from lattice.cli.console import Console
    from lattice.cli.replay.progress import Progress


def run(console: Console, lines: Iterable[bytes], progress: Progress) -> int:
    """Reads the trace, replays it, writes the schedule if a file is named, prints the report, and returns DONE; nothing is printed before
    all of that is done.

    Raises Rejected for flags or a trace that cannot be used.
    """
    args = console.args
    policy, estimates = Policy(args.policy or Policy.EASY), Estimates(args.estimates or Estimates.USER)
    schedule = Path(args.schedule) if args.schedule else None
    if args.schedule == "-":
        raise Rejected("--schedule=- names no file: --schedule=/dev/stdout prints it before the numbers", reason="BadInput")
    if schedule is not None and schedule.resolve() == Path(args.trace).resolve():
        raise Rejected(f"--schedule={args.schedule} would overwrite the trace: name another file", reason="BadInput")
    if schedule is not None and not schedule.resolve().parent.is_dir():
        raise Rejected(f"--schedule: {schedule} cannot be written: there is no folder {schedule.resolve().parent}", reason="BadInput")
    trace = parse(lines)
    if args.nodes is None:
        raise nodes_missing(trace)
    machine = Machine(args.nodes, args.procs_per_node or 1)
    workload, left = select(trace, machine, run_stands_in=args.missing_estimates == RUN_TIME)
    start = simulate(workload, machine.nodes, policy, estimates, lambda done: progress.show("replaying", done / len(workload)))
    found = report(workload, start, machine.nodes)
    progress.close()
    if schedule is not None:
        write_whole(schedule, _rows(workload, start), "--schedule")
    say_what_was_left_out(console, trace, machine, left)
    if console.is_document:
        console.document(found.document())
    else:
        console.say(*_lines(found, machine, policy, estimates))
    return exits.DONE


def _rows(workload: Workload, start: Sequence[int]) -> Iterator[bytes]:
    """Yields the lines of a CSV file: a head, then job, submit, start, end and processors of each job."""
    yield b"job,submit,start,end,procs\n"
    for job, submit, began, ran, procs in zip(workload.job, workload.submit, start, workload.run, workload.procs, strict=True):
        yield f"{job},{submit},{began},{began + ran},{procs}\n".encode()


def say_what_was_left_out(console: Console, trace: Trace, machine: Machine, left: Left) -> None:
    """Warns of jobs that the filter left out or changed, and of a header that describes another machine."""
    if left.out.counts:
        console.warn([f"{left.out.total} of {len(trace.job)} jobs left out: {', '.join(left.out.phrases())}"])
    if left.changed.counts:
        console.note(f"Note: {'; '.join(left.changed.phrases())}")
    named = trace.header.get("maxprocs", 0)
    if named and named != machine.procs:
        hint = f" (--procs-per-node={named // machine.nodes} makes them equal)" if named % machine.nodes == 0 else ""
        console.note(f"Note: the log is of a machine with {named} processors, this replay is on {machine.procs}{hint}")


def nodes_missing(trace: Trace) -> Rejected:
    """Returns the refusal of a trace without `--nodes`, with what its header says of the machine."""
    procs, nodes = trace.header.get("maxprocs", 0), trace.header.get("maxnodes", 0)
    said = [f"MaxNodes: {nodes}"] * bool(nodes) + [f"MaxProcs: {procs}"] * bool(procs)
    meant = [f"--nodes={procs or nodes}"]
    if nodes and procs > nodes and procs % nodes == 0:
        meant.append(f"--nodes={nodes} --procs-per-node={procs // nodes} where jobs hold whole nodes")
    hint = f"; the log's header says {', '.join(said)}, which is {' or '.join(meant)}" if said else ""
    return Rejected(f"--nodes is missing: how many nodes the machine has{hint}", reason="BadInput")


def _lines(found: Report, machine: Machine, policy: Policy, estimates: Estimates) -> list[str]:
    """Returns the lines of the report."""
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
