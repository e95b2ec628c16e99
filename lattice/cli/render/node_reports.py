"""The reports of nodes as people read them: the agent and its node, then each attempt with steps, limits, use and mounts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lattice.cli.render.nodes import node_fields
from lattice.cli.render.text import Column, age, fields, hang, memory, plural, span, table
from lattice.lifecycle.node_report import AttemptRow, CacheNumbers, NodeReport, OutputEnd
from lattice.lifecycle.preparation import DONE, UNDONE, StepRow
from lattice.units import format_time, is_digits
from lattice.views import Node
from lattice.views.allocation import Condition

_CONDITIONS = (
    Column("CONDITION"),
    Column("STATUS"),
    Column("SINCE", right=True, leave=1),
    Column("REASON"),
    Column("MESSAGE", shrink_to=20),
)
_STEPS = (Column("STEP"), Column("STATE"), Column("BEGAN", leave=1), Column("TOOK", right=True), Column("BYTES", right=True))
_MOUNTS = (
    Column("MOUNT", shrink_to=12, cut_middle=True),
    Column("TYPE", leave=1),
    Column("SOURCE", shrink_to=16, cut_middle=True),
)
_INDENT = "  "
_EXACT_BELOW = 10.0
"""Seconds below which a time is shown with its fractions."""


def node_page(node: Node, report: NodeReport, home: Mapping[str, str], now: float, width: int) -> list[str]:
    """Returns the lines of `lattice node status`: the node, its conditions, its agent, and every attempt that the reader may see."""
    lines = fields([*node_fields(node, home, now), *report_fields(report, now)], width)
    lines += ["", *condition_table(node.status.conditions, now, width)] if node.status.conditions else []
    for attempt in report.attempts:
        lines += ["", *attempt_lines(attempt, now, width)]
    return lines


def report_fields(report: NodeReport, now: float) -> list[tuple[str, str]]:
    """Returns the names and values of what a node's agent says of itself, maybe empty values; one line with the reason where it does not
    answer.
    """
    if report.message:
        return [("Not known", report.message)]
    return [
        ("Agent since", _when(report.since, now)),
        ("Heartbeat", f"{span(now - report.heartbeat)} ago" if report.heartbeat else "none was acknowledged yet"),
        ("Problem", report.flaw),
        ("Reserved", _reserved(report)),
        ("Cgroups", _cgroups(report)),
        ("Cache", _cache(report.cache)),
        ("Hooks", _hooks(report)),
        ("Scratch", report.scratch),
        ("Containers", report.containers),
        ("Attempts", _attempts(report)),
    ]


def condition_table(conditions: Sequence[Condition], now: float, width: int) -> list[str]:
    """Returns a line for each condition of an object."""
    rows = [(one.type, one.status, age(one.last_transition_time, now), one.reason, one.message) for one in conditions]
    return table(_CONDITIONS, rows, width=width)


def attempt_lines(row: AttemptRow, now: float, width: int) -> list[str]:
    """Returns the lines on one attempt of a node: how it stands, its limits, its use, its steps with times, its mounts."""
    who = f"{row.number or ''} {row.namespace}/{row.name}".strip() if row.name else f"uid {row.uid}"
    running = f" for {span(now - row.started)}" if row.started and row.stage == "Running" else ""
    lines = hang(f"{who}, attempt {row.attempt}: {row.stage}{running}", width)
    inner = max(0, width - len(_INDENT))
    told = fields([("Message", row.message), ("Limits", _limits(row)), ("Used", _used(row))], inner)
    if row.steps:
        told += table(_STEPS, [_step(step) for step in row.steps], width=inner)
    if row.mounts:
        told += table(_MOUNTS, [(one.target, one.type, one.source) for one in row.mounts], width=inner)
    if row.mounts_left_out:
        told.append(f"and {plural(row.mounts_left_out, 'mount')} more")
    return lines + [_INDENT + line for line in told]


def output_lines(output: OutputEnd) -> list[str]:
    """Returns the last lines of standard error on one node under a heading; one line where there are none."""
    if not output.lines:
        return [f"Standard error on {output.node}: {output.message or 'nothing'}"]
    more = [f"{_INDENT}({output.message})"] if output.message else []
    return [f"Standard error on {output.node}, the last lines:", *(_INDENT + line for line in output.lines), *more]


def _when(at: float, now: float) -> str:
    """Returns a time with how long ago it was; empty for 0."""
    return f"{format_time(int(at))} ({span(now - at)})" if at else ""


def _reserved(report: NodeReport) -> str:
    """Returns the CPUs and the memory that a node keeps for itself; empty for none."""
    parts = (f"CPUs {report.reserved_cpus}" if report.reserved_cpus else "", memory(report.reserved_memory))
    return ", ".join(filter(None, parts))


def _cgroups(report: NodeReport) -> str:
    """Returns which cgroups a node has, in words, and which limits its machine refuses."""
    words = {"unified": "v2", "hybrid": "v2 beside v1", "processes": "none: no limit of a cgroup holds here"}
    missing = f"; this machine refuses limits of {', '.join(report.unlimited)}" if report.unlimited else ""
    return words.get(report.cgroups, report.cgroups) + missing


def _cache(cache: CacheNumbers) -> str:
    """Returns how full a node's image cache is, in words; its message where it has one, empty where no cache is known."""
    if cache.message:
        return cache.message
    if not cache.directory:
        return ""
    pulls = f", {plural(cache.pulls, 'pull')} under way" if cache.pulls else ""
    held = f"{plural(cache.images, 'image')}, {memory(cache.bytes) or '0'}"
    return f"{held}; {memory(cache.free) or '0'} of {memory(cache.total)} free{pulls}\nin {cache.directory}"


