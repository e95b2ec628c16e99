"""Writes the summary of a replay for people, alone or beside that of a first one, with arrows (book, "Step 4: Evaluate")."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lattice.errors import Rejected
from lattice.units import format_duration

NOT_EXECUTED: Final = "not executed yet: the replay starts and ends work, it preempts none"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a report: its label, its path in `report.json`, and how it is written."""

    name: str
    path: tuple[str, ...]
    shown: Callable[[float], str]
    points: bool = False
    """Its change is shown as a difference of percentages, not as a ratio."""


def _percent(value: float) -> str:
    """Returns a share in percent, with one digit."""
    return f"{value:.1%}"


def _time(seconds: float) -> str:
    """Returns a duration in the book's form: `12 min`, `2.1 hr`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} hr"


def _plain(value: float) -> str:
    """Returns a number without digits after the point."""
    return f"{value:,.0f}"


SECTIONS: Final[tuple[tuple[str, tuple[Figure, ...]], ...]] = (
    (
        "Utilisation",
        (
            Figure("of all node-hours", ("utilisation", "share"), _percent, points=True),
            Figure("until the last submission", ("utilisation", "shareWhileSubmitting"), _percent, points=True),
        ),
    ),
    (
        "Wait time",
        (
            Figure("p50", ("waitSeconds", "all", "p50"), _time),
            Figure("p95", ("waitSeconds", "all", "p95"), _time),
            Figure("p99", ("waitSeconds", "all", "p99"), _time),
            Figure("average bounded slowdown", ("boundedSlowdown",), lambda value: f"{value:.2f}"),
        ),
    ),
    ("Fairness (Jain's index)", (Figure("used ÷ entitled", ("fairness", "jain"), lambda value: f"{value:.2f}"),)),
    ("Tenant share deviation", (Figure("max deviation", ("fairness", "maxShareDeviation"), _percent),)),
    (
        "Backfill",
        (
            Figure("backfilled jobs", ("backfill", "jobs"), _plain),
            Figure("idle nodes filled", ("backfill", "idleFilled"), _percent, points=True),
        ),
    ),
    (
        "Reservations",
        (
            Figure("given", ("reservations", "given"), _plain),
            Figure("lost", ("reservations", "lost"), _plain),
            Figure("started later than reserved", ("reservations", "startedLate"), _plain),
        ),
    ),
    ("Preemptions", (Figure("total", ("preemptions", "total"), _plain),)),
)


def summary(found: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> list[str]:
    """Returns the lines of one report (`Measures.document()`), with the changes against `base`, another report, if it is given."""
    jobs = found["jobs"]
    lines = [f"=== RM-Replay Results: {found['name']} ==="]
    counts = f"{jobs['replayed']:,} jobs over {format_duration(found['makespanSeconds'])}"
    extra = [f"{jobs[key]:,} {text}" for key, text in _COUNTS.items() if jobs[key]]
    lines.append(", ".join([counts, *extra]))
    for title, figures in SECTIONS:
        lines.append(f"{title}:")
        if title == "Utilisation":
            lines += _hours(found["utilisation"])
        lines += [_line(figure, found, base) for figure in figures]
        if title == "Wait time":
            lines += _classes(found["waitSeconds"])
        if title == "Preemptions":
            lines.append(f"  {NOT_EXECUTED}")
    slo = found["slo"]
    if slo["targetWaitSeconds"] is not None:
        lines += ["Target wait:", f"  {_percent(slo['met'])} of the jobs waited at most {format_duration(slo['targetWaitSeconds'])}"]
    return lines


_COUNTS: Final = {
    "endedAtWalltime": "ended at their walltime",
    "withdrawn": "withdrawn by their users while they waited",
    "neverStarted": "never started",
}


def _hours(share: Mapping[str, float]) -> list[str]:
    """Returns a line for GPU hours and one for node hours, used and available, where any were available."""
    lines = []
    for word, name in (("GPU", "gpu"), ("Node", "node")):
        used, available = share[f"{name}HoursUsed"], share[f"{name}HoursAvailable"]
        if available:
            digits = 0 if available >= 100 else 3
            lines.append(f"  {word}-hours consumed: {used:,.{digits}f} / {available:,.{digits}f} available ({used / available:.1%})")
    return lines


def _classes(waits: Mapping[str, Any]) -> list[str]:
    """Returns a line for each preemption class; empty where there is only one."""
    by_class = waits["byClass"]
    if len(by_class) < 2:
        return []
    return [
        f"  class {number:<2} p50/p95/p99: {_time(each['p50'])} / {_time(each['p95'])} / {_time(each['p99'])} ({each['jobs']:,} jobs)"
        for number, each in by_class.items()
    ]


def _line(figure: Figure, found: Mapping[str, Any], base: Mapping[str, Any] | None) -> str:
    """Returns the line of one figure, compared with that of `base` unless that is None."""
    value = _at(found, figure.path)
    text = f"  {figure.name}: {figure.shown(value)}"
    if base is None:
        return text
    before = _at(base, figure.path)
    return f"{text} ({base['name']}: {figure.shown(before)}) {change(before, value, points=figure.points)}".rstrip()


def change(before: float, after: float, *, points: bool = False) -> str:
    """Returns the change from one value to another, such as `↑ 20%`; "=" where none shows after rounding.

    `points`: in percentage points; else relative. "↑ from 0" where the first is 0.
    """
    if points:
        delta = (after - before) * 100
        return f"{'↑' if delta > 0 else '↓'} {abs(delta):.1f}%" if abs(delta) >= 0.05 else "="
    if before == after:
        return "="
    if before == 0:
        return "↑ from 0"
    delta = (after / before - 1) * 100
    return f"{'↑' if delta > 0 else '↓'} {abs(delta):.0f}%" if abs(delta) >= 0.5 else "="


def _at(found: Mapping[str, Any], path: Sequence[str]) -> float:
    """Returns the number at a path of a report."""
    value: Any = found
    for step in path:
        value = value[step]
    return float(value)


def check_report(found: Any, name: str) -> Mapping[str, Any]:
    """Returns a report that was read from a file; raises Rejected (`BadReport`) where it is none of this format."""
    if not isinstance(found, dict) or found.get("kind") != "ReplayReport":
        raise Rejected(f"{name} is no report of a replay", reason="BadReport")
    if found.get("format") != 1:
        raise Rejected(f"{name} is a report of format {found.get('format')}, this program reads format 1", reason="BadReport")
    try:
        summary(found)
    except (KeyError, TypeError, ValueError) as error:
        raise Rejected(f"{name} is a report that lacks {error}", reason="BadReport") from error
    return found