def _hooks(report: NodeReport) -> str:
    """Returns the names of a node's hooks, or why they cannot be read; empty where it has none."""
    if report.hooks_message:
        return report.hooks_message
    parts = (("prologue", report.prologue_hooks), ("epilogue", report.epilogue_hooks))
    return "; ".join(f"{word} {', '.join(names)}" for word, names in parts if names)


def _attempts(report: NodeReport) -> str:
    """Returns how many attempts are shown, hidden and left out."""
    hidden = f"{len(report.attempts)} shown, {report.hidden} of work that you may not see" if report.hidden else str(len(report.attempts))
    return hidden + (f", {report.left_out} not told" if report.left_out else "")


def _limits(row: AttemptRow) -> str:
    """Returns the limits of an attempt, in words; empty for none."""
    words = {"pids": "processes", "cpuset": "CPUs"}
    return ", ".join(f"{words.get(name, name)} {_limit(name, limit)}" for name, limit in sorted(row.limits.items()))


def _limit(name: str, limit: str) -> str:
    """Returns a limit's text; that of `memory` as a quantity where it is a number."""
    return memory(int(limit)) if name == "memory" and is_digits(limit, 20) else limit


def _used(row: AttemptRow) -> str:
    """Returns what an attempt has used, in words; empty for nothing."""
    parts = (
        f"{row.processes} {'process' if row.processes == 1 else 'processes'}" if row.processes else "",
        f"{row.cpu_seconds:,.2f} CPU seconds" if row.cpu_seconds else "",
        f"{memory(row.peak_memory)} of memory at the most" if row.peak_memory else "",
        f"the kernel killed {row.oom_kills} for want of memory" if row.oom_kills else "",
    )
    return ", ".join(filter(None, parts))


def _step(step: StepRow) -> tuple[str, ...]:
    """Returns the cells of one step."""
    began = format_time(int(step.begun)) if step.begun else ""
    size = f"{memory(step.bytes) or 0} of {memory(step.size)}" if step.size else ""
    return step.name, step.state, began, _took(step), size


def _took(step: StepRow) -> str:
    """Returns how long a step took that is done, or was before it was undone; empty: it is not, or nobody noted it."""
    if step.state not in (DONE, UNDONE) or not (step.begun and step.done):
        return ""
    seconds = max(0.0, step.done - step.begun)
    return f"{seconds:.3f} s" if seconds < _EXACT_BELOW else span(seconds)


def node_summary(report: NodeReport) -> str:
    """Returns a line on a node for the page of an allocation: its state, and why the node should be given no work or does not answer."""
    return ": ".join(filter(None, (f"{report.node} is {report.state or 'not registered'}", report.message or report.flaw)))


def report_lines(reports: Sequence[NodeReport], now: float, width: int) -> Iterator[str]:
    """Yields the lines of all nodes of an attempt: a summary for each, then what it knows of the attempt."""
    for report in reports:
        yield from hang(node_summary(report), width)
        for row in report.attempts:
            yield from (_INDENT + line for line in attempt_lines(row, now, max(0, width - len(_INDENT))))
